/* Where instances fit. Pure: it sees the board's geometry and what exists, and nothing else. */
#ifndef VGPU_SIM_PLACEMENT_H
#define VGPU_SIM_PLACEMENT_H

#include "state.h"

int overlaps(unsigned start, unsigned size, unsigned other_start, unsigned other_size);

/* GPU instances, in memory slices. */
int gi_is_free(const struct sim_gpu *gpu, unsigned start, unsigned size);
unsigned gi_remaining(const struct sim_board *board, const struct sim_gpu *gpu, const struct sim_profile *profile);
int gi_choose(const struct sim_board *board, const struct sim_gpu *gpu, const struct sim_profile *profile); /* index of a start, or -1 */

/* Compute instances, in compute slices of one GPU instance. */
int ci_is_free(const struct sim_gi *gi, unsigned start, unsigned size);
unsigned ci_remaining(const struct sim_gi *gi, const struct sim_ci_profile *profile);
int ci_choose(const struct sim_profile *within, const struct sim_gi *gi, const struct sim_ci_profile *profile);

#endif
