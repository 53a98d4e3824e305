/* GPU instances: what profiles there are, what exists, create and destroy. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "handles.h"
#include "placement.h"

#define PROFILE_CONSTANTS 18 /* the driver knows no constant from here on */

static const struct sim_profile *profile_of_id(const struct sim_board *board, unsigned id)
{
    for (unsigned i = 0; i < board->profiles; i++)
        if (board->profile[i].id == id)
            return &board->profile[i];
    return NULL;
}

static const struct sim_profile *profile_of_constant(const struct sim_board *board, unsigned constant)
{
    for (unsigned i = 0; i < board->profiles; i++)
        if (board->profile[i].constant == constant)
            return &board->profile[i];
    return NULL;
}

static void describe(const struct sim_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    unsigned version = out->version;
    *out = (nvmlGpuInstanceProfileInfo_v2_t){
        .version = version,
        .id = profile->id,
        .isP2pSupported = profile->p2p,
        .sliceCount = profile->slices,
        .instanceCount = profile->max_instances,
        .multiprocessorCount = profile->multiprocessors,
        .copyEngineCount = profile->engines[ENGINE_COPY],
        .decoderCount = profile->engines[ENGINE_DECODER],
        .encoderCount = profile->engines[ENGINE_ENCODER],
        .jpegCount = profile->engines[ENGINE_JPEG],
        .ofaCount = profile->engines[ENGINE_OFA],
        .memorySizeMB = profile->memory_mib,
    };
    snprintf(out->name, sizeof(out->name), "MIG %s", profile->name);
}

enum space { BY_CONSTANT, BY_ID };

static nvmlReturn_t profile_info(nvmlDevice_t device, enum space space, unsigned number, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != VERSIONED(*out, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (at.board->max_mig_devices == 0 || (!at.now->mig && (sim_file()->flags & SIM_NO_PROFILES_WHEN_DISABLED)))
        return NVML_ERROR_NOT_SUPPORTED;
    if (space == BY_CONSTANT && number >= PROFILE_CONSTANTS)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_profile *profile = space == BY_CONSTANT ? profile_of_constant(at.board, number) : profile_of_id(at.board, number);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    describe(profile, out);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned constant, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    SIM_CALL(handle_gpu(device), profile_info(device, BY_CONSTANT, constant, out));
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    SIM_CALL(handle_gpu(device), profile_info(device, BY_ID, id, out));
}

static nvmlReturn_t profile_info_v1(nvmlDevice_t device, unsigned constant, nvmlGpuInstanceProfileInfo_t *out)
{
    nvmlGpuInstanceProfileInfo_v2_t all = {.version = VERSIONED(all, 2)};
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = profile_info(device, BY_CONSTANT, constant, &all);
    if (result == NVML_SUCCESS) {
        memcpy(out, &all.id, 10 * sizeof(unsigned)); /* the same ten numbers, without the version before them */
        out->memorySizeMB = all.memorySizeMB;
    }
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned constant, nvmlGpuInstanceProfileInfo_t *out)
{
    SIM_CALL(handle_gpu(device), profile_info_v1(device, constant, out));
}

/* What every call about instances needs: root, and for all but the placements MIG switched on. */
static nvmlReturn_t managed(nvmlDevice_t device, unsigned id, int mig_must_be_on, struct place *at)
{
    nvmlReturn_t result = find_gpu(device, at);
    if (result != NVML_SUCCESS)
        return result;
    if (at->board->max_mig_devices == 0 || (mig_must_be_on && !at->now->mig))
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    at->profile = profile_of_id(at->board, id);
    return at->profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t placements(nvmlDevice_t device, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    struct place at;
    nvmlReturn_t result = managed(device, id, 0, &at);
    if (result != NVML_SUCCESS || count == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_slots *slots = &at.profile->slots;
    if (out != NULL && *count < slots->count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = slots->count;
    for (unsigned i = 0; out != NULL && i < slots->count; i++)
        out[i] = (nvmlPlacement_t){.start = slots->starts[i], .size = slots->size};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    SIM_CALL(handle_gpu(device), placements(device, id, out, count));
}

static nvmlReturn_t remaining(nvmlDevice_t device, unsigned id, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = managed(device, id, 1, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = gi_remaining(at.board, at.now, at.profile);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *out)
{
    SIM_CALL(handle_gpu(device), remaining(device, id, out));
}

static nvmlGpuInstance_t make(const struct place *at, unsigned slot)
{
    struct sim_state *next = sim_edit();
    unsigned id = at->profile->gi_ids[slot];
    struct sim_gi *gi = &next->gpu[at->gpu].gi[id];
    memset(gi, 0, sizeof(*gi));
    gi->serial = next->next_serial++;
    gi->profile = (uint32_t)(at->profile - at->board->profile);
    gi->start = at->profile->slots.starts[slot];
    gi->size = at->profile->slots.size;
    uint32_t serial = gi->serial;
    sim_commit(0);
    return handle_of_gi(at->gpu, (int)id, serial);
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    struct place at;
    nvmlReturn_t result = managed(device, id, 1, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    int slot = gi_choose(at.board, at.now, at.profile);
    if (slot < 0)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *out = make(&at, (unsigned)slot);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    SIM_CALL(handle_gpu(device), create(device, id, out));
}

static nvmlReturn_t create_at(nvmlDevice_t device, unsigned id, const nvmlPlacement_t *wanted, nvmlGpuInstance_t *out)
{
    struct place at;
    nvmlReturn_t result = managed(device, id, 1, &at);
    if (result != NVML_SUCCESS || wanted == NULL || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_slots *slots = &at.profile->slots;
    unsigned slot = 0;
    while (slot < slots->count && slots->starts[slot] != wanted->start)
        slot++;
    if (slot == slots->count || wanted->size != slots->size)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gi_is_free(at.now, wanted->start, wanted->size) || gi_remaining(at.board, at.now, at.profile) == 0)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    *out = make(&at, slot);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(
    nvmlDevice_t device, unsigned id, const nvmlPlacement_t *wanted, nvmlGpuInstance_t *out)
{
    SIM_CALL(handle_gpu(device), create_at(device, id, wanted, out));
}

static nvmlReturn_t destroy(nvmlGpuInstance_t instance)
{
    struct place at;
    nvmlReturn_t result = find_gi(instance, &at);
    if (result != NVML_SUCCESS || at.gone)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (at.instance->stuck)
        return NVML_ERROR_IN_USE;
    for (int ci = 0; ci < SIM_CIS; ci++)
        if (at.instance->ci[ci].serial != 0)
            return NVML_ERROR_IN_USE;
    memset(&sim_edit()->gpu[at.gpu].gi[at.gi], 0, sizeof(struct sim_gi));
    sim_commit(1);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    SIM_CALL(handle_gpu(instance), destroy(instance));
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    struct place at;
    nvmlReturn_t result = managed(device, id, 1, &at);
    if (result != NVML_SUCCESS || out == NULL || count == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int gi = 0; gi < SIM_GIS; gi++) {
        const struct sim_gi *instance = &sim_seen()->gpu[at.gpu].gi[gi];
        if (instance->serial != 0 && at.board->profile[instance->profile].id == id)
            out[(*count)++] = handle_of_gi(at.gpu, gi, instance->serial);
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    SIM_CALL(handle_gpu(device), list(device, id, out, count));
}

static nvmlReturn_t by_id(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (!at.now->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (id >= SIM_GIS || at.now->gi[id].serial == 0)
        return NVML_ERROR_NOT_FOUND;
    *out = handle_of_gi(at.gpu, (int)id, at.now->gi[id].serial);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    SIM_CALL(handle_gpu(device), by_id(device, id, out));
}

static nvmlReturn_t info(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
    struct place at;
    nvmlReturn_t result = find_gi(instance, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlGpuInstanceInfo_t){
        .device = handle_of_gpu(at.gpu),
        .id = (unsigned)at.gi,
        .profileId = at.profile->id,
        .placement = {.start = at.instance->start, .size = at.instance->size},
    };
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
    SIM_CALL(handle_gpu(instance), info(instance, out));
}
