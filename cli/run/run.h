// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files of `lockstep run`: the options, and the record of each rank. run.c explains
// the processes. `lockstep bench` starts its ranks in the same way.

#ifndef LOCKSTEP_CLI_RUN_RUN_H
#define LOCKSTEP_CLI_RUN_RUN_H

#include "protos/limits.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RUN_GRACE_MS 1500
#define RUN_HOST_BYTES 256 // Name of a host, with the user.
#define RUN_CODE_BYTES 12 // A number of 32 bits, as text.
// The longest path of a Unix socket, because a socket lies in the directory.
#define RUN_DIRECTORY_BYTES 108

// One host of --hosts.
struct run_host {
    const char *name; // As ssh takes it: NAME or USER@NAME.
    uint32_t workers;
    uint32_t first_rank;
};

struct run_options {
    const char *command; // The subcommand's name, with which every sentence on stderr begins.
    uint32_t workers; // Workers that this launcher starts.
    uint32_t first_rank; // Rank hint of the first worker of this launcher.
    uint32_t world_size; // Workers of the job, on all hosts.
    uint32_t nodes; // Hosts of the job, each with a launcher; 0: --nnodes was not given.
    uint32_t node_rank; // Number of this host in the job, from 0.
    // The coordinator's address for workers; NULL: a Unix socket that only they can reach.
    const char *coordinator;
    bool serves; // True if this launcher starts the coordinator at that address.
    // The address where that coordinator listens; NULL: follows from `coordinator`.
    const char *bind;
    bool join; // True if the coordinator of several hosts runs already.
    uint32_t max_restarts; // How often a failed job is started again at most.
    uint32_t restarts; // How often the job was started again so far.
    // --survive: ranks of this launcher that have to end with status 0 for the run to succeed. 0:
    // the option was not given, and all ranks have to.
    uint32_t survive;
    // Directory of a private coordinator, which run_launch makes; "": none.
    char directory[RUN_DIRECTORY_BYTES];
    char job[LOCKSTEP_JOB_NAME_BYTES];
    uint64_t timeout_ms; // How long a worker waits for its world, in ms; 0: the library's default.
    uint64_t grace_ms;
    const char *http;
    const char *log_dir; // Directory of a file for each rank; NULL: none.
    bool prefix;
    bool json;
    bool quiet; // True if the job is not announced.
    bool needs_output; // True if a run fails when output of its workers is lost.
    bool *unwritten; // Set by run_launch; shared with the supervisor, which says that stdout lacks
                     // what makes the run succeed.
    // Set by run_launch; shared with the supervisor, which says that the job is to be started
    // again.
    bool *again;
    char **trainer; // argv

    // --hosts: this launcher starts `lockstep run-host` on each host.
    const char *host_list; // The list as it was given; NULL: none.
    const struct run_host *hosts; // owned by the process; [host_count]
    uint32_t host_count; // 0: the workers are on this host.
    const char *rsh; // The remote shell and its arguments, separated by spaces.
    const char *remote_program; // The program lockstep on the hosts; NULL: the path of this one.
    char **variables; // owned by the process; NAME=VALUE or NAME of each --env
    uint32_t variable_count;

    // `lockstep run-host`: a launcher on another host decides (relay.h).
    bool hosted;
    int control_fd; // The bytes of that launcher.
    int frames_fd; // Where the frames go.

    sigset_t signals; // The signal mask for children: the mask that this process was started with.
};

// How one process ended.
struct run_end {
    bool ended;
    bool stopped; // True if the supervisor stopped the process, after another one failed.
    bool unjoined; // True if the process ended and had certainly not opened a session.
    // True if the process ended, by a failure or unjoined, before all ranks had certainly joined.
    bool forming;
    bool lost; // True if the connection to the rank's host ended first.
    int exec_error; // errno when the program could not be started, else 0.
    int status; // The wait status, as from waitpid.
    uint64_t after_ms; // Time from the start of the workers to the end, in ms.
};

struct run_rank {
    pid_t pid;
    struct run_end end;
};

struct run_result {
    struct run_rank *ranks; // owned; [count]: the workers of this launcher
    uint32_t count;
    uint32_t first_failed; // Index in ranks; count: none has failed.
    // The first rank that ended with status 0 and had not opened a session, while another rank had
    // opened one; count: none.
    uint32_t absent;
    // The rank because of which the job ended, as the coordinator says; count: none.
    uint32_t accused;
    // The signal by which the user stopped the job before any failure, or while those that had
    // failed were few enough (run_options.survive); 0: none.
    int stopped_by;
    int status; // The wait status of the run, once all ranks have ended.
    uint64_t total_ms;
};

// Runs the job and waits for its end. Sets options->signals and options->unwritten. Returns the
// exit status.
int run_launch(struct run_options *options);

// Returns true if the job may be started again after this exit status. signalled: the user has
// ended it by a signal.
bool run_may_restart(const struct run_options *options, int result, bool signalled);

// Checks that the trainer is a program, so that a wrong name is reported before any process is
// started. Returns 0, or an exit status after a sentence on stderr.
int run_check_trainer(const char *name);

// Gives the job a name that is unique on this machine. If others use the coordinator too, the name
// also differs from those of earlier jobs.
void run_default_job(struct run_options *options);

// argv[0] is the subcommand's name. Returns the exit status of the process.
int run_main(int argc, char **argv);

#endif
