// SPDX-License-Identifier: Apache-2.0
//
// See choice.h.

#include "tests/support/choice.h"

#include <stdlib.h>

uint64_t choice_below(uint64_t *state, uint64_t bound)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % bound;
}

uint64_t choice_number(const char *variable, uint64_t otherwise)
{
    const char *value = getenv(variable);
    return value && value[0] != '\0' ? strtoull(value, NULL, 10) : otherwise;
}
