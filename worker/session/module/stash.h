// SPDX-License-Identifier: Apache-2.0
//
// The stash of a module: contributions of this rank that were deferred, until a later one of the
// module carries them (order protocol, R10). And the results that must not be in user memory yet,
// because their slots were given up before the calls were made: such a call still writes its
// gradients there. It knows parameters, not buckets or slots: it outlives layouts. Pure but for its
// memory; driver while a step is open, trainer between steps.
//
// For each parameter it keeps the sum of w g over what was deferred, and the sum of w. (Of
// gradients that are sums already: the sum of g.) What is taken for a bucket is that and what the
// bucket's own call has made, as one contribution whose weight is the sum of both. So, over all
// steps,
//
//     sum of w g contributed + what is left = sum of w g reported,
//
// and the same of the weights: every sample counts once, in the mean of one step. The mean of a
// step divides by one weight, so the parameters of a bucket are taken together, and only when the
// same weight is kept of all of them. That it is not can happen only after a layout has cut
// parameters in a new way of which some, not all, were deferred before. Then they wait on: nothing
// is lost, and nothing is approximated.
//
// A parameter is taken once in a step at most: what was taken is in flight until the step has
// settled, and a contribution that is deferred meanwhile begins a new sum.
//
// Roundings (docs/numbers.md): float32 and float64 are summed in themselves, product and sum
// rounded once each, and travel as a sum. 16-bit floats are summed in float32, and what is taken is
// rounded to 16 bits once; of kind mean it travels as the mean over its weight, which is not larger
// than the gradients were: a sum might overflow.
//
// All memory is reserved when it is opened, and touched when something is deferred: about as much
// as the gradients twice, and once more for each call with results to be held.

#ifndef WORKER_SESSION_MODULE_STASH_H
#define WORKER_SESSION_MODULE_STASH_H

#include "worker/session/module/buckets.h"

struct stash;

struct stash_config {
    const struct bucket_parameter *parameters; // [parameter_count]; read now.
    uint32_t parameter_count;
    uint32_t contribution_count; // Travelling calls in a step.
    bool sums; // Gradients are sums over samples, not means.
    bool holds; // Results may have to be held back.
};

// 0, or -1 without memory.
int stash_open(const struct stash_config *config, struct stash **stash);
void stash_close(struct stash *stash); // NULL is allowed.

// ---- Contributions -----------------------------------------------------------------------------

// Puts off what a call has made of a parameter, with its weight. gradient: NULL, it was not used.
// Read now. A weight of 0 contributes nothing, and nothing is kept.
void stash_keep(struct stash *stash, uint32_t contribution, uint32_t parameter,
                const void *gradient, uint64_t weight);

// True if the parameters of a bucket can be taken, and the weight that is kept of each.
bool stash_ready(const struct stash *stash, const uint32_t *parameters, uint32_t count,
                 uint64_t *weight);

// Puts together what is kept of a parameter and what its own call has made; nothing is kept any
// more. gradient: NULL, it was not used; read now. weight 0 takes only what is kept. Of all
// parameters of a bucket for which stash_ready said yes.
void stash_take(struct stash *stash, uint32_t parameter, const void *gradient, uint64_t weight);
// The gradient that was taken and travels, borrowed until stash_settle; NULL: no call has used it.
const void *stash_taken(const struct stash *stash, uint32_t parameter);

// True if what is taken of this dtype is a sum already, or a mean that is still to be multiplied.
bool stash_gives_sums(const struct stash *stash, enum dtype dtype);

// ---- Results -----------------------------------------------------------------------------------

// Where the result of a parameter goes instead of user memory, until it is put back.
void *stash_hold(struct stash *stash, uint32_t contribution, uint32_t parameter);

// Gives the memory of a parameter what the other ranks hold: the result that was held, if there is
// one, or else, where its gradient was deferred, zeros: it has moved to the stash, and a trainer
// that adds up in place must not count it again. has_result: some rank has contributed to it.
// Whole elements are stored. Returns whether something was to be put back.
bool stash_put_back(struct stash *stash, uint32_t contribution, uint32_t parameter, void *memory,
                    bool has_result);

// True if anything was kept, taken or held since the last stash_settle.
bool stash_is_busy(const struct stash *stash);
// The step has settled, and all was put back: what was taken is part of a result on every rank.
void stash_settle(struct stash *stash);

// The number of parameters of which something is kept.
uint32_t stash_left(const struct stash *stash);
// The largest weight that is kept of one.
uint64_t stash_left_weight(const struct stash *stash);

#endif
