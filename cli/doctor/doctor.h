// SPDX-License-Identifier: Apache-2.0
//
// What the files of `lockstep doctor` share: findings, and what jobs have agreed. A finding is one
// thing that was looked at: what it is, what it means for training, and what to do about it.
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
#define DOCTOR_MAX_BOUNDS 3 // Of payloads: doubling, halving, all others.

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_WARNING,
    DOCTOR_MISSING
};

struct doctor_finding {
    const char *name; // A key for programs, too: it stays.
    enum doctor_status status;
    double number; // NAN: there is none, look at word.
    const char *unit; // Of the number; "" when it has none.
    char word[DOCTOR_WORD_BYTES]; // "": no value at all.
    char meaning[LOCKSTEP_TEXT_BYTES]; // One sentence, without the full stop.
};

struct doctor_job {
    char name[LOCKSTEP_JOB_NAME_BYTES];
    char state[DOCTOR_WORD_BYTES]; // As the coordinator calls it.
    struct tuning_world world;
    bool tuned; // The tuning is known.
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

// A new finding without a value, borrowed from the report. There is room for all that there are.
struct doctor_finding *doctor_add(struct doctor_report *report, const char *name);

// What has been found.
void doctor_judge(struct doctor_finding *finding, enum doctor_status status, const char *format,
                  ...) __attribute__((format(printf, 3, 4)));

// ---- place.c: which process of which job this is
// ------------------------------------------

void doctor_place(struct doctor_report *report);

// ---- machine.c: what this machine offers -------------------------------------------------------

// Takes under a second; the network's limits are measured.
void doctor_machine(struct doctor_report *report);

// ---- gpu.c: what this machine offers to ranks with a GPU ----------------------------------------

// After doctor_machine, which forks. Loads libraries of NVIDIA's into this process.
void doctor_gpu(struct doctor_report *report);

// ---- share.c: whether two processes can share memory -------------------------------------------

// Does what two ranks of one host do. NULL when it works, or else what did not, with the reason in
// *number, an errno value or 0.
const char *doctor_share(int *number);

// ---- job.c: what jobs have agreed --------------------------------------------------------------

struct http_peer;

// Asks the coordinator there. job: only this one; "": all of them.
void doctor_jobs(struct doctor_report *report, const struct http_peer *peer, const char *job);

// A range of payloads, and how they travel.
struct doctor_range {
    uint64_t most_bytes; // UINT64_MAX: any.
    enum plan_algorithm reduction;
    enum plan_algorithm broadcast;
};

// The ranges of a job that is tuned, in the order of sizes. Returns how many.
uint32_t doctor_ranges(const struct doctor_job *job, struct doctor_range *ranges);

#endif
