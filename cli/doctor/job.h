// SPDX-License-Identifier: Apache-2.0
//
// The agreements of a coordinator's jobs. Main thread.

#ifndef CLI_DOCTOR_JOB_H
#define CLI_DOCTOR_JOB_H

#include "protos/types.h"

#include <stdint.h>

struct doctor_job;
struct doctor_report;
struct http_peer;

// A range of payloads, and how they travel.
struct doctor_range {
    uint64_t most_bytes; // UINT64_MAX: any.
    enum plan_algorithm reduction;
    enum plan_algorithm broadcast;
};

// Asks the coordinator there. job: only this one; "": all of them.
void doctor_jobs(struct doctor_report *report, const struct http_peer *peer, const char *job);
// The ranges of a job that is tuned, in the order of sizes. Returns how many.
uint32_t doctor_ranges(const struct doctor_job *job, struct doctor_range *ranges);

#endif
