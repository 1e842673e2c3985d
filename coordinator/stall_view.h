// SPDX-License-Identifier: Apache-2.0
//
// Copies of stalls for HTTP and tests. Runs on the thread of coordinator_step, never during one.

#ifndef COORDINATOR_STALL_VIEW_H
#define COORDINATOR_STALL_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct stall_view;

// Copies a stall of a job into *view; index 0 is the newest. Returns false if there is no such
// stall. The culprits of a past stall have only rank, host, pid and kind.
bool coordinator_stall_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                            uint64_t now_ms, struct stall_view *view);

#endif
