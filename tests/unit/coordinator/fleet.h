// SPDX-License-Identifier: Apache-2.0
//
// A job of workers that report their places: a heartbeat once a second, each rank at its own
// instant, and answers to inspections. A test fills a rank's heartbeat, lets time pass, and checks
// the stalls of the job.
//
//     fleet_begin(&fleet, &story, 3, 1);
//     fleet_outside(&fleet, 1);
//     assert_int_equal(fleet_until_stall(&fleet, 20000), 10500);

#ifndef TESTS_UNIT_COORDINATOR_FLEET_H
#define TESTS_UNIT_COORDINATOR_FLEET_H

#include "tests/unit/coordinator/story.h"

enum {
    FLEET_RANKS = 1000,
    FLEET_NEVER = 1000000000, // Result of fleet_until_stall if no stall came.
    FLEET_MS = 50 // Time passes in steps of so many milliseconds.
};

struct fleet_rank {
    struct up_heartbeat beat; // The heartbeat that the rank sends; fleet.c fills in place.api_ms.
    uint64_t api_at_ms; // Time at which the trainer last entered or left the library.
    uint64_t next_ms; // Time of the rank's next heartbeat.
    uint32_t received; // Number of messages that were answered.
    bool silent; // True if the rank sends no messages at all.
    bool mute; // True if the rank answers no inspections.
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

void fleet_say(struct fleet *fleet, uint32_t rank); // The rank sends a heartbeat now.
void fleet_pass(struct fleet *fleet, uint64_t ms);
// Lets time pass until a stall is reported, at most ms. Returns the time passed, or FLEET_NEVER.
uint64_t fleet_until_stall(struct fleet *fleet, uint64_t ms);

// Returns the newest stall. Fails the test if there is none.
const struct stall_view *fleet_stall(const struct fleet *fleet);
// Asserts that the newest stall goes on, and that this rank is its only culprit, of this kind.
void fleet_expect_culprit(const struct fleet *fleet, uint32_t rank, enum stall_kind kind);
// Asserts that the sentence of the newest stall contains this piece.
void fleet_expect_says(const struct fleet *fleet, const char *piece);
bool fleet_is_stalled(const struct fleet *fleet); // True while a stall goes on.
// Number of stalls so far that the coordinator still keeps.
uint32_t fleet_stalls(const struct fleet *fleet);
struct worker_view fleet_worker(const struct fleet *fleet, uint32_t rank);

#endif
