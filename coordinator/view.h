// SPDX-License-Identifier: Apache-2.0
//
// Copies of the state for HTTP and tests. Runs on the thread of coordinator_step, never during one.

#ifndef COORDINATOR_VIEW_H
#define COORDINATOR_VIEW_H

#include "coordinator/coordinator.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;

uint32_t coordinator_job_count(const struct coordinator *coordinator);
// These functions fill *view and return true, or return false if the index does not exist. Jobs are
// in order of creation; workers in order of ranks, or of arrival while the job gathers.
bool coordinator_job_view(const struct coordinator *coordinator, uint32_t job,
                          struct job_view *view);
bool coordinator_worker_view(const struct coordinator *coordinator, uint32_t job, uint32_t worker,
                             uint64_t now_ms, struct worker_view *view);
// Returns false also if rank 0 has not sent the name of that module.
bool coordinator_module_view(const struct coordinator *coordinator, uint32_t job, uint32_t module,
                             struct module_view *view);

#endif
