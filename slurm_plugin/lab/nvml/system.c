/* The library and the node as a whole: sessions, versions, error texts, process names. */
#include <stdio.h>
#include <string.h>

#include "state.h"
#include "text.h"

/* The lock is taken once the file is open, so that a fault of this call can be injected like any other. */
static nvmlReturn_t initialise(const char *call)
{
    nvmlReturn_t result = sim_open();
    if (result != NVML_SUCCESS)
        return result;
    result = sim_enter(call, -1);
    if (result == NVML_SUCCESS)
        sim_leave();
    else
        sim_close();
    return result;
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialise("nvmlInit");
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
    return initialise("nvmlInit");
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = sim_enter(__func__, -1);
    if (result != NVML_SUCCESS)
        return result;
    sim_leave();
    return sim_close();
}

NVML_API const char *nvmlErrorString(nvmlReturn_t code)
{
    static const struct {
        nvmlReturn_t code;
        const char *text;
    } texts[] = {
        {NVML_SUCCESS, "The operation was successful"},
        {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
        {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
        {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
        {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
        {NVML_ERROR_NOT_FOUND, "Not Found"},
        {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
        {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
        {NVML_ERROR_TIMEOUT, "Timeout"},
        {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
        {NVML_ERROR_RESET_REQUIRED, "GPU requires restart"},
        {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
        {NVML_ERROR_IN_USE, "In use by another client"},
        {NVML_ERROR_MEMORY, "Insufficient Memory"},
        {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
        {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "The provided version is invalid/unsupported"},
    };
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (texts[i].code == code)
            return texts[i].text;
    return "Unknown Error";
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    SIM_CALL(-1, text_out(sim_file()->driver_version, out, length));
}

static nvmlReturn_t library_version(char *out, unsigned length)
{
    char text[48];
    snprintf(text, sizeof(text), "%u.%.31s", sim_file()->cuda_version / 1000, sim_file()->driver_version);
    return text_out(text, out, length);
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned length)
{
    SIM_CALL(-1, library_version(out, length));
}

static nvmlReturn_t cuda_version(int *out)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (int)sim_file()->cuda_version;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
    SIM_CALL(-1, cuda_version(out));
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    SIM_CALL(-1, cuda_version(out));
}

static nvmlReturn_t process_name(unsigned pid, char *out, unsigned length)
{
    char path[32], name[256] = "";
    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    size_t count = fread(name, 1, sizeof(name) - 1, file);
    fclose(file);
    name[count] = '\0';
    return text_out(name, out, length);
}

NVML_API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned length)
{
    SIM_CALL(-1, process_name(pid, out, length));
}
