// SPDX-License-Identifier: Apache-2.0
//
// Conformance: gradients of every floating-point dtype, with every wire and exponent. Results are
// compared bit by bit with a reference that follows docs/numbers.md one element at a time. The
// reference sums in the order of worker/transport/ring/schedule.h, or in the order of the fake NCCL
// if all ranks have a device. Results are also compared with the error bound of docs/numbers.md,
// and guards around the gradients must be unchanged. Case numbers are those of the list of cases
// for reducers.

#include "coordinator/core.h"
#include "tests/support/trainer.h"
#include "worker/transport/ring/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_COUNT 8
#define GUARD_BYTES 16
#define GUARD 0xa7

// ---- Formats -----------------------------------------------------------------------------------

struct format {
    const char *name;
    lockstep_dtype dtype;
    lockstep_wire wire;
    int32_t exponent;
    lockstep_gradient_kind kind;
};

static const struct format formats[] = {
    {"float32", LOCKSTEP_FLOAT32, LOCKSTEP_WIRE_SAME, 0, LOCKSTEP_GRADIENT_MEAN},
    {"float32 as bfloat16", LOCKSTEP_FLOAT32, LOCKSTEP_WIRE_BFLOAT16, 0, LOCKSTEP_GRADIENT_MEAN},
    {"sums as bfloat16", LOCKSTEP_FLOAT32, LOCKSTEP_WIRE_BFLOAT16, 0, LOCKSTEP_GRADIENT_SUM},
    {"float32 as float32", LOCKSTEP_FLOAT32, LOCKSTEP_WIRE_FLOAT32, -3, LOCKSTEP_GRADIENT_MEAN},
    {"float64", LOCKSTEP_FLOAT64, LOCKSTEP_WIRE_SAME, 0, LOCKSTEP_GRADIENT_MEAN},
    {"float64 with bfloat16", LOCKSTEP_FLOAT64, LOCKSTEP_WIRE_BFLOAT16, 0, LOCKSTEP_GRADIENT_SUM},
    {"float16", LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_SAME, 0, LOCKSTEP_GRADIENT_MEAN},
    {"float16 with bfloat16", LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_BFLOAT16, 0, LOCKSTEP_GRADIENT_SUM},
    {"float16 by 2^-4", LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_SAME, -4, LOCKSTEP_GRADIENT_MEAN},
    {"float16 by 2^-14", LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_BFLOAT16, -14, LOCKSTEP_GRADIENT_SUM},
    {"float16 as float32", LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_FLOAT32, -4, LOCKSTEP_GRADIENT_MEAN},
    {"sums as float32", LOCKSTEP_FLOAT16, LOCKSTEP_WIRE_FLOAT32, 0, LOCKSTEP_GRADIENT_SUM},
    {"bfloat16", LOCKSTEP_BFLOAT16, LOCKSTEP_WIRE_SAME, -4, LOCKSTEP_GRADIENT_MEAN},
    {"bfloat16 sums", LOCKSTEP_BFLOAT16, LOCKSTEP_WIRE_BFLOAT16, 0, LOCKSTEP_GRADIENT_SUM},
    {"bfloat16 as float32", LOCKSTEP_BFLOAT16, LOCKSTEP_WIRE_FLOAT32, 0, LOCKSTEP_GRADIENT_MEAN},
};

static size_t size_of(lockstep_dtype dtype)
{
    return dtype == LOCKSTEP_FLOAT64 ? 8 : dtype == LOCKSTEP_FLOAT32 ? 4 : 2;
}

// The dtype in which partial sums travel.
static lockstep_dtype partial_of(const struct format *format)
{
    if (format->dtype == LOCKSTEP_FLOAT32 && format->wire == LOCKSTEP_WIRE_BFLOAT16)
        return LOCKSTEP_BFLOAT16;
    if (size_of(format->dtype) == 2 && format->wire == LOCKSTEP_WIRE_FLOAT32)
        return LOCKSTEP_FLOAT32;
    return format->dtype;
}

// The dtype in which final values travel.
static lockstep_dtype final_of(const struct format *format)
{
    return format->dtype == LOCKSTEP_FLOAT32 ? partial_of(format) : format->dtype;
}

static int exponent_of(const struct format *format)
{
    return partial_of(format) == LOCKSTEP_FLOAT16 ? format->exponent : 0;
}

// ---- Numbers of a dtype, all of which are numbers of double ------------------------------------

// Rounds a value to a dtype, once, to nearest even.
static double rounded(lockstep_dtype dtype, double value)
{
    const int bits = dtype == LOCKSTEP_FLOAT16 ? 11 : dtype == LOCKSTEP_BFLOAT16 ? 8 : 24;
    const int least = dtype == LOCKSTEP_FLOAT16 ? -14 : -126;
    const double limit = dtype == LOCKSTEP_FLOAT16 ? 0x1p16 : 0x1p128;
    if (dtype == LOCKSTEP_FLOAT64 || !isfinite(value) || fpclassify(value) == FP_ZERO)
        return value;
    const int exponent = ilogb(value) < least ? least : ilogb(value);
    const double unit = ldexp(1, exponent - bits + 1);
    const double near = copysign(nearbyint(fabs(value) / unit) * unit, value);
    return fabs(near) >= limit ? copysign((double)INFINITY, value) : near;
}

static double get(lockstep_dtype dtype, const void *memory, uint64_t index)
{
    const uint16_t half = ((const uint16_t *)memory)[index * (size_of(dtype) / 2)];
    const uint32_t word = (uint32_t)half << 16;
    float narrow;
    if (dtype == LOCKSTEP_FLOAT64)
        return ((const double *)memory)[index];
    if (dtype == LOCKSTEP_FLOAT32)
        return (double)((const float *)memory)[index];
    memcpy(&narrow, &word, sizeof(narrow));
    if (dtype == LOCKSTEP_BFLOAT16)
        return (double)narrow;
    const int exponent = half >> 10 & 31;
    const int fraction = half & 1023;
    const double value = exponent == 31  ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                         : exponent == 0 ? ldexp(fraction, -24)
                                         : ldexp(1024 + fraction, exponent - 25);
    return (half & 0x8000) != 0 ? -value : value;
}

static void set(lockstep_dtype dtype, void *memory, uint64_t index, double value)
{
    const float narrow = (float)value;
    uint16_t half = signbit(value) ? 0x8000 : 0;
    if (dtype == LOCKSTEP_FLOAT64)
        ((double *)memory)[index] = value;
    else if (dtype == LOCKSTEP_FLOAT32)
        ((float *)memory)[index] = narrow;
    else if (dtype == LOCKSTEP_BFLOAT16)
        memcpy((uint16_t *)memory + index, (const char *)&narrow + 2, sizeof(half));
    if (size_of(dtype) != 2 || dtype == LOCKSTEP_BFLOAT16)
        return;
    if (isinf(value))
        half |= 0x7c00;
    else if (fabs(value) < 0x1p-14)
        half |= (uint16_t)ldexp(fabs(value), 24);
    else
        half |=
            (uint16_t)(((ilogb(value) + 14) << 10) + (int)ldexp(fabs(value), 10 - ilogb(value)));
    ((uint16_t *)memory)[index] = half;
}

// ---- The reference -----------------------------------------------------------------------------

struct inputs {
    uint32_t world;
    double values[CLUSTER_MAX_WORLD];
    bool has[CLUSTER_MAX_WORLD]; // True if the rank has a gradient.
    bool by_nccl; // True if all ranks have a device.
    // True if only some ranks have a device. Then the bucket decides which of them sends a part of
    // the sum over the devices.
    bool shared_out;
    const uint64_t *weights;
};

// Rounds the result of one operation to the type of the computation: float64 for float64, float32
// for all others. A sum, product or quotient of float32 numbers that is computed in double and then
// rounded to float32 equals the operation in float32.
static double computed(const struct format *format, double value)
{
    return rounded(format->dtype == LOCKSTEP_FLOAT64 ? LOCKSTEP_FLOAT64 : LOCKSTEP_FLOAT32, value);
}

// True if the last sum is rounded to the partial dtype before the division: if gradients travel in
// their own dtype, where the owner rounds like every hop, and with NCCL, whose result has the dtype
// that travels. Otherwise the owner divides first.
static bool rounds_the_sum(const struct format *format, const struct inputs *in)
{
    return in->by_nccl || (partial_of(format) == format->dtype && exponent_of(format) == 0);
}

// The rank whose contribution is the i-th in the sum. The real NCCL has an order of its own.
static uint32_t added(const struct inputs *in, uint32_t owner, uint32_t i)
{
    return in->by_nccl ? i : (owner + 1 + i) % in->world;
}

static double reference(const struct format *format, const struct inputs *in, uint32_t owner)
{
    const bool is_sum = format->kind == LOCKSTEP_GRADIENT_SUM;
    double sum = 0;
    double total = 0;
    for (uint32_t i = 0; i < in->world; i++) {
        const uint32_t r = added(in, owner, i);
        const double weight = (double)in->weights[r];
        const double factor = is_sum ? 1 : weight;
        double own = computed(format, factor * ldexp(in->values[r], exponent_of(format)));
        if (in->by_nccl)
            own = rounded(partial_of(format), own);
        total += weight;
        if (i == 0)
            sum = in->has[r] && weight > 0 ? own : 0;
        else if (in->has[r] && weight > 0)
            sum = computed(format, sum + own);
        else if (in->by_nccl)
            sum += 0; // A rank without input adds zeros, so a negative zero loses its sign.
        if (i + 1 < in->world || rounds_the_sum(format, in))
            sum = rounded(partial_of(format), sum);
    }
    sum = ldexp(computed(format, sum / total), -exponent_of(format));
    return rounded(format->dtype, rounded(final_of(format), sum));
}

// The error bound of docs/numbers.md: each term is rounded k times to the unit u and m times to
// that of float32.
static double bound(const struct format *format, const struct inputs *in)
{
    const lockstep_dtype partial = partial_of(format);
    const lockstep_dtype coarse = partial == LOCKSTEP_FLOAT32 ? final_of(format) : partial;
    const double u = coarse == LOCKSTEP_FLOAT16    ? 0x1p-11
                     : coarse == LOCKSTEP_BFLOAT16 ? 0x1p-8
                                                   : 0;
    const double v = format->dtype == LOCKSTEP_FLOAT64 ? 0x1p-53 : 0x1p-24;
    const double k = partial == LOCKSTEP_FLOAT32  ? 1
                     : rounds_the_sum(format, in) ? in->world + 1
                                                  : in->world;
    const double least = coarse == LOCKSTEP_FLOAT16    ? ldexp(0x1p-25, -exponent_of(format))
                         : coarse == LOCKSTEP_BFLOAT16 ? 0x1p-134
                                                       : 0;
    double magnitude = 0;
    double total = 0;
    for (uint32_t r = 0; r < in->world; r++) {
        const double weight = (double)in->weights[r];
        const double factor = format->kind == LOCKSTEP_GRADIENT_SUM ? weight > 0 : weight;
        magnitude += in->has[r] ? factor * fabs(in->values[r]) : 0;
        total += weight;
    }
    return expm1(k * log1p(u) + (in->world + 1) * log1p(v)) * magnitude / total + k * least;
}

// The mean in long double.
static long double exact(const struct format *format, const struct inputs *in)
{
    long double sum = 0;
    long double total = 0;
    for (uint32_t r = 0; r < in->world; r++) {
        const double weight = (double)in->weights[r];
        const double factor = format->kind == LOCKSTEP_GRADIENT_SUM ? weight > 0 : weight;
        sum += in->has[r] ? (long double)factor * in->values[r] : 0;
        total += weight;
    }
    return sum / total;
}

// ---- Modules -----------------------------------------------------------------------------------

struct wired {
    const struct format *format;
    uint32_t count;
    const uint64_t *sizes;
    lockstep_module *module;
    char *block; // The gradients, the last parameter first, with a guard on each side.
    size_t bytes;
    void *data; // Values of all parameters, all 0.
    void *gradients[MAX_COUNT];
    uint64_t offsets[MAX_COUNT]; // Elements before a gradient in the block.
};

static void wired_make(struct rank *rank, const struct format *format, uint32_t number,
                       const uint64_t *sizes, uint32_t count, struct wired *wired)
{
    static const char *const names[MAX_COUNT] = {"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7"};
    struct lockstep_parameter parameters[MAX_COUNT] = {{.name = NULL}};
    int64_t shapes[MAX_COUNT];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    char name[64];
    uint64_t elements = 0;
    *wired = (struct wired){.format = format, .count = count, .sizes = sizes};
    for (uint32_t p = 0; p < count; p++)
        elements += sizes[p];
    wired->bytes = elements * size_of(format->dtype);
    wired->block = malloc(wired->bytes + 2 * GUARD_BYTES);
    memset(wired->block, GUARD, wired->bytes + 2 * GUARD_BYTES);
    wired->data = calloc(1, wired->bytes + 1);
    elements = 0;
    for (uint32_t p = count; p-- > 0;) {
        wired->offsets[p] = elements;
        wired->gradients[p] = wired->block + GUARD_BYTES + elements * size_of(format->dtype);
        shapes[p] = (int64_t)sizes[p];
        parameters[p] = (struct lockstep_parameter){.name = names[p],
                                                    .dtype = format->dtype,
                                                    .dims = 1,
                                                    .shape = &shapes[p],
                                                    .data = (char *)wired->data +
                                                            elements * size_of(format->dtype),
                                                    .gradient = wired->gradients[p]};
        elements += sizes[p];
    }
    snprintf(name, sizeof(name), "%" PRIu32 " %s", number, format->name);
    config.name = name;
    config.parameters = parameters;
    config.parameter_count = count;
    config.gradient_kind = format->kind;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    config.wire = format->wire;
    config.float16_exponent = format->exponent;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &wired->module));
}

static void wired_make_all(struct rank *rank, const uint64_t *sizes, uint32_t count,
                           struct wired *modules)
{
    for (uint32_t m = 0; m < LENGTH(formats); m++)
        wired_make(rank, &formats[m], m, sizes, count, &modules[m]);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void wired_free(struct wired *wired)
{
    free(wired->block);
    free(wired->data);
}

static void wired_free_all(struct wired *modules)
{
    for (uint32_t m = 0; m < LENGTH(formats); m++)
        wired_free(&modules[m]);
}

// Checks that nothing outside the gradients was written.
static void wired_check_guard(struct rank *rank, const struct wired *wired)
{
    const unsigned char *end = (unsigned char *)wired->block + GUARD_BYTES + wired->bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        RANK_TRUE(rank, (unsigned char)wired->block[i] == GUARD && end[i] == GUARD);
}

typedef double value_of(const struct wired *wired, uint32_t rank, uint64_t step, uint64_t element);
typedef bool use_of(uint32_t rank, uint64_t step, uint32_t parameter);

static bool always(uint32_t rank, uint64_t step, uint32_t parameter)
{
    (void)rank, (void)step, (void)parameter;
    return true;
}

// Random numbers of both signs over 16 binary orders of magnitude; some are denormal in float16.
static double noise(const struct wired *wired, uint32_t rank, uint64_t step, uint64_t element)
{
    uint64_t state = (step << 40) + ((uint64_t)rank << 32) + element;
    const uint64_t bits = trainer_random(&state);
    const double fraction = (double)(int64_t)bits / 9223372036854775808.0;
    return rounded(wired->format->dtype, fraction * ldexp(1, (int)(bits & 15) - 12));
}

static void wired_fill(const struct rank *rank, struct wired *wired, uint64_t step, value_of *value)
{
    for (uint32_t p = 0; p < wired->count; p++) {
        for (uint64_t i = 0; i < wired->sizes[p]; i++)
            set(wired->format->dtype, wired->gradients[p], i,
                value(wired, rank->rank, step, wired->offsets[p] + i));
    }
}

static void wired_call(struct rank *rank, struct wired *wired, uint64_t step, use_of *uses)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(wired->module, &call));
    for (uint32_t p = wired->count; p-- > 0;) {
        if (uses(rank->rank, step, p))
            RANK_OK(rank, lockstep_grad_ready(wired->module, call, p, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// The owner of an element. All gradients of the module are one bucket, in the order of the block.
static uint32_t wired_owner(const struct wired *wired, uint32_t world, uint64_t element)
{
    const size_t partial = size_of(partial_of(wired->format));
    const size_t final = size_of(final_of(wired->format));
    struct ring ring;
    ring_init_allreduce(&ring, world, 0, wired->bytes / size_of(wired->format->dtype),
                        (uint32_t)(partial > final ? partial : final), CORE_CHUNK_BYTES,
                        RING_SPLIT_BYTES);
    const uint64_t stripe = ring_stripe_of(&ring, element);
    for (uint32_t owner = 0; ring_present(&ring, stripe, owner); owner++) {
        const struct ring_span span = ring_chunk(&ring, stripe, owner);
        if (element >= span.first && element < span.first + span.count)
            return owner;
    }
    return 0;
}

// True if an element is not the expected one. With shared_out a finite element is compared with the
// error bound only, which the caller does.
static bool wired_is_other(const struct inputs *in, double found, double expected)
{
    if (in->shared_out && isfinite(expected))
        return false;
    return found < expected || found > expected || signbit(found) != signbit(expected) ||
           isnan(found) != isnan(expected);
}

static void wired_check_element(struct rank *rank, const struct wired *wired, uint64_t element,
                                double found, const struct inputs *in)
{
    const struct format *format = wired->format;
    const double expected = reference(format, in, wired_owner(wired, in->world, element));
    const double distance = (double)fabsl(found - exact(format, in));
    if (wired_is_other(in, found, expected))
        rank_fail(rank, __FILE__, __LINE__, "%s: element %" PRIu64 " is %.17g, not %.17g",
                  format->name, element, found, expected);
    if (isfinite(expected) && distance > bound(format, in))
        rank_fail(rank, __FILE__, __LINE__, "%s: element %" PRIu64 " is off by %g, more than %g",
                  format->name, element, distance, bound(format, in));
}

// Compares every element with the reference, or with the rank's own value if no rank has used the
// parameter.
static void wired_check(struct rank *rank, const struct wired *wired, uint64_t step,
                        const uint64_t *weights, value_of *value, use_of *uses)
{
    for (uint32_t p = 0; p < wired->count; p++) {
        struct inputs in = {.world = rank->world_size,
                            .weights = weights,
                            .shared_out = setting_meets(rank->setting) &&
                                          size_of(wired->format->dtype) >= sizeof(float),
                            .by_nccl =
                                rank->world_size > 1 && rank->setting->devices >= rank->world_size};
        bool any = false;
        for (uint32_t r = 0; r < in.world; r++)
            any = (in.has[r] = uses(r, step, p)) || any;
        for (uint64_t i = 0; i < wired->sizes[p]; i++) {
            const uint64_t element = wired->offsets[p] + i;
            const double found = get(wired->format->dtype, wired->gradients[p], i);
            for (uint32_t r = 0; r < in.world; r++)
                in.values[r] = value(wired, r, step, element);
            if (any)
                wired_check_element(rank, wired, element, found, &in);
            else
                RANK_TRUE(rank, !(fabs(found - in.values[rank->rank]) > 0));
        }
        if (any)
            rank_digest(rank, wired->gradients[p], wired->sizes[p] * size_of(wired->format->dtype));
    }
    wired_check_guard(rank, wired);
}

static void wired_step(struct rank *rank, struct wired *modules, uint32_t count,
                       const uint64_t *weights, value_of *value, use_of *uses)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = weights[rank->rank];
    trainer_begin(rank, &options);
    const uint64_t step = atomic_load(&rank->step);
    for (uint32_t m = 0; m < count; m++) {
        wired_fill(rank, &modules[m], step, value);
        wired_call(rank, &modules[m], step, uses);
    }
    trainer_end(rank);
    for (uint32_t m = 0; m < count; m++)
        wired_check(rank, &modules[m], step, weights, value, uses);
}

static const uint64_t ones[CLUSTER_MAX_WORLD] = {1, 1, 1, 1, 1, 1, 1, 1};
static const uint64_t uneven[CLUSTER_MAX_WORLD] = {3, 1, 7, 2, 5, 64, 9, 1};
static const uint64_t idle[CLUSTER_MAX_WORLD] = {0, 5, 1, 0, 2, 0, 1, 0};

// ---- Case 23 -----------------------------------------------------------------------------------

// Runs a body with the ring, because the expected values follow the hops of a ring.
static void run_on_ring(const struct setting *setting, void (*body)(struct rank *rank),
                        void *context)
{
    const struct setting ring = setting_on_ring(setting);
    ranks_run(&ring, body, context);
}

static void bits_body(struct rank *rank)
{
    const bool torn = rank->setting->torn_bytes > 0;
    const uint64_t sizes[1] = {torn ? 1021 : test_everything() ? 20011 : 5003};
    struct wired modules[LENGTH(formats)];
    wired_make_all(rank, sizes, 1, modules);
    wired_step(rank, modules, LENGTH(formats), ones, noise, always);
    wired_step(rank, modules, LENGTH(formats), uneven, noise, always);
    wired_step(rank, modules, LENGTH(formats), idle, noise, always);
    wired_free_all(modules);
}

static void case_23_rounded_once_per_hop(const struct setting *setting)
{
    run_on_ring(setting, bits_body, NULL);
}

// All dtypes in one module, side by side in memory. No bucket mixes dtypes. The gradients are small
// integers, whose sums are exact in all dtypes, so only the mean is rounded.
static const lockstep_dtype mixed[] = {LOCKSTEP_FLOAT16, LOCKSTEP_FLOAT32,  LOCKSTEP_BFLOAT16,
                                       LOCKSTEP_FLOAT64, LOCKSTEP_BFLOAT16, LOCKSTEP_FLOAT16,
                                       LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT16};

#define MIXED_ELEMENTS 131 // An odd number of 16-bit floats, then a gap up to alignment.
#define MIXED_BYTES ((size_t)MIXED_ELEMENTS * 8 + 8)

static int64_t mixed_known(uint32_t rank, uint64_t step, uint32_t parameter, uint64_t element)
{
    return (int64_t)((rank * 7 + step * 3 + parameter * 5 + element) % 31) - 15;
}

static void mixed_expect(struct rank *rank, lockstep_wire wire, uint64_t step, uint32_t parameter,
                         const void *gradient)
{
    const struct format format = {"mixed", mixed[parameter], wire, -2, LOCKSTEP_GRADIENT_MEAN};
    const unsigned char *end =
        (const unsigned char *)gradient + MIXED_ELEMENTS * size_of(format.dtype);
    for (uint64_t i = 0; i < MIXED_ELEMENTS; i++) {
        int64_t sum = 0;
        for (uint32_t r = 0; r < rank->world_size; r++)
            sum += mixed_known(r, step, parameter, i);
        const double mean = computed(&format, (double)sum / rank->world_size);
        const double expected = rounded(format.dtype, rounded(final_of(&format), mean));
        const double found = get(format.dtype, gradient, i);
        if (found < expected || found > expected)
            rank_fail(rank, __FILE__, __LINE__, "wire %d: p%" PRIu32 "[%" PRIu64 "]: %g, not %g",
                      (int)wire, parameter, i, found, expected);
    }
    for (const unsigned char *at = end; at < (const unsigned char *)gradient + MIXED_BYTES; at++)
        RANK_TRUE(rank, *at == GUARD);
}

static void mixed_body(struct rank *rank)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    static const int64_t shape[] = {MIXED_ELEMENTS};
    static const uint64_t zeros[LENGTH(mixed)][MIXED_ELEMENTS];
    _Alignas(8) unsigned char gradients[LENGTH(mixed)][MIXED_BYTES];
    const lockstep_wire *wire = rank->context;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[LENGTH(mixed)];
    lockstep_module *module;
    memset(gradients, GUARD, sizeof(gradients));
    for (uint32_t p = 0; p < LENGTH(mixed); p++)
        parameters[p] = (struct lockstep_parameter){.name = names[p],
                                                    .dtype = mixed[p],
                                                    .dims = 1,
                                                    .shape = shape,
                                                    .data = (void *)(uintptr_t)zeros[p],
                                                    .gradient = gradients[p]};
    config.name = "mixed";
    config.parameters = parameters;
    config.parameter_count = LENGTH(mixed);
    config.wire = *wire;
    config.float16_exponent = -2;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        lockstep_call *call;
        trainer_begin(rank, NULL);
        const uint64_t step = atomic_load(&rank->step);
        RANK_OK(rank, lockstep_call_begin(module, &call));
        for (uint32_t p = 0; p < LENGTH(mixed); p++) {
            for (uint64_t e = 0; e < MIXED_ELEMENTS; e++)
                set(mixed[p], gradients[p], e, (double)mixed_known(rank->rank, step, p, e));
            RANK_OK(rank, lockstep_grad_ready(module, call, p, NULL, NULL));
        }
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        for (uint32_t p = 0; p < LENGTH(mixed); p++)
            mixed_expect(rank, *wire, step, p, gradients[p]);
        rank_digest(rank, gradients, sizeof(gradients));
    }
}

static void case_23_dtypes_do_not_leak(const struct setting *setting)
{
    static lockstep_wire wires[] = {LOCKSTEP_WIRE_SAME, LOCKSTEP_WIRE_BFLOAT16,
                                    LOCKSTEP_WIRE_FLOAT32};
    for (size_t w = 0; w < LENGTH(wires); w++)
        run_on_ring(setting, mixed_body, &wires[w]);
}

// Values whose sum overflows in float16, and values of which only a partial sum overflows.
static double near_the_limit(const struct wired *wired, uint32_t rank, uint64_t step,
                             uint64_t element)
{
    (void)step;
    return rounded(wired->format->dtype, element % 2 == 0
                                             ? 60000.0 - 32.0 * (double)(element + rank)
                                         : rank % 2 == 0 ? 65504.0
                                                         : -65504.0);
}

static void overflow_body(struct rank *rank)
{
    static const uint64_t sizes[1] = {300};
    struct wired modules[LENGTH(formats)];
    wired_make_all(rank, sizes, 1, modules);
    wired_step(rank, modules, LENGTH(formats), ones, near_the_limit, always);
    for (uint32_t m = 0; m < LENGTH(formats); m++) {
        const struct format *format = &formats[m];
        const double first = get(format->dtype, modules[m].gradients[0], 0);
        const bool overflows = partial_of(format) == LOCKSTEP_FLOAT16 && format->exponent == 0;
        RANK_TRUE(rank, isinf(first) == overflows);
    }
    wired_free_all(modules);
}

static void case_23_an_exponent_prevents_overflow(const struct setting *setting)
{
    run_on_ring(setting, overflow_body, NULL);
}

// ---- Case 24 -----------------------------------------------------------------------------------

enum special {
    NAN_OF_ONE, // One rank has a NaN with a payload.
    NANS_OF_ALL, // All ranks have NaNs, with different payloads.
    SIGNALLING,
    INFINITY_OF_ONE,
    BOTH_INFINITIES,
    NEGATIVE_ZEROS,
    LARGEST, // Finite as float32, infinite as bfloat16.
    SPECIALS
};

static void set_nan(lockstep_dtype dtype, void *memory, uint64_t index, bool quiet,
                    uint64_t payload)
{
    const uint64_t wide = (quiet ? 0x7ff8000000000000u : 0x7ff0000000000000u) | payload << 45;
    const uint32_t single = (quiet ? 0x7fc00000u : 0x7f800000u) | (uint32_t)payload << 16;
    const uint16_t half = (uint16_t)((quiet ? 0x7e00u : 0x7c00u) | (uint32_t)payload << 3);
    const uint16_t upper = (uint16_t)(single >> 16);
    if (dtype == LOCKSTEP_FLOAT64)
        memcpy((double *)memory + index, &wide, sizeof(wide));
    else if (dtype == LOCKSTEP_FLOAT32)
        memcpy((float *)memory + index, &single, sizeof(single));
    else
        memcpy((uint16_t *)memory + index, dtype == LOCKSTEP_FLOAT16 ? &half : &upper,
               sizeof(half));
}

// Sets special values at every hundredth element, so that every chunk has some.
static void set_specials(const struct rank *rank, struct wired *wired)
{
    const lockstep_dtype dtype = wired->format->dtype;
    void *memory = wired->gradients[0];
    const double infinite = (double)INFINITY;
    for (uint64_t at = 0; at + SPECIALS <= wired->sizes[0]; at += 100) {
        if (rank->rank == 1)
            set_nan(dtype, memory, at + NAN_OF_ONE, true, 0x15);
        set_nan(dtype, memory, at + NANS_OF_ALL, true, 3 + rank->rank);
        if (rank->rank == 0)
            set_nan(dtype, memory, at + SIGNALLING, false, 0x11);
        if (rank->rank == rank->world_size - 1)
            set(dtype, memory, at + INFINITY_OF_ONE, -infinite);
        set(dtype, memory, at + BOTH_INFINITIES, rank->rank == 0 ? infinite : -infinite);
        set(dtype, memory, at + NEGATIVE_ZEROS, -0.0);
        if (dtype == LOCKSTEP_FLOAT32)
            set(dtype, memory, at + LARGEST, 0x1.fffffep127);
    }
}

static void expect_specials(struct rank *rank, const struct wired *wired)
{
    const struct format *format = wired->format;
    const void *memory = wired->gradients[0];
    for (uint64_t at = 0; at + SPECIALS <= wired->sizes[0]; at += 100) {
        const double one = get(format->dtype, memory, at + INFINITY_OF_ONE);
        const double zero = get(format->dtype, memory, at + NEGATIVE_ZEROS);
        RANK_TRUE(rank, isnan(get(format->dtype, memory, at + NAN_OF_ONE)));
        RANK_TRUE(rank, isnan(get(format->dtype, memory, at + NANS_OF_ALL)));
        RANK_TRUE(rank, isnan(get(format->dtype, memory, at + SIGNALLING)));
        RANK_TRUE(rank, isinf(one) && one < 0);
        RANK_TRUE(rank, isnan(get(format->dtype, memory, at + BOTH_INFINITIES)));
        RANK_TRUE(rank,
                  fpclassify(zero) == FP_ZERO && (setting_meets(rank->setting) || signbit(zero)));
        if (format->dtype == LOCKSTEP_FLOAT32)
            RANK_TRUE(rank, isinf(get(format->dtype, memory, at + LARGEST)));
        RANK_TRUE(rank, isfinite(get(format->dtype, memory, at + SPECIALS)));
    }
}

static void specials_body(struct rank *rank)
{
    static const uint64_t sizes[1] = {2003};
    struct wired modules[LENGTH(formats)];
    wired_make_all(rank, sizes, 1, modules);
    for (int i = 0; i < 2; i++) {
        trainer_begin(rank, NULL);
        for (uint32_t m = 0; m < LENGTH(formats); m++) {
            wired_fill(rank, &modules[m], atomic_load(&rank->step), noise);
            set_specials(rank, &modules[m]);
            wired_call(rank, &modules[m], atomic_load(&rank->step), always);
        }
        trainer_end(rank);
        for (uint32_t m = 0; m < LENGTH(formats); m++) {
            expect_specials(rank, &modules[m]);
            rank_digest(rank, modules[m].gradients[0], modules[m].bytes);
        }
    }
    wired_free_all(modules);
}

static void case_24_special_values_in_every_format(const struct setting *setting)
{
    run_on_ring(setting, specials_body, NULL);
}

// ---- Case 25 -----------------------------------------------------------------------------------

static void odd_body(struct rank *rank)
{
    static const uint64_t tiny[MAX_COUNT] = {0, 1, 0, 3, 700, 1, 0, 5};
    static const uint64_t one[1] = {1};
    static const uint64_t none[2] = {0, 0};
    struct wired modules[3 * LENGTH(formats)];
    for (uint32_t m = 0; m < LENGTH(formats); m++) {
        wired_make(rank, &formats[m], m, tiny, MAX_COUNT, &modules[3 * m]);
        wired_make(rank, &formats[m], 100 + m, one, 1, &modules[3 * m + 1]);
        wired_make(rank, &formats[m], 200 + m, none, 2, &modules[3 * m + 2]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 2; i++)
        wired_step(rank, modules, LENGTH(modules), i == 0 ? uneven : idle, noise, always);
    for (uint32_t m = 0; m < LENGTH(modules); m++)
        wired_free(&modules[m]);
}

static void case_25_odd_worlds_in_every_format(const struct setting *setting)
{
    run_on_ring(setting, odd_body, NULL);
}

// ---- Case 26 and unused gradients --------------------------------------------------------------

// All ranks use parameter 0, only rank 0 uses 2, all ranks except rank 0 use 3, all ranks use 4 in
// even steps, and only rank 1 uses 5. No rank uses the other parameters; parameter 6 has no
// elements.
static bool some(uint32_t rank, uint64_t step, uint32_t parameter)
{
    switch (parameter) {
    case 0:
        return true;
    case 2:
        return rank == 0;
    case 3:
        return rank != 0;
    case 4:
        return step % 2 == 0;
    case 5:
        return rank == 1;
    default:
        return false;
    }
}

static bool nowhere(uint32_t rank, uint64_t step, uint32_t parameter)
{
    (void)rank, (void)step, (void)parameter;
    return false;
}

static void unused_body(struct rank *rank)
{
    static const uint64_t sizes[MAX_COUNT] = {300, 9, 1200, 1, 64, 33, 0, 129};
    struct wired modules[LENGTH(formats)];
    wired_make_all(rank, sizes, MAX_COUNT, modules);
    // All parameters are ready in the learning step, so the learned order is that of the block.
    wired_step(rank, modules, LENGTH(formats), uneven, noise, always);
    wired_step(rank, modules, LENGTH(formats), ones, noise, some);
    wired_step(rank, modules, LENGTH(formats), uneven, noise, some);
    wired_step(rank, modules, LENGTH(formats), idle, noise, some);
    wired_step(rank, modules, LENGTH(formats), uneven, noise, nowhere);
    wired_step(rank, modules, LENGTH(formats), ones, noise, always);
    wired_free_all(modules);
}

static void case_26_weights_and_unused_in_every_format(const struct setting *setting)
{
    run_on_ring(setting, unused_body, NULL);
}

// All weights are 0: step_end fails on every rank, and no bit of a gradient changes.
static void weightless_body(struct rank *rank)
{
    static const uint64_t sizes[1] = {1500};
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct wired modules[LENGTH(formats)];
    wired_make_all(rank, sizes, 1, modules);
    options.weight = 0;
    trainer_begin(rank, &options);
    const uint64_t step = atomic_load(&rank->step);
    for (uint32_t m = 0; m < LENGTH(formats); m++) {
        wired_fill(rank, &modules[m], step, noise);
        wired_call(rank, &modules[m], step, always);
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    for (uint32_t m = 0; m < LENGTH(formats); m++) {
        for (uint64_t i = 0; i < sizes[0]; i++) {
            const double was = noise(&modules[m], rank->rank, step, i);
            const double found = get(formats[m].dtype, modules[m].gradients[0], i);
            RANK_TRUE(rank, !(fabs(found - was) > 0));
        }
    }
    wired_step(rank, modules, LENGTH(formats), uneven, noise, always);
    wired_free_all(modules);
}

static void case_26_no_weight_at_all_in_every_format(const struct setting *setting)
{
    run_on_ring(setting, weightless_body, NULL);
}

// ---- What travels ------------------------------------------------------------------------------

// A session with one module, so that all bytes of a step belong to this module.
static void bytes_body(struct rank *rank)
{
    static const uint64_t sizes[1] = {20000};
    const struct format *format = rank->context;
    const size_t both = size_of(partial_of(format)) + size_of(final_of(format));
    const uint64_t payload = sizes[0] * both * (rank->world_size - 1) / rank->world_size;
    const bool copied = final_of(format) != format->dtype;
    struct wired module;
    wired_make(rank, format, 0, sizes, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    wired_step(rank, &module, 1, ones, noise, always); // The learning step.
    wired_step(rank, &module, 1, ones, noise, always);
    // Chunks may differ by one element. Headers and waves take less than 4 KiB.
    const struct lockstep_report report = trainer_report(rank);
    RANK_TRUE(rank, report.bytes_sent >= payload - 64 && report.bytes_sent < payload + 4096);
    RANK_EQUAL(rank, report.bytes_copied, copied ? module.bytes : 0);
    wired_free(&module);
}

static void a_wire_of_half_the_bytes(const struct setting *setting)
{
    for (uint32_t m = 0; m < LENGTH(formats) && setting->torn_bytes == 0; m++) {
        struct format format = formats[m];
        run_on_ring(setting, bytes_body, &format);
    }
}

// In a world of one rank no gradient travels, so none is rounded to a wire. A mean is unchanged,
// and a sum is divided by its weight.
static void alone_body(struct rank *rank)
{
    static const uint64_t sizes[1] = {300};
    struct wired modules[LENGTH(formats)];
    wired_make_all(rank, sizes, 1, modules);
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = 4;
    trainer_begin(rank, &options);
    for (uint32_t m = 0; m < LENGTH(formats); m++) {
        wired_fill(rank, &modules[m], 1, noise);
        wired_call(rank, &modules[m], 1, always);
    }
    trainer_end(rank);
    for (uint32_t m = 0; m < LENGTH(formats); m++) {
        const bool is_sum = formats[m].kind == LOCKSTEP_GRADIENT_SUM;
        for (uint64_t i = 0; i < sizes[0]; i++) {
            const double was = noise(&modules[m], 0, 1, i);
            const double mean = rounded(formats[m].dtype, is_sum ? was / 4 : was);
            const double found = get(formats[m].dtype, modules[m].gradients[0], i);
            RANK_TRUE(rank, !(fabs(found - mean) > 0));
        }
    }
    wired_free_all(modules);
}

static void a_world_of_one_rounds_nothing(const struct setting *setting)
{
    run_on_ring(setting, alone_body, NULL);
}

int main(void)
{
    static const uint32_t odd_worlds[] = {3, 5, 7, 0};
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"case_23_rounded_once_per_hop", case_23_rounded_once_per_hop, NULL},
        {"case_23_dtypes_do_not_leak", case_23_dtypes_do_not_leak, NULL},
        {"case_23_an_exponent_prevents_overflow", case_23_an_exponent_prevents_overflow, NULL},
        {"case_24_special_values_in_every_format", case_24_special_values_in_every_format, NULL},
        {"case_25_odd_worlds_in_every_format", case_25_odd_worlds_in_every_format, odd_worlds},
        {"case_26_weights_and_unused_in_every_format", case_26_weights_and_unused_in_every_format,
         NULL},
        {"case_26_no_weight_at_all_in_every_format", case_26_no_weight_at_all_in_every_format,
         NULL},
        {"a_wire_of_half_the_bytes", a_wire_of_half_the_bytes, NULL},
        {"a_world_of_one_rounds_nothing", a_world_of_one_rounds_nothing, one},
    };
    return stamp_run("reducer: wire", stamps, LENGTH(stamps));
}
