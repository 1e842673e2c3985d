// SPDX-License-Identifier: Apache-2.0
//
// See bounds.h.

#include "tests/support/bounds.h"

#include <stdlib.h>
#include <string.h>

#define CI_FACTOR 5

uint32_t test_slow(void)
{
    const char *factor = getenv("LOCKSTEP_TEST_SLOW");
    const int value = !factor ? 1 : atoi(factor);
    return value > 0 ? (uint32_t)value : 1;
}

bool test_everything(void)
{
    const char *algorithms = getenv("LOCKSTEP_TEST_ALGORITHMS");
    return algorithms && strcmp(algorithms, "all") == 0;
}

bool test_takes(size_t test, size_t way, size_t ways)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    if (!sanitizer || sanitizer[0] == '\0' || test_everything() || getenv("LOCKSTEP_TEST_FILTER"))
        return true;
    return (test + (strcmp(sanitizer, "thread") == 0)) % ways == way;
}

uint64_t test_bound_ms(uint64_t ms)
{
    const char *ci = getenv("CI");
    const uint32_t slow = test_slow();
    return ms * (ci && strcmp(ci, "true") == 0 && slow < CI_FACTOR ? CI_FACTOR : slow);
}
