/* Submit COUNT held batch jobs that ask for each GRES in turn, and print how long each slurm_submit_batch_job() took,
 * in ns. submit COUNT GRES...; the cluster is the one SLURM_CONF names. */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How the client commands of this release prefix a GRES. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
#define PREFIX "gres/"
#else
#define PREFIX "gres:"
#endif

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv)
{
    char *environment[] = {"PATH=/usr/bin:/bin", NULL};
    char gres[256];
    int count = argc >= 3 ? atoi(argv[1]) : 0;

    if (count < 1) {
        fprintf(stderr, "usage: submit COUNT GRES...\n");
        return 2;
    }
    slurm_init(NULL);
    for (int i = 0; i < count; i++) {
        job_desc_msg_t job;
        submit_response_msg_t *response = NULL;

        snprintf(gres, sizeof gres, PREFIX "%s", argv[2 + i % (argc - 2)]);
        slurm_init_job_desc_msg(&job);
        job.name = "bench";
        job.user_id = getuid();
        job.group_id = getgid();
        job.min_nodes = 1;
        job.num_tasks = 1;
        job.min_cpus = 1;
        job.time_limit = 10;
        job.priority = 0; /* held: nothing is scheduled */
        job.script = "#!/bin/sh\n:\n";
        job.work_dir = "/tmp";
        job.std_out = "/dev/null";
        job.environment = environment;
        job.env_size = 1;
        job.tres_per_node = gres;

        int64_t start = now_ns();
        int failed = slurm_submit_batch_job(&job, &response);
        int64_t took = now_ns() - start;
        if (failed) {
            fprintf(stderr, "submit: %s\n", slurm_strerror(slurm_get_errno()));
            return 1;
        }
        printf("%lld %u\n", (long long)took, response->job_id);
        slurm_free_submit_response_response_msg(response);
    }
    return 0;
}
