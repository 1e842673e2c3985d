// SPDX-License-Identifier: Apache-2.0
//
// An address at which no coordinator is reached: why, and how long it is tried. Control thread.

#ifndef WORKER_CONTROL_REACH_H
#define WORKER_CONTROL_REACH_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct channel;

struct reach {
    uint64_t look_at; // When the reason of a failure may be looked for again.
    uint64_t refused_since; // Time since which one side refuses the other; 0: neither does.
    bool mismatch; // True if one side speaks TLS, or HTTP/2, and the other does not.
    char refusal[LOCKSTEP_TEXT_BYTES]; // Set while refused_since is not 0.
};

// Looks for the reason of a failed attempt, with a connection of its own, because gRPC does not
// report it. reason: gRPC's words. kept: looks only if somebody has answered. Blocks for
// CONTROL_PROBE_MS at most, and seldom.
void reach_look(struct reach *reach, const struct channel *channel, const char *reason, bool kept,
                uint64_t now_ms);

// Why one side refuses the other; "": neither does.
const char *reach_refusal(const struct reach *reach);

// True if there is time left, and a refusal has not lasted too long.
bool reach_may_retry(const struct reach *reach, uint64_t now_ms, uint64_t deadline_ms);

#endif
