// SPDX-License-Identifier: Apache-2.0
//
// A job of workers that say where they are: heartbeats once in a second, each rank at its own
// instant, and answers to inspections. A test writes what a rank would say into its heartbeat, lets
// time pass, and looks at the stalls of the job.
//
//     fleet_begin(&fleet, &story, 3, 1);
//     fleet_outside(&fleet, 1);
//     assert_int_equal(fleet_until_stall(&fleet, 20000), 10500);

#ifndef TESTS_UNIT_COORDINATOR_FLEET_H
#define TESTS_UNIT_COORDINATOR_FLEET_H

#include "tests/unit/coordinator/story.h"

enum {
    FLEET_RANKS = 1000,
    FLEET_NEVER = 1000000000, // fleet_until_stall: none came.
    FLEET_MS = 50 // How finely time passes.
};

struct fleet_rank {
    struct up_heartbeat beat; // The heartbeat that it sends; place.api_ms is filled in.
    uint64_t api_at_ms; // When its trainer called or left the library last.
    uint64_t next_ms; // Time of its next heartbeat.
    uint32_t received; // Messages answered.
    bool silent; // Says nothing.
    bool mute; // Answers nothing.
};

struct fleet {
    struct story *story;
    uint32_t count;
    struct fleet_rank ranks[FLEET_RANKS];
};

// `world` ranks, `per_host` on each host, have started; stream r + 1 is rank r. They have done ten
// steps, so none of them is a first one, and are outside between steps. Rank 2 has another class of
// device than the others. The trace is off.
void fleet_begin(struct fleet *fleet, struct story *story, uint32_t world, uint32_t per_host);
// Rank 0 calls modules 0 and 1 'actor' and 'critic'.
void fleet_name_modules(struct fleet *fleet);

// A rank is in step settled + 1, at position 2 of 4: outside, after the end of call 3 of module 0;
// in call 1 of module 1, with 3 of 10 gradients; or waiting, having done its part.
void fleet_outside(struct fleet *fleet, uint32_t rank);
void fleet_in_call(struct fleet *fleet, uint32_t rank);
void fleet_waits(struct fleet *fleet, uint32_t rank);
void fleet_all_wait(struct fleet *fleet);
// All ranks have settled their step, and are at the beginning of the next one.
void fleet_settle(struct fleet *fleet);

void fleet_say(struct fleet *fleet, uint32_t rank); // A heartbeat, now.
void fleet_pass(struct fleet *fleet, uint64_t ms);
// Time passes until a stall is seen, at most ms; returns how much, or FLEET_NEVER.
uint64_t fleet_until_stall(struct fleet *fleet, uint64_t ms);

// The newest stall; there is one.
const struct stall_view *fleet_stall(const struct fleet *fleet);
// It goes on, and this rank is its only culprit, of this kind.
void fleet_expect_culprit(const struct fleet *fleet, uint32_t rank, enum stall_kind kind);
// Its sentence has this piece.
void fleet_expect_says(const struct fleet *fleet, const char *piece);
bool fleet_is_stalled(const struct fleet *fleet); // One goes on.
// Number of stalls so far, at most those that are kept.
uint32_t fleet_stalls(const struct fleet *fleet);
struct worker_view fleet_worker(const struct fleet *fleet, uint32_t rank);

#endif
