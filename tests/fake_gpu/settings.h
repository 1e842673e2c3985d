// SPDX-License-Identifier: Apache-2.0
//
// Variables of the fake libraries as numbers, and faults that strike at the Nth time. Not locked:
// the owner of a list of faults locks it.
#ifndef TESTS_FAKE_GPU_SETTINGS_H
#define TESTS_FAKE_GPU_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

// The variable as a number; `otherwise` when it is not set or is no number.
uint64_t setting_number(const char *variable, uint64_t otherwise);

// "HIGH" is 0 to HIGH; "LOW-HIGH" a range.
void setting_range(const char *variable, uint64_t *low, uint64_t *high);

enum {
    FAULTS_MAX = 16,
    FAULT_HANG = -1
};

struct fault {
    char what[40];
    uint64_t nth;
    bool ever_after; // "3+"
    int code; // or FAULT_HANG
    int only; // device or rank; -1: all
    uint64_t seen;
};

struct faults {
    struct fault list[FAULTS_MAX];
    uint32_t count;
};

// "WHAT:N:CODE[@ONLY],...". Text that is not understood ends the process: a test that injects
// nothing because of a typing error would pass.
void faults_read(struct faults *faults, const char *variable);

// `what` happens on device or rank `only`: the code that strikes, 0 when none does.
int faults_strike(struct faults *faults, const char *what, int only);

#endif
