// SPDX-License-Identifier: Apache-2.0
//
// Reads the environment variables of the fake libraries, and injects a fault at the Nth event. The
// functions do not lock: the owner of a list of faults does.
#ifndef TESTS_FAKE_GPU_SETTINGS_H
#define TESTS_FAKE_GPU_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

// The variable as a number; `otherwise` when it is not set or is no number.
uint64_t setting_number(const char *variable, uint64_t otherwise);

// Reads a range: "HIGH" means 0 to HIGH, "LOW-HIGH" means LOW to HIGH. 0 to 0 when it is not set.
void setting_range(const char *variable, uint64_t *low, uint64_t *high);

enum {
    FAULTS_MAX = 16,
    FAULT_HANG = -1
};

struct fault {
    char what[40];
    uint64_t nth; // The event that fails, from 1.
    bool ever_after; // True if all later events fail as well ("3+").
    int code; // The error code, or FAULT_HANG.
    int only; // The device or rank that fails; -1: all.
    uint64_t seen; // Matching events so far.
};

struct faults {
    struct fault list[FAULTS_MAX];
    uint32_t count;
};

// Reads "WHAT:N:CODE[@ONLY],..." from the variable. Aborts the process on a syntax error, because a
// test whose faults were ignored would pass.
void faults_read(struct faults *faults, const char *variable);

// Counts the event `what` on device or rank `only`. Returns the code of the fault that this event
// triggers, or 0.
int faults_strike(struct faults *faults, const char *what, int only);

#endif
