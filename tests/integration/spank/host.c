/*
 * Slurm's side towards a plugin, for tests: HOST CALL... [-- PLUGSTACK-ARGUMENT...] makes these calls, one after the
 * other, and prints what each returned. A call is init, prolog, task, post, NAME=VALUE for an option that was given, or
 * left for how many variables the job has, or own:NAME for the number in a variable of the process's own environment,
 * -1: there is none, or pipe for one of this process's own, by its end to write, or fd:N for that descriptor's flags, -1:
 * it is closed.
 * HOST_CONTEXT, HOST_PROGRAM, HOST_STEP, HOST_ARRAY, HOST_TASK say where; the files HOST_ENV and HOST_ARGV hold the
 * job's, with a NUL behind each. Errors go to stderr as Slurm's do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 4096

#pragma weak slurm_spank_init_post_opt
#pragma weak slurm_spank_job_prolog
#pragma weak slurm_spank_task_init

static struct spank_option *registered[16];
static int registered_count;
static char *job_env[MOST], *job_argv[MOST];

static unsigned number(const char *name, unsigned otherwise)
{
    return getenv(name) == NULL ? otherwise : (unsigned)strtoul(getenv(name), NULL, 10);
}

static int read_list(const char *name, char **list)
{
    char *text = NULL;
    size_t size = 0;
    int n = 0;
    FILE *file = getenv(name) == NULL ? NULL : fopen(getenv(name), "r");
    while (file != NULL && n < MOST - 1 && getdelim(&text, &size, '\0', file) > 0)
        list[n++] = strdup(text);
    free(text);
    if (file != NULL)
        fclose(file);
    return n;
}

void slurm_error(const char *form, ...)
{
    va_list more;
    va_start(more, form);
    fprintf(stderr, "error: ");
    vfprintf(stderr, form, more);
    fprintf(stderr, "\n");
    va_end(more);
}

spank_context_t spank_context(void)
{
    return (spank_context_t)number("HOST_CONTEXT", S_CTX_ALLOCATOR);
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
    (void)spank;
    registered[registered_count++] = option;
    return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
    (void)spank;
    (void)overwrite;
    printf("control %s=%s\n", name, value);
    return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
    size_t size = strlen(name), kept = 0;
    (void)spank;
    for (size_t i = 0; job_env[i] != NULL; i++)
        if (strncmp(job_env[i], name, size) != 0 || job_env[i][size] != '=')
            job_env[kept++] = job_env[i];
    job_env[kept] = NULL;
    return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
    va_list more;
    (void)spank;
    va_start(more, item);
    if (item == S_JOB_ENV) {
        *va_arg(more, char ***) = job_env;
    } else if (item == S_JOB_ARGV) {
        int *argc = va_arg(more, int *);
        *va_arg(more, char ***) = job_argv;
        for (*argc = 0; job_argv[*argc] != NULL;)
            ++*argc;
    } else {
        *va_arg(more, uint32_t *) = item == S_JOB_ID               ? 7
                                    : item == S_JOB_STEPID         ? number("HOST_STEP", SLURM_BATCH_SCRIPT)
                                    : item == S_JOB_ARRAY_ID       ? number("HOST_ARRAY", 0)
                                    : item == S_JOB_ARRAY_TASK_ID  ? number("HOST_TASK", NO_VAL)
                                    : item == S_SLURM_RESTART_COUNT ? 2
                                                                    : 0;
    }
    va_end(more);
    return ESPANK_SUCCESS;
}

static int option(const char *name, const char *value)
{
    for (int i = 0; i < registered_count; i++)
        if (strcmp(registered[i]->name, name) == 0)
            return registered[i]->cb(registered[i]->val, value, 0);
    return -2;
}

int main(int argc, char **argv)
{
    int calls = 1, more;
    while (calls < argc && strcmp(argv[calls], "--") != 0)
        calls++;
    more = calls < argc ? argc - calls - 1 : 0;
    read_list("HOST_ENV", job_env);
    read_list("HOST_ARGV", job_argv);
    if (getenv("HOST_PROGRAM") != NULL)
        program_invocation_short_name = getenv("HOST_PROGRAM");
    for (int i = 1; i < calls; i++) {
        char *equals = strchr(argv[i], '='), **own = argv + calls + 1;
        int rc = -3;
        if (equals != NULL) {
            *equals = '\0';
            rc = option(argv[i], equals + 1);
        } else if (strcmp(argv[i], "init") == 0) {
            rc = slurm_spank_init(NULL, more, own);
        } else if (strcmp(argv[i], "post") == 0) {
            rc = slurm_spank_init_post_opt(NULL, more, own);
        } else if (strncmp(argv[i], "own:", 4) == 0) {
            rc = getenv(argv[i] + 4) != NULL ? atoi(getenv(argv[i] + 4)) : -1;
        } else if (strcmp(argv[i], "pipe") == 0) {
            int ends[2];
            rc = pipe2(ends, O_CLOEXEC) == 0 ? ends[1] : -1;
        } else if (strncmp(argv[i], "fd:", 3) == 0) {
            rc = fcntl(atoi(argv[i] + 3), F_GETFD);
        } else if (strcmp(argv[i], "left") == 0) {
            for (rc = 0; job_env[rc] != NULL;)
                rc++;
        } else if (strcmp(argv[i], "prolog") == 0) {
            rc = slurm_spank_job_prolog(NULL, more, own);
        } else if (strcmp(argv[i], "task") == 0) {
            fflush(stdout);
            rc = slurm_spank_task_init(NULL, more, own);
        }
        printf("%s %d\n", argv[i], rc);
    }
    return 0;
}
