/* One simulated node as a file, and how a call takes hold of it.
 *
 * The file is mapped by every process of the node. Boards never change after the file is made; what changes (modes,
 * instances, processes) lies in two copies. A writer holds the lock, edits the copy that is not in force and then turns
 * `current` with one store: a process killed at any point leaves a whole state behind. simgpu.py mirrors these structures;
 * SIM_LAYOUT and the file's size tell the two apart when they differ. */
#ifndef VGPU_SIM_STATE_H
#define VGPU_SIM_STATE_H

#include <stdint.h>

#include "abi.h"

#define SIM_MAGIC 0x314d495355504756ull /* "VGPUSIM1" in memory */
#define SIM_LAYOUT 1
#define SIM_GPUS 16
#define SIM_GIS 15      /* GPU-instance ids are 0..14 */
#define SIM_CIS 8       /* compute-instance ids are 0..7 */
#define SIM_PROFILES 18
#define SIM_CI_PROFILES 8
#define SIM_STARTS 12
#define SIM_PROCESSES 128
#define SIM_FAULTS 32
#define SIM_COUNTERS 128
#define SIM_CALL_NAME 64
#define SIM_LOCK_WAIT_MS 10000 /* longest wait for the node's lock; reached: TIMEOUT to the caller */

enum sim_flag {
    SIM_STALE_SESSIONS = 1,          /* a session goes on listing what was destroyed in it, as some drivers do */
    SIM_NO_PROFILES_WHEN_DISABLED = 2, /* profile queries answer NOT_SUPPORTED while MIG is off (drivers before R580) */
};

enum sim_crash { SIM_CRASH_NONE, SIM_CRASH_BEFORE, SIM_CRASH_INSIDE, SIM_CRASH_AFTER };

enum sim_engine { ENGINE_COPY, ENGINE_DECODER, ENGINE_ENCODER, ENGINE_JPEG, ENGINE_OFA, ENGINES };

struct sim_slots { /* where something of one size may start, ascending */
    uint32_t count, size;
    uint32_t starts[SIM_STARTS];
};

struct sim_ci_profile {
    uint32_t id, slices, multiprocessors, max_instances, is_default, reserved;
    struct sim_slots slots; /* in compute slices of the GPU instance */
    char name[32];
};

struct sim_profile {
    uint32_t id, constant; /* the driver's id, and the constant that only the profile query takes */
    uint32_t slices, multiprocessors, max_instances, p2p;
    uint32_t engines[ENGINES];
    uint32_t taken_last; /* a start that automatic placement takes last; SIM_STARTS for none */
    struct sim_slots slots; /* in memory slices */
    uint32_t gi_ids[SIM_STARTS];
    uint32_t ci_profiles;
    uint64_t memory_mib;
    char name[32];
    struct sim_ci_profile ci[SIM_CI_PROFILES];
};

struct sim_board {
    char name[64];
    char uuid[48];
    char serial[32];
    uint32_t pci_domain, pci_bus, pci_device, pci_device_id;
    uint32_t minor, compute_major, compute_minor, multiprocessors;
    uint32_t memory_mib, compute_slices, memory_slices, max_mig_devices; /* max_mig_devices 0: no MIG on this board */
    uint32_t mode_needs_reset, mode_persists, passthrough, profiles;
    struct sim_profile profile[SIM_PROFILES];
    char mig_uuid[SIM_GIS][SIM_CIS][48];
};

struct sim_ci {
    uint32_t serial; /* 0: there is none. A handle holds the serial, so it dies with its instance. */
    uint32_t profile, start, size;
};

struct sim_gi {
    uint32_t serial;
    uint32_t profile; /* index into board.profile */
    uint32_t start, size, stuck, reserved;
    struct sim_ci ci[SIM_CIS];
};

struct sim_gpu {
    uint32_t mig, mig_pending, lost, persistence;
    struct sim_gi gi[SIM_GIS];
};

struct sim_process {
    uint32_t pid; /* 0: free entry */
    int32_t gpu, gi, ci; /* gi and ci are -1 for the whole GPU */
    uint64_t memory_mib;
};

struct sim_state {
    uint64_t sequence;
    uint32_t next_serial, boots;
    struct sim_process process[SIM_PROCESSES];
    struct sim_gpu gpu[SIM_GPUS];
};

struct sim_fault {
    uint32_t times; /* 0: free entry; written last */
    int32_t code, gpu; /* gpu -1: any */
    uint32_t delay_ms, crash, reserved;
    char call[SIM_CALL_NAME];
};

struct sim_counter {
    uint64_t calls; /* 0: free entry; written last */
    char call[SIM_CALL_NAME];
};

struct sim_file {
    uint64_t magic;
    uint32_t layout, gpus, flags, cuda_version;
    char driver_version[32];
    uint64_t tree_sequence; /* the state whose /proc and /dev files are in place */
    uint32_t current, reserved;
    struct sim_fault fault[SIM_FAULTS];
    struct sim_counter counter[SIM_COUNTERS];
    struct sim_board board[SIM_GPUS];
    struct sim_state state[2];
};

nvmlReturn_t sim_open(void);  /* one more user of this process's mapping */
nvmlReturn_t sim_close(void);
int sim_is_open(void);

/* Between sim_enter and sim_leave this thread alone holds the node. `gpu` is the index that the call is about, or -1.
 * The call is counted and its injected faults happen here; an error means the lock is not held. */
nvmlReturn_t sim_enter(const char *call, int gpu);
void sim_leave(void);

const struct sim_file *sim_file(void);
const struct sim_state *sim_now(void);  /* the state in force */
const struct sim_state *sim_seen(void); /* what this session lists: the same, but for SIM_STALE_SESSIONS */
struct sim_state *sim_edit(void);       /* a draft of the next state; dropped unless committed */
void sim_commit(int destroyed);         /* make the draft the state in force and bring the files in line */

/* A call that something else injects under a name of its own, such as the activation of a MIG mode. */
nvmlReturn_t sim_fault(const char *call, int gpu);

const char *sim_folder(void); /* where the state file lies: the root of proc/ and dev/ */

#define SIM_CALL(gpu, expression)                                                                                              \
    do {                                                                                                                       \
        nvmlReturn_t result_ = sim_enter(__func__, gpu);                                                                       \
        if (result_ == NVML_SUCCESS) {                                                                                         \
            result_ = (expression);                                                                                            \
            sim_leave();                                                                                                       \
        }                                                                                                                      \
        return result_;                                                                                                        \
    } while (0)

#endif
