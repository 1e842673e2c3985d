// SPDX-License-Identifier: Apache-2.0
//
// The environment of a worker. A line is a variable's number, as a letter from 'a', and its value.

#include "tests/fuzz/fuzz.h"
#include "worker/link/own_address.h"
#include "worker/support/config.h"

#include <string.h>

static const char *const variables[] = {
    "LOCKSTEP_COORDINATOR",
    "LOCKSTEP_JOB",
    "LOCKSTEP_WORLD_SIZE",
    "LOCKSTEP_RANK_HINT",
    "LOCKSTEP_ADVERTISE",
    "LOCKSTEP_DATA_PORTS",
    "LOCKSTEP_ALGORITHM",
    "LOCKSTEP_LINK",
    "LOCKSTEP_TRANSPORT",
    "LOCKSTEP_ENGINE_CPUS",
    "LOCKSTEP_ENGINE_NICE",
    "LOCKSTEP_ORDER",
    "LOCKSTEP_UNPLANNED",
    "LOCKSTEP_TRACE_DIR",
    "LOCKSTEP_HALT_TIMEOUT_MS",
    "LOCKSTEP_ON_FAILURE",
    "LOCKSTEP_DEVICE",
    "LOCKSTEP_SLOTS",
    "LOCKSTEP_HOST_ID",
    "LOCKSTEP_TLS_DIR",
    "JOB_COMPLETION_INDEX",
    "LOCKSTEP_LOG",
    "LOCKSTEP_OPEN_TIMEOUT_MS",
    "RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "PMI_RANK",
    "PMI_SIZE",
    "TORCHELASTIC_RUN_ID",
    "LOCKSTEP_WORLD_MAX",
    "LOCKSTEP_UNKNOWN",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "FLUX_TASK_RANK",
    "FLUX_JOB_SIZE",
};
#define VARIABLES (sizeof(variables) / sizeof(variables[0]))

static void advertise(const char *wanted)
{
    static const struct own_address addresses[] = {
        {"lo", true, AF_INET, {127, 0, 0, 1}},
        {"eth0", false, AF_INET, {10, 1, 2, 3}},
        {"eth0", false, AF_INET6, {0xfd, 0, [15] = 7}},
    };
    char text[LOCKSTEP_ADDRESS_BYTES];
    char error[256] = "";
    if (own_address_choose(wanted, addresses, 3, text, sizeof(text), error, sizeof(error)) < 0)
        FUZZ_CHECK(error[0] != '\0');
    else
        FUZZ_CHECK(memchr(text, 0, sizeof(text)) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct config config;
    char *text = malloc(size + 1);
    char *rest = NULL;
    FUZZ_CHECK(text != NULL);
    memcpy(text, bytes, size);
    text[size] = '\0';
    for (size_t i = 0; i < VARIABLES; i++)
        unsetenv(variables[i]);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        setenv(variables[(uint8_t)(line[0] - 'a') % VARIABLES], line + 1, 1);
    if (config_resolve(NULL, &config) < 0)
        FUZZ_CHECK(lockstep_error_text()[0] != '\0');
    advertise(text[0] != '\0' ? text + 1 : text);
    free(text);
    return 0;
}
