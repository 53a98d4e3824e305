/* The part of NVML's binary interface that this library answers, as clients call it on a 64-bit machine.
 * Sizes are pinned below: a client was compiled against them. */
#ifndef VGPU_SIM_ABI_H
#define VGPU_SIM_ABI_H

#define NVML_API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

/* Handles are numbers dressed as pointers (handles.h): nothing here is ever dereferenced. */
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

/* The driver shows a GPU's id as (device << 16) | vendor. */
#define PCI_VENDOR_NVIDIA 0x10DEu
#define NVML_NAME_LENGTH 96
#define NVML_VALUE_NOT_AVAILABLE 0xFFFFFFFFu

#define VERSIONED(type, version) ((unsigned)(sizeof(type) | ((version) << 24)))

typedef struct {
    unsigned start, size;
} nvmlPlacement_t;

typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount;
    unsigned decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount;
    unsigned decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[NVML_NAME_LENGTH];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    nvmlDevice_t device;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount;
    unsigned sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    unsigned version;
    nvmlComputeInstanceProfileInfo_t plain;
    char name[NVML_NAME_LENGTH];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount;
    unsigned sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    unsigned long long value;
} nvmlFieldValue_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48, "GI profile v1");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152, "GI profile v2");
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "GI info");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_t) == 36, "CI profile v1");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136, "CI profile v2");
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32, "CI info");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "attributes");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "memory v2");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "PCI info");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "process info");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "field value");
_Static_assert(sizeof(nvmlEventData_t) == 32, "event data");

#endif
