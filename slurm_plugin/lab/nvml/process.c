#include "process.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "handles.h"

static int is_alive(uint32_t pid)
{
    return kill((pid_t)pid, 0) == 0 || errno == EPERM;
}

unsigned processes_on(int gpu, int gi, int ci, const struct sim_process *out[SIM_PROCESSES])
{
    unsigned count = 0;
    for (int i = 0; i < SIM_PROCESSES; i++) {
        const struct sim_process *process = &sim_now()->process[i];
        if (process->pid == 0 || process->gpu != gpu || (gi >= 0 && process->gi != gi) || (ci >= 0 && process->ci != ci))
            continue;
        if (is_alive(process->pid))
            out[count++] = process;
    }
    return count;
}

uint64_t process_memory_mib(int gpu, int gi, int ci)
{
    const struct sim_process *found[SIM_PROCESSES];
    uint64_t sum = 0;
    for (unsigned i = 0, count = processes_on(gpu, gi, ci, found); i < count; i++)
        sum += found[i]->memory_mib;
    return sum;
}

/* What runs in all instances together is for the privileged only; a MIG device shows its own to anybody. */
static nvmlReturn_t running(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    struct place at;
    const struct sim_process *found[SIM_PROCESSES];
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || count == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (at.ci < 0 && at.now->mig && geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    unsigned room = *count;
    *count = processes_on(at.gpu, at.gi, at.ci, found);
    if (*count > room || (*count > 0 && out == NULL))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        out[i] = (nvmlProcessInfo_t){
            .pid = found[i]->pid,
            .usedGpuMemory = found[i]->memory_mib << 20,
            .gpuInstanceId = found[i]->gi < 0 ? NVML_VALUE_NOT_AVAILABLE : (unsigned)found[i]->gi,
            .computeInstanceId = found[i]->ci < 0 ? NVML_VALUE_NOT_AVAILABLE : (unsigned)found[i]->ci,
        };
    return NVML_SUCCESS;
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned *count)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || count == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    SIM_CALL(handle_gpu(device), running(device, count, out));
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    (void)out;
    SIM_CALL(handle_gpu(device), none(device, count));
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    (void)out;
    SIM_CALL(handle_gpu(device), none(device, count));
}
