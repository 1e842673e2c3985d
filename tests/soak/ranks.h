// SPDX-License-Identifier: Apache-2.0
//
// A rank of a job in the soak of recovery: it trains a small model and says for each step which
// members' gradients the results hold. Runs in a process of its own, and shares memory with the
// soak.

#ifndef LOCKSTEP_TESTS_SOAK_RANKS_H
#define LOCKSTEP_TESTS_SOAK_RANKS_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    MEMBERS = 8, // At most.
    MEMBERS_USUAL = 5,
    STEPS_MAX = 128,
    NO_MEAN = -99, // told.failed: an element is the mean over no set of members.
};

// The way in which the ranks of a job exchange.
enum exchange {
    WAY_TCP,
    WAY_MEMORY,
    WAY_REGISTERED, // In shared memory, with gradients in memory of the library.
    WAY_HOSTS, // The upper half of the members says that it is on another host.
    WAYS
};

// A step of a rank. Sets are of members, a bit for each.
struct told_step {
    uint64_t ended_us; // clock_now_us; 0: it has not ended.
    uint64_t took_us; // Of lockstep_step_end.
    uint64_t hash; // Of all results.
    uint32_t everywhere; // Members whose gradients are in every element.
    uint32_t world_size;
};

// What a rank tells the soak.
struct told {
    _Atomic(uint64_t) begun; // The last step that it has begun.
    _Atomic(int) failed; // A status, or 0.
    char text[512];
    struct told_step steps[STEPS_MAX + 1];
};

struct rank_job {
    const char *coordinator; // Its address.
    uint64_t seed; // Of the times at which gradients are ready.
    uint64_t steps;
    uint32_t members;
    enum exchange way;
};

// Trains and ends the process: code 0 if every step ended with OK.
_Noreturn void rank_train(struct told *told, const struct rank_job *job, uint32_t member);

#endif
