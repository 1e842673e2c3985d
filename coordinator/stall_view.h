// SPDX-License-Identifier: Apache-2.0
//
// Copies of stalls for HTTP and tests. Runs on the thread of coordinator_step, never during one.

#ifndef COORDINATOR_STALL_VIEW_H
#define COORDINATOR_STALL_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct stall_view;

// Stalls, step times and log lines of a job, the newest first. False: there is no such index. Of a
// stall that is over only rank, host, pid and kind of its culprits are kept.
bool coordinator_stall_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                            uint64_t now_ms, struct stall_view *view);

#endif
