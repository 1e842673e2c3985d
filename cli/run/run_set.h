// SPDX-License-Identifier: Apache-2.0
//
// A set of ranks, and its text: "rank 3", "ranks 0 to 3", "ranks 0, 2, 5 to 7". Supervisor's
// thread.

#ifndef LOCKSTEP_CLI_RUN_RUN_SET_H
#define LOCKSTEP_CLI_RUN_RUN_SET_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RUN_SET_BYTES 128
#define RUN_SET_PARTS 8 // Ranges in a text; the others are counted.

struct run_set {
    uint32_t count;
    bool has[LOCKSTEP_MAX_WORLD];
};

void run_set_clear(struct run_set *set);
void run_set_add(struct run_set *set, uint32_t rank);
bool run_set_has(const struct run_set *set, uint32_t rank);
void run_set_text(const struct run_set *set, char *bytes, size_t capacity);

#endif
