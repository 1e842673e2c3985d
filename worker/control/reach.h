// SPDX-License-Identifier: Apache-2.0
//
// A coordinator that cannot be reached: why, how long it is tried, and when the user is told.
// Control thread.

#ifndef WORKER_CONTROL_REACH_H
#define WORKER_CONTROL_REACH_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct channel;

#define REACH_TELL_MS 1000 // The user is told that the coordinator is not reached yet.

struct reach {
    uint64_t tell_at; // When the user is told; UINT64_MAX: the user was told.
    uint64_t look_at; // When the reason of a failure may be looked for again.
    uint64_t refused_since; // Time since which one side refuses the other; 0: neither does.
    bool mismatch; // True if one side speaks TLS and the other does not.
    char refusal[LOCKSTEP_TEXT_BYTES]; // Set while refused_since is not 0.
};

// Looks for the reason of a failed attempt, with a connection of its own, because gRPC does not
// report it. reason: gRPC's words. Blocks for CONTROL_PROBE_MS at most, and seldom.
void reach_look(struct reach *reach, const struct channel *channel, const char *reason,
                uint64_t now_ms);

// Why one side refuses the other; "": neither does.
const char *reach_refusal(const struct reach *reach);

// True if there is time left, and a refusal has not lasted too long.
bool reach_may_retry(const struct reach *reach, uint64_t now_ms, uint64_t deadline_ms);

// True once, soon after the opening: the user must be told that the coordinator is not reached.
// False on a mismatch, which ends the stream about then.
bool reach_tells(struct reach *reach, uint64_t now_ms);

#endif
