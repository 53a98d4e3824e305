/*
 * vgpu-proxy: what a batch job on a virtual node is on the gateway, in place of its script.
 *
 * It tells this host's daemon what the job is, writes what the job prints elsewhere into the job's own files, hands
 * signals on, and ends as the job has ended. It decides nothing, starts nothing, opens no file, and reads no environment:
 *
 *   vgpu-proxy SOCKET PARENT JOB     with the job's facts open as FACTS_FD and its script as SCRIPT_FD
 *
 * It dies with its slurmstepd, PARENT. A daemon that is away is waited for, for ever. frames.py in the federation says
 * what the two tell each other; offsets count the job's stream, not the file.
 */
#define _GNU_SOURCE
#include "hello.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef FIRST_RETRY_MS
#define FIRST_RETRY_MS 200 /* of reaching the daemon, doubled each time */
#endif
#ifndef LAST_RETRY_MS
#define LAST_RETRY_MS 5000 /* and never more */
#endif
#ifndef SILENT_MS
#define SILENT_MS 10000 /* never welcomed so far: the job's output says so, once */
#endif
#ifndef IDLE_MS
#define IDLE_MS 60000 /* without a word of the daemon's: it is asked for one */
#endif
#ifndef ANSWER_MS
#define ANSWER_MS 300000 /* and if none comes, called anew */
#endif
#define SEND_S 5 /* a daemon that takes nothing for so long is taken for gone */
#define STOP_MS 500 /* that a job asked to stop waits for the daemon to know of it */
#ifndef FULL_MS
#define FULL_MS 2000 /* between two tries to write to a full disk */
#endif
#define PIECE 4096 /* written at once to what is no regular file: a pipe that has room for less is not ready */
#define ACK_BYTES (256u << 10) /* written at the most before the daemon is told; it is told at once when no more comes */
#define BUFFER (128u << 10)
#define TEXT_BYTES 4096 /* longest text of the daemon's */
#define SIGNALS 32 /* that wait to be told; past that the newest are dropped */
#define HEAD 5 /* bytes before a frame's payload */
#define OFFSET 8 /* bytes of an offset */
#define MOST_AT (1ull << 62) /* no stream is longer */

struct stream {
    int fd;
    uint64_t at; /* written, of the job's stream */
    bool regular;
    bool gone;            /* nobody can ever read it: what comes is counted and dropped */
    long long full_until; /* no room on its disk until then, as far as we know; 0: there was */
};

struct told_signal {
    uint32_t number;
    unsigned char from_stepd;
    uint32_t ping; /* the daemon's answer to this ping says that it has it; 0: not sent on this connection */
};

static struct stream out = {.fd = STDOUT_FILENO}, err = {.fd = STDERR_FILENO};
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static int sock = -1;
static bool welcomed; /* ever: only then are the streams' offsets known */
static bool remarked; /* that the daemon is away */
static bool greeted;  /* with a whole hello: a daemon may have the sizes of the job's files on record, before any welcome */
static bool joined;   /* stdout and stderr are one file */

static unsigned char in[BUFFER];
static size_t first, held; /* of what was read and not dealt with */
static unsigned char body; /* kind of the frame whose output is being read */
static uint64_t body_at;   /* offset of its next byte */
static uint32_t body_left; /* 0: between two frames */
static uint64_t unacked;
static uint64_t own_bytes; /* of remarks in stderr's file, which are none of the job's */

static struct told_signal signals[SIGNALS];
static size_t signal_count;
static uint32_t pings, pongs; /* sent and answered on this connection */
static long long heard_at, pinged_at, stop_at, retry_at;
static int retry_ms = FIRST_RETRY_MS;

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* One line in the job's own stderr. Whether it arrives is not known to anybody who could be told. */
static void remark(const char *text, size_t size)
{
    char line[TEXT_BYTES + 8]; /* it all fits */
    int n = snprintf(line, sizeof line, "fed: %.*s\n", (int)size, text);
    struct pollfd ready = {.fd = err.fd, .events = POLLOUT};
    for (int i = 0; i < n - 1; i++)
        if ((unsigned char)line[i] < ' ')
            line[i] = ' ';
    ssize_t written = poll(&ready, 1, 0) == 1 ? write(err.fd, line, (size_t)n) : 0;
    if (written < 0)
        err.gone = errno == EPIPE || errno == EBADF;
    else
        own_bytes += (uint64_t)written;
}

/* -- to the daemon */

static void hang_up(void)
{
    close(sock);
    sock = -1;
    first = held = body_left = pings = pongs = 0;
    out.full_until = err.full_until = 0;
    for (size_t i = 0; i < signal_count; i++)
        signals[i].ping = 0; /* nobody has said that it arrived */
    retry_at = now_ms() + retry_ms + getpid() % FIRST_RETRY_MS; /* not all jobs of a gateway at once */
    retry_ms = retry_ms * 2 < LAST_RETRY_MS ? retry_ms * 2 : LAST_RETRY_MS;
}

/* All of it, or the connection is given up. */
static bool put(const void *bytes, size_t size)
{
    const char *at = bytes;
    while (sock >= 0 && size > 0) {
        ssize_t n = send(sock, at, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            hang_up();
            return false;
        }
        at += n;
        size -= (size_t)n;
    }
    return sock >= 0;
}

static bool put_file(int fd, uint64_t size)
{
    static char piece[16384];
    for (uint64_t at = 0; at < size;) {
        size_t want = size - at < sizeof piece ? (size_t)(size - at) : sizeof piece;
        ssize_t n = pread(fd, piece, want, (off_t)at);
        if (n <= 0) { /* it is shorter than it was said to be */
            hang_up();
            return false;
        }
        if (!put(piece, (size_t)n))
            return false;
        at += (uint64_t)n;
    }
    return true;
}

static bool put_frame(char kind, const void *payload, uint32_t size)
{
    unsigned char frame[HEAD + 2 * OFFSET];
    uint32_t length = htonl(size);
    frame[0] = (unsigned char)kind;
    memcpy(frame + 1, &length, sizeof length);
    memcpy(frame + HEAD, payload, size);
    return put(frame, HEAD + size);
}

static void acknowledge(void)
{
    uint64_t at[2] = {htobe64(out.at), htobe64(err.at)};
    unacked = 0;
    if (sock >= 0)
        put_frame('A', at, sizeof at);
}

static bool ping(void)
{
    pinged_at = now_ms();
    pings++;
    return put_frame('P', "", 0);
}

/* Each signal is followed by a ping: the daemon answers in order, so its answer says that it has the signal. */
static void tell_signals(void)
{
    for (size_t i = 0; i < signal_count && sock >= 0; i++) {
        if (signals[i].ping != 0)
            continue;
        unsigned char payload[5];
        uint32_t number = htonl(signals[i].number);
        memcpy(payload, &number, sizeof number);
        payload[4] = signals[i].from_stepd;
        if (put_frame('S', payload, sizeof payload) && ping())
            signals[i].ping = pings;
    }
}

static size_t field(char *to, enum tag tag, const void *value, size_t size)
{
    uint32_t length = htonl((uint32_t)size);
    to[0] = (char)tag;
    memcpy(to + 1, &length, sizeof length);
    memcpy(to + HEAD, value, size);
    return HEAD + size;
}

static size_t number_field(char *to, enum tag tag, const char *form, unsigned long long value)
{
    char text[24];
    return field(to, tag, text, (size_t)snprintf(text, sizeof text, form, value));
}

/* What the job's files are like now, and where this proxy is in its streams. */
static size_t own_fields(char *to)
{
    static char folder[PATH_MAX];
    struct stat one = {0}, other = {0};
    mode_t mask = umask(0);
    size_t n = 0;

    umask(mask);
    bool open = fstat(out.fd, &one) == 0 && fstat(err.fd, &other) == 0;
    joined = open && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    out.regular = S_ISREG(one.st_mode);
    err.regular = S_ISREG(other.st_mode);
    n += field(to + n, VERSION, HELLO_VERSION, strlen(HELLO_VERSION));
    if (getcwd(folder, sizeof folder) != NULL && *folder == '/')
        n += field(to + n, FOLDER, folder, strlen(folder));
    n += number_field(to + n, UMASK, "%llo", mask);
    n += number_field(to + n, STDOUT_SIZE, "%llu", out.regular ? (unsigned long long)one.st_size : 0);
    n += number_field(to + n, STDERR_SIZE, "%llu", err.regular ? (unsigned long long)other.st_size : 0);
    n += number_field(to + n, JOINED, "%llu", joined);
    n += number_field(to + n, REGULAR, "%llu", out.regular);
    n += number_field(to + n, OWN, "%llu", own_bytes);
    if (welcomed) {
        n += number_field(to + n, STDOUT_AT, "%llu", out.at);
        n += number_field(to + n, STDERR_AT, "%llu", err.at);
    }
    return n;
}

/* The file that sbatch's --input named, open here by Slurm's own rules, is read by the daemon, as the user. */
static size_t stdin_field(char *to)
{
    static char path[PATH_MAX];
    struct stat is;
    if (fstat(STDIN_FILENO, &is) != 0 || (S_ISCHR(is.st_mode) && is.st_rdev == makedev(1, 3))) /* /dev/null */
        return 0;
    ssize_t n = readlink("/proc/self/fd/0", path, sizeof path);
    return n > 0 && *path == '/' ? field(to, STDIN, path, (size_t)n) : 0;
}

static bool say_hello(void)
{
    static char own[2 * PATH_MAX + 512];
    struct stat facts, script;
    if (fstat(FACTS_FD, &facts) != 0 || fstat(SCRIPT_FD, &script) != 0)
        exit(1); /* `main` has seen both */
    size_t n = own_fields(own);
    n += stdin_field(own + n);
    uint32_t length = htonl((uint32_t)script.st_size);
    own[n] = (char)SCRIPT;
    memcpy(own + n + 1, &length, sizeof length);
    n += HEAD;
    uint64_t size = (uint64_t)facts.st_size + n + (uint64_t)script.st_size;
    if (size > MOST_HELLO) {
        static const char much[] = "script, arguments and environment are larger than 12 MiB together";
        remark(much, sizeof much - 1);
        exit(1);
    }
    unsigned char head[HEAD] = {'H'};
    length = htonl((uint32_t)size);
    memcpy(head + 1, &length, sizeof length);
    return put(head, sizeof head) && put_file(FACTS_FD, (uint64_t)facts.st_size) && put(own, n) &&
           put_file(SCRIPT_FD, (uint64_t)script.st_size);
}

/* A daemon whose queue of callers is full is one to try again later. */
static void call(void)
{
    struct timeval limit = {.tv_sec = SEND_S};
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) != 0 ||
        fcntl(sock, F_SETFL, 0) != 0 || setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
        hang_up();
        return;
    }
    heard_at = now_ms();
    if (say_hello()) {
        greeted = true;
        tell_signals();
    }
}

/* -- to the job's files */

/* In stderr, which may be on another disk; in the job's only file it would pass for the job's. */
static void tell_of_output(const char *what, int why)
{
    char text[256];
    if (joined)
        return;
    int n = snprintf(text, sizeof text, "the job's output %s: %s", what, strerror(why));
    remark(text, (size_t)n);
}

/* How many bytes are dealt with; 0: not now. What there is no room for waits, what nobody can read is dropped. */
static size_t write_out(struct stream *stream, const unsigned char *bytes, size_t size)
{
    struct pollfd ready = {.fd = stream->fd, .events = POLLOUT};
    if (stream->gone)
        return size;
    if (stream->full_until > now_ms())
        return 0;
    if (!stream->regular) {
        if (poll(&ready, 1, 0) != 1)
            return 0;
        size = size < PIECE ? size : PIECE;
    }
    ssize_t n = write(stream->fd, bytes, size);
    if (n >= 0) {
        stream->full_until = 0;
        return (size_t)n;
    }
    switch (errno) {
    case EINTR:
    case EAGAIN:
        return 0;
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case ENOMEM:
        if (stream->full_until == 0 && stream == &out)
            tell_of_output("can't be written now, and waits", errno);
        stream->full_until = now_ms() + FULL_MS;
        return 0;
    default: /* EPIPE, EBADF, ESTALE, EFBIG */
        stream->gone = true;
        if (stream == &out)
            tell_of_output("can't be written any more, and is dropped", errno);
        return size;
    }
}

/* -- from the daemon */

static void end(bool by_signal, uint32_t value)
{
    sigset_t own;
    acknowledge();
    if (!by_signal)
        exit((int)(value & 0xff));
    struct rlimit none = {0};
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_DUMPABLE, 0);
    signal((int)value, SIG_DFL);
    sigemptyset(&own); /* another one may be pending, and is not the job's end */
    sigaddset(&own, (int)value);
    sigprocmask(SIG_UNBLOCK, &own, NULL);
    if (value != SIGSTOP && value != SIGTSTP && value != SIGTTIN && value != SIGTTOU)
        kill(getpid(), (int)value);
    exit((int)(128 + (value & 0x7f))); /* a signal that ends nobody */
}

static uint64_t long_at(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return be64toh(value);
}

static uint32_t int_at(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return ntohl(value);
}

/* How far its streams are this proxy knows best, once it has begun. */
static bool welcome(const unsigned char *payload)
{
    uint64_t stdout_at = long_at(payload), stderr_at = long_at(payload + OFFSET);
    if (stdout_at > MOST_AT || stderr_at > MOST_AT)
        return false;
    retry_ms = FIRST_RETRY_MS;
    if (welcomed)
        return true;
    welcomed = true;
    out.at = stdout_at;
    err.at = stderr_at;
    return true;
}

static void confirm_signals(void)
{
    size_t kept = 0;
    pongs++;
    for (size_t i = 0; i < signal_count; i++)
        if (signals[i].ping == 0 || signals[i].ping > pongs)
            signals[kept++] = signals[i];
    signal_count = kept;
}

/* Acts on a frame that is whole. False: it is none of the daemon's. */
static bool obey(unsigned char kind, const unsigned char *payload, uint32_t size)
{
    switch (kind) {
    case 'W':
        return size == 2 * OFFSET && welcome(payload);
    case 'P':
        confirm_signals();
        return true;
    case 'M':
        remark((const char *)payload, size);
        return true;
    case 'R':
        remark((const char *)payload, size);
        exit(1);
    case 'X':
        if (size != HEAD)
            return false;
        end(payload[0] == 1, int_at(payload + 1));
        return false;
    default: /* a newer daemon's */
        return true;
    }
}

/* What came of a stream. Bytes dealt with; 0: none can be now; -1: some before them are missing. */
static ssize_t take_output(const unsigned char *bytes)
{
    struct stream *stream = body == 'E' ? &err : &out;
    size_t n = held < body_left ? held : body_left;
    if (n == 0)
        return 0;
    if (body_at > stream->at)
        return -1;
    uint64_t known = stream->at - body_at; /* written before a loss, and told again */
    if (known == 0) {
        n = write_out(stream, bytes, n);
        stream->at += n;
        unacked += n;
    } else if (known < n) {
        n = (size_t)known;
    }
    body_at += n;
    body_left -= (uint32_t)n;
    return (ssize_t)n;
}

/* One step through what was read. Bytes dealt with; 0: none can be now; -1: this is no daemon that we understand. */
static ssize_t take(const unsigned char *bytes)
{
    if (body_left > 0)
        return take_output(bytes);
    if (held < HEAD)
        return 0;
    uint32_t size = int_at(bytes + 1);
    if (*bytes == 'O' || *bytes == 'E') {
        if (!welcomed || size < OFFSET)
            return -1;
        if (held < HEAD + OFFSET)
            return 0;
        body = *bytes;
        body_at = long_at(bytes + HEAD);
        body_left = size - OFFSET;
        return HEAD + OFFSET;
    }
    if (size > TEXT_BYTES)
        return -1;
    if (held < HEAD + size)
        return 0;
    return obey(*bytes, bytes + HEAD, size) ? (ssize_t)(HEAD + size) : -1;
}

static void take_all(void)
{
    while (sock >= 0) {
        ssize_t n = take(in + first);
        if (n == 0)
            return;
        if (n < 0) {
            hang_up();
            return;
        }
        first += (size_t)n;
        held -= (size_t)n;
        if (unacked >= ACK_BYTES)
            acknowledge();
    }
}

static void listen_to_daemon(void)
{
    memmove(in, in + first, held);
    first = 0;
    ssize_t n = recv(sock, in + held, sizeof in - held, MSG_DONTWAIT); /* 0 also when it is full, and the daemon gone */
    if (n > 0) {
        held += (size_t)n;
        heard_at = now_ms();
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        hang_up();
    }
}

/* -- signals */

/* All are the job's but those that nobody can hold, that a process gives itself, or that this one ignores. */
static int open_signals(void)
{
    static const int OWN[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE, SIGXFSZ, SIGSEGV, SIGBUS,
                              SIGFPE,  SIGILL,  SIGTRAP, SIGSYS,  SIGABRT};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++)
        sigdelset(&set, OWN[i]);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_SETMASK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void note_signals(int fd)
{
    struct signalfd_siginfo one;
    while (read(fd, &one, sizeof one) == (ssize_t)sizeof one) {
        if (signal_count == SIGNALS)
            continue;
        struct told_signal *told = &signals[signal_count++];
        told->number = one.ssi_signo;
        told->from_stepd = one.ssi_pid == 0 || one.ssi_pid == (uint32_t)getppid();
        told->ping = 0;
        stop_at = one.ssi_signo == SIGTSTP ? now_ms() + STOP_MS : one.ssi_signo == SIGCONT ? 0 : stop_at;
    }
    tell_signals();
}

static bool is_told(uint32_t number)
{
    for (size_t i = 0; i < signal_count; i++)
        if (signals[i].number == number)
            return false;
    return true;
}

static void stop_if_due(void)
{
    if (stop_at == 0 || (now_ms() < stop_at && !is_told(SIGTSTP)))
        return;
    stop_at = 0;
    raise(SIGSTOP);
}

/* -- all of it */

static long long sooner(long long one, long long other)
{
    return other == 0 || (one != 0 && one < other) ? one : other;
}

/* When a daemon that says nothing is asked for a word, or, if it was, given up. */
static long long patience(void)
{
    return pings == pongs ? heard_at + IDLE_MS : pinged_at + ANSWER_MS;
}

/* Until something is to be done by itself; -1: nothing is. */
static int wait_ms(long long began)
{
    long long at = sock < 0 ? retry_at : patience();
    at = sooner(at, greeted || remarked ? 0 : began + SILENT_MS);
    at = sooner(at, stop_at);
    at = sooner(at, out.full_until);
    at = sooner(at, err.full_until);
    long long left = at - now_ms();
    return unacked > 0 || left < 0 ? 0 : (int)left;
}

static void keep_in_touch(long long began)
{
    long long now = now_ms();
    if (!greeted && !remarked && now >= began + SILENT_MS) {
        static const char away[] = "the daemon does not answer; waiting";
        remarked = true;
        remark(away, sizeof away - 1);
    }
    if (held > 0)
        heard_at = pinged_at = now; /* it is not the daemon that is slow */
    if (sock < 0 && now >= retry_at)
        call();
    else if (sock >= 0 && now >= patience() && pings != pongs)
        hang_up();
    else if (sock >= 0 && now >= patience())
        ping();
}

/* Where output waits for a reader; -1: nowhere. */
static int waiting_for_reader(void)
{
    const struct stream *stream = body == 'E' ? &err : &out;
    return body_left > 0 && held > 0 && !stream->regular && stream->full_until == 0 ? stream->fd : -1;
}

int main(int argc, char **argv)
{
    struct stat is;
    if (argc != 4 || strlen(argv[1]) >= sizeof address.sun_path || fstat(FACTS_FD, &is) != 0 || fstat(SCRIPT_FD, &is) != 0) {
        static const char usage[] = "vgpu-proxy: only Slurm's gateway plugin can start this\n";
        return write(STDERR_FILENO, usage, sizeof usage - 1) < 0 ? 1 : 2;
    }
    strcpy(address.sun_path, argv[1]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != atoi(argv[2])) /* it died before that */
        return 1;
    int signal_fd = open_signals();
    for (const long long began = now_ms();;) {
        keep_in_touch(began);
        struct pollfd polls[] = {
            {.fd = signal_fd, .events = POLLIN},
            {.fd = sock, .events = held < sizeof in ? POLLIN : 0},
            {.fd = waiting_for_reader(), .events = POLLOUT},
        };
        poll(polls, sizeof polls / sizeof *polls, wait_ms(began));
        if (polls[0].revents != 0)
            note_signals(signal_fd);
        stop_if_due();
        if (unacked > 0 && polls[1].revents == 0)
            acknowledge();
        if (sock >= 0 && polls[1].revents != 0)
            listen_to_daemon();
        take_all();
    }
}
