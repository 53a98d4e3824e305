/* MIG mode, and MIG devices as clients list them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "handles.h"
#include "process.h"
#include "text.h"

enum field { FIELD_RESETLESS_MIG = 184, FIELD_MIG_MODE_INDEPENDENT_QUERIES = 199 };
enum value_type { VALUE_UNSIGNED_INT = 1 };

static nvmlReturn_t get_mode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || current == NULL || pending == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (at.board->max_mig_devices == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = at.now->mig;
    *pending = at.now->mig_pending;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    SIM_CALL(handle_gpu(device), get_mode(device, current, pending));
}

/* Why a wished mode does not take effect at once. Ampere resets the GPU for it, which clients or a virtual machine prevent. */
static nvmlReturn_t activation(const struct place *at, unsigned mode)
{
    const struct sim_process *found[SIM_PROCESSES];
    nvmlReturn_t injected = sim_fault("activation", at->gpu);
    if (injected != NVML_SUCCESS || mode == at->now->mig)
        return injected;
    for (int gi = 0; gi < SIM_GIS; gi++)
        if (at->now->gi[gi].serial != 0)
            return NVML_ERROR_IN_USE;
    if (processes_on(at->gpu, -1, -1, found) > 0)
        return NVML_ERROR_IN_USE;
    return at->board->mode_needs_reset && at->board->passthrough ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
}

static nvmlReturn_t set_mode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *status)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || mode > 1 || status == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (at.board->max_mig_devices == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    *status = activation(&at, mode);
    struct sim_gpu *gpu = &sim_edit()->gpu[at.gpu];
    if (*status == NVML_SUCCESS)
        gpu->mig = gpu->mig_pending = mode;
    else if (at.board->mode_needs_reset)
        gpu->mig_pending = mode; /* the next reset or reboot brings it */
    sim_commit(0);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *status)
{
    SIM_CALL(handle_gpu(device), set_mode(device, mode, status));
}

static nvmlReturn_t max_devices(nvmlDevice_t device, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = at.now->mig ? at.board->max_mig_devices : 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), max_devices(device, out));
}

/* MIG devices in ascending order of GPU instance, then compute instance. */
static nvmlReturn_t by_index(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    for (int gi = 0; gi < SIM_GIS; gi++) {
        const struct sim_gi *instance = &sim_seen()->gpu[at.gpu].gi[gi];
        for (int ci = 0; instance->serial != 0 && ci < SIM_CIS; ci++)
            if (instance->ci[ci].serial != 0 && index-- == 0) {
                *out = handle_of_mig(at.gpu, gi, ci, instance->ci[ci].serial);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    SIM_CALL(handle_gpu(device), by_index(device, index, out));
}

static unsigned mig_index(const struct place *at)
{
    unsigned index = 0;
    for (int gi = 0; gi <= at->gi; gi++)
        for (int ci = 0; at->now->gi[gi].serial != 0 && ci < (gi < at->gi ? SIM_CIS : at->ci); ci++)
            index += at->now->gi[gi].ci[ci].serial != 0;
    return index;
}

static nvmlReturn_t device_index(nvmlDevice_t device, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = at.ci < 0 ? (unsigned)at.gpu : mig_index(&at);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), device_index(device, out));
}

static nvmlReturn_t is_mig(nvmlDevice_t device, unsigned *out)
{
    struct place at;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = find_mig(device, &at) == NVML_SUCCESS;
    return *out ? NVML_SUCCESS : find_gpu(device, &at);
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), is_mig(device, out));
}

enum part { PART_GI, PART_CI };

static nvmlReturn_t instance_id(nvmlDevice_t device, enum part part, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = find_mig(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = (unsigned)(part == PART_GI ? at.gi : at.ci);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), instance_id(device, PART_GI, out));
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), instance_id(device, PART_CI, out));
}

static nvmlReturn_t parent(nvmlDevice_t device, nvmlDevice_t *out)
{
    struct place at;
    nvmlReturn_t result = find_mig(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = handle_of_gpu(at.gpu);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    SIM_CALL(handle_gpu(device), parent(device, out));
}

static nvmlReturn_t attributes(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    struct place at;
    nvmlReturn_t result = find_mig(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlDeviceAttributes_t){
        .multiprocessorCount = at.compute_profile->multiprocessors,
        .sharedCopyEngineCount = at.profile->engines[ENGINE_COPY],
        .sharedDecoderCount = at.profile->engines[ENGINE_DECODER],
        .sharedEncoderCount = at.profile->engines[ENGINE_ENCODER],
        .sharedJpegCount = at.profile->engines[ENGINE_JPEG],
        .sharedOfaCount = at.profile->engines[ENGINE_OFA],
        .gpuInstanceSliceCount = at.profile->slices,
        .computeInstanceSliceCount = at.compute_profile->slices,
        .memorySizeMB = at.profile->memory_mib,
    };
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    SIM_CALL(handle_gpu(device), attributes(device, out));
}

static nvmlReturn_t field_values(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || count < 1 || values == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = NVML_SUCCESS;
        values[i].valueType = VALUE_UNSIGNED_INT;
        if (values[i].fieldId == FIELD_RESETLESS_MIG)
            values[i].value = at.board->max_mig_devices > 0 && !at.board->mode_needs_reset;
        else if (values[i].fieldId == FIELD_MIG_MODE_INDEPENDENT_QUERIES)
            values[i].value = !(sim_file()->flags & SIM_NO_PROFILES_WHEN_DISABLED);
        else
            values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    SIM_CALL(handle_gpu(device), field_values(device, count, values));
}
