// SPDX-License-Identifier: Apache-2.0
//
// The slow reference of jobs, and the comparison of what ranks have with it; see transport_job.h.
// It runs on one thread, before or after the ranks' threads, so ThreadSanitizer does not watch it
// (UNWATCHED in mk/checks.mk).

#include "tests/conformance/transport_job_inside.h"

#include "protos/topology.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/units.h"
#include "worker/transport/ring/schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool job_unit_used(const struct job *job, const struct item *item, uint32_t unit)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (units_is_used(item->sides[r].used, unit))
            return true;
    }
    return false;
}

// True if some rank uses the unit that contains the element.
static bool job_element_used(const struct job *job, const struct item *item, uint64_t element)
{
    uint32_t low = 0;
    uint32_t high = item->spec.units;
    if (high == 0)
        return true;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (item->unit_ends[middle] <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return job_unit_used(job, item, low);
}

// True if the sum is in the order of ranks and sums of 16-bit floats are rounded only once, at the
// end: in shared memory, and where inputs go straight to the owner.
static bool job_rounds_once(const struct job *job)
{
    return job->algorithm == ALGORITHM_SHARED || job->algorithm == ALGORITHM_DIRECT;
}

// True if an input that is missing is added as zero, which turns -0 into 0.
static bool job_adds_zeros(const struct job *job, const struct job_spec *spec)
{
    return job->algorithm == ALGORITHM_DIRECT &&
           (spec->op == REDUCE_SUM || spec->op == REDUCE_MEAN);
}

// True if the sum skips a rank of this weight: in shared memory a rank of weight 0, even at the
// begin of the sum.
static bool job_passes_over(const struct job *job, uint64_t weight)
{
    return job->algorithm == ALGORITHM_SHARED && weight == 0;
}

// The value of a missing input at the begin of a sum: in shared memory -0, except for rank 0;
// otherwise 0.
static float job_missing(const struct job *job, uint32_t rank)
{
    return job->algorithm == ALGORITHM_SHARED && rank > 0 ? -0.0f : 0.0f;
}

static void job_begin_missing(const struct job *job, const struct job_spec *spec, uint32_t rank,
                              uint8_t final[8])
{
    const size_t size = dtype_size(spec->dtype);
    const bool sums = spec->op == REDUCE_SUM || spec->op == REDUCE_MEAN;
    memset(final, 0, size);
    if (dtype_is_float(spec->dtype) && sums && signbit(job_missing(job, rank)))
        final[size - 1] = 0x80;
}

// True if the result is computed and rounded, and not one of the inputs.
static bool job_computes(enum reduce_op op)
{
    return op == REDUCE_SUM || op == REDUCE_MEAN || op == REDUCE_PRODUCT;
}

static bool job_is_wide(const struct job *job, const struct job_spec *spec)
{
    return spec->partial != DTYPE_NONE || spec->final != DTYPE_NONE || spec->exponent != 0 ||
           (job_rounds_once(job) && dtype_is_small(spec->dtype) && job_computes(spec->op));
}

// The rank whose input is the i-th in the sum. In the ring the owner of the element is the last.
static uint32_t job_turn(const struct job *job, uint32_t owner, uint32_t i)
{
    return job_rounds_once(job) ? i : (owner + 1 + i) % job->world;
}

static float job_widen(enum dtype dtype, const uint8_t *at)
{
    float value;
    uint16_t half;
    memcpy(&value, at, dtype == DTYPE_FLOAT32 ? sizeof(value) : 0);
    if (dtype == DTYPE_FLOAT32)
        return value;
    memcpy(&half, at, sizeof(half));
    kernel_widen(dtype, &value, &half, 1);
    return value;
}

static void job_narrow(enum dtype dtype, float value, uint8_t *at)
{
    uint16_t half;
    if (dtype == DTYPE_FLOAT32) {
        memcpy(at, &value, sizeof(value));
        return;
    }
    kernel_narrow(dtype, &half, &value, 1);
    memcpy(at, &half, sizeof(half));
}

static float job_rounded(enum dtype dtype, float value)
{
    uint8_t bytes[4];
    job_narrow(dtype, value, bytes);
    return job_widen(dtype, bytes);
}

// The reference for frames in another dtype than the memory: sums in float32 and rounds once for
// each hop. The variables are volatile, so that the compiler rounds after every operation.
static uint64_t job_reference_wide(const struct job *job, const struct item *item, uint64_t element,
                                   uint32_t owner, uint8_t final[8])
{
    const struct job_spec *spec = &item->spec;
    const enum dtype as_told = spec->partial == DTYPE_NONE ? spec->dtype : spec->partial;
    const enum dtype partial = job_rounds_once(job) ? DTYPE_FLOAT32 : as_told;
    const enum dtype end = spec->final == DTYPE_NONE ? spec->dtype : spec->final;
    const bool mean = spec->op == REDUCE_MEAN;
    volatile float sum = 0;
    bool begun = false;
    uint64_t total = 0;
    for (uint32_t i = 0; i < job->world; i++) {
        const uint32_t rank = job_turn(job, owner, i);
        const struct side *side = &item->sides[rank];
        const uint64_t weight = mean ? spec->weights[rank] : 1;
        volatile float own =
            job_widen(spec->dtype, side->inputs_before + element * dtype_size(spec->dtype));
        if (job->algorithm == ALGORITHM_DIRECT)
            own = job_rounded(end, own); // It travels before it is multiplied.
        own = own * ldexpf(1, spec->exponent);
        if (mean && !spec->input_is_sum)
            own = own * (float)weight;
        total += weight;
        if (job_passes_over(job, weight))
            continue;
        if (!begun && spec->op == REDUCE_PRODUCT)
            sum = own;
        else if (spec->op == REDUCE_PRODUCT)
            sum = sum * own;
        else if (!begun)
            sum = side->has_in[element] && weight > 0 ? own : job_missing(job, rank);
        else if (side->has_in[element] && weight > 0)
            sum = sum + own;
        else if (job_adds_zeros(job, spec))
            sum = sum + 0.0f;
        if (i + 1 < job->world)
            sum = job_rounded(partial, sum);
        begun = true;
    }
    if (mean && total > 0)
        sum = sum / (float)total;
    sum = sum * ldexpf(1, -spec->exponent);
    job_narrow(spec->dtype, job_rounded(end, sum), final);
    return total;
}

// ---- algorithms by pairs: a tree of blocks of ranks, the lower block first ----------------------
// The ranks beyond the largest power of two are extras; an extra is added to its partner first.

// The input of one rank, in the dtype of the frames.
static void job_pair_input(const struct job *job, const struct item *item, uint32_t rank,
                           uint64_t element, uint8_t sum[8])
{
    const struct job_spec *spec = &item->spec;
    const struct side *side = &item->sides[rank];
    const uint64_t weight = spec->op == REDUCE_MEAN ? spec->weights[rank] : 1;
    const uint8_t *in = side->inputs_before + element * dtype_size(spec->dtype);
    memset(sum, 0, 8);
    if (weight == 0 || !side->has_in[element])
        return;
    if (job_is_wide(job, spec)) {
        volatile float own = job_widen(spec->dtype, in) * ldexpf(1, spec->exponent);
        if (spec->op == REDUCE_MEAN && !spec->input_is_sum)
            own = own * (float)weight;
        job_narrow(spec->partial == DTYPE_NONE ? spec->dtype : spec->partial, own, sum);
    } else if (spec->op == REDUCE_MEAN && !spec->input_is_sum && weight != 1) {
        kernel_scale(spec->dtype, sum, in, weight, 1);
    } else {
        memcpy(sum, in, dtype_size(spec->dtype));
    }
}

static void job_pair_add(const struct job_spec *spec, uint8_t lower[8], const uint8_t upper[8])
{
    kernel_reduce(spec->partial == DTYPE_NONE ? spec->dtype : spec->partial, spec->op, lower, upper,
                  1);
}

// The sum over the block of `size` ranks that begins with `first`, with their extras.
static void job_pair_block(const struct job *job, const struct item *item, uint64_t element,
                           uint32_t first, uint32_t size, uint8_t sum[8])
{
    uint8_t other[8];
    const uint32_t extra = first + topology_core(job->world);
    if (size > 1) {
        job_pair_block(job, item, element, first, size / 2, sum);
        job_pair_block(job, item, element, first + size / 2, size / 2, other);
        job_pair_add(&item->spec, sum, other);
        return;
    }
    job_pair_input(job, item, first, element, sum);
    if (extra >= job->world)
        return;
    job_pair_input(job, item, extra, element, other);
    job_pair_add(&item->spec, sum, other);
}

// The last sum for frames in another dtype than the memory: it is divided before it is rounded.
static void job_pair_wide(const struct job_spec *spec, uint64_t total, const uint8_t lower[8],
                          const uint8_t upper[8], uint8_t final[8])
{
    const enum dtype partial = spec->partial == DTYPE_NONE ? spec->dtype : spec->partial;
    const enum dtype end = spec->final == DTYPE_NONE ? spec->dtype : spec->final;
    volatile float sum = job_widen(partial, lower) + job_widen(partial, upper);
    if (spec->op == REDUCE_MEAN && total > 0)
        sum = sum / (float)total;
    sum = sum * ldexpf(1, -spec->exponent);
    job_narrow(spec->dtype, job_rounded(end, sum), final);
}

static bool job_reference_pair(const struct job *job, const struct item *item, uint64_t element,
                               uint8_t final[8])
{
    const struct job_spec *spec = &item->spec;
    const uint32_t half = topology_core(job->world) / 2;
    uint8_t upper[8];
    uint64_t total = 0;
    for (uint32_t r = 0; r < job->world; r++)
        total += spec->op == REDUCE_MEAN ? spec->weights[r] : 1;
    if (total == 0 || !job_element_used(job, item, element))
        return false;
    job_pair_block(job, item, element, 0, half, final);
    job_pair_block(job, item, element, half, half, upper);
    if (job_is_wide(job, spec)) {
        uint8_t lower[8];
        memcpy(lower, final, sizeof(lower));
        job_pair_wide(spec, total, lower, upper, final);
        return true;
    }
    job_pair_add(spec, final, upper);
    if (spec->op == REDUCE_MEAN && total != 1)
        kernel_divide(spec->dtype, final, final, total, 1);
    return true;
}

// Computes the final value of one element. False: the collective does not write the element.
static bool job_reference(const struct job *job, const struct item *item, uint64_t element,
                          uint32_t owner, uint8_t final[8])
{
    const struct job_spec *spec = &item->spec;
    const size_t size = dtype_size(spec->dtype);
    const uint64_t zero = 0;
    bool begun = false;
    uint64_t total = 0;
    if (spec->kind == COLLECTIVE_BROADCAST) {
        memcpy(final, item->sides[spec->root].inputs_before + element * size, size);
        return true;
    }
    if (job_is_pair(job) && job->world > 1)
        return job_reference_pair(job, item, element, final);
    if (job_is_wide(job, spec) && job->world > 1)
        return job_reference_wide(job, item, element, owner, final) > 0 &&
               job_element_used(job, item, element);
    for (uint32_t i = 0; i < job->world; i++) {
        const uint32_t rank = job_turn(job, owner, i);
        const struct side *side = &item->sides[rank];
        const uint64_t weight = spec->weights[rank];
        const uint8_t *in = side->inputs_before + element * size;
        const bool mean = spec->op == REDUCE_MEAN;
        const bool scales = mean && !spec->input_is_sum && weight != 1;
        const bool nothing = (mean && weight == 0) || !side->has_in[element];
        const bool meets_zero = !kernel_skips_zeros(spec->op);
        total += mean ? weight : 1;
        if (mean && job_passes_over(job, weight))
            continue;
        if (!begun && nothing)
            job_begin_missing(job, spec, rank, final);
        else if (!begun && scales)
            kernel_scale(spec->dtype, final, in, weight, 1);
        else if (!begun)
            memcpy(final, in, size);
        else if (nothing && (meets_zero || job_adds_zeros(job, spec)))
            kernel_reduce(spec->dtype, spec->op, final, &zero, 1);
        else if (!nothing && scales)
            kernel_add_weighted(spec->dtype, final, in, weight, 1);
        else if (!nothing)
            kernel_reduce(spec->dtype, spec->op, final, in, 1);
        begun = true;
    }
    if (total == 0 || !job_element_used(job, item, element))
        return false;
    kernel_reduce_alone(spec->dtype, final, 1);
    if (spec->op == REDUCE_MEAN && job->world == 1 && !spec->input_is_sum)
        memcpy(final, item->sides[0].inputs_before + element * size, size);
    else if (spec->op == REDUCE_MEAN && total != 1)
        kernel_divide(spec->dtype, final, final, total, 1);
    return true;
}

static double job_value(enum dtype dtype, const uint8_t *at)
{
    float narrow = 0;
    double wide = 0;
    if (dtype == DTYPE_FLOAT32) {
        memcpy(&narrow, at, sizeof(narrow));
        return (double)narrow;
    }
    if (dtype == DTYPE_BFLOAT16) {
        uint16_t half;
        memcpy(&half, at, sizeof(half));
        kernel_widen(dtype, &narrow, &half, 1);
        return (double)narrow;
    }
    if (dtype == DTYPE_FLOAT16) {
        uint16_t half;
        memcpy(&half, at, sizeof(half));
        const int exponent = half >> 10 & 31;
        const int fraction = half & 1023;
        double value = exponent == 31  ? (fraction ? (double)NAN : (double)INFINITY)
                       : exponent == 0 ? ldexp(fraction, -24)
                                       : ldexp(1024 + fraction, exponent - 25);
        return half & 0x8000 ? -value : value;
    }
    memcpy(&wide, at, sizeof(wide));
    return wide;
}

static bool job_equal(enum dtype dtype, const uint8_t *a, const uint8_t *b)
{
    if (memcmp(a, b, dtype_size(dtype)) == 0)
        return true;
    // The machine decides which NaN an addition makes, so any two NaNs are equal here. All ranks
    // must have the same bits: see job_check_element.
    return dtype_is_float(dtype) && isnan(job_value(dtype, a)) && isnan(job_value(dtype, b));
}

static void job_fail(const struct job *job, const char *name, uint32_t index, uint32_t rank,
                     uint64_t element, const char *text)
{
    const struct job_spec *spec = &job->items[index].spec;
    fprintf(stderr,
            "%s: world %u chunk %u item %u (kind %d dtype %d op %d elements %llu): rank %u element "
            "%llu: %s\n",
            name, job->world, job->chunk_bytes, index, (int)spec->kind, (int)spec->dtype,
            (int)spec->op, (unsigned long long)spec->elements, rank, (unsigned long long)element,
            text);
    fflush(stderr);
    _exit(1);
}

// True if the value is near the product in double precision. The numbers are not so large or small
// that a partial product of float32 would be infinite or denormal. One of float16 may be: its error
// of half a denormal unit is multiplied by all further numbers, each at most 10.
static bool job_near_product(const struct job *job, const struct item *item, uint64_t element,
                             const uint8_t *final)
{
    const enum dtype dtype = item->spec.dtype;
    const double got = job_value(dtype, final);
    const double unit = dtype == DTYPE_FLOAT16    ? 0x1p-11
                        : dtype == DTYPE_BFLOAT16 ? 0x1p-8
                        : dtype == DTYPE_FLOAT32  ? 0x1p-24
                                                  : 0x1p-53;
    const double denormal = dtype == DTYPE_FLOAT16 ? 0x1p-24 * pow(10, job->world) : 0;
    double product = 1;
    if (dtype_is_small(dtype) && !isfinite(got))
        return true; // A partial product overflowed.
    for (uint32_t r = 0; r < job->world; r++)
        product *= job_value(dtype, item->sides[r].inputs_before + element * dtype_size(dtype));
    if (!isfinite(product))
        return isnan(product) ? isnan(got) : memcmp(&got, &product, sizeof(got)) == 0;
    return fabs(got - product) <= 2 * job->world * unit * fabs(product) + denormal;
}

// True if the value is near the sum or mean in double precision, which no order changes much.
static bool job_near(const struct job *job, const struct item *item, uint64_t element,
                     const uint8_t *final)
{
    const struct job_spec *spec = &item->spec;
    const size_t size = dtype_size(spec->dtype);
    double sum = 0;
    double magnitude = 0;
    double total = 0;
    if (dtype_is_float(spec->dtype) && spec->op == REDUCE_PRODUCT &&
        spec->kind != COLLECTIVE_BROADCAST)
        return job_near_product(job, item, element, final);
    if (!dtype_is_float(spec->dtype) || spec->kind == COLLECTIVE_BROADCAST ||
        (spec->op != REDUCE_SUM && spec->op != REDUCE_MEAN))
        return true;
    for (uint32_t r = 0; r < job->world; r++) {
        const double weight = spec->op == REDUCE_MEAN ? (double)spec->weights[r] : 1.0;
        const double factor = spec->op == REDUCE_MEAN && spec->input_is_sum ? 1.0 : weight;
        total += weight;
        if (weight == 0)
            continue;
        const double value = job_value(spec->dtype, item->sides[r].inputs_before + element * size);
        sum += factor * value;
        magnitude += fabs(factor * value);
    }
    const double divisor = spec->op == REDUCE_MEAN ? total : 1.0;
    const double got = job_value(spec->dtype, final);
    if (!isfinite(sum))
        return !isfinite(got);
    if (dtype_size(spec->dtype) == 2 && !isfinite(got))
        return true; // A partial sum overflowed.
    const enum dtype coarse = spec->partial == DTYPE_BFLOAT16 ? DTYPE_BFLOAT16 : spec->dtype;
    const double unit = coarse == DTYPE_FLOAT16    ? 0x1p-11
                        : coarse == DTYPE_BFLOAT16 ? 0x1p-8
                        : coarse == DTYPE_FLOAT32  ? 1.2e-7
                                                   : 2.3e-16;
    const double denormal = coarse == DTYPE_FLOAT16    ? ldexp(1, -24 - spec->exponent)
                            : coarse == DTYPE_BFLOAT16 ? 0x1p-133
                                                       : 1e-300;
    return fabs(got - sum / divisor) <=
           4 * job->world * unit * magnitude / divisor + denormal * job->world;
}

// The owner of an element, for elements in ascending order.
struct owners {
    struct ring ring;
    uint32_t owner;
    uint64_t end; // `owner` owns all elements from the last one asked for to this one.
};

static void owners_begin(struct owners *owners, const struct job *job, const struct job_spec *spec)
{
    // The size of the largest element that travels decides the bounds of chunks.
    const uint32_t partial =
        (uint32_t)dtype_size(spec->partial == DTYPE_NONE ? spec->dtype : spec->partial);
    const uint32_t final =
        (uint32_t)dtype_size(spec->final == DTYPE_NONE ? spec->dtype : spec->final);
    *owners = (struct owners){.owner = spec->root};
    if (spec->kind == COLLECTIVE_BROADCAST)
        owners->end = spec->elements;
    else
        ring_init_allreduce(&owners->ring, job->world, 0, spec->elements,
                            partial > final ? partial : final, job->chunk_bytes, RING_SPLIT_BYTES);
}

static uint32_t owners_next(struct owners *owners, const struct job *job, uint64_t element)
{
    if (element < owners->end)
        return owners->owner;
    const uint64_t stripe = ring_stripe_of(&owners->ring, element);
    for (uint32_t owner = 0; owner < job->world; owner++) {
        if (!ring_present(&owners->ring, stripe, owner))
            continue;
        const struct ring_span span = ring_chunk(&owners->ring, stripe, owner);
        if (element >= span.first && element < span.first + span.count) {
            owners->owner = owner;
            owners->end = span.first + span.count;
            return owner;
        }
    }
    abort();
}

// True if the order of summation is not that of the reference: two levels sum on each host first
// and then in a ring over the hosts, and NCCL has an order of its own. Then a sum is only compared
// with the sum in double precision, and between ranks.
static bool job_is_loose(const struct job *job, const struct job_spec *spec)
{
    return (job->algorithm == ALGORITHM_TWO_LEVEL || job->loose) && dtype_is_float(spec->dtype) &&
           spec->kind == COLLECTIVE_ALLREDUCE &&
           (job->loose ? spec->op == REDUCE_SUM || spec->op == REDUCE_MEAN
                       : job_computes(spec->op));
}

static bool job_is_final(const struct job *job, const struct item *item, uint64_t element,
                         const uint8_t *got, const uint8_t *final)
{
    if (job_is_loose(job, &item->spec))
        return job_near(job, item, element, got);
    return job_equal(item->spec.dtype, got, final);
}

static void job_check_element(const struct job *job, const char *name, uint32_t index,
                              uint64_t element, uint32_t owner)
{
    const struct item *item = &job->items[index];
    const enum dtype dtype = item->spec.dtype;
    const size_t size = dtype_size(dtype);
    uint8_t final[8];
    const uint8_t *first = NULL;
    const bool written = job_reference(job, item, element, owner, final);
    for (uint32_t r = 0; r < job->world; r++) {
        const struct side *side = &item->sides[r];
        const uint8_t *got = side->outputs + element * size;
        if (!written || !side->has_out[element]) {
            if (memcmp(got, side->outputs_before + element * size, size) != 0)
                job_fail(job, name, index, r, element, "was written");
            continue;
        }
        if (first && memcmp(first, got, size) == 0)
            continue;
        if (!job_is_final(job, item, element, got, final))
            job_fail(job, name, index, r, element, "is not the reference's");
        if (!job_near(job, item, element, got))
            job_fail(job, name, index, r, element, "is far from the sum");
        if (first)
            job_fail(job, name, index, r, element, "differs between ranks");
        first = got;
    }
}

static void job_check_weights(const struct job *job, const char *name, uint32_t index)
{
    const struct job_spec *spec = &job->items[index].spec;
    uint64_t total = 0;
    if (spec->kind == COLLECTIVE_BROADCAST || spec->op != REDUCE_MEAN)
        return;
    for (uint32_t r = 0; r < job->world; r++)
        total += spec->weights[r];
    for (uint32_t r = 0; r < job->world; r++)
        if (job->items[index].sides[r].collective.weight_total != total)
            job_fail(job, name, index, r, 0, "has another weight in all");
}

// Checks that every rank knows which units some rank has used.
static void job_check_used(const struct job *job, const char *name, uint32_t index)
{
    const struct item *item = &job->items[index];
    for (uint32_t u = 0; u < item->spec.units; u++) {
        for (uint32_t r = 0; r < job->world; r++)
            if (units_is_used(item->sides[r].used_after, u) != job_unit_used(job, item, u))
                job_fail(job, name, index, r, u, "has another opinion of this unit's use");
    }
}

void job_check(const struct job *job, const char *name)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct job_spec *spec = &job->items[i].spec;
        job_check_weights(job, name, i);
        job_check_used(job, name, i);
        struct owners owners;
        owners_begin(&owners, job, spec);
        for (uint64_t e = 0; e < spec->elements; e++)
            job_check_element(job, name, i, e, owners_next(&owners, job, e));
    }
}

void job_check_intact_or_final(const struct job *job, const char *name, uint32_t without)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct item *item = &job->items[i];
        const size_t size = dtype_size(item->spec.dtype);
        struct owners owners;
        owners_begin(&owners, job, &item->spec);
        for (uint64_t e = 0; e < item->spec.elements; e++) {
            uint8_t final[8];
            const uint32_t owner = owners_next(&owners, job, e);
            const bool written = job_reference(job, item, e, owner, final);
            for (uint32_t r = 0; r < job->world; r++) {
                const struct side *side = &item->sides[r];
                const uint8_t *got = side->outputs + e * size;
                if (r != without && memcmp(got, side->outputs_before + e * size, size) != 0 &&
                    (!written || !job_is_final(job, item, e, got, final)))
                    job_fail(job, name, i, r, e, "is neither intact nor final");
            }
        }
    }
}
