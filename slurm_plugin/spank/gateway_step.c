/*
 * The gateway plugin in the slurmstepd of a job's step.
 *
 * `begin_step` runs as root before anything of the user's is looked at, and ends every step on a virtual node but the
 * batch step, and the extern step, which runs nothing. Of a batch step it takes all variables away, which slurmstepd
 * would hand to a TaskEpilog too. `begin_task` runs as the user in the process that would become the script: it execs
 * the proxy there, before any task prolog, with no environment and no open file but the job's. Whatever the user wrote
 * is data: it goes to the proxy in an unnamed file.
 */
#define _GNU_SOURCE /* memfd_create */
#include "gateway.h"
#include "hello.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPTION "_SLURM_SPANK_OPTION_vgpu_burst_"
#define EXPORTED "SLURM_SPANK_" OPTION /* under this name it outlives --export=NONE */
#define LIMIT_PREFIX "SLURM_RLIMIT_"
#define MOST_LIMIT_NAME 16 /* letters: the daemon takes no more */
#define FIRST_SPARE (SCRIPT_FD + 1)
#define MOST_FILES 65536 /* descriptors that are closed one by one, on kernels that can't do it at once */

static const char *const OPTIONS[] = {"burst", "stage_in", "stage_out"};

/* That stay: slurmstepd opens the job's files by the first, and slurmctld has written the second. */
static const char *const PLAIN[] = {"SLURM_UMASK", "SLURM_JOB_ID"};

static enum { UNKNOWN, NOT_OURS, BATCH } step; /* what `begin_step` found: UNKNOWN refuses */
static char **kept;                            /* the job's environment as it came */
static pid_t stepd;

static bool is_virtual(const struct gateway *gateway, const char *node)
{
    for (const char *at = gateway->nodes; *at != '\0'; at += *at == ',') {
        size_t size = strcspn(at, ",");
        if (size > 0 && strncmp(node, at, size) == 0)
            return true;
        at += size;
    }
    return false;
}

static const char *value_of(char **env, const char *prefix, const char *name)
{
    size_t n = strlen(prefix), m = strlen(name);
    for (; env != NULL && *env != NULL; env++)
        if (strncmp(*env, prefix, n) == 0 && strncmp(*env + n, name, m) == 0 && (*env)[n + m] == '=')
            return *env + n + m + 1;
    return NULL;
}

/* Is the variable that this entry sets set there? */
static bool has_name(char **env, const char *entry)
{
    size_t size = strcspn(entry, "=");
    for (; env != NULL && *env != NULL; env++)
        if (strncmp(*env, entry, size) == 0 && ((*env)[size] == '=' || (*env)[size] == '\0'))
            return true;
    return false;
}

/* The step's environment is ours from here on: Slurm puts its own words in again before a task. */
static bool keep_environment(spank_t spank)
{
    char **env = NULL;
    size_t n = 0;
    if (spank_get_item(spank, S_JOB_ENV, &env) != ESPANK_SUCCESS)
        return false;
    while (env != NULL && env[n] != NULL)
        n++;
    kept = calloc(n + 1, sizeof *kept);
    for (size_t i = 0; i < n; i++)
        if (kept == NULL || (kept[i] = strdup(env[i])) == NULL)
            return false;
    for (size_t i = 0; i < n; i++) {
        char *name = strndup(kept[i], strcspn(kept[i], "="));
        bool stays = name != NULL && (strcmp(name, PLAIN[0]) == 0 || strcmp(name, PLAIN[1]) == 0);
        if (name == NULL || (!stays && spank_unsetenv(spank, name) != ESPANK_SUCCESS))
            return false;
        free(name);
    }
    return true;
}

/*
 * A prolog's thread in slurmd waits until nobody can write into the prolog's pipe any more. slurmd opens that without
 * close-on-exec (before 26.05), so each slurmstepd that another thread starts at that moment has it for as long as its
 * job runs: of many jobs that start at once some would not, and slurmd runs out of threads. A pipe of slurmstepd's own
 * is closed on exec.
 */
static void leave_pipes_of_slurmd(void)
{
    DIR *open = opendir("/proc/self/fd");
    if (open == NULL)
        return;
    for (struct dirent *one; (one = readdir(open)) != NULL;) {
        struct stat is;
        int fd = atoi(one->d_name);
        if (fd > STDERR_FILENO && fd != dirfd(open) && fstat(fd, &is) == 0 && S_ISFIFO(is.st_mode) &&
            (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY && (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0)
            close(fd);
    }
    closedir(open);
}

int begin_step(spank_t spank, const struct gateway *gateway)
{
    /* slurmstepd's own environment, which its slurmd made: nothing of the user's is in it. */
    const char *node = getenv("SLURMD_NODENAME");
    uint32_t id;
    step = UNKNOWN;
    stepd = getpid();
    if (node == NULL || spank_get_item(spank, S_JOB_STEPID, &id) != ESPANK_SUCCESS) {
        slurm_error("vgpu_gateway: Slurm does not say which node or step this is");
        return REFUSED;
    }
    if (!is_virtual(gateway, node)) {
        step = NOT_OURS;
        return 0;
    }
    leave_pipes_of_slurmd();
    if (id == SLURM_EXTERN_CONT) /* it has no task */
        return 0;
    if (id != SLURM_BATCH_SCRIPT) {
        slurm_error("vgpu_gateway: %s runs batch scripts alone, and those elsewhere: no step, shell or task", node);
        return REFUSED;
    }
    if (!keep_environment(spank)) {
        slurm_error("vgpu_gateway: the job's environment can't be kept: %s", strerror(errno));
        return REFUSED;
    }
    step = BATCH;
    return 0;
}

static void put(FILE *facts, enum tag tag, const char *prefix, const char *value)
{
    size_t n = strlen(prefix), m = strlen(value);
    uint32_t length = htonl((uint32_t)(n + m));
    fputc(tag, facts);
    fwrite(&length, sizeof length, 1, facts);
    fwrite(prefix, n, 1, facts);
    fwrite(value, m, 1, facts);
}

static void put_number(FILE *facts, enum tag tag, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    put(facts, tag, "", text);
}

/* "SLURM_RLIMIT_NOFILE=1024", or "=U1024" of a user who asked for it by name. Slurm hands on soft limits alone. */
static void put_limit(FILE *facts, const char *entry)
{
    char text[64];
    const char *name = entry + strlen(LIMIT_PREFIX), *equals = strchr(name, '=');
    const char *value = equals + 1 + (equals[1] == 'U');
    if (equals == name || equals - name > MOST_LIMIT_NAME)
        return; /* none of Slurm's */
    if (*value != '\0' && strspn(value, "0123456789") == strlen(value) &&
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == (size_t)(equals - name) &&
        snprintf(text, sizeof text, "%.*s %s -1", (int)(equals - name), name, value) < (int)sizeof text)
        put(facts, LIMIT, "", text);
}

static void put_variable(FILE *facts, const char *entry)
{
    if (strncmp(entry, LIMIT_PREFIX, strlen(LIMIT_PREFIX)) == 0 && strchr(entry, '=') != NULL)
        put_limit(facts, entry);
    else if (strncmp(entry, OPTION, strlen(OPTION)) != 0 && strncmp(entry, EXPORTED, strlen(EXPORTED)) != 0)
        put(facts, ENVIRONMENT, "", entry);
}

/* What the job came with, what Slurm has put in since, and the options. */
static void put_environment(FILE *facts, char **env)
{
    for (char **entry = kept; *entry != NULL; entry++)
        if (!has_name(env, *entry))
            put_variable(facts, *entry);
    for (char **entry = env; entry != NULL && *entry != NULL; entry++)
        put_variable(facts, *entry);
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++) {
        char name[sizeof OPTION + 16];
        const char *value = value_of(kept, OPTION, OPTIONS[i]);
        if (value == NULL)
            value = value_of(kept, EXPORTED, OPTIONS[i]);
        snprintf(name, sizeof name, OPTION "%s=", OPTIONS[i]);
        if (value != NULL)
            put(facts, ENVIRONMENT, name, value);
    }
}

static bool put_job(FILE *facts, spank_t spank, uint32_t *job)
{
    uint32_t array, task, restarts;
    if (spank_get_item(spank, S_JOB_ID, job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_ARRAY_ID, &array) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_ARRAY_TASK_ID, &task) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_SLURM_RESTART_COUNT, &restarts) != ESPANK_SUCCESS)
        return false;
    put_number(facts, JOB, *job);
    if (array != 0 && task != NO_VAL) {
        put_number(facts, ARRAY, array);
        put_number(facts, TASK, task);
    }
    put_number(facts, RESTARTS, restarts);
    put(facts, NODE, "", getenv("SLURMD_NODENAME"));
    return true;
}

/* An open file of what the daemon must know of the job, and the script's name and the job's number. -1: no. */
static int write_facts(spank_t spank, char **script, uint32_t *job)
{
    char **env = NULL, **argv = NULL;
    int argc = 0, fd = memfd_create("vgpu-job", MFD_CLOEXEC), kept = fd < 0 ? -1 : dup(fd);
    FILE *facts = kept < 0 ? NULL : fdopen(fd, "w");
    if (facts == NULL || spank_get_item(spank, S_JOB_ENV, &env) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS || argc < 1 || !put_job(facts, spank, job))
        return -1;
    *script = argv[0];
    for (int i = 1; i < argc; i++)
        put(facts, ARGUMENT, "", argv[i]);
    put_environment(facts, env);
    return fflush(facts) == 0 && !ferror(facts) ? kept : -1;
}

static void close_all_from(int first)
{
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0)
        return;
    for (int fd = first; fd < MOST_FILES; fd++)
        close(fd);
}

/* Where the proxy expects them; they may lie in each other's place. */
static bool place(int facts, int script)
{
    int one = fcntl(facts, F_DUPFD, FIRST_SPARE), other = fcntl(script, F_DUPFD, FIRST_SPARE);
    return one >= 0 && other >= 0 && dup2(one, FACTS_FD) >= 0 && dup2(other, SCRIPT_FD) >= 0;
}

static void become_proxy(spank_t spank, const struct gateway *gateway)
{
    char parent[16], number[16], *path = NULL;
    uint32_t job;
    int facts = write_facts(spank, &path, &job);
    int script = facts < 0 ? -1 : open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (script < 0) {
        slurm_error("vgpu_gateway: this job can't be told to the daemon: %s", strerror(errno));
        return;
    }
    snprintf(parent, sizeof parent, "%d", stepd);
    snprintf(number, sizeof number, "%u", job);
    char *argv[] = {(char *)gateway->proxy, (char *)gateway->socket, parent, number, NULL}, *env[] = {NULL};
    if (place(facts, script)) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL); /* those that come now are the proxy's to tell */
        close_all_from(FIRST_SPARE);
        execve(gateway->proxy, argv, env);
    }
    dprintf(STDERR_FILENO, "vgpu_gateway: %s: %s\n", gateway->proxy, strerror(errno)); /* slurmstepd's log is closed */
}

int begin_task(spank_t spank, const struct gateway *gateway)
{
    if (step == NOT_OURS)
        return 0;
    if (step == BATCH)
        become_proxy(spank, gateway);
    _exit(1);
}
