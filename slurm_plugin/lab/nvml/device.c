/* What a GPU or a MIG device says of itself. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "handles.h"
#include "process.h"
#include "text.h"

#define MIB (1024ull * 1024ull)

static nvmlReturn_t count_gpus(unsigned *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = sim_file()->gpus;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out)
{
    SIM_CALL(-1, count_gpus(out));
}

static nvmlReturn_t by_index(unsigned index, nvmlDevice_t *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = handle_of_gpu((int)index);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    SIM_CALL(index < SIM_GPUS ? (int)index : SIM_GPUS, by_index(index, out));
}

static nvmlReturn_t mig_by_uuid(int gpu, const char *uuid, nvmlDevice_t *out)
{
    const struct sim_board *board = &sim_file()->board[gpu];
    for (int gi = 0; gi < SIM_GIS; gi++) {
        const struct sim_gi *instance = &sim_now()->gpu[gpu].gi[gi];
        for (int ci = 0; instance->serial != 0 && ci < SIM_CIS; ci++)
            if (instance->ci[ci].serial != 0 && strcasecmp(board->mig_uuid[gi][ci], uuid) == 0) {
                *out = handle_of_mig(gpu, gi, ci, instance->ci[ci].serial);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_uuid(const char *uuid, nvmlDevice_t *out)
{
    if (uuid == NULL || out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned gpu = 0; gpu < sim_file()->gpus; gpu++) {
        if (strcasecmp(sim_file()->board[gpu].uuid, uuid) == 0) {
            *out = handle_of_gpu((int)gpu);
            return sim_now()->gpu[gpu].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        }
        if (mig_by_uuid((int)gpu, uuid, out) == NVML_SUCCESS)
            return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    SIM_CALL(-1, by_uuid(uuid, out));
}

static void bus_id(const struct sim_board *board, char *out, size_t length, const char *format)
{
    snprintf(out, length, format, board->pci_domain, board->pci_bus, board->pci_device);
}

static nvmlReturn_t by_bus_id(const char *wanted, nvmlDevice_t *out)
{
    char bus[32];
    if (wanted == NULL || out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned gpu = 0; gpu < sim_file()->gpus; gpu++) {
        static const char *const forms[] = {"%08X:%02X:%02X.0", "%04X:%02X:%02X.0"};
        for (int form = 0; form < 2; form++) {
            bus_id(&sim_file()->board[gpu], bus, sizeof(bus), forms[form]);
            if (strcasecmp(bus, wanted) == 0) {
                *out = handle_of_gpu((int)gpu);
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *out)
{
    SIM_CALL(-1, by_bus_id(bus, out));
}

static nvmlReturn_t device_name(nvmlDevice_t device, char *out, unsigned length)
{
    struct place at;
    char text[sizeof(at.board->name) + sizeof(at.profile->name) + 5];
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS)
        return result;
    if (at.ci < 0)
        return text_out(at.board->name, out, length);
    const char *profile = at.compute_profile->name[0] ? at.compute_profile->name : at.profile->name;
    snprintf(text, sizeof(text), "%s MIG %s", at.board->name, profile);
    return text_out(text, out, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned length)
{
    SIM_CALL(handle_gpu(device), device_name(device, out, length));
}

static nvmlReturn_t device_uuid(nvmlDevice_t device, char *out, unsigned length)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS)
        return result;
    return text_out(at.ci < 0 ? at.board->uuid : at.board->mig_uuid[at.gi][at.ci], out, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned length)
{
    SIM_CALL(handle_gpu(device), device_uuid(device, out, length));
}

static nvmlReturn_t serial(nvmlDevice_t device, char *out, unsigned length)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    return result == NVML_SUCCESS ? text_out(at.board->serial, out, length) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned length)
{
    SIM_CALL(handle_gpu(device), serial(device, out, length));
}

static nvmlReturn_t minor_number(nvmlDevice_t device, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = at.board->minor;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), minor_number(device, out));
}

static nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    memset(out, 0, sizeof(*out));
    out->domain = at.board->pci_domain;
    out->bus = at.board->pci_bus;
    out->device = at.board->pci_device;
    out->pciDeviceId = at.board->pci_device_id << 16 | PCI_VENDOR_NVIDIA;
    bus_id(at.board, out->busId, sizeof(out->busId), "%08X:%02X:%02X.0");
    bus_id(at.board, out->busIdLegacy, sizeof(out->busIdLegacy), "%04X:%02X:%02X.0");
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    SIM_CALL(handle_gpu(device), pci_info(device, out));
}

static nvmlReturn_t compute_capability(nvmlDevice_t device, int *major, int *minor)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || major == NULL || minor == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)at.board->compute_major;
    *minor = (int)at.board->compute_minor;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    SIM_CALL(handle_gpu(device), compute_capability(device, major, minor));
}

/* An idle instance shows about 15 MiB for each eighth of the GPU; a whole GPU what the driver keeps for itself. */
static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS)
        return result;
    uint64_t total = at.ci < 0 ? at.board->memory_mib : at.profile->memory_mib;
    uint64_t reserved = at.ci < 0 ? 480 : 0, idle = at.ci < 0 ? 0 : 15ull * at.instance->size;
    uint64_t used = idle + process_memory_mib(at.gpu, at.gi, at.ci);
    if (used + reserved > total)
        used = total - reserved;
    out->total = total * MIB;
    out->reserved = reserved * MIB;
    out->used = used * MIB;
    out->free = (total - reserved - used) * MIB;
    return NVML_SUCCESS;
}

static nvmlReturn_t memory_v1(nvmlDevice_t device, nvmlMemory_t *out)
{
    nvmlMemory_v2_t all;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = memory(device, &all);
    if (result == NVML_SUCCESS)
        *out = (nvmlMemory_t){.total = all.total, .free = all.free, .used = all.used + all.reserved};
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    SIM_CALL(handle_gpu(device), memory_v1(device, out));
}

static nvmlReturn_t memory_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return out->version == VERSIONED(nvmlMemory_v2_t, 2) ? memory(device, out) : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    SIM_CALL(handle_gpu(device), memory_v2(device, out));
}

static nvmlReturn_t persistence(nvmlDevice_t device, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = at.now->persistence;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), persistence(device, out));
}

enum virtualization { VIRTUALIZATION_NONE = 0, VIRTUALIZATION_PASSTHROUGH = 1 };

static nvmlReturn_t virtualization(nvmlDevice_t device, unsigned *out)
{
    struct place at;
    nvmlReturn_t result = find_gpu(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    *out = at.board->passthrough ? VIRTUALIZATION_PASSTHROUGH : VIRTUALIZATION_NONE;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *out)
{
    SIM_CALL(handle_gpu(device), virtualization(device, out));
}

/* Utilisation is not measured while MIG is on, on the GPU or on a MIG device. */
static nvmlReturn_t utilization(nvmlDevice_t device, nvmlUtilization_t *out)
{
    struct place at;
    nvmlReturn_t result = find_device(device, &at);
    if (result != NVML_SUCCESS || out == NULL)
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    if (at.now->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    out->gpu = out->memory = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    SIM_CALL(handle_gpu(device), utilization(device, out));
}
