// SPDX-License-Identifier: Apache-2.0
//
// Reader of tests/golden/order/vectors.txt: programs for small worlds, and what each of them must
// come to. The notation stands at the head of that file. Pure.

#ifndef TESTS_SIM_VECTORS_H
#define TESTS_SIM_VECTORS_H

#include "tests/sim/world.h"

enum vector_limit {
    VECTOR_CASES = 16, // Cases of one line.
    VECTOR_LINE = 1024,
};

struct vector_case {
    char name[8]; // "w2-ee"
    struct world_config config; // Its strings point into the line.
    const char *outcome;
};

struct vector {
    char family[16];
    uint32_t case_count;
    struct vector_case cases[VECTOR_CASES];
    char text[VECTOR_LINE]; // The line, cut into its fields.
};

// Reads one line. False: it is no vector. The vector must stay where it is.
bool vector_read(struct vector *vector, const char *line);
// Whether an outcome, as world_outcome says it, is one that a vector allows.
bool vector_allows(const char *expected, const char *outcome);

#endif
