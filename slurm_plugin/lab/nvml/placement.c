/* Placement that the driver chooses itself takes the start which blocks the fewest placements that are still free, counting
 * those of every profile, and the lowest of equals. What remains of a profile is how many more of it can be packed. */
#include "placement.h"

#include <limits.h>
#include <stddef.h>

int overlaps(unsigned start, unsigned size, unsigned other_start, unsigned other_size)
{
    return start < other_start + other_size && other_start < start + size;
}

int gi_is_free(const struct sim_gpu *gpu, unsigned start, unsigned size)
{
    for (int i = 0; i < SIM_GIS; i++)
        if (gpu->gi[i].serial != 0 && overlaps(start, size, gpu->gi[i].start, gpu->gi[i].size))
            return 0;
    return 1;
}

int ci_is_free(const struct sim_gi *gi, unsigned start, unsigned size)
{
    for (int i = 0; i < SIM_CIS; i++)
        if (gi->ci[i].serial != 0 && overlaps(start, size, gi->ci[i].start, gi->ci[i].size))
            return 0;
    return 1;
}

/* What the engines leave: over all instances, no engine kind may exceed what the whole-GPU profile (id 0) has. */
static unsigned engines_allow(const struct sim_board *board, const struct sim_gpu *gpu, const struct sim_profile *profile)
{
    const struct sim_profile *whole = NULL;
    for (unsigned i = 0; i < board->profiles; i++)
        if (board->profile[i].id == 0)
            whole = &board->profile[i];
    unsigned allowed = UINT_MAX;
    for (int engine = 0; whole != NULL && engine < ENGINES; engine++) {
        unsigned used = 0, each = profile->engines[engine];
        for (int i = 0; i < SIM_GIS; i++)
            if (gpu->gi[i].serial != 0)
                used += board->profile[gpu->gi[i].profile].engines[engine];
        unsigned left = used < whole->engines[engine] ? whole->engines[engine] - used : 0;
        if (each > 0 && left / each < allowed)
            allowed = left / each;
    }
    return allowed;
}

unsigned gi_remaining(const struct sim_board *board, const struct sim_gpu *gpu, const struct sim_profile *profile)
{
    unsigned packed = 0, end = 0, allowed = engines_allow(board, gpu, profile);
    for (unsigned i = 0; i < profile->slots.count; i++) {
        unsigned start = profile->slots.starts[i];
        if (start < end || !gi_is_free(gpu, start, profile->slots.size))
            continue;
        packed++;
        end = start + profile->slots.size;
    }
    return packed < allowed ? packed : allowed;
}

unsigned ci_remaining(const struct sim_gi *gi, const struct sim_ci_profile *profile)
{
    unsigned packed = 0, end = 0;
    for (unsigned i = 0; i < profile->slots.count; i++) {
        unsigned start = profile->slots.starts[i];
        if (start < end || !ci_is_free(gi, start, profile->slots.size))
            continue;
        packed++;
        end = start + profile->slots.size;
    }
    return packed;
}

static unsigned gi_blocked_by(const struct sim_board *board, const struct sim_gpu *gpu, unsigned start, unsigned size)
{
    unsigned blocked = 0;
    for (unsigned i = 0; i < board->profiles; i++) {
        const struct sim_slots *slots = &board->profile[i].slots;
        for (unsigned j = 0; j < slots->count; j++)
            blocked += overlaps(start, size, slots->starts[j], slots->size) && gi_is_free(gpu, slots->starts[j], slots->size);
    }
    return blocked;
}

int gi_choose(const struct sim_board *board, const struct sim_gpu *gpu, const struct sim_profile *profile)
{
    int chosen = -1;
    unsigned fewest = UINT_MAX;
    for (unsigned i = 0; i < profile->slots.count; i++) {
        unsigned start = profile->slots.starts[i];
        if (!gi_is_free(gpu, start, profile->slots.size))
            continue;
        unsigned blocked = gi_blocked_by(board, gpu, start, profile->slots.size);
        if (start == profile->taken_last)
            blocked = UINT_MAX - 1;
        if (blocked < fewest) {
            fewest = blocked;
            chosen = (int)i;
        }
    }
    return engines_allow(board, gpu, profile) > 0 ? chosen : -1;
}

static unsigned ci_blocked_by(const struct sim_profile *within, const struct sim_gi *gi, unsigned start, unsigned size)
{
    unsigned blocked = 0;
    for (unsigned i = 0; i < within->ci_profiles; i++) {
        const struct sim_slots *slots = &within->ci[i].slots;
        for (unsigned j = 0; j < slots->count; j++)
            blocked += overlaps(start, size, slots->starts[j], slots->size) && ci_is_free(gi, slots->starts[j], slots->size);
    }
    return blocked;
}

int ci_choose(const struct sim_profile *within, const struct sim_gi *gi, const struct sim_ci_profile *profile)
{
    int chosen = -1;
    unsigned fewest = UINT_MAX;
    for (unsigned i = 0; i < profile->slots.count; i++) {
        unsigned start = profile->slots.starts[i];
        if (!ci_is_free(gi, start, profile->slots.size))
            continue;
        unsigned blocked = ci_blocked_by(within, gi, start, profile->slots.size);
        if (blocked < fewest) {
            fewest = blocked;
            chosen = (int)i;
        }
    }
    return chosen;
}
