/* What the gateway plugin's files share. */
#ifndef VGPU_GATEWAY_H
#define VGPU_GATEWAY_H

#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>

struct gateway {
    const char *nodes;  /* prefixes of the virtual nodes' names, with commas between them */
    const char *proxy;  /* program */
    const char *socket; /* the daemon's */
    const char *marks;  /* folder in which a job's prolog finds what `leave_mark` thinks of it */
};

#define REFUSED (-1)

/* gateway_host.c: slurmd, and root's slurmstepd before a job's prolog. */
int check_host(const struct gateway *gateway);
int leave_mark(spank_t spank, const struct gateway *gateway);

/* gateway_step.c: a slurmstepd of a job's. */
int begin_step(spank_t spank, const struct gateway *gateway);
int begin_task(spank_t spank, const struct gateway *gateway);

#endif
