// SPDX-License-Identifier: Apache-2.0
//
// Worlds of two processes, each of which runs a whole session (life.h), with one coordinator. The
// *poor* process has a limited amount of one resource; the *rich* process has no such limit. Each
// amount is tried in a world of its own, and several worlds run at the same time.
//
// In every world: no process ends by a signal, and no process outlives its bound. The poor process
// succeeds or gets LOCKSTEP_E_SYSTEM. The rich process succeeds or gets an error about the poor
// one, and no error blames the rich process.

#ifndef LOCKSTEP_TESTS_LIFE_SWEEP_H
#define LOCKSTEP_TESTS_LIFE_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

struct squeeze {
    const char *name; // A name for people.
    const char *says; // Part of the error on the limited side; NULL: any text.
    // Limits the calling process to the amount `value`. The poor process calls it before its
    // session. world: a number that is unique among the worlds of a program.
    void (*apply)(uint64_t value, uint32_t world);
    // True if the poor process ends without lockstep_close after an error. If the error has ended
    // its session, the rich process must hear of the error, and not of a connection that has ended.
    bool abrupt;
    // Returns how much the poor process used. Called in that process after its session. May be
    // NULL.
    uint64_t (*used)(void);
};

struct swept {
    uint32_t worlds;
    uint32_t well; // Worlds in which both processes succeeded.
    uint32_t refused; // Worlds in which the poor process got an error.
    uint32_t faults; // Worlds in which a rule was broken; each was printed.
    uint64_t used; // The largest result of squeeze.used.
};

// Runs one world for each value first, first + step, ... below last, and one world for last. With
// LOCKSTEP_TEST_LIMITS=all the step is an eighth of `step`.
struct swept life_sweep(const struct squeeze *squeeze, uint64_t first, uint64_t last,
                        uint64_t step);

#endif
