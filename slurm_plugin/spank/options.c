/*
 * vgpu_burst.so: the options --burst, --stage-in and --stage-out of sbatch, for login nodes.
 *
 *   optional vgpu_burst.so [pools=NAME,NAME...]
 *
 * What is typed is checked here so that a mistake is told at once, and again by the daemon: a user can write any
 * environment. They travel as _SLURM_SPANK_OPTION_vgpu_burst_NAME in the job's environment, all paths of an option with
 * commas between them, and in VGPU_BURST_INPUT_MIB how much --stage-in means now: what is much may stay here. On nodes,
 * where the gateway plugin reads them, this one does nothing.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#include <ctype.h>
#include <errno.h>
#include <ftw.h>
#include <glob.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_NAME 64    /* characters of a pool's name */
#define MOST_PATH 4095  /* bytes */
#define MOST_PART 255   /* bytes of a name in a path */
#define MOST_PATHS 100  /* of one option */
#define MOST_FILES 10000 /* that are looked at for their sizes */
#define MOST_OPEN 16     /* folders at once */
#define INPUT "VGPU_BURST_INPUT_MIB"
#define REFUSED (-1)
#define INHERITED "SLURM_SPANK_" /* before a variable's name: what sbatch leaves in a job, and takes for words of its own */

SPANK_PLUGIN(vgpu_burst, 1)

enum option { BURST, STAGE_IN, STAGE_OUT };

static const char *const VARIABLES[] = {
    [BURST] = "_SLURM_SPANK_OPTION_vgpu_burst_burst",
    [STAGE_IN] = "_SLURM_SPANK_OPTION_vgpu_burst_stage_in",
    [STAGE_OUT] = "_SLURM_SPANK_OPTION_vgpu_burst_stage_out",
};

struct paths {
    char *all; /* with commas between them; NULL: none yet */
    int count;
};

static const char *pools; /* that --burst may name; NULL: any, and the daemon says which there are */
static struct paths staged[STAGE_OUT + 1];

/* Only a batch job can be started again elsewhere. */
static bool is_sbatch(void)
{
    return strcmp(program_invocation_short_name, "srun") != 0 && strcmp(program_invocation_short_name, "salloc") != 0;
}

static bool is_listed(const char *name, const char *list)
{
    size_t size = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, size) == 0 && (at[size] == ',' || at[size] == '\0'))
            return true;
    }
    return false;
}

static int check_burst(int option, const char *word, int remote)
{
    (void)option;
    (void)remote;
    size_t size = strlen(word);
    bool is_word = size > 0 && size <= MOST_NAME;
    for (size_t i = 0; is_word && i < size; i++)
        is_word = isalnum((unsigned char)word[i]) || strchr("_.+-", word[i]) != NULL;
    if (!is_word)
        slurm_error("--burst: the word must be auto, never, always or the name of a pool");
    else if (is_listed(word, "auto,never"))
        return 0;
    else if (!is_sbatch())
        slurm_error("--burst=%s: only a batch job can run in the cloud: submit it with sbatch", word);
    else if (!is_listed(word, "always") && pools != NULL && !is_listed(word, pools))
        slurm_error("--burst=%s: this is none of auto, never, always and the pools %s", word, pools);
    else
        return 0;
    return REFUSED;
}

/* Why there can be no such path below a job's folder; NULL: there can. As the daemon sees it: access/paths.py. */
static const char *fault_of(const char *path, size_t size)
{
    if (size == 0 || size > MOST_PATH)
        return "a path is empty, or too long";
    if (*path == '/')
        return "a path must be relative to the job's folder";
    for (const char *part = path, *end = path + size; part <= end; part++) {
        size_t n = 0;
        while (part + n < end && part[n] != '/')
            n++;
        if (n == 0 || n > MOST_PART || (n == 1 && *part == '.') || (n == 2 && strncmp(part, "..", n) == 0))
            return "a path must be names with / between them, and none of them '', '.' or '..'";
        part += n;
    }
    return NULL;
}

static const char *fault_of_all(const char *list, int *count)
{
    for (const char *at = list;; at++) {
        size_t size = strcspn(at, ",");
        const char *fault = fault_of(at, size);
        if (fault != NULL)
            return fault;
        if (++*count > MOST_PATHS)
            return "these are too many paths: pack the files into one";
        at += size;
        if (*at == '\0')
            return NULL;
    }
}

static int check_paths(int option, const char *list, int remote)
{
    (void)remote;
    struct paths *paths = &staged[option];
    char *all = NULL;
    const char *fault = fault_of_all(list, &paths->count);
    if (!is_sbatch())
        fault = "only a batch job can run in the cloud: submit it with sbatch";
    if (fault != NULL) {
        slurm_error("%s=%s: %s", option == STAGE_IN ? "--stage-in" : "--stage-out", list, fault);
        return REFUSED;
    }
    if (asprintf(&all, "%s%s%s", paths->all != NULL ? paths->all : "", paths->all != NULL ? "," : "", list) < 0)
        return REFUSED;
    free(paths->all);
    paths->all = all;
    return 0;
}

static struct spank_option options[] = {
    {"burst", "auto|never|always|POOL", "run in the cloud: when it waits long, never, at once, or in this pool", 1, BURST,
     check_burst},
    {"stage-in", "PATH,...", "files and folders that it finds there; may be given more than once", 1, STAGE_IN, check_paths},
    {"stage-out", "PATTERN,...", "files to bring back from there; may be given more than once", 1, STAGE_OUT, check_paths},
};

static bool read_arguments(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "pools=", 6) != 0 || argv[i][6] == '\0') {
            slurm_error("vgpu_burst: plugstack.conf: '%s' is no option of this plugin: known is pools=NAME,NAME...", argv[i]);
            return false;
        }
        pools = argv[i] + 6;
    }
    return true;
}

/* In a job: an srun or sbatch there must not take the job's own options for its. */
static void forget_inherited(void)
{
    char name[128];
    for (int i = BURST; i <= STAGE_OUT; i++) {
        snprintf(name, sizeof name, INHERITED "%s", VARIABLES[i]);
        unsetenv(name);
    }
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    if (spank_context() != S_CTX_ALLOCATOR && spank_context() != S_CTX_LOCAL)
        return 0;
    forget_inherited();
    if (!read_arguments(argc, argv))
        return REFUSED;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS)
            return REFUSED;
    return 0;
}

static long long input_bytes;
static int input_files;

static int add_file(const char *path, const struct stat *file, int type, struct FTW *place)
{
    (void)path;
    (void)place;
    if (type == FTW_F && S_ISREG(file->st_mode))
        input_bytes += file->st_size;
    return ++input_files >= MOST_FILES;
}

/* From the folder where sbatch runs: elsewhere nothing is found, and nothing is said. */
static void measure(const char *list)
{
    char *all = strdup(list), *rest = all;
    for (const char *pattern; all != NULL && (pattern = strsep(&rest, ",")) != NULL;) {
        glob_t found = {0};
        if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
            for (size_t i = 0; i < found.gl_pathc && input_files < MOST_FILES; i++)
                nftw(found.gl_pathv[i], add_file, MOST_OPEN, FTW_PHYS);
        globfree(&found);
    }
    free(all);
    char mib[24];
    snprintf(mib, sizeof mib, "%lld", (input_bytes + (1 << 20) - 1) >> 20);
    if (input_bytes > 0)
        setenv(INPUT, mib, 1);
}

/* Slurm has put the last of each option's words into both environments; of paths all count. */
int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    if (spank_context() != S_CTX_ALLOCATOR)
        return 0;
    for (int i = STAGE_IN; i <= STAGE_OUT; i++) {
        struct paths *paths = &staged[i];
        if (paths->all != NULL && (setenv(VARIABLES[i], paths->all, 1) != 0 ||
                                   spank_job_control_setenv(spank, VARIABLES[i], paths->all, 1) != ESPANK_SUCCESS))
            return REFUSED;
    }
    unsetenv(INPUT); /* of a job that this one is submitted from */
    if (staged[STAGE_IN].all != NULL)
        measure(staged[STAGE_IN].all);
    return 0;
}
