/* Stand in for the program of the same name in the folder real/ beside this one: run it as it would have been run, and
 * append "NAME START END" (monotonic, in ns) to the file times beside this one. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv)
{
    char self[PATH_MAX], real[PATH_MAX + 8], times[PATH_MAX + 8], line[128];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int status = 0;

    if (length < 0 || argc < 1)
        return 1;
    self[length] = '\0';
    const char *folder = dirname(self);
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    snprintf(real, sizeof real, "%s/real/%s", folder, name);
    snprintf(times, sizeof times, "%s/times", folder);

    long long start = now_ns();
    pid_t child = vfork();
    if (child == 0) {
        execv(real, argv);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    int size = snprintf(line, sizeof line, "%.40s %lld %lld\n", name, start, now_ns());

    int out = open(times, O_WRONLY | O_APPEND); /* made before, writable by the jobs' users too */
    if (out < 0 || write(out, line, (size_t)size) != size)
        return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
