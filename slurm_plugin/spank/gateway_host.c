/*
 * The gateway plugin outside of steps: in slurmd when it starts, and in the slurmstepd that it runs before each prolog.
 *
 * A mark is MARKS/JOB, a file of root's: "ok", or why no job may start here. The prolog takes it away. That there is none
 * tells it that this plugin is not in the plugstack.conf which the job's slurmstepd will read.
 */
#define _GNU_SOURCE /* AT_EACCESS */
#include "gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* For a job with --get-user-env or --export=NONE slurmd runs a login shell as its user before any plugin is asked. */
static const char *const LOGIN[] = {"/bin/su", "/usr/bin/su"};
#define NO_SU "vgpu-no-su" /* beside the proxy: what may be in its place */

/* NULL: this host can serve virtual nodes, as far as its files tell. */
static const char *fault_of(const struct gateway *gateway)
{
    struct stat is;
    if (stat(gateway->proxy, &is) != 0 || !S_ISREG(is.st_mode) || access(gateway->proxy, X_OK) != 0)
        return "there is no proxy where proxy= says";
    if (is.st_uid != 0 || (is.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return "the proxy must be a file of root's that nobody else can write";
    if (strlen(gateway->socket) >= sizeof((struct sockaddr_un *)0)->sun_path)
        return "the path that socket= names is too long for a socket";
    return NULL;
}

int check_host(const struct gateway *gateway)
{
    const char *fault = fault_of(gateway);
    if (fault == NULL)
        return 0;
    slurm_error("vgpu_gateway: %s", fault);
    return REFUSED;
}

static bool is_no_su(const struct gateway *gateway, const struct stat *su)
{
    char path[PATH_MAX];
    struct stat is;
    int folder = (int)(strrchr(gateway->proxy, '/') - gateway->proxy);
    return snprintf(path, sizeof path, "%.*s/" NO_SU, folder, gateway->proxy) < (int)sizeof path && stat(path, &is) == 0 &&
           is.st_dev == su->st_dev && is.st_ino == su->st_ino && is.st_uid == 0 && (is.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static const char *fault_of_job(const struct gateway *gateway)
{
    const char *fault = fault_of(gateway);
    size_t there = 0;
    for (size_t i = 0; fault == NULL && i < sizeof LOGIN / sizeof *LOGIN; i++) {
        struct stat is;
        if (stat(LOGIN[i], &is) != 0)
            continue;
        there++;
        if (faccessat(AT_FDCWD, LOGIN[i], X_OK, AT_EACCESS) == 0 && !is_no_su(gateway, &is))
            fault = "slurmd can run su here: it must not, see docs/overflow_plugins.md";
    }
    if (fault == NULL && there == 0)
        fault = "there is no su here: slurmd would end itself, see docs/overflow_plugins.md";
    return fault;
}

/* What it returns decides nothing: without a mark that says so no job starts. */
int leave_mark(spank_t spank, const struct gateway *gateway)
{
    char path[PATH_MAX];
    uint32_t job;
    const char *fault = fault_of_job(gateway);
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        snprintf(path, sizeof path, "%s/%u", gateway->marks, job) >= (int)sizeof path)
        return 0;
    mkdir(gateway->marks, 0755);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 || dprintf(fd, "%s\n", fault == NULL ? "ok" : fault) < 0)
        slurm_error("vgpu_gateway: %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return 0;
}
