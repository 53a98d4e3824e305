/* Handles are numbers: kind, GPU index, instance ids and the serial of the instance. One whose instance is gone, or was
 * made anew since, finds nothing, or what the session remembers. */
#ifndef VGPU_SIM_HANDLES_H
#define VGPU_SIM_HANDLES_H

#include "state.h"

struct place { /* what a handle stands for, found in the state in force */
    int gpu, gi, ci; /* -1 where the handle does not reach */
    int gone;        /* the instance is no more, and only this session's memory answers for it (SIM_STALE_SESSIONS) */
    const struct sim_board *board;
    const struct sim_gpu *now;
    const struct sim_gi *instance;
    const struct sim_profile *profile;
    const struct sim_ci *compute;
    const struct sim_ci_profile *compute_profile;
};

nvmlDevice_t handle_of_gpu(int gpu);
nvmlDevice_t handle_of_mig(int gpu, int gi, int ci, uint32_t serial);
nvmlGpuInstance_t handle_of_gi(int gpu, int gi, uint32_t serial);
nvmlComputeInstance_t handle_of_ci(int gpu, int gi, int ci, uint32_t serial);

int handle_gpu(const void *handle); /* for SIM_CALL; SIM_GPUS, which is refused, when it is no handle of ours */

/* Each returns INVALID_ARGUMENT for a handle of another kind or of an instance that is gone. */
nvmlReturn_t find_device(nvmlDevice_t device, struct place *out); /* a GPU or a MIG device */
nvmlReturn_t find_gpu(nvmlDevice_t device, struct place *out);    /* a GPU only */
nvmlReturn_t find_mig(nvmlDevice_t device, struct place *out);    /* a MIG device only */
nvmlReturn_t find_gi(nvmlGpuInstance_t instance, struct place *out);
nvmlReturn_t find_ci(nvmlComputeInstance_t instance, struct place *out);

#endif
