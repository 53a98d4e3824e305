/* What monitoring tools ask beside MIG. Sensors belong to the physical GPU; a MIG device has none, and nothing is ever warm. */
#include <stddef.h>

#include "handles.h"

#define IDLE_CELSIUS 31u
#define IDLE_MILLIWATT 71000u
#define LIMIT_MILLIWATT 700000u
#define BAR1_BYTES (128ull << 30)

static nvmlReturn_t reading(nvmlDevice_t device, unsigned value, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = value;
    return at.ci < 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t absent(nvmlDevice_t device)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius)
{
    (void)sensor;
    SIM_CALL(handle_gpu(device), reading(device, IDLE_CELSIUS, celsius));
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatt)
{
    SIM_CALL(handle_gpu(device), reading(device, IDLE_MILLIWATT, milliwatt));
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatt)
{
    SIM_CALL(handle_gpu(device), reading(device, LIMIT_MILLIWATT, milliwatt));
}

NVML_API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state)
{
    SIM_CALL(handle_gpu(device), reading(device, 0, state));
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    SIM_CALL(handle_gpu(device), reading(device, 0, mode));
}

NVML_API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *on)
{
    SIM_CALL(handle_gpu(device), reading(device, 0, on));
}

NVML_API nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *on)
{
    SIM_CALL(handle_gpu(device), reading(device, 0, on));
}

NVML_API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
    (void)percent; /* data-centre boards have no fan of their own */
    SIM_CALL(handle_gpu(device), absent(device));
}

NVML_API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    (void)percent;
    (void)period_us;
    SIM_CALL(handle_gpu(device), absent(device));
}

NVML_API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    (void)percent;
    (void)period_us;
    SIM_CALL(handle_gpu(device), absent(device));
}

NVML_API nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    (void)current; /* Windows only */
    (void)pending;
    SIM_CALL(handle_gpu(device), absent(device));
}

static nvmlReturn_t bar1(nvmlDevice_t device, nvmlMemory_t *out)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    unsigned long long total = at.ci < 0 ? BAR1_BYTES : BAR1_BYTES / at.board->memory_slices * at.instance->size;
    *out = (nvmlMemory_t){.total = total, .free = total};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    SIM_CALL(handle_gpu(device), bar1(device, out));
}

static nvmlReturn_t ecc_errors(nvmlDevice_t device, unsigned long long *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int error_type, int counter_type, unsigned long long *out)
{
    (void)error_type;
    (void)counter_type;
    SIM_CALL(handle_gpu(device), ecc_errors(device, out));
}
