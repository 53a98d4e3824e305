/* Opening, locking, counting, faults, and the change of state. See state.h for the promise. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tree.h"

static struct {
    pthread_mutex_t mutex;
    int users, fd, writable;
    pid_t owner; /* a forked child must not share its parent's lock: it opens the file again */
    struct sim_file *file;
    struct sim_state *seen; /* this session's memory of the instances, only with SIM_STALE_SESSIONS */
    enum sim_crash crash;   /* what the present call was told to die of */
    char path[PATH_MAX], folder[PATH_MAX];
} node = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static nvmlReturn_t open_file(void)
{
    struct stat status;
    node.writable = 1;
    node.fd = open(node.path, O_RDWR | O_CLOEXEC);
    if (node.fd < 0 && (errno == EACCES || errno == EROFS)) {
        node.writable = 0;
        node.fd = open(node.path, O_RDONLY | O_CLOEXEC);
    }
    if (node.fd < 0)
        return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    if (fstat(node.fd, &status) != 0 || status.st_size != (off_t)sizeof(struct sim_file))
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    void *map = mmap(NULL, sizeof(struct sim_file), PROT_READ | (node.writable ? PROT_WRITE : 0), MAP_SHARED, node.fd, 0);
    if (map == MAP_FAILED)
        return NVML_ERROR_MEMORY;
    node.file = map;
    node.owner = getpid();
    if (node.file->magic != SIM_MAGIC || node.file->layout != SIM_LAYOUT || node.file->gpus > SIM_GPUS)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

static void close_file(void)
{
    if (node.file != NULL)
        munmap(node.file, sizeof(struct sim_file));
    if (node.fd >= 0)
        close(node.fd);
    free(node.seen);
    node.file = NULL;
    node.seen = NULL;
    node.fd = -1;
}

static nvmlReturn_t find_file(void)
{
    const char *path = getenv("VGPU_SIM_STATE");
    if (path == NULL || path[0] != '/' || strlen(path) >= sizeof(node.path))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    strcpy(node.path, path);
    strcpy(node.folder, path);
    *strrchr(node.folder, '/') = '\0';
    return NVML_SUCCESS;
}

static void remember_instances(void)
{
    if (!(node.file->flags & SIM_STALE_SESSIONS))
        return;
    if (node.seen == NULL)
        node.seen = malloc(sizeof(*node.seen));
    if (node.seen != NULL)
        *node.seen = *sim_now();
}

nvmlReturn_t sim_open(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&node.mutex);
    if (node.users == 0) {
        result = find_file();
        if (result == NVML_SUCCESS)
            result = open_file();
        if (result != NVML_SUCCESS)
            close_file();
    }
    if (result == NVML_SUCCESS)
        node.users++;
    pthread_mutex_unlock(&node.mutex);
    return result;
}

nvmlReturn_t sim_close(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&node.mutex);
    if (node.users == 0)
        result = NVML_ERROR_UNINITIALIZED;
    else if (--node.users == 0)
        close_file();
    pthread_mutex_unlock(&node.mutex);
    return result;
}

static void sleep_ms(unsigned milliseconds)
{
    struct timespec left = {.tv_sec = milliseconds / 1000, .tv_nsec = (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static nvmlReturn_t lock_file(void)
{
    for (int waited_ms = 0; flock(node.fd, LOCK_EX | LOCK_NB) != 0; waited_ms++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return NVML_ERROR_UNKNOWN;
        if (waited_ms >= SIM_LOCK_WAIT_MS)
            return NVML_ERROR_TIMEOUT;
        sleep_ms(1);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t lock_node(void)
{
    pthread_mutex_lock(&node.mutex);
    nvmlReturn_t result = node.users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (result == NVML_SUCCESS && node.owner != getpid()) {
        close_file();
        result = open_file();
    }
    if (result == NVML_SUCCESS)
        result = lock_file();
    if (result != NVML_SUCCESS)
        pthread_mutex_unlock(&node.mutex);
    return result;
}

static void count_call(const char *call)
{
    for (int i = 0; i < SIM_COUNTERS; i++) {
        struct sim_counter *counter = &node.file->counter[i];
        if (counter->calls == 0)
            snprintf(counter->call, sizeof(counter->call), "%s", call);
        else if (strcmp(counter->call, call) != 0)
            continue;
        counter->calls++;
        return;
    }
}

/* Uses up one injected fault of this call. Returns its code, with the delay to sleep once the lock is open again. */
static nvmlReturn_t take_fault(const char *call, int gpu, unsigned *delay_ms)
{
    for (int i = 0; i < SIM_FAULTS; i++) {
        struct sim_fault *fault = &node.file->fault[i];
        if (fault->times == 0 || strcmp(fault->call, call) != 0 || (fault->gpu >= 0 && fault->gpu != gpu))
            continue;
        if (node.writable)
            fault->times--;
        *delay_ms = fault->delay_ms;
        node.crash = fault->crash;
        return fault->code;
    }
    return NVML_SUCCESS;
}

static void crash_here(enum sim_crash point)
{
    if (node.crash == point)
        kill(getpid(), SIGKILL);
}

static nvmlReturn_t lost_or_bad(int gpu)
{
    if (gpu < 0)
        return NVML_SUCCESS;
    if ((unsigned)gpu >= node.file->gpus)
        return NVML_ERROR_INVALID_ARGUMENT;
    return sim_now()->gpu[gpu].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t sim_enter(const char *call, int gpu)
{
    unsigned delay_ms = 0;
    nvmlReturn_t result = lock_node();
    if (result != NVML_SUCCESS)
        return result;
    node.crash = SIM_CRASH_NONE;
    if (node.writable)
        count_call(call);
    nvmlReturn_t fault = take_fault(call, gpu, &delay_ms);
    crash_here(SIM_CRASH_BEFORE);
    if (delay_ms > 0) { /* a slow call is slow for its caller, not for the node */
        enum sim_crash crash = node.crash;
        sim_leave();
        sleep_ms(delay_ms);
        result = lock_node();
        if (result != NVML_SUCCESS)
            return result;
        node.crash = crash;
    }
    if (fault == NVML_SUCCESS)
        fault = lost_or_bad(gpu);
    if (fault != NVML_SUCCESS) {
        sim_leave();
        return fault;
    }
    if (node.file->tree_sequence != sim_now()->sequence && node.writable) /* somebody died between state and files */
        tree_restore(node.file);
    if (node.seen == NULL)
        remember_instances();
    return NVML_SUCCESS;
}

void sim_leave(void)
{
    flock(node.fd, LOCK_UN);
    pthread_mutex_unlock(&node.mutex);
}

nvmlReturn_t sim_fault(const char *call, int gpu)
{
    unsigned delay_ms = 0;
    return take_fault(call, gpu, &delay_ms);
}

const struct sim_file *sim_file(void)
{
    return node.file;
}

const struct sim_state *sim_now(void)
{
    return &node.file->state[node.file->current & 1];
}

const struct sim_state *sim_seen(void)
{
    return node.seen != NULL ? node.seen : sim_now();
}

struct sim_state *sim_edit(void)
{
    struct sim_state *draft = &node.file->state[(node.file->current & 1) ^ 1];
    *draft = *sim_now();
    draft->sequence++;
    return draft;
}

void sim_commit(int destroyed)
{
    crash_here(SIM_CRASH_INSIDE);
    __atomic_store_n(&node.file->current, (node.file->current & 1) ^ 1, __ATOMIC_RELEASE);
    crash_here(SIM_CRASH_AFTER);
    tree_restore(node.file);
    if (!destroyed)
        remember_instances();
}

const char *sim_folder(void)
{
    return node.folder;
}
