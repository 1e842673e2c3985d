// SPDX-License-Identifier: Apache-2.0
//
// A set of ranks; run_set.h has the contract.

#include "cli/run/run_set.h"

#include "base/text.h"

#include <string.h>

void run_set_clear(struct run_set *set)
{
    memset(set, 0, sizeof(*set));
}

void run_set_add(struct run_set *set, uint32_t rank)
{
    set->count += !set->has[rank];
    set->has[rank] = true;
}

bool run_set_has(const struct run_set *set, uint32_t rank)
{
    return set->has[rank];
}

void run_set_text(const struct run_set *set, char *bytes, size_t capacity)
{
    struct text text;
    uint32_t parts = 0;
    uint32_t told = 0;
    text_init(&text, bytes, capacity);
    text_append(&text, set->count == 1 ? "rank " : "ranks ");
    for (uint32_t first = 0; first < LOCKSTEP_MAX_WORLD && parts < RUN_SET_PARTS; first++) {
        uint32_t last = first;
        if (!set->has[first])
            continue;
        while (last + 1 < LOCKSTEP_MAX_WORLD && set->has[last + 1])
            last++;
        if (last == first + 1)
            last = first; // Two neighbours are no range.
        text_append(&text, "%s%u", parts++ == 0 ? "" : set->count == 2 ? " and " : ", ", first);
        if (last > first)
            text_append(&text, " to %u", last);
        told += last - first + 1;
        first = last;
    }
    if (told < set->count)
        text_append(&text, " and %u more", set->count - told);
}
