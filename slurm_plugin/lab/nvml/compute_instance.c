/* Compute instances within one GPU instance. Here a profile's id and its constant are one number. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "handles.h"
#include "placement.h"
#include "process.h"

#define CI_PROFILE_CONSTANTS 9

static const struct sim_ci_profile *profile_of(const struct place *at, unsigned id)
{
    for (unsigned i = 0; i < at->profile->ci_profiles; i++)
        if (at->profile->ci[i].id == id)
            return &at->profile->ci[i];
    return NULL;
}

static nvmlReturn_t managed(nvmlGpuInstance_t instance, unsigned id, struct place *at)
{
    nvmlReturn_t result = find_gi(instance, at);
    if (result != NVML_SUCCESS)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (id >= CI_PROFILE_CONSTANTS)
        return NVML_ERROR_INVALID_ARGUMENT;
    at->compute_profile = profile_of(at, id);
    return at->compute_profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t profile_info(nvmlGpuInstance_t instance, unsigned id, unsigned engine, nvmlComputeInstanceProfileInfo_t *out)
{
    struct place at;
    nvmlReturn_t result = managed(instance, id, &at);
    if (result != NVML_SUCCESS || engine != 0 || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlComputeInstanceProfileInfo_t){
        .id = id,
        .sliceCount = at.compute_profile->slices,
        .instanceCount = at.compute_profile->max_instances,
        .multiprocessorCount = at.compute_profile->multiprocessors,
        .sharedCopyEngineCount = at.profile->engines[ENGINE_COPY],
        .sharedDecoderCount = at.profile->engines[ENGINE_DECODER],
        .sharedEncoderCount = at.profile->engines[ENGINE_ENCODER],
        .sharedJpegCount = at.profile->engines[ENGINE_JPEG],
        .sharedOfaCount = at.profile->engines[ENGINE_OFA],
    };
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlGpuInstance_t instance, unsigned id, unsigned engine, nvmlComputeInstanceProfileInfo_t *out)
{
    SIM_CALL(handle_gpu(instance), profile_info(instance, id, engine, out));
}

static nvmlReturn_t profile_info_v2(
    nvmlGpuInstance_t instance, unsigned id, unsigned engine, nvmlComputeInstanceProfileInfo_v2_t *out)
{
    struct place at;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != VERSIONED(*out, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = profile_info(instance, id, engine, &out->plain);
    if (result == NVML_SUCCESS)
        result = managed(instance, id, &at);
    if (result == NVML_SUCCESS)
        snprintf(out->name, sizeof(out->name), "MIG %s", at.compute_profile->name);
    return result;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t instance, unsigned id, unsigned engine, nvmlComputeInstanceProfileInfo_v2_t *out)
{
    SIM_CALL(handle_gpu(instance), profile_info_v2(instance, id, engine, out));
}

static nvmlReturn_t remaining(nvmlGpuInstance_t instance, unsigned id, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = managed(instance, id, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = ci_remaining(at.instance, at.compute_profile);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id, unsigned *out)
{
    SIM_CALL(handle_gpu(instance), remaining(instance, id, out));
}

static nvmlReturn_t placements(nvmlGpuInstance_t instance, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    struct place at;
    nvmlReturn_t result = managed(instance, id, &at);
    if (result != NVML_SUCCESS || count == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_slots *slots = &at.compute_profile->slots;
    if (out != NULL && *count < slots->count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = slots->count;
    for (unsigned i = 0; out != NULL && i < slots->count; i++)
        out[i] = (nvmlPlacement_t){.start = slots->starts[i], .size = slots->size};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    nvmlGpuInstance_t instance, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    SIM_CALL(handle_gpu(instance), placements(instance, id, out, count));
}

/* The lowest free id; its MIG UUID hangs on it. */
static nvmlReturn_t make(const struct place *at, unsigned start, nvmlComputeInstance_t *out)
{
    int id = 0;
    if (at->gone)
        return NVML_ERROR_INVALID_ARGUMENT;
    while (id < SIM_CIS && at->instance->ci[id].serial != 0)
        id++;
    if (id == SIM_CIS)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    struct sim_state *next = sim_edit();
    struct sim_ci *ci = &next->gpu[at->gpu].gi[at->gi].ci[id];
    ci->serial = next->next_serial++;
    ci->profile = (uint32_t)(at->compute_profile - at->profile->ci);
    ci->start = start;
    ci->size = at->compute_profile->slots.size;
    uint32_t serial = ci->serial;
    sim_commit(0);
    *out = handle_of_ci(at->gpu, at->gi, id, serial);
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    struct place at;
    nvmlReturn_t result = managed(instance, id, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    int slot = ci_choose(at.profile, at.instance, at.compute_profile);
    return slot < 0 ? NVML_ERROR_INSUFFICIENT_RESOURCES : make(&at, at.compute_profile->slots.starts[slot], out);
}

NVML_API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    SIM_CALL(handle_gpu(instance), create(instance, id, out));
}

static nvmlReturn_t create_at(nvmlGpuInstance_t instance, unsigned id, const nvmlPlacement_t *wanted, nvmlComputeInstance_t *out)
{
    struct place at;
    nvmlReturn_t result = managed(instance, id, &at);
    if (result != NVML_SUCCESS || wanted == NULL || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_slots *slots = &at.compute_profile->slots;
    unsigned slot = 0;
    while (slot < slots->count && slots->starts[slot] != wanted->start)
        slot++;
    if (slot == slots->count || wanted->size != slots->size)
        return NVML_ERROR_INVALID_ARGUMENT;
    return ci_is_free(at.instance, wanted->start, wanted->size) ? make(&at, wanted->start, out) : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

NVML_API nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t instance, unsigned id, const nvmlPlacement_t *wanted, nvmlComputeInstance_t *out)
{
    SIM_CALL(handle_gpu(instance), create_at(instance, id, wanted, out));
}

static nvmlReturn_t destroy(nvmlComputeInstance_t instance)
{
    struct place at;
    const struct sim_process *found[SIM_PROCESSES];
    nvmlReturn_t result = find_ci(instance, &at);
    if (result != NVML_SUCCESS || at.gone)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (at.instance->stuck || processes_on(at.gpu, at.gi, at.ci, found) > 0)
        return NVML_ERROR_IN_USE;
    memset(&sim_edit()->gpu[at.gpu].gi[at.gi].ci[at.ci], 0, sizeof(struct sim_ci));
    sim_commit(1);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    SIM_CALL(handle_gpu(instance), destroy(instance));
}

static nvmlReturn_t list(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out, unsigned *count)
{
    struct place at;
    nvmlReturn_t result = managed(instance, id, &at);
    if (result != NVML_SUCCESS || out == NULL || count == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int ci = 0; ci < SIM_CIS; ci++)
        if (at.instance->ci[ci].serial != 0 && at.profile->ci[at.instance->ci[ci].profile].id == id)
            out[(*count)++] = handle_of_ci(at.gpu, at.gi, ci, at.instance->ci[ci].serial);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(
    nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out, unsigned *count)
{
    SIM_CALL(handle_gpu(instance), list(instance, id, out, count));
}

static nvmlReturn_t by_id(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    struct place at;
    nvmlReturn_t result = find_gi(instance, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (id >= SIM_CIS || at.instance->ci[id].serial == 0)
        return NVML_ERROR_NOT_FOUND;
    *out = handle_of_ci(at.gpu, at.gi, (int)id, at.instance->ci[id].serial);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    SIM_CALL(handle_gpu(instance), by_id(instance, id, out));
}

static nvmlReturn_t info(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
    struct place at;
    nvmlReturn_t result = find_ci(instance, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlComputeInstanceInfo_t){
        .device = handle_of_gpu(at.gpu),
        .gpuInstance = handle_of_gi(at.gpu, at.gi, at.instance->serial),
        .id = (unsigned)at.ci,
        .profileId = at.compute_profile->id,
        .placement = {.start = at.compute->start, .size = at.compute->size},
    };
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
    SIM_CALL(handle_gpu(instance), info(instance, out));
}
