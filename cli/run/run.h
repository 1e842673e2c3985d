// SPDX-License-Identifier: Apache-2.0
//
// What the files of `lockstep run` share: the options, and the record of each rank. run.c has the
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
    uint32_t world_size;
    const char *coordinator; // NULL: a private one.
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
    struct run_rank *ranks; // owned; world_size of them
    uint32_t world_size;
    uint32_t first_failed; // world_size: none
    uint64_t total_ms;
};

// ---- run.c -------------------------------------------------------------------------------------

// Runs the job and waits for its end; fills in the signal mask. Returns the exit status.
int run_launch(struct run_options *options);

// Gives the job a name: unique on this machine; with a coordinator that others use too, also in
// time.
void run_default_job(struct run_options *options);

// ---- report.c: what happened, for people and for machines --------------------------------------

// 0, the program's status, or 128 and the signal.
int run_exit_code(int status);

// The last line on stderr, or nothing when all succeeded.
void run_report(const struct run_options *options, const struct run_result *result);

// One object and a newline on stdout. docs/cli.md names its members.
void run_report_json(const struct run_options *options, const struct run_result *result);

// ---- supervisor.c ------------------------------------------------------------------------------

// Runs the whole job in the calling process, a fresh child of the launcher, and returns its exit
// status. control_fd carries a byte for each signal to forward; its end is the launcher's death.
int supervise(const struct run_options *options, int control_fd);

// Kills every child of this process, and what they leave behind to it as a subreaper, until there
// is none. Signals are blocked. False when something could not be killed within some seconds.
bool kill_descendants(void);

// ---- spawn.c -----------------------------------------------------------------------------------

struct spawn_variable {
    const char *name;
    const char *value; // NULL: without it, whatever ours is.
};

struct spawn {
    const char *program; // A path.
    char *const *argv;
    const struct spawn_variable *variables;
    unsigned variable_count;
    int input, output, error; // For 0, 1, 2; negative: ours.
    int failure_fd; // Receives one int, errno, when the program cannot be started.
    const sigset_t *signals;
};

// Lets this process have as many descriptors as it may; its children get the limit of before.
void raise_file_limit(void);

// Starts a process in a group of its own that dies with this one. Returns its pid, or -1.
pid_t spawn(const struct spawn *request);

// Where a program is: as execvp would look. 0, or an errno value: ENOENT, EACCES, EISDIR.
int find_program(const char *name, char *path, size_t capacity);

// The daemon beside this executable, or in PATH.
int find_coordinator(char *path, size_t capacity);

#endif
