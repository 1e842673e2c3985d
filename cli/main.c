// SPDX-License-Identifier: Apache-2.0
//
// lockstep, the command line tool: finds the subcommand and calls it. Each subcommand has its own
// file with its name. Main thread.

#include "base/standard.h"
#include "cli/ask/health.h"
#include "cli/ask/stacks.h"
#include "cli/ask/stalls.h"
#include "cli/ask/status.h"
#include "cli/bench/bench.h"
#include "cli/bench/worker.h"
#include "cli/certs/certs.h"
#include "cli/common/cli.h"
#include "cli/doctor/doctor.h"
#include "cli/run/agent.h"
#include "cli/run/run.h"
#include "cli/trace/trace.h"

#include "lockstep/lockstep.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; // NULL: only other subcommands start it, and the help does not list it.
};

static const struct command commands[] = {
    {"run", run_main, "Start a training job on this machine and see it to its end"},
    {"status", status_main, "Show the jobs of a coordinator"},
    {"health", health_main, "Say whether a coordinator takes new workers"},
    {"stalls", stalls_main, "Say what stands still, which rank is the cause, and where it is"},
    {"stacks", stacks_main, "Show what the threads of a rank are doing"},
    {"trace", trace_main, "Show where a worker is or was, and its last events"},
    {"doctor", doctor_main, "Say what this machine offers, and what jobs have agreed"},
    {"certs", certs_main, "Make and show certificates for coordinators and workers"},
    {"bench", bench_main, "Measure the library on this machine"},
    {"bench-worker", worker_main, NULL},
    {"run-host", agent_main, NULL},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static int help(void)
{
    printf("usage: lockstep COMMAND [OPTIONS]\n"
           "\n"
           "Parameter synchronization for data-parallel training.\n"
           "\n"
           "Commands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (commands[i].summary)
            printf("  %-8s %s\n", commands[i].name, commands[i].summary);
    }
    printf("\n"
           "  --help     Show this, or with a command: what it does\n"
           "  --version  Show the version\n");
    return CLI_OK;
}

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2)
        return cli_misuse(NULL, "no command given");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return help();
    if (strcmp(argv[1], "--version") == 0) {
        printf("lockstep %d.%d.%d\n", LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR,
               LOCKSTEP_VERSION_PATCH);
        return CLI_OK;
    }
    const struct command *command = find(argv[1]);
    if (command)
        return command->run(argc - 1, argv + 1);
    if (argv[1][0] == '-')
        return cli_misuse(NULL, "unknown option '%s'", argv[1]);
    return cli_misuse(NULL, "unknown command '%s'", argv[1]);
}

int main(int argc, char **argv)
{
    if (!standard_occupy())
        return CLI_FAILED;
    const int code = dispatch(argc, argv);
    errno = 0; // A print that failed earlier had a reason that is not known here.
    const bool written = cli_flush(NULL);
    return written || code != CLI_OK ? code : CLI_FAILED;
}
