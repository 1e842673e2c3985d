// SPDX-License-Identifier: Apache-2.0
//
// Goes through all orders in which two or three threads can execute the atomic operations of real
// code. A test includes worker files after tests/sim/interleave_atomics.h, so that each atomic
// operation in these files is a *point*, at which another thread may run next. One thread runs at a
// time. Every order is a new execution from the beginning. Two operations commute when they access
// different words, or both only read. Of the orders that differ only in commuting operations, one
// is executed (sleep sets).
//
// The code between two points runs without interruption. So accesses to plain memory, and code that
// was not included, belong to the point before them. Memory orders are not checked: every execution
// is sequentially consistent. ThreadSanitizer checks memory orders in the conformance tests.

#ifndef LOCKSTEP_TESTS_INTERLEAVE_H
#define LOCKSTEP_TESTS_INTERLEAVE_H

#include <stdbool.h>
#include <stdint.h>

#define INTERLEAVE_THREADS 3

struct interleave_program {
    uint32_t threads;
    void (*run[INTERLEAVE_THREADS])(void *context); // Each thread runs its function once.
    // begin is called before each execution, check after it. check returns false, and prints why,
    // if the outcome is wrong.
    void (*begin)(void *context);
    bool (*check)(void *context);
    // Returns true if operations on this word are no points, because no thread depends on the word
    // (statistics, for example). NULL: operations on all words are points.
    bool (*ignores)(const volatile void *word, void *context);
    void *context;
};

struct interleave_result {
    uint64_t executions; // Executions that were checked.
    uint64_t redundant; // Executions that were cut short, as they equal one that was run before.
    uint64_t longest; // The largest number of points in an execution.
    // True if in the last execution check returned false, or all threads waited. The points of that
    // execution were printed.
    bool failed;
};

// Runs all executions until the first that fails.
void interleave_explore(const struct interleave_program *program, struct interleave_result *result);

// A thread calls it before each atomic operation. Does nothing outside an execution.
void interleave_point(const volatile void *word, bool writes, const char *what);
// The calling thread waits until another thread writes the word that the caller has read last.
void interleave_wait(void);

#endif
