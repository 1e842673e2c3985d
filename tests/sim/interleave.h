// SPDX-License-Identifier: Apache-2.0
//
// Goes through all orders in which two or three threads can execute the atomic operations of real
// code. A test includes worker files after tests/sim/interleave_atomics.h, so that each atomic
// operation of theirs is a point at which any thread may go on. One thread runs at a time; every
// order is an execution from the beginning. Two operations commute when they touch different words,
// or both only read; of orders that differ in such operations alone one is run (sleep sets).
//
// The code between two points runs without interruption. So plain memory, and code that was not
// included, belongs to the point before it. Memory orders are not looked at: every execution is
// sequentially consistent (ThreadSanitizer looks at the rest, in the conformance tests).

#ifndef LOCKSTEP_TESTS_INTERLEAVE_H
#define LOCKSTEP_TESTS_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>

#define INTERLEAVE_THREADS 3

struct interleave_program {
    uint32_t threads;
    void (*run[INTERLEAVE_THREADS])(void *context); // Each thread runs its function once.
    // Before each execution, and after it. check returns false when the outcome is wrong, and says
    // why.
    void (*begin)(void *context);
    bool (*check)(void *context);
    // Words that nothing depends on, such as statistics, are no points. NULL: all are.
    bool (*ignores)(const volatile void *word, void *context);
    void *context;
};

struct interleave_result {
    uint64_t executions; // Executions that were checked.
    uint64_t redundant; // Executions that were given up, as another order of the same.
    uint64_t longest; // Points of an execution.
    bool failed; // The last execution: check said no, or all threads wait. Its points were printed.
};

// Runs all executions until the first that fails.
void interleave_explore(const struct interleave_program *program, struct interleave_result *result);

// The calling thread is about to execute an atomic operation. Outside an execution: nothing.
void interleave_point(const volatile void *word, bool writes, const char *what);
// It waits until another thread writes the word that it has read last.
void interleave_wait(void);

#endif
