/* What the client's two files share: who calls, and where things are on this node. */
#ifndef VGPU_HOOK_H
#define VGPU_HOOK_H

#include <limits.h>
#include <stdbool.h>
#include <sys/un.h>

enum verb { PROLOG, EPILOG, TASK, BIND, AWAY, GUARD, VERBS };

struct site {
    char socket[sizeof((struct sockaddr_un *)0)->sun_path]; /* the agent's, for users; root's has ".root" behind it */
    char bin[PATH_MAX];                                     /* folder of squeue, scontrol, scancel */
    char gres[64];                                          /* what the pool's GRES is called */
    bool bare;                                              /* no agent was ever set up on this host */
};

void tell(enum verb verb, const char *what, const char *more);
long long now_ms(void);
long integer(const char *text, long limit);

/* away.c: an agent that does not answer. `job` is below 1 when slurmd named none. */
void forget_mark(const struct site *site, long job);
bool has_mark(const struct site *site, long job);
void prolog_alone(const struct site *site, long job);
void send_back(const struct site *site, long job, bool only_elsewhere);

#endif
