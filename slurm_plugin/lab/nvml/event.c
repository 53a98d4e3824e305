/* Event sets, as far as a client that only waits needs them: no event ever comes. */
#include <stdlib.h>
#include <time.h>

#include "handles.h"

struct nvmlEventSet_st {
    unsigned long long types;
};

static nvmlReturn_t create(nvmlEventSet_t *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    SIM_CALL(-1, create(out));
}

static nvmlReturn_t supported(nvmlDevice_t device, unsigned long long *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = 0x1 | 0x2 | 0x8 | 0x100; /* single and double bit errors, Xid, MIG configuration */
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *out)
{
    SIM_CALL(handle_gpu(device), supported(device, out));
}

static nvmlReturn_t watch(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    unsigned long long known;
    nvmlReturn_t result = supported(device, &known);
    if (result != NVML_SUCCESS || set == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (types & ~known)
        return NVML_ERROR_NOT_SUPPORTED;
    set->types |= types;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    SIM_CALL(handle_gpu(device), watch(device, types, set));
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    nvmlReturn_t result = sim_enter(__func__, -1);
    if (result != NVML_SUCCESS)
        return result;
    sim_leave(); /* a waiter must not hold the node */
    if (set == NULL || out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec left = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
    nanosleep(&left, NULL);
    return NVML_ERROR_TIMEOUT;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}
