// SPDX-License-Identifier: Apache-2.0
//
// Deferred gradients and held results; see stash.h.

#include "worker/session/module/stash.h"

#include "worker/kernels/combine.h"

#include "worker/kernels/kernels.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STASH_ALIGN 64
#define STASH_PIECE 1024 // Elements that are widened at a time.

// The state of one parameter.
struct kept {
    enum dtype dtype;
    uint64_t elements; // 0 also for a parameter that is never trained.
    uint64_t weight; // The kept weight; 0: nothing is kept.
    bool used; // True if `sum` has a value; false if no deferred call used the parameter.
    bool taken; // True if the kept gradient was taken in this step.
    bool taken_used; // True if `taken_in` has a value.
    char *sum; // The kept sum, in the dtype of sums.
    char *taken_in; // The gradient that travels, in the parameter's dtype.
};

// The result of one parameter in one contribution, until it is put back.
struct result {
    bool held; // True if the result is written to `memory`.
    bool moved; // True if the gradient was deferred, so it is in the stash.
    char *memory; // NULL: results of this module are never held.
};

struct stash {
    uint32_t parameter_count;
    uint32_t contribution_count;
    bool sums;
    bool clears;
    bool busy;
    uint32_t left; // Parameters whose kept weight is not 0.
    struct kept *kept; // [parameter_count]
    struct result *results; // [contribution_count * parameter_count]
    char *memory;
    size_t bytes;
};

// ---- Memory ------------------------------------------------------------------------------------

static enum dtype stash_sum_dtype(enum dtype dtype)
{
    return dtype_is_small(dtype) ? DTYPE_FLOAT32 : dtype;
}

static size_t stash_room(uint64_t elements, enum dtype dtype)
{
    const size_t bytes = elements * dtype_size(dtype);
    return (bytes + STASH_ALIGN - 1) / STASH_ALIGN * STASH_ALIGN;
}

// Reserves address space. The kernel provides a page when it is first used; most never are.
static char *stash_reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t stash_measure(const struct stash_config *config)
{
    const size_t holds = config->holds ? config->contribution_count : 0;
    size_t bytes = STASH_ALIGN; // Not 0: also empty parameters need an address.
    for (uint32_t p = 0; p < config->parameter_count; p++) {
        const struct bucket_parameter *parameter = &config->parameters[p];
        if (!dtype_is_float(parameter->dtype))
            continue;
        bytes += stash_room(parameter->elements, stash_sum_dtype(parameter->dtype));
        bytes += stash_room(parameter->elements, parameter->dtype) * (1 + holds);
    }
    return bytes;
}

static void stash_place(struct stash *stash, const struct stash_config *config)
{
    char *at = stash->memory;
    for (uint32_t p = 0; p < config->parameter_count; p++) {
        const struct bucket_parameter *parameter = &config->parameters[p];
        struct kept *kept = &stash->kept[p];
        const size_t room = stash_room(parameter->elements, parameter->dtype);
        if (!dtype_is_float(parameter->dtype))
            continue;
        *kept = (struct kept){.dtype = parameter->dtype, .elements = parameter->elements};
        kept->sum = at;
        at += stash_room(parameter->elements, stash_sum_dtype(parameter->dtype));
        kept->taken_in = at;
        at += room;
        for (uint32_t c = 0; config->holds && c < config->contribution_count; c++, at += room)
            stash->results[(size_t)c * config->parameter_count + p].memory = at;
    }
}

int stash_open(const struct stash_config *config, struct stash **stash)
{
    const size_t results = (size_t)config->parameter_count * config->contribution_count;
    struct stash *made = calloc(1, sizeof(*made));
    *stash = made;
    if (!made)
        return -1;
    made->parameter_count = config->parameter_count;
    made->contribution_count = config->contribution_count;
    made->sums = config->sums;
    made->clears = config->clears;
    made->bytes = stash_measure(config);
    // calloc(0) may be NULL; every array has at least one element.
    made->kept = calloc((size_t)config->parameter_count + 1, sizeof(*made->kept));
    made->results = calloc(results + 1, sizeof(*made->results));
    made->memory = stash_reserve(made->bytes);
    if (!made->kept || !made->results || !made->memory) {
        stash_close(made);
        *stash = NULL;
        return -1;
    }
    stash_place(made, config);
    return 0;
}

void stash_close(struct stash *stash)
{
    if (!stash)
        return;
    if (stash->memory)
        munmap(stash->memory, stash->bytes);
    free(stash->kept);
    free(stash->results);
    free(stash);
}

static struct kept *stash_kept(const struct stash *stash, uint32_t parameter)
{
    assert(parameter < stash->parameter_count);
    return &stash->kept[parameter];
}

static struct result *stash_result(const struct stash *stash, uint32_t contribution,
                                   uint32_t parameter)
{
    assert(parameter < stash->parameter_count && contribution < stash->contribution_count);
    return &stash->results[(size_t)contribution * stash->parameter_count + parameter];
}

// ---- Arithmetic --------------------------------------------------------------------------------

// out = before + factor * gradient, in the dtype of sums. If before or gradient is NULL, that term
// is left out. out may equal before.
static void stash_sum(enum dtype dtype, void *out, const void *before, const void *gradient,
                      uint64_t factor, uint64_t count)
{
    const void *const sources[] = {before, gradient};
    const uint64_t weights[] = {1, factor};
    const struct kernel_combination sum = {.dtype = dtype,
                                           .op = REDUCE_MEAN,
                                           .count = 2,
                                           .sources = sources,
                                           .weights = weights,
                                           .total = 1,
                                           .rounded = DTYPE_NONE};
    kernel_combine(&sum, out, count);
}

static uint64_t stash_piece(uint64_t left)
{
    return left < STASH_PIECE ? left : STASH_PIECE;
}

// The same for a 16-bit gradient; before and out are float32.
static void stash_sum_small(enum dtype dtype, float *out, const float *before,
                            const uint16_t *gradient, uint64_t factor, uint64_t count)
{
    float own[STASH_PIECE];
    if (gradient)
        kernel_widen(dtype, own, gradient, count);
    stash_sum(DTYPE_FLOAT32, out, before, gradient ? own : NULL, factor, count);
}

static uint64_t stash_factor(const struct stash *stash, uint64_t weight)
{
    return stash->sums && weight > 0 ? 1 : weight;
}

static void stash_keep_small(const struct kept *kept, const uint16_t *gradient, uint64_t factor)
{
    float *sum = (float *)(void *)kept->sum;
    for (uint64_t at = 0; at < kept->elements; at += STASH_PIECE)
        stash_sum_small(kept->dtype, sum + at, kept->used ? sum + at : NULL, gradient + at, factor,
                        stash_piece(kept->elements - at));
}

// total: the divisor of the mean if gradients are means, else 1.
static void stash_take_small(const struct kept *kept, const uint16_t *gradient, uint64_t factor,
                             uint64_t total)
{
    const float *sum = (const float *)(const void *)kept->sum;
    uint16_t *out = (uint16_t *)(void *)kept->taken_in;
    for (uint64_t at = 0; at < kept->elements; at += STASH_PIECE) {
        const uint64_t count = stash_piece(kept->elements - at);
        float piece[STASH_PIECE];
        stash_sum_small(kept->dtype, piece, kept->used ? sum + at : NULL,
                        gradient ? gradient + at : NULL, factor, count);
        if (total > 1)
            kernel_divide(DTYPE_FLOAT32, piece, piece, total, count);
        kernel_narrow(kept->dtype, out + at, piece, count);
    }
}

// ---- Contributions -----------------------------------------------------------------------------

void stash_keep(struct stash *stash, uint32_t contribution, uint32_t parameter,
                const void *gradient, uint64_t weight)
{
    struct kept *kept = stash_kept(stash, parameter);
    const uint64_t factor = stash_factor(stash, weight);
    if (weight == 0)
        return;
    stash->busy = true;
    stash->left += kept->weight == 0;
    kept->weight += weight;
    if (!gradient)
        return;
    if (dtype_is_small(kept->dtype))
        stash_keep_small(kept, gradient, factor);
    else
        stash_sum(kept->dtype, kept->sum, kept->used ? kept->sum : NULL, gradient, factor,
                  kept->elements);
    kept->used = true;
    stash_result(stash, contribution, parameter)->moved = true;
}

bool stash_ready(const struct stash *stash, const uint32_t *parameters, uint32_t count,
                 uint64_t *weight)
{
    *weight = count > 0 ? stash_kept(stash, parameters[0])->weight : 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct kept *kept = stash_kept(stash, parameters[i]);
        if (kept->taken || kept->weight != *weight)
            return false;
    }
    return *weight > 0;
}

void stash_take(struct stash *stash, uint32_t parameter, const void *gradient, uint64_t weight)
{
    struct kept *kept = stash_kept(stash, parameter);
    const uint64_t factor = stash_factor(stash, weight);
    const uint64_t total = kept->weight + weight;
    const void *own = weight > 0 ? gradient : NULL;
    assert(!kept->taken && kept->weight > 0);
    kept->taken_used = kept->used || own;
    if (kept->taken_used && dtype_is_small(kept->dtype))
        stash_take_small(kept, own, factor, stash->sums ? 1 : total);
    else if (kept->taken_used)
        stash_sum(kept->dtype, kept->taken_in, kept->used ? kept->sum : NULL, own, factor,
                  kept->elements);
    stash->busy = kept->taken = true;
    stash->left--;
    kept->used = false;
    kept->weight = 0;
}

const void *stash_taken(const struct stash *stash, uint32_t parameter)
{
    const struct kept *kept = stash_kept(stash, parameter);
    assert(kept->taken);
    return kept->taken_used ? kept->taken_in : NULL;
}

bool stash_gives_sums(const struct stash *stash, enum dtype dtype)
{
    return stash->sums || !dtype_is_small(dtype);
}

// ---- Results -----------------------------------------------------------------------------------

void *stash_hold(struct stash *stash, uint32_t contribution, uint32_t parameter)
{
    struct result *result = stash_result(stash, contribution, parameter);
    const struct kept *kept = stash_kept(stash, parameter);
    assert(result->memory);
    if (stash->clears && !result->held)
        memset(result->memory, 0, kept->elements * dtype_size(kept->dtype));
    stash->busy = result->held = true;
    return result->memory;
}

bool stash_put_back(struct stash *stash, uint32_t contribution, uint32_t parameter, void *memory,
                    bool has_result)
{
    const struct kept *kept = stash_kept(stash, parameter);
    struct result *result = stash_result(stash, contribution, parameter);
    const size_t bytes = kept->elements * dtype_size(kept->dtype);
    const bool deferred = result->moved;
    if (result->held && has_result && memory && bytes > 0)
        kernel_copy(memory, result->memory, bytes, false);
    result->held = result->moved = false;
    return deferred && !has_result;
}

bool stash_is_busy(const struct stash *stash)
{
    return stash->busy;
}

void stash_settle(struct stash *stash)
{
    for (uint32_t p = 0; p < stash->parameter_count; p++)
        stash->kept[p].taken = false;
    stash->busy = false;
}

uint32_t stash_left(const struct stash *stash)
{
    return stash->left;
}

uint64_t stash_left_weight(const struct stash *stash)
{
    uint64_t weight = 0;
    for (uint32_t p = 0; p < stash->parameter_count; p++)
        weight = stash->kept[p].weight > weight ? stash->kept[p].weight : weight;
    return weight;
}
