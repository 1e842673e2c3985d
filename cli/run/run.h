// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files of `lockstep run`: the options, and the record of each rank. run.c has the
// essay on the processes. `lockstep bench` starts its ranks in the same way.

#ifndef LOCKSTEP_CLI_RUN_RUN_H
#define LOCKSTEP_CLI_RUN_RUN_H

#include "protos/limits.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RUN_GRACE_MS 1500
#define RUN_CODE_BYTES 12 // A number of 32 bits, as text.
#define RUN_DIRECTORY_BYTES 108 // As many as the address of a socket in it may have.

struct run_options {
    const char *command; // The subcommand, which every sentence on stderr begins with.
    uint32_t workers; // Started by this launcher.
    uint32_t first_rank; // Rank hint of the first of them.
    uint32_t world_size; // Workers of the job, on all hosts.
    uint32_t nodes; // Hosts of the job, each with a launcher; 0 and 1: only this one.
    uint32_t node_rank; // Number of this host among them, from 0.
    const char *coordinator; // Where workers reach it; NULL: at a socket that only they can reach.
    bool serves; // True if this launcher starts the coordinator of several hosts.
    const char *bind; // Where that coordinator listens; NULL: follows from `coordinator`.
    bool join; // True if the coordinator of several hosts runs already.
    uint32_t max_restarts; // How often a job that fails is started again.
    uint32_t restarts; // How often it was.
    char directory[RUN_DIRECTORY_BYTES]; // Directory of a private coordinator; run_launch makes it.
                                         // "": none.
    char job[LOCKSTEP_JOB_NAME_BYTES];
    uint64_t timeout_ms; // How long a worker waits for its world; 0: the library's default.
    uint64_t grace_ms;
    const char *http;
    bool prefix;
    bool json;
    bool quiet; // Does not announce the job.
    char **trainer; // argv
    sigset_t signals; // The mask to give to children: that of our own start.
};

// How one process ended.
struct run_end {
    bool ended;
    bool stopped; // By us, after another one failed.
    int exec_error; // errno when the program could not be started, else 0.
    int status; // As waitpid has it.
    uint64_t after_ms; // Since the workers were started.
};

struct run_rank {
    pid_t pid;
    struct run_end end;
};

struct run_result {
    struct run_rank *ranks; // owned; [count]: the workers of this launcher
    uint32_t count;
    uint32_t first_failed; // Index in ranks; count: none
    uint64_t total_ms;
};

// Runs the job and waits for its end; fills in the signal mask. Returns the exit status.
int run_launch(struct run_options *options);

// Gives the job a name: unique on this machine; with a coordinator that others use too, also in
// time.
void run_default_job(struct run_options *options);

// argv[0] is the subcommand's name. Returns the exit status of the process.
int run_main(int argc, char **argv);

#endif
