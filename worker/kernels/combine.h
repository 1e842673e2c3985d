// SPDX-License-Identifier: Apache-2.0
//
// Many sources, weights and one division in one pass over memory. Pure; any thread.

#ifndef WORKER_KERNELS_COMBINE_H
#define WORKER_KERNELS_COMBINE_H

#include <stdbool.h>
#include <stddef.h>

struct kernel_combination;
struct kernel_table;

// out = ((sources[0] op sources[1]) op ...), in this order, divided by total: the bits of the
// functions of kernels.h one after the other, but that 16-bit floats are rounded once, at the end.
// Sums and ORs skip a source that is NULL or has weight 0, and begin with the first of the others;
// without any they are +0. Minima and maxima meet a zero instead. Only final values are stored,
// each in one piece, so out and also may be memory in which every element has to be intact or
// final. out may be one of the sources, and also another one; no other overlap.
void kernel_combine(const struct kernel_combination *what, void *out, size_t count);
// A copy whose stores have whole elements of every dtype that both are aligned for: memcpy promises
// no such thing. streams: past the caches, done when it returns. No overlap, but out == in.
void kernel_copy(void *out, const void *in, size_t bytes, bool streams);
// The same past the caches, but done only when kernel_stream_end has returned: for many in a row.
// Lines of the cache of which not all is stored go through it.
void kernel_stream(void *out, const void *in, size_t bytes);
void kernel_stream_end(void);
// kernel_combine with the loops of one level.
void kernel_combine_by(const struct kernel_table *table, const struct kernel_combination *what,
                       void *out, size_t count);

#endif
