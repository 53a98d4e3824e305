/*
 * vgpu-no-su: what slurmd on a gateway finds in the place of su, which it runs as root for --get-user-env and
 * --export=NONE. It starts no shell, and says that the login shell has set no variable: slurmd looks for two marks.
 *
 *   su [-] USER -c "... XXXXSLURMSTART...; env; ... XXXXSLURMSTOP..."
 */
#include <stdio.h>
#include <string.h>

#define MARK "XXXXSLURM"

int main(int argc, char **argv)
{
    const char *at = argc > 1 ? argv[argc - 1] : "";
    while ((at = strstr(at, MARK)) != NULL) {
        size_t size = strcspn(at, " ;");
        printf("%.*s\n", (int)size, at);
        at += size;
    }
    return 0;
}
