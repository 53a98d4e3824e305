/* Processes that compute, as the state's table has them. One that has died is not shown. */
#ifndef VGPU_SIM_PROCESS_H
#define VGPU_SIM_PROCESS_H

#include "state.h"

/* gi and ci -1: whatever runs on the GPU. */
unsigned processes_on(int gpu, int gi, int ci, const struct sim_process *out[SIM_PROCESSES]);
uint64_t process_memory_mib(int gpu, int gi, int ci);

#endif
