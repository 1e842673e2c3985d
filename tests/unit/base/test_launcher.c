// SPDX-License-Identifier: Apache-2.0
//
// Launchers: which process of a job this is, read from tables of variables. The tables have each
// launcher alone, launchers inside others, variables that contradict each other, and misspelt
// names.

#include "base/launcher.h"
#include "base/variables.h"

#include "server/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLES 8

struct story {
    const char *what;
    const char *environment[VARIABLES]; // "NAME=value".
    const char *said; // A piece of the description, or of the error.
    bool refused;
    const char *job;
};

static const struct story *present;

static char *lookup(const char *name)
{
    const size_t size = strlen(name);
    for (size_t i = 0; i < VARIABLES && present->environment[i]; i++) {
        const char *entry = present->environment[i];
        if (strncmp(entry, name, size) == 0 && entry[size] == '=')
            return (char *)(uintptr_t)(entry + size + 1);
    }
    return NULL;
}

static const struct story stories[] = {
    {"nothing", {NULL}, "no launcher says", false, ""},
    {"torchrun",
     {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "TORCHELASTIC_RUN_ID=exp7"},
     "torchrun says that this is rank 3 of 4 (RANK=3, WORLD_SIZE=4)",
     false,
     "exp7"},
    {"torchrun without a name of the run",
     {"RANK=3", "WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=none"},
     "torchrun says that this is rank 3 of 4",
     false,
     ""},
    {"OpenMPI",
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=91"},
     "OpenMPI says that this is rank 0 of 2 (OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)",
     false,
     "91"},
    {"MPICH", {"PMI_RANK=1", "PMI_SIZE=2"}, "PMI says that this is rank 1 of 2", false, ""},
    {"Slurm",
     {"SLURM_PROCID=2", "SLURM_NTASKS=4", "SLURM_JOB_ID=12", "SLURM_STEP_ID=0"},
     "Slurm says that this is rank 2 of 4 (SLURM_PROCID=2, SLURM_NTASKS=4)",
     false,
     "12.0"},
    {"a step that is smaller than its allocation",
     {"SLURM_PROCID=1", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=2"},
     "rank 1 of 2 (SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=2)",
     false,
     ""},
    {"salloc alone starts no process", {"SLURM_NTASKS=4"}, "no launcher says", false, ""},
    {"by hand",
     {"RANK=1", "WORLD_SIZE=4"},
     "the environment says that this is rank 1 of 4",
     false,
     ""},
    {"by hand, without a rank", {"WORLD_SIZE=4"}, "one of 4 processes (WORLD_SIZE=4)", false, ""},
    {"by hand, one process", {"WORLD_SIZE=1"}, "no launcher says", false, ""},
    {"a RANK that is somebody else's", {"RANK=16"}, "no launcher says", false, ""},
    {"empty is not set", {"RANK=", "WORLD_SIZE="}, "no launcher says", false, ""},
    {"Kubernetes", {"JOB_COMPLETION_INDEX=5"}, "Kubernetes says that this is rank 5 (", false, ""},
    {"horovodrun",
     {"HOROVOD_RANK=1", "HOROVOD_SIZE=2", "HOROVOD_LOCAL_RANK=1"},
     "horovodrun says that this is rank 1 of 2 (HOROVOD_RANK=1, HOROVOD_SIZE=2)",
     false,
     ""},
    {"Flux inside an allocation of Slurm",
     {"FLUX_TASK_RANK=3", "FLUX_JOB_SIZE=4",
      "FLUX_JOB_ID=\xc6\x92"
      "abc",
      "SLURM_PROCID=0", "SLURM_NTASKS=2"},
     "Flux says that this is rank 3 of 4 (FLUX_TASK_RANK=3, FLUX_JOB_SIZE=4)",
     false,
     ""},
    {"a rank without its size",
     {"PMIX_RANK=1"},
     "PMIx says that this is rank 1 (PMIX_RANK",
     false,
     ""},
    {"a size of another launcher counts",
     {"PMIX_RANK=1", "SLURM_PROCID=1", "SLURM_NTASKS=4"},
     "Slurm says that this is rank 1 of 4",
     false,
     ""},
    {"rank 0 without a size: a batch script", {"SLURM_PROCID=0"}, "no launcher says", false, ""},
    {"torchrun without a size",
     {"RANK=2", "TORCHELASTIC_RUN_ID=x"},
     "torchrun says that this is rank 2 (RANK=2)",
     false,
     ""},
    {"a rank that is no number",
     {"SLURM_PROCID=x", "SLURM_NTASKS=4"},
     "SLURM_PROCID='x' is not a number",
     true,
     NULL},
    {"a size that is no number",
     {"SLURM_PROCID=0", "SLURM_NTASKS=4 "},
     "SLURM_NTASKS='4 ' is not a number",
     true,
     NULL},
    {"a size of none", {"PMI_RANK=0", "PMI_SIZE=0"}, "PMI_SIZE='0' is not a number", true, NULL},
    {"by hand, a size that is no number",
     {"RANK=1", "WORLD_SIZE=four"},
     "WORLD_SIZE='four' is not a number",
     true,
     NULL},
    {"a WORLD_SIZE that is somebody else's", {"WORLD_SIZE=large"}, "no launcher says", false, ""},
    {"an outer launcher's variable does not count",
     {"PMI_RANK=1", "PMI_SIZE=2", "SLURM_PROCID=x"},
     "PMI says that this is rank 1 of 2",
     false,
     ""},
    {"torchrun inside srun, one task a node",
     {"RANK=5", "WORLD_SIZE=8", "TORCHELASTIC_RUN_ID=x", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
     "torchrun says that this is rank 5 of 8",
     false,
     "x"},
    {"mpirun inside an allocation",
     {"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
     "OpenMPI says that this is rank 3 of 4",
     false,
     ""},
    {"by hand, as Slurm says",
     {"RANK=2", "WORLD_SIZE=4", "SLURM_PROCID=2", "SLURM_NTASKS=4"},
     "Slurm says that this is rank 2 of 4",
     false,
     ""},
    {"by hand, left over in Slurm",
     {"RANK=0", "WORLD_SIZE=1", "SLURM_PROCID=2", "SLURM_NTASKS=4"},
     "Slurm says that this is rank 2 of 4 (SLURM_PROCID=2, SLURM_NTASKS=4), and the environment "
     "says that this is rank 0 of 1 (RANK=0, WORLD_SIZE=1)",
     true,
     NULL},
    {"by hand, another size than MPI's",
     {"WORLD_SIZE=3", "PMI_RANK=1", "PMI_SIZE=2"},
     "one of 3 processes (WORLD_SIZE=3)",
     true,
     NULL},
    {"by hand, another rank than the pod's",
     {"RANK=2", "WORLD_SIZE=4", "JOB_COMPLETION_INDEX=1"},
     "Kubernetes says that this is rank 1",
     true,
     NULL},
    {"a rank that cannot be",
     {"RANK=4", "WORLD_SIZE=4"},
     "RANK=4 is not below WORLD_SIZE=4: ranks count from 0",
     true,
     NULL},
};

static void every_launcher_is_understood(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
        struct launcher_place place;
        char text[512] = "";
        present = &stories[i];
        const int status = launcher_find(lookup, &place, text, sizeof(text));
        if (status == 0)
            launcher_describe(&place, text, sizeof(text));
        if ((status < 0) != present->refused || !strstr(text, present->said))
            fail_msg("%s: %d, %s", present->what, status, text);
        if (present->job)
            assert_string_equal(place.job, present->job);
    }
}

struct spelling {
    const char *entry;
    const char *meant; // NULL: the entry is no mistake.
};

static const struct spelling spellings[] = {
    {"LOCKSTEP_COORDINATOR=h:1", NULL},
    {"LOCKSTEP_TEST_ANYTHING=1", NULL},
    {"LOCKSTEP_UNKNOWN=", NULL},
    {"OTHER=1", NULL},
    {"LOCKSTEP_SERVICE_HOST=10.0.0.7", NULL},
    {"LOCKSTEP_COORDINATOR_SERVICE_PORT_GRPC=50051", NULL},
    {"LOCKSTEP_COORDINATOR_PORT=tcp://10.0.0.7:50051", NULL},
    {"LOCKSTEP_COORDINATOR_PORT_50051_TCP_ADDR=10.0.0.7", NULL},
    {"LOCKSTEP_COORDINATR=h:1", "LOCKSTEP_COORDINATR is set, and Lockstep has no such variable: "
                                "is LOCKSTEP_COORDINATOR meant?"},
    {"LOCKSTEP_COORDINATORS=h:1", "is LOCKSTEP_COORDINATOR meant?"},
    {"LOCKSTEP_WRLD=2", "is LOCKSTEP_WORLD_M"},
    {"LOCKSTEP_DATA_PORT=20000", "is LOCKSTEP_DATA_PORTS meant?"},
    {"LOCKSTEP_DASHBORD=http://10.0.0.7:8080", "is LOCKSTEP_DASHBOARD meant?"},
    {"LOCKSTEP_LOG_LEVEL=info", "is LOCKSTEP_LOG meant?"},
    {"LOCKSTEP_LISTEN=:1", "is LOCKSTEP_COORDINATOR_LISTEN meant?"},
    {"LOCKSTEP_HTTP=1", "is LOCKSTEP_COORDINATOR_HTTP meant?"},
    {"LOCKSTEP_HOST_ID=a", "has no such variable"},
    {"LOCKSTEP_COORDINATOR_LISTNE=:1", "is LOCKSTEP_COORDINATOR_LISTEN meant?"},
    {"LOCKSTEP_COORDINATOR_HTTP_TLS=1", "has no such variable"}, // A flag without a value.
    {"LOCKSTEP_0123456789012345678901234567890123456789012345678901234567890123456789=1",
     "has no such variable"},
};

static void misspelt_names_are_found(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        const struct spelling *spelling = &spellings[i];
        char *const environment[] = {"PATH=/bin", (char *)(uintptr_t)spelling->entry, NULL};
        char error[512] = "";
        const int status = variables_check(environment, error, sizeof(error));
        if ((status == 0) != (!spelling->meant) ||
            (spelling->meant && !strstr(error, spelling->meant)))
            fail_msg("%s: %d, %s", spelling->entry, status, error);
    }
}

// "  --drain-ms MS  ..." becomes "LOCKSTEP_COORDINATOR_DRAIN_MS=1"; false: the line is no flag with
// a value.
static bool variable_of(const char *line, char *entry, size_t bytes)
{
    const char *flag = strstr(line, "  --");
    if (flag != line)
        return false;
    flag += 4;
    const size_t size = strcspn(flag, " \n");
    if (flag[size] != ' ' || flag[size + 1] == ' ')
        return false;
    snprintf(entry, bytes, "LOCKSTEP_COORDINATOR_%.*s=1", (int)size, flag);
    for (char *at = entry; *at != '='; at++)
        *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
    return true;
}

static void variables_of_the_daemon_are_known(void **state)
{
    static struct options options;
    char *arguments[] = {"coordinator", "--help", NULL};
    char *help = NULL;
    size_t help_bytes = 0;
    char error[512];
    char entry[128];
    int flags = 0;
    FILE *out = open_memstream(&help, &help_bytes);
    (void)state;
    assert_non_null(out);
    assert_int_equal(options_parse(2, arguments, &options, out, error, sizeof(error)),
                     OPTIONS_DONE);
    fclose(out);
    for (char *line = strtok(help, "\n"); line; line = strtok(NULL, "\n")) {
        if (!variable_of(line, entry, sizeof(entry)))
            continue;
        char *const environment[] = {entry, NULL};
        if (variables_check(environment, error, sizeof(error)) < 0)
            fail_msg("%s", error);
        flags++;
    }
    assert_true(flags >= 9);
    free(help);
}

static void the_daemon_refuses_misspelt_names(void **state)
{
    static struct options options;
    char *arguments[] = {"coordinator", NULL};
    char error[512] = "";
    (void)state;
    setenv("LOCKSTEP_COORDINATOR_TLS_DIRS", "/certificates", 1);
    assert_int_equal(options_parse(1, arguments, &options, stdout, error, sizeof(error)),
                     OPTIONS_USAGE);
    unsetenv("LOCKSTEP_COORDINATOR_TLS_DIRS");
    assert_non_null(strstr(error, "is LOCKSTEP_COORDINATOR_TLS_DIR meant?"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_launcher_is_understood),
        cmocka_unit_test(misspelt_names_are_found),
        cmocka_unit_test(variables_of_the_daemon_are_known),
        cmocka_unit_test(the_daemon_refuses_misspelt_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
