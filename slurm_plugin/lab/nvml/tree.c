/* For each instance: proc/driver/nvidia/capabilities/gpuN/mig/giI/access (and giI/ciJ/access), and the plain file
 * dev/nvidia-caps/nvidia-cap<minor> where a driver has a device node. N is the GPU's minor number. An entry goes when its
 * instance goes; the node stays, as it does on a real machine, and is made anew (root's, 0444) with the next instance. */
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_LENGTH (PATH_MAX + 128)

static unsigned capability_minor(unsigned gpu_minor, int gi, int ci)
{
    return 3 + 135 * gpu_minor + 9 * (unsigned)gi + (unsigned)(ci + 1); /* ci -1: the GPU instance itself */
}

/* Written beside and renamed into place: a reader never sees half an entry. */
static void write_file(const char *path, const char *text, mode_t mode)
{
    char beside[PATH_LENGTH + 8];
    snprintf(beside, sizeof(beside), "%s.new", path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return;
    ssize_t written = write(fd, text, strlen(text));
    fchmod(fd, mode);
    close(fd);
    if (written == (ssize_t)strlen(text))
        rename(beside, path);
}

static void entry_path(char *out, unsigned gpu_minor, int gi, int ci)
{
    int length = snprintf(out, PATH_LENGTH, "%s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%d", sim_folder(), gpu_minor, gi);
    if (ci >= 0)
        snprintf(out + length, PATH_LENGTH - (size_t)length, "/ci%d", ci);
}

static void show(unsigned gpu_minor, int gi, int ci)
{
    char path[PATH_LENGTH], text[96];
    entry_path(path, gpu_minor, gi, ci);
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        return;
    strcat(path, "/access");
    if (access(path, F_OK) == 0)
        return;
    unsigned minor = capability_minor(gpu_minor, gi, ci);
    char node[PATH_LENGTH];
    snprintf(node, sizeof(node), "%s/dev/nvidia-caps/nvidia-cap%u", sim_folder(), minor);
    write_file(node, "", 0444);
    snprintf(text, sizeof(text), "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
    write_file(path, text, 0644);
}

static void hide(unsigned gpu_minor, int gi, int ci)
{
    char path[PATH_LENGTH], entry[PATH_LENGTH + 8];
    entry_path(path, gpu_minor, gi, ci);
    snprintf(entry, sizeof(entry), "%s/access", path);
    unlink(entry);
    rmdir(path);
}

static void restore_instance(unsigned gpu_minor, int gi, const struct sim_gi *instance)
{
    if (instance->serial != 0)
        show(gpu_minor, gi, -1);
    for (int ci = 0; ci < SIM_CIS; ci++) {
        if (instance->serial != 0 && instance->ci[ci].serial != 0)
            show(gpu_minor, gi, ci);
        else
            hide(gpu_minor, gi, ci);
    }
    if (instance->serial == 0)
        hide(gpu_minor, gi, -1);
}

static int same_instances(const struct sim_gi *a, const struct sim_gi *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

void tree_restore(struct sim_file *file)
{
    const struct sim_state *now = &file->state[file->current & 1], *before = &file->state[(file->current & 1) ^ 1];
    int only_last_step = file->tree_sequence + 1 == now->sequence && before->sequence == file->tree_sequence;
    for (unsigned gpu = 0; gpu < file->gpus; gpu++)
        for (int gi = 0; gi < SIM_GIS; gi++)
            if (!only_last_step || !same_instances(&now->gpu[gpu].gi[gi], &before->gpu[gpu].gi[gi]))
                restore_instance(file->board[gpu].minor, gi, &now->gpu[gpu].gi[gi]);
    __atomic_store_n(&file->tree_sequence, now->sequence, __ATOMIC_RELEASE);
}
