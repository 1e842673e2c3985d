// SPDX-License-Identifier: Apache-2.0
//
// The whole life of a session in one process: open, memory, module, start, steps with a call each,
// plain collectives, a state check, a saved layout, close. life_live stops at the first error and
// closes the session, unless life.abrupt is set. No error in it fails the test: the caller gets the
// error as an outcome.

#ifndef LOCKSTEP_TESTS_LIFE_H
#define LOCKSTEP_TESTS_LIFE_H

#include <stdbool.h>
#include <stdint.h>

struct life {
    uint16_t port; // Port of the coordinator, on 127.0.0.1.
    const char *job;
    uint32_t rank; // The rank hint: 0 or 1, in a world of two ranks.
    uint32_t open_ms; // The timeout of lockstep_open.
    bool abrupt; // True if the process ends after an error without lockstep_close.
};

struct outcome {
    int status; // Status of the first call that failed; 0: none failed.
    char function[32]; // Name of the library function that was called last.
    char text[1024]; // Text of the error.
    uint64_t open_ms; // How long lockstep_open took.
    bool failed; // True if the error has ended the session, in an abrupt life.
    uint64_t used; // Result of squeeze.used (life_sweep.h).
};

// Number of further blocks of memory that both processes allocate, each with a region of its own.
extern uint32_t life_blocks;

void life_live(const struct life *life, struct outcome *outcome);

#endif
