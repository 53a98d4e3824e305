/*
 * What the hooks do while the node's agent does not answer: a job without slices is none of its business, and runs.
 *
 * The prolog asks Slurm itself. A job that asks for slices goes back into the queue, or is cancelled; for any other it
 * leaves a mark, SOCKET.plain/JOB with "START UID" in it, which its task prologs go by. The agent leaves the same mark for
 * jobs that it has seen. Each prolog takes an older mark away before anything else, so a mark is of the job's present run.
 *
 * A job that may be running at another site goes back too, whatever it asks for: its AdminComment says so. A slurmctld that
 * was killed may have forgotten that together with the job's start there: who knows better has a while to say it again.
 */
#define _GNU_SOURCE
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SLURM_MS
#define SLURM_MS 5000 /* longest that one command of Slurm's may take */
#endif
#ifndef ANSWER_BYTES
#define ANSWER_BYTES (64 << 20) /* most of its answer that is read: 10,000 elements of an array, with a row each */
#endif
#define NUMBER 12          /* width of a column of numbers */
#define REQUEST 2048       /* width of what a job asks for; what fills it is taken for slices */
#define COMMENT 4096       /* width of its AdminComment; what fills it is taken for what would be looked for */
#ifndef AGAIN_MS
#define AGAIN_MS 2000 /* between two tries to have a job sent back */
#endif
#ifndef SETTLE_S
#define SETTLE_S 10 /* after slurmctld's start: three looks of a federation's daemon at what it has open */
#endif
#define ELSEWHERE "fed:{\"open\":1" /* the note of an attempt at another site that may not be over */

#define UNKNOWN_JOB "invalid job id" /* what squeue says, from slurmctld */
#define BOOT_TIME "BOOT_TIME"
#define VIRTUAL "cloud-" /* what the names of virtual nodes begin with */

static const char FIELDS[] = "JobID:12,UserID:12,SubmitTime:12,StartTime:12,BatchFlag:12,Requeue:12,ArrayJobID:12,ArrayTaskID:12,"
                             "HetJobID:12,State:12,tres-per-node:2048,admin_comment:4096";
enum column { JOB, USER, SUBMIT, START, BATCH, REQUEUE, ARRAY, ELEMENT, HET, STATE, COLUMNS };

enum word { SILENT, UNKNOWN, KNOWN }; /* Slurm's, on a job */

struct run {
    long number[COLUMNS]; /* -1 where there is none */
    bool slices;
    bool elsewhere; /* it may be running at another site */
    bool over;
};

static bool mark_path(const struct site *site, long job, char *path, size_t size)
{
    return job > 0 && snprintf(path, size, "%s.plain/%ld", site->socket, job) < (int)size;
}

void forget_mark(const struct site *site, long job)
{
    char path[PATH_MAX];
    if (mark_path(site, job, path, sizeof path))
        unlink(path);
}

bool has_mark(const struct site *site, long job)
{
    char path[PATH_MAX];
    struct stat is;
    return mark_path(site, job, path, sizeof path) && lstat(path, &is) == 0 && S_ISREG(is.st_mode) && is.st_uid == 0;
}

/* The folder can be passed by all and listed by root: a task prolog, which is a user's, looks for one name. */
static bool leave_mark(const struct site *site, long job, const struct run *run)
{
    char folder[PATH_MAX], path[PATH_MAX], text[64];
    snprintf(folder, sizeof folder, "%s.plain", site->socket);
    char *slash = strrchr(folder, '/');
    *slash = '\0';
    mkdir(folder, 0755);
    *slash = '/';
    if ((mkdir(folder, 0711) == 0 && chmod(folder, 0711) != 0) || !mark_path(site, job, path, sizeof path))
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return false;
    int n = snprintf(text, sizeof text, "%ld %ld\n", run->number[START], run->number[USER]);
    bool whole = write(fd, text, (size_t)n) == n;
    return close(fd) == 0 && whole;
}

static char none[1];
static char *answer = none; /* of Slurm's last command, with its errors, also when it failed; a task needs no room for it */

/* Runs one of Slurm's commands, in an environment of its own, for SLURM_MS at the most. Its answer; NULL: it failed. */
static char *slurm(const struct site *site, const char *command, const char *const more[])
{
    char path[PATH_MAX + 32], conf[PATH_MAX + 16] = "";
    const char *argv[16] = {command}, *env[4] = {"LC_ALL=C", "SLURM_TIME_FORMAT=%s"};
    long long until = now_ms() + SLURM_MS;
    int out[2], status = -1;
    size_t held = 0;

    for (int i = 0; more[i] != NULL && i < 14; i++)
        argv[i + 1] = more[i];
    if (getenv("SLURM_CONF") != NULL && snprintf(conf, sizeof conf, "SLURM_CONF=%s", getenv("SLURM_CONF")) < (int)sizeof conf)
        env[2] = conf; /* slurmd's own word: a prolog's environment is root's but for SPANK_ names */
    snprintf(path, sizeof path, "%s/%s", site->bin, command);
    if (answer == none && (answer = malloc(ANSWER_BYTES)) == NULL)
        answer = none;
    *answer = '\0';
    if (answer == none || pipe2(out, O_CLOEXEC) != 0)
        return NULL;
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_RDWR);
        if (nowhere < 0 || dup2(nowhere, 0) < 0 || dup2(out[1], 1) < 0 || dup2(out[1], 2) < 0)
            _exit(127);
        execve(path, (char *const *)argv, (char *const *)env);
        _exit(127);
    }
    close(out[1]);
    for (ssize_t n = child < 0 ? 0 : 1; n > 0;) {
        struct pollfd wait = {.fd = out[0], .events = POLLIN};
        long long left = until - now_ms();
        if (left <= 0 || held == ANSWER_BYTES - 1) {
            kill(child, SIGKILL);
            break;
        }
        if (poll(&wait, 1, (int)left) > 0 && (n = read(out[0], answer + held, ANSWER_BYTES - 1 - held)) > 0)
            held += (size_t)n;
    }
    close(out[0]);
    if (child < 0)
        return NULL;
    while (waitpid(child, &status, WNOHANG) == 0) { /* it closed its stdout: it is about to end */
        if (now_ms() >= until)
            kill(child, SIGKILL);
        poll(NULL, 0, 1);
    }
    answer[held] = '\0';
    return held < ANSWER_BYTES - 1 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? answer : NULL;
}

/* Is the GRES among them? "gres:vgpu:m20:1,gres/vgpu_mem=2": with or without Slurm's own word before a name. */
static bool asks_for(const char *request, const char *gres)
{
    size_t size = strlen(gres);
    for (const char *at = request; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, "gres:", 5) == 0 || strncmp(at, "gres/", 5) == 0)
            at += 5;
        if (strncmp(at, gres, size) == 0 && strchr(":=, ", at[size]) != NULL) /* strchr finds the end of the text too */
            return true;
    }
    return false;
}

static bool read_row(const struct site *site, const char *row, long job, struct run *run)
{
    if (strlen(row) < COLUMNS * NUMBER)
        return false;
    for (int i = 0; i < COLUMNS; i++) {
        char text[NUMBER + 1] = "";
        memcpy(text, row + i * NUMBER, NUMBER);
        text[strcspn(text, " ")] = '\0';
        run->number[i] = integer(text, LONG_MAX);
        if (i == STATE)
            run->over = strcmp(text, "RUNNING") != 0 && strcmp(text, "CONFIGURING") != 0 && strcmp(text, "SUSPENDED") != 0;
    }
    const char *request = row + COLUMNS * NUMBER;
    size_t size = strlen(request);
    run->slices = asks_for(request, site->gres) || (size >= REQUEST && request[REQUEST - 1] != ' ');
    run->elsewhere = strstr(request, ELSEWHERE) != NULL || (size >= REQUEST + COMMENT && request[REQUEST + COMMENT - 1] != ' ');
    return run->number[JOB] == job;
}

/* What an AdminComment with a line break goes on with: no row, which begins with a number. */
static bool goes_on(const char *row)
{
    return strlen(row) < NUMBER || *row < '0' || *row > '9';
}

/* No answer, or one of somebody who has none, is no word that the job is unknown. */
static enum word ask_slurm(const struct site *site, long job, struct run *run)
{
    char jobs[32], *next;
    snprintf(jobs, sizeof jobs, "--jobs=%ld", job);
    char *text = slurm(site, "squeue", (const char *const[]){"--noheader", "--all", "--local", jobs, "-O", FIELDS, NULL});
    bool found = false;
    for (char *row = text ? strtok_r(text, "\n", &next) : NULL; row != NULL; row = strtok_r(NULL, "\n", &next)) {
        if (found && !goes_on(row))
            break;
        if (found)
            run->elsewhere |= strstr(row, ELSEWHERE) != NULL;
        else
            found = read_row(site, row, job, run);
    }
    if (found)
        return KNOWN;
    return text != NULL || strcasestr(answer, UNKNOWN_JOB) != NULL ? UNKNOWN : SILENT;
}

/* Has Slurm nodes whose jobs run elsewhere? No answer is taken for yes. */
static bool bursts(const struct site *site)
{
    const char *text = slurm(site, "scontrol", (const char *const[]){"--all", "show", "partition", NULL});
    return text == NULL || strstr(text, "Nodes=" VIRTUAL) != NULL || strstr(text, "," VIRTUAL) != NULL;
}

/* How much longer it could turn out that slurmctld has forgotten an earlier start of this run's job. */
static int unsettled_ms(const struct site *site, const struct run *run)
{
    if (run->number[BATCH] < 1 || !bursts(site))
        return 0;
    const char *text = slurm(site, "scontrol", (const char *const[]){"show", "config", NULL});
    const char *line = text != NULL ? strstr(text, "\n" BOOT_TIME) : NULL;
    char digits[NUMBER + 1] = "";
    if (line == NULL || sscanf(line, "\n" BOOT_TIME " = %12[0-9]", digits) != 1)
        return SETTLE_S * 1000;
    long boot = integer(digits, LONG_MAX), age = run->number[START] - boot; /* all by slurmctld's clock */
    return run->number[SUBMIT] >= boot || age < 0 || age >= SETTLE_S ? 0 : (int)(SETTLE_S - age) * 1000;
}

/* The same once that can't turn out any more. */
static enum word ask_settled(const struct site *site, long job, struct run *run)
{
    enum word said = ask_slurm(site, job, run);
    int left = said == KNOWN && !run->elsewhere && !run->over ? unsettled_ms(site, run) : 0;
    if (left == 0)
        return said;
    poll(NULL, 0, left);
    return ask_slurm(site, job, run);
}

/*
 * An array's last element has the array's own number, so it is named by its index, or all would go; a component of a
 * heterogeneous job goes with its leader. --no-requeue is about a job's script, which does not run again when the job
 * may be running at another site.
 */
static bool turn_away(const struct site *site, const struct run *run)
{
    char name[48], jobid[64];
    if (run->number[HET] > 0)
        snprintf(name, sizeof name, "%ld", run->number[HET]);
    else if (run->number[ELEMENT] >= 0)
        snprintf(name, sizeof name, "%ld_%ld", run->number[ARRAY], run->number[ELEMENT]);
    else
        snprintf(name, sizeof name, "%ld", run->number[JOB]);
    if (run->number[BATCH] > 0 && run->number[REQUEUE] < 1 && run->elsewhere) {
        snprintf(jobid, sizeof jobid, "jobid=%s", name);
        slurm(site, "scontrol", (const char *const[]){"update", jobid, "requeue=1", NULL});
    }
    if (run->number[BATCH] > 0 && (run->number[REQUEUE] > 0 || run->elsewhere))
        return slurm(site, "scontrol", (const char *const[]){"requeue", name, NULL}) != NULL;
    return slurm(site, "scancel", (const char *const[]){"--quiet", name, NULL}) != NULL;
}

void prolog_alone(const struct site *site, long job)
{
    struct run run;
    if (job < 1)
        return;
    if (ask_settled(site, job, &run) != KNOWN)
        tell(PROLOG, "neither agent nor Slurm says what this job asks for; its tasks won't start", "");
    else if (run.over)
        return;
    else if (run.elsewhere && !turn_away(site, &run))
        tell(PROLOG, "this job may be running at another site, and Slurm does not take it back", "");
    else if (run.elsewhere)
        tell(PROLOG, "this job may be running at another site: it was sent back", "");
    else if (run.slices && !turn_away(site, &run))
        tell(PROLOG, "this job asks for slices, there is no agent, and Slurm does not take it back", "");
    else if (run.slices)
        tell(PROLOG, "this job asks for slices and there is no agent: it was sent back", "");
    else if (!leave_mark(site, job, &run))
        tell(PROLOG, "no mark could be left for this job: ", strerror(errno));
}

/*
 * On a host without an agent: a gateway, where no job's own script may start, or a node without GPUs, which a job that
 * may be running at another site must not start on. It ends when Slurm has taken the job back, or says that the job is
 * over or unknown (twice: it may just have come back): until then slurmd starts nothing of it.
 */
void send_back(const struct site *site, long job, bool only_elsewhere)
{
    struct run run;
    for (int unknown = 0; job > 0 && unknown < 2;) {
        enum word said = only_elsewhere ? ask_settled(site, job, &run) : ask_slurm(site, job, &run);
        if (said == UNKNOWN)
            unknown++;
        else if (said == KNOWN && (run.over || (only_elsewhere && !run.elsewhere) || turn_away(site, &run)))
            return;
        poll(NULL, 0, AGAIN_MS);
    }
}
