// SPDX-License-Identifier: Apache-2.0
//
// The stash of a module. It keeps the deferred gradients of this rank until a later contribution of
// the module carries them (order protocol, R10). It also keeps results that must not be written to
// user memory yet: their slots were launched with zeros before the calls were made, and such a call
// still writes its gradients to that memory. The stash knows parameters, not buckets or slots, so
// it survives a change of the layout. Pure but for its memory. Driver while a step is open, trainer
// between steps.
//
// Let g be a deferred gradient and w its weight. For each parameter the stash keeps the sum of w g
// and the sum of w. (If gradients are sums already, it keeps the sum of g.) A bucket that takes
// deferred gradients carries them and those of its own call, as one contribution whose weight is
// the sum of both weights. So, over all steps,
//
//     sum of w g contributed + what is left = sum of w g reported,
//
// and the same holds for the weights: every sample counts once, in the mean of one step. The mean
// of a step divides by one weight, so the parameters of a bucket are taken together, and only if
// the same weight is kept for all of them. The weights can differ only after a new layout has put
// deferred parameters and others into one bucket. Then the deferred gradients wait longer: nothing
// is lost, and nothing is approximated.
//
// A parameter is taken at most once in a step: the taken gradient is in flight until the step has
// settled, and a gradient that is deferred meanwhile begins a new sum.
//
// Rounding (docs/numbers.md): float32 and float64 are summed in their own dtype, with one rounding
// for the product and one for the sum, and travel as a sum. 16-bit floats are summed in float32,
// and a taken sum is rounded to 16 bits once. If gradients are means, it travels as the mean over
// its weight, because a 16-bit sum might overflow.
//
// All memory is reserved at open, and pages are used when something is deferred: about twice the
// size of the gradients, and once more for each call whose results may be held.

#ifndef WORKER_SESSION_MODULE_STASH_H
#define WORKER_SESSION_MODULE_STASH_H

#include "worker/session/module/buckets.h"

struct stash;

struct stash_config {
    const struct bucket_parameter *parameters; // [parameter_count]; read in stash_open only.
    uint32_t parameter_count;
    uint32_t contribution_count; // Calls of a step with which gradients travel.
    bool sums; // True if gradients are sums over samples, not means.
    bool holds; // True if results may have to be held.
    // True if a held result may have elements that nobody writes: they are zeros then.
    bool clears;
};

// 0, or -1 without memory.
int stash_open(const struct stash_config *config, struct stash **stash);
void stash_close(struct stash *stash); // NULL is allowed.

// ---- Contributions -----------------------------------------------------------------------------

// Keeps the gradient of a parameter, with its weight. gradient: NULL if the parameter was not used;
// read during the call only. With weight 0 nothing is kept.
void stash_keep(struct stash *stash, uint32_t contribution, uint32_t parameter,
                const void *gradient, uint64_t weight);

// True if the deferred gradients of a bucket's parameters can be taken. Then *weight becomes the
// weight that is kept for each of them.
bool stash_ready(const struct stash *stash, const uint32_t *parameters, uint32_t count,
                 uint64_t *weight);

// Takes the kept gradient of a parameter, and adds that of the present call. Nothing is kept any
// more. gradient: NULL if the parameter was not used; read during the call only. weight 0: takes
// only the kept gradient. Call it for all parameters of a bucket for which stash_ready is true.
void stash_take(struct stash *stash, uint32_t parameter, const void *gradient, uint64_t weight);
// The gradient that was taken and travels, borrowed until stash_settle; NULL: no call has used the
// parameter.
const void *stash_taken(const struct stash *stash, uint32_t parameter);

// True if a taken gradient of this dtype is a weighted sum; false if it is a mean.
bool stash_gives_sums(const struct stash *stash, enum dtype dtype);

// ---- Results -----------------------------------------------------------------------------------

// Holds the result of a parameter. Returns the memory to which it goes instead of user memory.
void *stash_hold(struct stash *stash, uint32_t contribution, uint32_t parameter);

// Copies the held result of a parameter, if there is one, to `memory`. Stores whole elements.
// has_result: true if some rank has contributed a gradient.
//
// True if the gradient was deferred and has no result: then the caller writes zeros to the memory
// of all replicas. The gradient is in the stash, and a trainer that accumulates in place must not
// count it again.
bool stash_put_back(struct stash *stash, uint32_t contribution, uint32_t parameter, void *memory,
                    bool has_result);

// True if anything was kept, taken or held since the last stash_settle.
bool stash_is_busy(const struct stash *stash);
// The step has settled, and every result was put back: taken gradients are part of it on all ranks.
void stash_settle(struct stash *stash);

// The number of parameters with a kept gradient.
uint32_t stash_left(const struct stash *stash);
// The largest weight that is kept for a parameter.
uint64_t stash_left_weight(const struct stash *stash);

#endif
