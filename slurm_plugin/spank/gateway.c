/*
 * vgpu_gateway.so: what keeps user code off a gateway, and puts the proxy in the place of a batch job's script there.
 *
 *   required vgpu_gateway.so nodes=PREFIX,PREFIX... [proxy=FILE] [socket=PATH] [marks=FOLDER]
 *
 * For the plugstack.conf of gateway hosts alone. In slurmd it checks its arguments and the proxy: a slurmd with wrong
 * ones does not start. Before a job's prolog it leaves a mark, by which the prolog knows that this plugin is there. In
 * slurmstepd it lets a batch step on a virtual node become the proxy, and ends any other. On other nodes, and in sbatch,
 * srun and salloc, it does nothing.
 */
#include "gateway.h"

#include <string.h>

SPANK_PLUGIN(vgpu_gateway, 1)

static bool set(const char **value, const char *argument, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(argument, name, n) != 0 || argument[n] == '\0')
        return false;
    *value = argument + n;
    return true;
}

static bool read_arguments(struct gateway *gateway, int argc, char **argv)
{
    *gateway = (struct gateway){
        .proxy = "/usr/libexec/vgpu/vgpu-proxy", .socket = "/run/fed/gateway.sock", .marks = "/run/vgpu-gateway"};
    for (int i = 0; i < argc; i++) {
        if (!set(&gateway->nodes, argv[i], "nodes=") && !set(&gateway->proxy, argv[i], "proxy=") &&
            !set(&gateway->socket, argv[i], "socket=") && !set(&gateway->marks, argv[i], "marks=")) {
            slurm_error("vgpu_gateway: plugstack.conf: '%s' is no option: known are nodes=, proxy=, socket= and marks=",
                        argv[i]);
            return false;
        }
    }
    if (gateway->nodes == NULL || *gateway->proxy != '/' || *gateway->socket != '/' || *gateway->marks != '/') {
        slurm_error("vgpu_gateway: plugstack.conf: nodes= must be given, and proxy=, socket= and marks= be absolute paths");
        return false;
    }
    return true;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    struct gateway gateway;
    spank_context_t context = spank_context();
    if (context != S_CTX_SLURMD && context != S_CTX_REMOTE)
        return 0;
    if (!read_arguments(&gateway, argc, argv))
        return REFUSED;
    return context == S_CTX_SLURMD ? check_host(&gateway) : begin_step(spank, &gateway);
}

int slurm_spank_job_prolog(spank_t spank, int argc, char **argv)
{
    struct gateway gateway;
    return read_arguments(&gateway, argc, argv) ? leave_mark(spank, &gateway) : REFUSED;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    struct gateway gateway;
    return read_arguments(&gateway, argc, argv) ? begin_task(spank, &gateway) : REFUSED;
}
