// SPDX-License-Identifier: Apache-2.0
//
// Combines many sources, with weights and one division, in one pass over memory. Pure; any thread.

#ifndef WORKER_KERNELS_COMBINE_H
#define WORKER_KERNELS_COMBINE_H

#include <stdbool.h>
#include <stddef.h>

struct kernel_combination;
struct kernel_table;

// out = ((sources[0] op sources[1]) op ...), in this order, divided by total. The result has the
// same bits as the functions of kernels.h, called one after the other, except that 16-bit floats
// are rounded only once, at the end. Sums, means, ORs and XORs skip a source that is NULL or has
// weight 0; if no source is left, the result is +0. For the other ops such a source counts as
// zeros. A DTYPE_BOOL becomes 0 or 1, also if there is only one source. Only final values are
// stored, and each element with one store, so out and also may be memory in which every element
// must at any time be either unchanged or final. out may be one of the sources, and also another
// source; no other overlap.
void kernel_combine(const struct kernel_combination *what, void *out, size_t count);
// Copies with stores of whole elements, of every dtype that both addresses are aligned for; memcpy
// does not promise that. streams: true if the stores go past the caches; they are complete when the
// function returns. No overlap, except out == in.
void kernel_copy(void *out, const void *in, size_t bytes, bool streams);
// Copies past the caches. The stores are complete only after kernel_stream_end, so that many copies
// can share one call of it. Cache lines of which only a part is stored go through the cache.
void kernel_stream(void *out, const void *in, size_t bytes);
void kernel_stream_end(void);
// kernel_combine with the loops of one level of the instruction set.
void kernel_combine_by(const struct kernel_table *table, const struct kernel_combination *what,
                       void *out, size_t count);

#endif
