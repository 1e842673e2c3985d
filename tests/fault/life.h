// SPDX-License-Identifier: Apache-2.0
//
// The whole life of a session in one process: open, memory, module, start, steps with a call each,
// plain collectives, a state check, a saved layout, close. It stops at the first error and closes
// what is open. Nothing in it fails the test: what happened is an outcome.

#ifndef LOCKSTEP_TESTS_LIFE_H
#define LOCKSTEP_TESTS_LIFE_H

#include <stdint.h>

struct life {
    uint16_t port; // Port of the coordinator, on 127.0.0.1.
    const char *job;
    uint32_t rank; // The hint; the world has two.
    uint32_t open_ms; // The timeout of lockstep_open.
};

struct outcome {
    int status; // The first error; 0: none.
    char function[32]; // The function that is called, or was called last.
    char text[1024]; // Text of the error.
    uint64_t open_ms; // How long lockstep_open took.
    uint64_t used; // Value for life_sweep.h.
};

void life_live(const struct life *life, struct outcome *outcome);

#endif
