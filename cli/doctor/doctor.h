// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files of `lockstep doctor`: findings, and the tuning of jobs. A finding has the
// name of the thing that was checked, its state, its meaning for training, and what to do.
//
//     ok        as Lockstep wants it
//     warning   training works, but slower or with less than it could
//     missing   without it there is no training; the exit status is 1
//
// Main thread.

#ifndef LOCKSTEP_CLI_DOCTOR_DOCTOR_H
#define LOCKSTEP_CLI_DOCTOR_DOCTOR_H

#include "protos/limits.h"
#include "protos/tuning.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

#define DOCTOR_MAX_FINDINGS 24
#define DOCTOR_WORD_BYTES 64
#define DOCTOR_MAX_BOUNDS 3 // Ranges of payload sizes: doubling, halving, all others.

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_WARNING,
    DOCTOR_MISSING
};

struct doctor_finding {
    const char *name; // The finding's name. Programs use it as a key, so it must not change.
    enum doctor_status status;
    double number; // NAN: no number; use word.
    const char *unit; // The number's unit; "": none.
    char word[DOCTOR_WORD_BYTES]; // "": none.
    char meaning[LOCKSTEP_TEXT_BYTES]; // One sentence, without the full stop.
};

struct doctor_job {
    char name[LOCKSTEP_JOB_NAME_BYTES];
    char state[DOCTOR_WORD_BYTES]; // The state's name in the coordinator's API.
    struct tuning_world world;
    bool tuned; // True if the tuning is known.
    struct tuning tuning;
    struct doctor_finding finding;
};

struct doctor_report {
    uint32_t finding_count;
    struct doctor_finding findings[DOCTOR_MAX_FINDINGS];
    uint32_t job_count;
    struct doctor_job jobs[LOCKSTEP_MAX_JOBS];
};

// ---- doctor.c ----------------------------------------------------------------------------------

// Returns a new finding without a value, borrowed from the report. The report has room for all
// findings.
struct doctor_finding *doctor_add(struct doctor_report *report, const char *name);

// Sets the status and the meaning of a finding.
void doctor_judge(struct doctor_finding *finding, enum doctor_status status, const char *format,
                  ...) __attribute__((format(printf, 3, 4)));

// argv[0] is the subcommand's name. Returns the exit status of the process.
int doctor_main(int argc, char **argv);

#endif
