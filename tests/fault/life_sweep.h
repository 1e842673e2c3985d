// SPDX-License-Identifier: Apache-2.0
//
// Worlds of two processes that live a whole life of a session (life.h) beside a coordinator. One of
// them, the poor one, lacks something; the other one, the rich one, lacks nothing. Each amount of
// what the poor one has is a world of its own, and several worlds live side by side.
//
// In every world: no process ends by a signal, none outlives its bound, the poor one is well or
// gets LOCKSTEP_E_SYSTEM, and the rich one is well or hears of the poor one, and is not blamed.

#ifndef LOCKSTEP_TESTS_LIFE_SWEEP_H
#define LOCKSTEP_TESTS_LIFE_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

struct squeeze {
    const char *name; // A name for people.
    const char *says; // Part of the error on the limited side; NULL: any text.
    // In the poor process, before its life: from now on it has so much. world: no two worlds of a
    // program have the same.
    void (*apply)(uint64_t value, uint32_t world);
    uint64_t (*used)(void); // In the poor process, after its life. May be NULL.
};

struct swept {
    uint32_t worlds;
    uint32_t well; // Worlds in which both were.
    uint32_t refused; // Worlds in which the poor one was not.
    uint32_t faults; // Worlds in which a rule was broken; each was printed.
    uint64_t used; // The most that a poor one said.
};

// One world for each value from first on, before last, in steps, and one for last. A step is one of
// a sample: with LOCKSTEP_TEST_LIMITS=all it is an eighth.
struct swept life_sweep(const struct squeeze *squeeze, uint64_t first, uint64_t last,
                        uint64_t step);

#endif
