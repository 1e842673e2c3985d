// SPDX-License-Identifier: Apache-2.0
//
// A run of elements of a collective. Pure: a type, no functions. Any thread.

#ifndef WORKER_MEMORY_SPAN_H
#define WORKER_MEMORY_SPAN_H

#include <stdint.h>

struct ring_span {
    uint64_t first;
    uint64_t count;
};

#endif
