// SPDX-License-Identifier: Apache-2.0
//
// A crew: the ranks of a world on one thread, each with its own transport, for tests of recovery.
// The thread drives one rank at a time, in an order that a seed gives, so a run can be repeated
// exactly. A rank stops for ever after a given number of *turns*. Then the others freeze, the
// coordinator's rule makes rows of what they report, and they form a new world and finish. An
// oracle checks every element.

#ifndef TESTS_TRANSPORT_CREW_H
#define TESTS_TRANSPORT_CREW_H

#include "protos/types.h"
#include "worker/transport/flow/collective.h"
#include "worker/transport/flow/events.h"

#include <stdbool.h>
#include <stdint.h>

#define CREW_MAX 9
#define CREW_SLOTS 3
#define CREW_DEATHS 3
#define CREW_NEVER UINT32_MAX

enum crew_end {
    CREW_CLOSES, // The rank's links end, and all it has sent arrives.
    CREW_RESETS, // They are reset.
    CREW_STOPS, // They stay open: the rank stands still until all is over.
    CREW_ENDS,
};

// Registered memory: where the first victim dies inside of its last turn, at a page of memory that
// it can no longer access. It may not come there.
enum crew_tear {
    CREW_WHOLE, // It dies between two turns.
    CREW_TEARS_OWN, // It cannot write the page of its own memory, which it sums into.
    CREW_TEARS_MATE, // It cannot write the page of a mate's memory.
    CREW_TEARS,
};

enum crew_units {
    CREW_PLAIN, // No units.
    CREW_USED, // Every rank uses every unit.
    CREW_SPARSE, // Some units are used by nobody, some by one rank only.
    CREW_UNITS,
};

struct crew_plan {
    const char *name;
    enum transport_kind kind;
    uint32_t torn_bytes;
    bool mates; // True if ranks share memory.
    bool registered; // True if they reduce straight in each other's memory.
    bool sums; // True if inputs are multiplied by their weights already.
    enum crew_tear tear; // How the first victim dies.
    uint32_t tear_page; // The page, modulo those of the elements that the rank sums.
    uint32_t tear_mate; // The mate, modulo their number.
    // Another rank stops in the same way, and goes on when all others have frozen.
    bool sleeps;
    uint32_t hosts; // 0: one.
    enum plan_algorithm algorithm;
    uint32_t world;
    // The ranks of a group, by number in the first generation: only they have the slots, and reduce
    // by ALGORITHM_DIRECT. 0: all ranks.
    uint32_t group;
    uint32_t elements; // Of each slot.
    uint32_t chunk_bytes;
    uint32_t slots;
    enum dtype dtype;
    enum dtype partial;
    enum dtype final;
    enum crew_units units;
    bool weightless; // True if only the first victim has a weight.
    // True if all weights are 1, and a result has the bits of a sum in the order of the ranks, in
    // float32, that is rounded once.
    bool exact;
    // Deaths, one in each generation: the rank in that generation, and after how many of its turns.
    uint32_t victims[CREW_DEATHS];
    uint32_t turns[CREW_DEATHS]; // CREW_NEVER: nobody dies in this generation.
    enum crew_end end;
    uint64_t seed;
};

// What happened in a run, for tests that must not miss the interesting cases.
struct crew_tally {
    uint32_t turns; // Turns of the first victim until it died or all was done.
    uint32_t have; // Number of HAVE rows.
    uint32_t reduce; // Number of REDUCE rows.
    uint32_t again; // Number of slots that ran again as a whole.
    uint32_t whole; // Number of slots that were final on every survivor.
    uint32_t inside; // Number of rows that begin or end inside a chunk or an unfinished slot.
    uint32_t torn; // Number of ranks that stopped inside of a turn.
    uint32_t refused; // Number of runs in which it is not known what is final.
};

// Runs the plan. A failure of the oracle, or a hang, ends the program with the plan in its text.
void crew_run(const struct crew_plan *plan, struct crew_tally *tally);

#endif
