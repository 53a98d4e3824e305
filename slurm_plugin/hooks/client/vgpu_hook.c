/*
 * vgpu-hook: what Slurm runs on a node at a job's prolog, task prolog and epilog, and users run as `vgpu-bind`.
 *
 * It asks the node's agent over a unix socket and does what the answer says. It decides nothing.
 * It runs in an environment that a user may have written, so nothing there steers it: the socket's path is compiled in,
 * or comes from a file that only root can write, or from --socket; the environment gives integers to hand on, no more.
 *
 *   request   VERB key=integer ...\n
 *   answer    out TEXT | err TEXT, any number of them, then: exit N
 *
 * Root's prologs and epilogs call at a socket of their own, SOCKET.root, where no user stands before them.
 *
 * A prolog or epilog that fails drains the node, so those two always exit 0: a job without a slice is stopped by its
 * task prolog, which exits 1. For the same reason root's call without a verb exits 0: it may be slurmd's, of a link whose
 * name tells no verb.
 *
 * On a host that no agent was ever set up on, prolog, task prolog and epilog end with 0 at once.
 *
 * Two more prologs ask no agent: `vgpu-guard` is for nodes without one, and `vgpu-hook away` sends a job back that must
 * not start here.
 */
#define _GNU_SOURCE /* struct ucred */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef VGPU_SOCKET
#define VGPU_SOCKET "/run/vgpu/agent.sock"
#endif
#ifndef AWAY_MS
#define AWAY_MS 10000
#endif
#define VGPU_BIN "/usr/bin"
#define VGPU_GRES "vgpu"
#ifndef VGPU_CONF
#define VGPU_CONF "/etc/vgpu/hook.conf"
#endif
#define CONF_NAME "hook.conf" /* beside the binary itself: several sites can live on one machine */
#define MARKED_MS 1000        /* a task that needs no agent waits no longer for one */
#define RETRY_MS 50           /* between two tries to connect, or to be heard */
#define BUSY 256              /* instead of an exit code: the agent has too many calls of this user's now */
#define ROOTS ".root"          /* behind the socket's path: where prolog and epilog call */
#define TRIES 3               /* calls whose answer breaks off; an agent that was restarted knows what it did */
#define LINE_BYTES 16384      /* longest line of an answer */
#define TASKS_MAX 1000000     /* most tasks a node that we believe */

static const char *const VERB_NAMES[VERBS] = {"prolog", "epilog", "task", "bind", "away", "guard"};
static const char *const PROGRAM_NAMES[VERBS] = {"vgpu-prolog", "vgpu-epilog", "vgpu-taskprolog",
                                                 "vgpu-bind", "vgpu-away", "vgpu-guard"};

/*
 * How long a whole call may take, from its start to its end, whatever happens in it.
 * prolog: the agent's wait for a slice and for Slurm; slurmctld takes a node for dead after BatchStartTimeout=120.
 * epilog: the node starts nothing meanwhile, and the agent finds out by itself too that a job has ended.
 */
static const int LIMIT_MS[VERBS] = {[PROLOG] = 100000, [EPILOG] = 5000, [TASK] = 45000, [BIND] = 15000};
/*
 * The part of it in which an agent that is being restarted may come back. A task that is refused ends its job, so it has
 * the longest patience.
 */
static const int CONNECT_MS[VERBS] = {[PROLOG] = AWAY_MS, [EPILOG] = 2000, [TASK] = 3 * AWAY_MS, [BIND] = AWAY_MS};

static char slice[256]; /* bind: the slice this rank shall use */

/* To whoever asked. A task prolog's stderr reaches nobody, but its "print" lines reach the task's own output. */
void tell(enum verb verb, const char *what, const char *more)
{
    if (verb == TASK)
        printf("print vgpu: %s%s\n", what, more);
    else
        fprintf(stderr, "vgpu: %s%s\n", what, more);
}

long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A whole decimal number from 0 to limit, or -1. */
long integer(const char *text, long limit)
{
    char *end;
    if (text == NULL || *text < '0' || *text > '9')
        return -1;
    errno = 0;
    long value = strtol(text, &end, 10);
    return errno == 0 && *end == '\0' && value <= limit ? value : -1;
}

/* How many tasks node number `index` has, in Slurm's form "4(x2),3"; -1 when it does not say. */
static long tasks_on(const char *form, long index)
{
    if (form == NULL || index < 0)
        return -1;
    while (*form >= '0' && *form <= '9') {
        char *end;
        long tasks = strtol(form, &end, 10), nodes = 1;
        if (strncmp(end, "(x", 2) == 0)
            nodes = strtol(end + 2, &end, 10), end += *end == ')';
        if (nodes < 1 || tasks < 1 || tasks > TASKS_MAX)
            return -1;
        if (index < nodes)
            return tasks;
        index -= nodes;
        form = *end == ',' ? end + 1 : end;
    }
    return -1;
}

static long local_rank(void)
{
    static const char *const NAMES[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        long rank = integer(getenv(NAMES[i]), TASKS_MAX);
        if (rank >= 0)
            return rank;
    }
    return -1;
}

static void set(char *value, size_t size, const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(line, name, n) == 0 && line[n] == ' ' && line[n + 1] != '\0' && strlen(line + n + 1) < size)
        strcpy(value, line + n + 1);
}

/*
 * Reads "socket PATH", "slurm_bin FOLDER" and "gres NAME" from a file of root's. False: no such file. Anything odd about
 * it ends the program's trust in it.
 */
static bool read_conf(const char *path, struct site *site, bool *refused)
{
    struct stat is;
    char text[2 * PATH_MAX], *line, *next;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    *refused = fstat(fd, &is) != 0 || !S_ISREG(is.st_mode) || is.st_uid != 0 || (is.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    ssize_t n = *refused ? 0 : read(fd, text, sizeof text - 1);
    close(fd);
    if (*refused) {
        fprintf(stderr, "vgpu: %s must be a file of root's that nobody else can write\n", path);
        return false;
    }
    text[n < 0 ? 0 : n] = '\0';
    for (line = strtok_r(text, "\n", &next); line != NULL; line = strtok_r(NULL, "\n", &next)) {
        set(site->socket, sizeof site->socket - sizeof ROOTS + 1, line, "socket");
        set(site->bin, sizeof site->bin, line, "slurm_bin");
        set(site->gres, sizeof site->gres, line, "gres");
    }
    return *site->socket == '/';
}

/* Is there no folder for this file? */
static bool has_no_folder(const char *path)
{
    char folder[PATH_MAX];
    struct stat is;
    strcpy(folder, path);
    *strrchr(folder, '/') = '\0';
    return lstat(folder, &is) != 0 && errno == ENOENT;
}

/*
 * --socket, if it was given, outdoes the file's. A host where nobody has set up an agent, and none has ever run since it
 * booted, is none of the pool's, though its Slurm names our hooks for all nodes alike.
 */
static bool find_site(struct site *site)
{
    char beside[PATH_MAX], given[sizeof site->socket];
    bool refused = false;
    ssize_t n = readlink("/proc/self/exe", beside, sizeof beside - sizeof CONF_NAME);
    char *slash = NULL;
    strcpy(given, site->socket);
    *site->socket = '\0';
    if (n > 0) {
        beside[n] = '\0';
        slash = strrchr(beside, '/');
    }
    if (slash != NULL)
        strcpy(slash + 1, CONF_NAME);
    bool found = (slash != NULL && read_conf(beside, site, &refused)) || (!refused && read_conf(VGPU_CONF, site, &refused));
    if (*given != '\0' || !found)
        strcpy(site->socket, *given != '\0' ? given : VGPU_SOCKET);
    site->bare = *given == '\0' && !found && !refused && has_no_folder(VGPU_CONF) && has_no_folder(VGPU_SOCKET);
    return *given != '\0' || !refused;
}

static long long sooner(long long one, long long other)
{
    return one < other ? one : other;
}

/* Of an agent that is away nothing is said to a task that a mark lets pass. */
static void tell_unless(bool silent, enum verb verb, const char *what, const char *more)
{
    if (!silent)
        tell(verb, what, more);
}

/* A connected socket whose other end is root's, or -1. Waits for an agent that is being restarted. */
static int dial(enum verb verb, const char *path, bool silent, long long until)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strcpy(stpcpy(to.sun_path, path), verb == PROLOG || verb == EPILOG ? ROOTS : ""); /* whoever set path left room */
    until = sooner(until, now_ms() + (silent ? MARKED_MS : CONNECT_MS[verb]));
    for (;;) {
        struct ucred peer = {.uid = (uid_t)-1};
        socklen_t size = sizeof peer;
        /* Never blocking: an agent that accepts nothing would else keep connect() for ever. */
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return -1;
        if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) {
            if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0)
                return fd;
            tell_unless(silent, verb, "not root's agent: ", to.sun_path);
            close(fd);
            return -1;
        }
        int why = errno; /* EAGAIN: its queue is full */
        close(fd);
        if (now_ms() >= until) {
            tell_unless(silent, verb, "no answer from this node's agent: ", strerror(why));
            return -1;
        }
        poll(NULL, 0, RETRY_MS);
    }
}

/* Acts on one line of the answer. The exit code of an "exit" line, BUSY, else -1. */
static int obey(enum verb verb, char *line)
{
    if (strncmp(line, "out ", 4) == 0) {
        if (verb != BIND)
            puts(line + 4);
        else if (strlen(line + 4) < sizeof slice)
            strcpy(slice, line + 4);
    } else if (strncmp(line, "err ", 4) == 0) {
        tell(verb, line + 4, "");
    } else if (strncmp(line, "exit ", 5) == 0) {
        long code = integer(line + 5, 255);
        return code < 0 ? 1 : (int)code;
    } else if (strcmp(line, "again") == 0) {
        return BUSY;
    }
    return -1;
}

/* The answer's exit code, or BUSY; -1 when the agent went away before it gave one, -2 when it took too long. */
static int converse(int fd, enum verb verb, const char *request, long long until)
{
    char text[LINE_BYTES];
    size_t held = 0;
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request))
        return -1;
    for (;;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        long long left = until - now_ms();
        if (left <= 0 || held == sizeof text)
            return -2;
        if (poll(&wait, 1, (int)left) <= 0)
            continue;
        ssize_t n = read(fd, text + held, sizeof text - held);
        if (n < 0 && errno == EAGAIN)
            continue;
        if (n <= 0)
            return -1;
        held += (size_t)n;
        for (char *end; (end = memchr(text, '\n', held)) != NULL;) {
            *end = '\0';
            int code = obey(verb, text);
            if (code >= 0)
                return code;
            held -= (size_t)(end + 1 - text);
            memmove(text, end + 1, held);
        }
    }
}

static void write_request(enum verb verb, char *request, size_t size)
{
    long job = integer(getenv("SLURM_JOB_ID"), UINT_MAX);
    long rank = verb == BIND ? local_rank() : integer(getenv("SLURM_LOCALID"), TASKS_MAX);
    long tasks = tasks_on(getenv("SLURM_STEP_TASKS_PER_NODE"), integer(getenv("SLURM_NODEID"), TASKS_MAX));
    long started = integer(getenv("SLURM_JOB_START_TIME"), UINT_MAX);
    int n = snprintf(request, size, "%s", VERB_NAMES[verb]);
    if (verb == PROLOG || verb == EPILOG) {
        if (job > 0)
            n += snprintf(request + n, size - (size_t)n, " job=%ld", job);
        if (job > 0 && verb == EPILOG && started > 0) /* from 23.11 on */
            n += snprintf(request + n, size - (size_t)n, " start=%ld", started);
    } else {
        if (rank >= 0)
            n += snprintf(request + n, size - (size_t)n, " localid=%ld", rank);
        if (tasks > 0 && verb == TASK)
            n += snprintf(request + n, size - (size_t)n, " ntasks=%ld", tasks);
    }
    snprintf(request + n, size - (size_t)n, "\n");
}

/* The answer's exit code, or -1: there is no agent, or none that answers. Why was told, unless `silent`. */
static int ask(enum verb verb, const struct site *site, bool silent)
{
    char request[256];
    int code = -1;
    long long until = now_ms() + LIMIT_MS[verb];
    write_request(verb, request, sizeof request);
    for (int tries = 0; code == -1 && tries < TRIES; tries++) {
        int fd = dial(verb, site->socket, silent, until);
        if (fd < 0)
            return -1;
        *slice = '\0'; /* of an answer that broke off */
        code = converse(fd, verb, request, until);
        close(fd);
        if (code == BUSY && !silent && now_ms() < until) {
            poll(NULL, 0, RETRY_MS);
            code = -1;
            tries--;
        }
    }
    if (code == BUSY)
        code = -2;
    if (code < 0)
        tell_unless(silent, verb, "this node's agent gave no whole answer", code == -2 ? " in time" : "");
    return code < 0 ? -1 : code;
}

/* What the whole call comes to. */
static int serve(enum verb verb, const struct site *site)
{
    long job = integer(getenv("SLURM_JOB_ID"), UINT_MAX);
    /* slurmstepd writes a task prolog's job id. Who could forge it would only run his own job without its slices. */
    bool plain = verb == TASK && has_mark(site, job);
    if (verb == PROLOG)
        forget_mark(site, job);
    int code = ask(verb, site, plain);
    if (verb == PROLOG && code < 0)
        prolog_alone(site, job);
    if (verb == EPILOG && code < 0)
        forget_mark(site, job);
    if (code < 0)
        return plain ? 0 : 1;
    if (verb == BIND && code == 0 && *slice == '\0') {
        tell(verb, "this node's agent named no slice", "");
        return 1;
    }
    return code;
}

/* `name` is one of the names, or ends with a dash and one of them: 90-vgpu-prolog is the prolog. */
static enum verb verb_of(const char *name, const char *const names[])
{
    enum verb verb = PROLOG;
    for (; verb < VERBS; verb++) {
        size_t have = strlen(name), want = strlen(names[verb]);
        if (have >= want && strcmp(name + have - want, names[verb]) == 0 && (have == want || name[have - want - 1] == '-'))
            break;
    }
    return verb;
}

static int usage(const char *name, bool may_be_slurmd)
{
    fprintf(stderr, "vgpu: '%s' with these arguments tells nothing to do\n"
            "usage: vgpu-hook [--socket PATH] prolog|epilog|task|away|guard\n"
            "       vgpu-bind COMMAND...    run COMMAND with the slice of this local rank\n"
            "       links to it are named vgpu-prolog, vgpu-epilog, vgpu-taskprolog or vgpu-guard, with anything and a\n"
            "       dash before\n",
            name);
    return may_be_slurmd ? 0 : 2;
}

int main(int argc, char **argv)
{
    struct site site = {.bin = VGPU_BIN, .gres = VGPU_GRES};
    const char *name = argc > 0 && strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argc > 0 ? argv[0] : "";
    enum verb verb = verb_of(name, PROGRAM_NAMES);
    int at = 1;

    if (at + 1 < argc && strcmp(argv[at], "--socket") == 0) {
        if (strlen(argv[at + 1]) + sizeof ROOTS > sizeof site.socket)
            return usage(name, false);
        strcpy(site.socket, argv[at + 1]);
        at += 2;
    }
    if (verb == VERBS && at < argc)
        verb = verb_of(argv[at++], VERB_NAMES);
    if (verb == VERBS || (verb == BIND) != (at < argc))
        return usage(name, argc <= 1 && verb == VERBS && geteuid() == 0);

    int code = 1;
    bool trusted = find_site(&site);
    if (verb == AWAY || verb == GUARD) {
        send_back(&site, integer(getenv("SLURM_JOB_ID"), UINT_MAX), verb == GUARD);
        return 0;
    }
    if (site.bare && verb != BIND)
        return 0;
    if (trusted)
        code = serve(verb, &site);
    if (fflush(stdout) != 0)
        code = 1;
    if (verb == PROLOG || verb == EPILOG)
        return 0;
    if (verb != BIND || code != 0)
        return code;
    if (setenv("CUDA_VISIBLE_DEVICES", slice, 1) != 0 || setenv("NVIDIA_VISIBLE_DEVICES", slice, 1) != 0)
        return 1;
    execvp(argv[at], argv + at);
    fprintf(stderr, "vgpu: %s: %s\n", argv[at], strerror(errno));
    return 127;
}
