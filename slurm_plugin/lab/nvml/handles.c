/* Numbers to handles and back. Layout of the 64 bits: serial 32, kind 4, GPU 8, GI 8, CI 8; the kind is never 0. */
#include "handles.h"

#include <string.h>

enum kind { KIND_GPU = 1, KIND_MIG, KIND_GI, KIND_CI };

static uintptr_t pack(enum kind kind, int gpu, int gi, int ci, uint32_t serial)
{
    return (uintptr_t)serial << 32 | (uintptr_t)kind << 24 | (uintptr_t)gpu << 16 | (uintptr_t)gi << 8 | (uintptr_t)ci;
}

nvmlDevice_t handle_of_gpu(int gpu)
{
    return (nvmlDevice_t)pack(KIND_GPU, gpu, 0, 0, 0);
}

nvmlDevice_t handle_of_mig(int gpu, int gi, int ci, uint32_t serial)
{
    return (nvmlDevice_t)pack(KIND_MIG, gpu, gi, ci, serial);
}

nvmlGpuInstance_t handle_of_gi(int gpu, int gi, uint32_t serial)
{
    return (nvmlGpuInstance_t)pack(KIND_GI, gpu, gi, 0, serial);
}

nvmlComputeInstance_t handle_of_ci(int gpu, int gi, int ci, uint32_t serial)
{
    return (nvmlComputeInstance_t)pack(KIND_CI, gpu, gi, ci, serial);
}

static enum kind kind_of(const void *handle)
{
    return (enum kind)((uintptr_t)handle >> 24 & 0xff);
}

int handle_gpu(const void *handle)
{
    enum kind kind = kind_of(handle);
    return kind >= KIND_GPU && kind <= KIND_CI ? (int)((uintptr_t)handle >> 16 & 0xff) : SIM_GPUS;
}

static int is_there(const struct sim_gi *gi, enum kind kind, int ci, uint32_t serial)
{
    if (kind == KIND_GI)
        return gi->serial == serial;
    return gi->serial != 0 && gi->ci[ci].serial == serial;
}

static nvmlReturn_t find(const void *handle, enum kind kind, struct place *out)
{
    uintptr_t bits = (uintptr_t)handle;
    uint32_t serial = (uint32_t)(bits >> 32);
    int gpu = handle_gpu(handle), gi = (int)(bits >> 8 & 0xff), ci = (int)(bits & 0xff);
    if (kind_of(handle) != kind || (unsigned)gpu >= sim_file()->gpus || gi >= SIM_GIS || ci >= SIM_CIS)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(out, 0, sizeof(*out));
    out->gpu = gpu;
    out->gi = out->ci = -1;
    out->board = &sim_file()->board[gpu];
    out->now = &sim_now()->gpu[gpu];
    if (kind == KIND_GPU)
        return NVML_SUCCESS;
    out->instance = &out->now->gi[gi];
    out->gone = !is_there(out->instance, kind, ci, serial);
    if (out->gone)
        out->instance = &sim_seen()->gpu[gpu].gi[gi];
    if (serial == 0 || !is_there(out->instance, kind, ci, serial))
        return NVML_ERROR_INVALID_ARGUMENT;
    out->gi = gi;
    out->profile = &out->board->profile[out->instance->profile];
    if (kind == KIND_GI)
        return NVML_SUCCESS;
    out->ci = ci;
    out->compute = &out->instance->ci[ci];
    out->compute_profile = &out->profile->ci[out->compute->profile];
    return NVML_SUCCESS;
}

nvmlReturn_t find_gpu(nvmlDevice_t device, struct place *out)
{
    return find(device, KIND_GPU, out);
}

nvmlReturn_t find_mig(nvmlDevice_t device, struct place *out)
{
    return find(device, KIND_MIG, out);
}

nvmlReturn_t find_device(nvmlDevice_t device, struct place *out)
{
    return find(device, kind_of(device) == KIND_MIG ? KIND_MIG : KIND_GPU, out);
}

nvmlReturn_t find_gi(nvmlGpuInstance_t instance, struct place *out)
{
    return find(instance, KIND_GI, out);
}

nvmlReturn_t find_ci(nvmlComputeInstance_t instance, struct place *out)
{
    return find(instance, KIND_CI, out);
}
