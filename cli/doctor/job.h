// SPDX-License-Identifier: Apache-2.0
//
// The agreement of the ranks of a coordinator's jobs: links, tuning, algorithms. Main thread.

#ifndef CLI_DOCTOR_JOB_H
#define CLI_DOCTOR_JOB_H

#include "protos/types.h"

#include <stdint.h>

struct doctor_job;
struct doctor_report;
struct http_peer;

// A range of payload sizes, and the algorithms for it.
struct doctor_range {
    uint64_t most_bytes; // The largest payload of the range; UINT64_MAX: no limit.
    enum plan_algorithm reduction;
    enum plan_algorithm broadcast;
};

// Asks the coordinator at peer and adds the findings. job: only this job; "": all jobs.
void doctor_jobs(struct doctor_report *report, const struct http_peer *peer, const char *job);
// Fills in the ranges of a tuned job, in the order of sizes. Returns how many.
uint32_t doctor_ranges(const struct doctor_job *job, struct doctor_range *ranges);

#endif
