/* Copying text out to a caller's buffer. */
#ifndef VGPU_SIM_TEXT_H
#define VGPU_SIM_TEXT_H

#include <string.h>

#include "abi.h"

static inline nvmlReturn_t text_out(const char *text, char *out, unsigned length)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

#endif
