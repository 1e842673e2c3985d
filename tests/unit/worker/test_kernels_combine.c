// SPDX-License-Identifier: Apache-2.0
//
// kernel_combine and kernel_copy: every level against the loops of two operands of the portable
// level, which test_kernels.c compares with obvious ones; and that memory never holds anything but
// what was there and what is final, also when the process dies.

#include "tests/support/bounds.h"
#include "worker/kernels/combine.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum {
    COUNT_MAX = 5000, // More than two tiles of every dtype.
    OFFSET_MAX = 17,
    ELEMENTS = COUNT_MAX + 2 * OFFSET_MAX,
    BYTES = ELEMENTS * 8,
    DRAWS = 120, // Draws for each dtype and op, in each level.
};

static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_FLOAT64,  DTYPE_INT32,  DTYPE_INT64,
                                    DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_UINT8,  DTYPE_INT8,
                                    DTYPE_INT16,   DTYPE_UINT16,   DTYPE_UINT32, DTYPE_UINT64,
                                    DTYPE_BOOL};
static const enum reduce_op ops[] = {REDUCE_SUM, REDUCE_MEAN,    REDUCE_MIN, REDUCE_MAX,
                                     REDUCE_OR,  REDUCE_PRODUCT, REDUCE_AND, REDUCE_XOR};

static uint64_t random_state = 0x243f6a8885a308d3u;

static uint64_t random_word(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t random_below(uint64_t limit)
{
    return (random_word() >> 11) % limit;
}

// ---- values -------------------------------------------------------------------------------------

// Zeros of both signs, denormals, the largest, infinities, NaNs quiet and signalling, of both
// signs.
static const uint64_t specials[] = {0x0000000000000000, 0x8000000000000000, 0x0000000000000001,
                                    0x7fefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
                                    0x7ff8000000000001, 0xfff0000000000abc};
static const uint32_t specials32[] = {0x00000000, 0x80000000, 0x00000001, 0x7f7fffff,
                                      0x7f800000, 0xff800000, 0x7fc00001, 0xff800abc};
static const uint16_t specials_float16[] = {0x0000, 0x8000, 0x0001, 0x7bff,
                                            0x7c00, 0xfc00, 0x7e01, 0xfc0b};
static const uint16_t specials_bfloat16[] = {0x0000, 0x8000, 0x0001, 0x7f7f,
                                             0x7f80, 0xff80, 0x7fc1, 0xff8b};

static void put_special(enum dtype dtype, uint8_t *at, uint64_t which)
{
    if (dtype == DTYPE_FLOAT16)
        memcpy(at, &specials_float16[which], 2);
    else if (dtype == DTYPE_BFLOAT16)
        memcpy(at, &specials_bfloat16[which], 2);
    else if (dtype_size(dtype) == 4)
        memcpy(at, &specials32[which], 4);
    else
        memcpy(at, &specials[which], dtype_size(dtype));
}

// Ordinary numbers, and every eighth element a special one.
static void put_element(enum dtype dtype, uint8_t *at)
{
    const uint64_t word = random_word();
    const float f = ldexpf((float)(int32_t)word, (int)(word >> 59) - 40);
    const double d = ldexp((double)(int64_t)word, (int)(word & 31) - 70);
    if (word >> 40 & 7 && dtype == DTYPE_FLOAT32)
        memcpy(at, &f, sizeof(f));
    else if (word >> 40 & 7 && dtype == DTYPE_FLOAT64)
        memcpy(at, &d, sizeof(d));
    else if (word >> 40 & 7 && dtype_is_small(dtype))
        kernel_narrow(dtype, (uint16_t *)(void *)at, &f, 1);
    else if (word >> 40 & 7)
        memcpy(at, &word, dtype_size(dtype));
    else
        put_special(dtype, at, word >> 48 & 7);
}

static bool is_nan(enum dtype dtype, const uint8_t *at)
{
    float f;
    double d;
    uint16_t half;
    memcpy(&half, at, sizeof(half));
    if (dtype_is_small(dtype)) {
        kernel_widen(dtype, &f, &half, 1);
        return isnan(f);
    }
    memcpy(&f, at, sizeof(f));
    memcpy(&d, at, dtype_size(dtype) == 8 ? 8 : 4);
    return (dtype == DTYPE_FLOAT32 && isnan(f)) || (dtype == DTYPE_FLOAT64 && isnan(d));
}

// ---- the reference ------------------------------------------------------------------------------

struct draw {
    enum dtype dtype;
    enum reduce_op op;
    uint32_t sources;
    size_t count;
    const void *at[KERNELS_MAX_SOURCES];
    uint64_t weights[KERNELS_MAX_SOURCES];
    bool has_weights;
    uint64_t total;
    enum dtype rounded;
    bool streams;
    bool also; // Into a second place.
};

// One source after the other, in computed: the dtype itself, or float32 of 16-bit floats.
static void reference_sum(const struct draw *draw, enum dtype computed, void *sum)
{
    static _Alignas(8) uint8_t wide[BYTES];
    bool first = true;
    memset(sum, 0, draw->count * dtype_size(computed));
    for (uint32_t s = 0; s < draw->sources; s++) {
        const uint64_t weight = draw->has_weights ? draw->weights[s] : 1;
        const void *source = draw->at[s];
        if (!source || weight == 0)
            continue;
        if (computed != draw->dtype) {
            kernel_widen(draw->dtype, (float *)(void *)wide, source, draw->count);
            source = wide;
        }
        if (first)
            memcpy(sum, source, draw->count * dtype_size(computed));
        if (first && weight != 1)
            kernel_scale(computed, sum, sum, weight, draw->count);
        else if (!first && weight != 1)
            kernel_add_weighted(computed, sum, source, weight, draw->count);
        else if (!first)
            kernel_reduce(computed, draw->op, sum, source, draw->count);
        first = false;
    }
}

// Operations that do not skip a source that is NULL, in computed.
static void reference_choice(const struct draw *draw, enum dtype computed, void *out)
{
    static _Alignas(8) const uint8_t zeros[BYTES];
    static _Alignas(8) uint8_t wide[BYTES];
    for (uint32_t s = 0; s < draw->sources; s++) {
        const void *source = draw->at[s] ? draw->at[s] : zeros;
        if (computed != draw->dtype) {
            kernel_widen(draw->dtype, (float *)(void *)wide, source, draw->count);
            source = wide;
        }
        if (s == 0)
            memcpy(out, source, draw->count * dtype_size(computed));
        else
            kernel_reduce(computed, draw->op, out, source, draw->count);
    }
}

static void reference(const struct draw *draw, void *out)
{
    static _Alignas(8) uint8_t sum[BYTES];
    static uint16_t narrow[ELEMENTS];
    const enum dtype computed = dtype_is_small(draw->dtype) ? DTYPE_FLOAT32 : draw->dtype;
    if (draw->op == REDUCE_MIN || draw->op == REDUCE_MAX) {
        reference_choice(draw, draw->dtype, out);
        kernel_reduce_alone(draw->dtype, out, draw->count);
        return;
    }
    if (draw->op == REDUCE_PRODUCT || draw->op == REDUCE_AND)
        reference_choice(draw, computed, sum);
    else
        reference_sum(draw, computed, sum);
    kernel_reduce_alone(computed, sum, draw->count);
    if (draw->op == REDUCE_MEAN && draw->total != 1)
        kernel_divide(computed, sum, sum, draw->total, draw->count);
    if (computed != draw->dtype)
        kernel_narrow(draw->dtype, out, (float *)(void *)sum, draw->count);
    else
        memcpy(out, sum, draw->count * dtype_size(computed));
    if (draw->rounded == DTYPE_BFLOAT16 && draw->dtype == DTYPE_FLOAT32) {
        kernel_narrow(DTYPE_BFLOAT16, narrow, out, draw->count);
        kernel_widen(DTYPE_BFLOAT16, out, narrow, draw->count);
    }
}

// ---- draws --------------------------------------------------------------------------------------

static uint8_t *memories[KERNELS_MAX_SOURCES]; // [BYTES]
static uint8_t *result;
static uint8_t *second;
static uint8_t *before;
static uint8_t *expected;

static int allocate(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < KERNELS_MAX_SOURCES; s++)
        memories[s] = aligned_alloc(64, BYTES / 64 * 64 + 64);
    result = aligned_alloc(64, BYTES / 64 * 64 + 64);
    second = aligned_alloc(64, BYTES / 64 * 64 + 64);
    before = malloc(BYTES);
    expected = aligned_alloc(64, BYTES / 64 * 64 + 64);
    return 0;
}

static int release(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < KERNELS_MAX_SOURCES; s++)
        free(memories[s]);
    free(result);
    free(second);
    free(before);
    free(expected);
    return 0;
}

static void draw_sources(struct draw *draw)
{
    static const uint64_t some[] = {1, 1, 0, 2, 3, 1000, (1u << 24) + 1, UINT64_MAX};
    const size_t size = dtype_size(draw->dtype);
    const bool with_zeros = random_below(3) == 0;
    for (uint32_t s = 0; s < draw->sources; s++) {
        uint8_t *memory = memories[s] + random_below(OFFSET_MAX) * size;
        for (size_t i = 0; i < draw->count; i++)
            put_element(draw->dtype, memory + i * size);
        draw->at[s] = with_zeros && random_below(3) == 0 ? NULL : memory;
        draw->weights[s] = some[random_below(LENGTH(some))];
    }
}

static void draw_make(struct draw *draw, enum dtype dtype, enum reduce_op op)
{
    static const size_t counts[] = {0, 1, 2, 3, 15, 16, 17, 63, 65, 300, 1024, 2047, 2049, 4500};
    static const uint64_t totals[] = {1, 1, 2, 8, 3, 7, 1000, (1ull << 40) + 1, 1ull << 63};
    static const uint32_t counts_of_sources[] = {1, 2, 2, 3, 4, 5, 7, 8, 9, KERNELS_MAX_SOURCES};
    *draw = (struct draw){.dtype = dtype, .op = op, .total = 1};
    draw->sources = counts_of_sources[random_below(LENGTH(counts_of_sources))];
    draw->count = counts[random_below(LENGTH(counts))];
    draw->has_weights = op == REDUCE_MEAN && random_below(2) == 0;
    draw->streams = random_below(3) == 0;
    draw->also = random_below(2) == 0;
    if (op == REDUCE_MEAN)
        draw->total = totals[random_below(LENGTH(totals))];
    if (op == REDUCE_SUM || op == REDUCE_MEAN)
        draw->rounded = random_below(2) == 0 ? DTYPE_BFLOAT16 : dtype;
    draw_sources(draw);
}

static void draw_run(const struct kernel_table *table, const struct draw *draw, void *out,
                     void *also)
{
    const struct kernel_combination what = {.dtype = draw->dtype,
                                            .op = draw->op,
                                            .count = draw->sources,
                                            .sources = draw->at,
                                            .weights = draw->has_weights ? draw->weights : NULL,
                                            .total = draw->total,
                                            .rounded = draw->rounded,
                                            .streams = draw->streams,
                                            .also = also};
    kernel_combine_by(table, &what, out, draw->count);
}

// Same bits; where arithmetic made a NaN, any NaN.
static void expect_same(const struct kernel_table *table, const struct draw *draw,
                        const uint8_t *got)
{
    const size_t size = dtype_size(draw->dtype);
    for (size_t i = 0; i < draw->count; i++) {
        const uint8_t *x = got + i * size, *y = expected + i * size;
        if (memcmp(x, y, size) == 0 || ((draw->op <= REDUCE_MEAN || draw->op == REDUCE_PRODUCT) &&
                                        is_nan(draw->dtype, x) && is_nan(draw->dtype, y)))
            continue;
        fail_msg("%s: %s, op %d, %u sources, total %llu%s%s: element %zu of %zu differs",
                 table->name, dtype_name(draw->dtype), (int)draw->op, draw->sources,
                 (unsigned long long)draw->total, draw->has_weights ? ", weights" : "",
                 draw->streams ? ", streams" : "", i, draw->count);
    }
}

// Into memory of its own, and into that of one of the sources.
static void draw_compare(const struct kernel_table *table, const struct draw *draw)
{
    const size_t size = dtype_size(draw->dtype);
    const size_t at = random_below(OFFSET_MAX) * size;
    const size_t end = at + draw->count * size;
    const uint32_t inside = (uint32_t)random_below(draw->sources);
    reference(draw, expected);
    memset(result, 0x5a, BYTES);
    memset(before, 0x5a, BYTES);
    draw_run(table, draw, result + at, draw->also ? second + at / 2 / size * size : NULL);
    expect_same(table, draw, result + at);
    assert_memory_equal(result, before, at);
    assert_memory_equal(result + end, before + end, BYTES - end);
    if (draw->also)
        expect_same(table, draw, second + at / 2 / size * size);
    if (!draw->at[inside])
        return;
    if (draw->also)
        draw_run(table, draw, result + at, (void *)(uintptr_t)draw->at[inside]);
    else
        draw_run(table, draw, (void *)(uintptr_t)draw->at[inside], NULL);
    expect_same(table, draw, draw->at[inside]);
}

static void test_combinations(void **state)
{
    struct draw draw;
    (void)state;
    const int draws = test_slow() > 1 ? DRAWS / 3 : DRAWS;
    for (unsigned l = 0; kernel_level(l); l++)
        for (size_t d = 0; d < LENGTH(dtypes); d++)
            for (size_t o = 0; o < LENGTH(ops); o++)
                for (int i = 0; i < draws && kernel_supported(dtypes[d], ops[o]); i++) {
                    draw_make(&draw, dtypes[d], ops[o]);
                    draw_compare(kernel_level(l), &draw);
                }
}

// ---- what is easily got wrong -------------------------------------------------------------------

// 60000 + 60000 has no float16, but half of it has; and 1 + 2^-11 + 2^-11 rounded twice is 1.
static void test_rounded_once(void **state)
{
    const uint16_t large = 0x7b53, one = 0x3c00, little = 0x1000; // 60000 (near), 1, 2^-11
    const uint16_t *two[] = {&large, &large}, *three[] = {&one, &little, &little};
    uint16_t out = 0;
    struct kernel_combination what = {.dtype = DTYPE_FLOAT16,
                                      .op = REDUCE_MEAN,
                                      .count = 2,
                                      .sources = (const void *const *)two,
                                      .total = 2};
    (void)state;
    kernel_combine(&what, &out, 1);
    assert_int_equal(out, large);
    what.op = REDUCE_SUM;
    what.count = 3;
    what.sources = (const void *const *)three;
    kernel_combine(&what, &out, 1);
    assert_int_equal(out, 0x3c01);
}

// As in test_kernels.c: 3 (1 + 2^-23) is rounded to 3 + 2^-21 before -3 - 2^-21 is added.
static void test_product_is_rounded_first(void **state)
{
    float a[37], b[37], out[37];
    const void *sources[] = {a, b};
    const uint64_t some[] = {1, 3};
    const struct kernel_combination what = {.dtype = DTYPE_FLOAT32,
                                            .op = REDUCE_MEAN,
                                            .count = 2,
                                            .sources = sources,
                                            .weights = some,
                                            .total = 1};
    (void)state;
    for (int i = 0; i < 37; i++) {
        a[i] = -(3.0f + 0x1p-21f);
        b[i] = 1.0f + 0x1p-23f;
    }
    for (unsigned l = 0; kernel_level(l); l++) {
        kernel_combine_by(kernel_level(l), &what, out, 37);
        for (int i = 0; i < 37; i++)
            assert_true(out[i] == 0.0f);
    }
}

static void test_weight_zero_is_not_read(void **state)
{
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    float a[2] = {1.0f, -2.0f}, out[2];
    const void *sources[] = {nowhere, a};
    uint64_t some[] = {0, 3};
    struct kernel_combination what = {.dtype = DTYPE_FLOAT32,
                                      .op = REDUCE_MEAN,
                                      .count = 2,
                                      .sources = sources,
                                      .weights = some,
                                      .total = 3};
    (void)state;
    assert_ptr_not_equal(nowhere, MAP_FAILED);
    kernel_combine(&what, out, 2);
    assert_true(out[0] == 1.0f && out[1] == -2.0f);
    some[1] = 0;
    kernel_combine(&what, out, 2);
    assert_true(out[0] == 0.0f && out[1] == 0.0f && !signbit(out[1]));
    munmap(nowhere, 4096);
}

static void test_copies(void **state)
{
    (void)state;
    for (unsigned l = 0; kernel_level(l); l++)
        for (int i = 0; i < 4000; i++) {
            const size_t bytes = random_below(600), at = random_below(70), from = random_below(70);
            for (size_t b = 0; b < 700; b++) {
                memories[0][b] = (uint8_t)random_word();
                expected[b] = result[b] = (uint8_t)~b;
            }
            memcpy(expected + at, memories[0] + from, bytes);
            (i % 2 == 0 ? kernel_level(l)->copy
                        : kernel_level(l)->stream)(result + at, memories[0] + from, bytes);
            assert_memory_equal(result, expected, 700);
        }
}

// ---- deaths -------------------------------------------------------------------------------------

enum {
    DEATHS = 40,
    DEATH_SOURCES = 9, // Three loops for each tile, were the memory not a tile.
    DEATH_COUNT = 1 << 15,
};

// All in memory that outlives the child.
struct scene {
    _Atomic uint64_t rounds;
    _Alignas(64) double gradient[DEATH_COUNT]; // The first source, and the result.
    double input[DEATH_COUNT]; // The gradient before the death.
    double final[DEATH_COUNT];
    double others[DEATH_COUNT]; // All other sources.
};

static _Noreturn void scene_run(struct scene *scene)
{
    const void *sources[DEATH_SOURCES] = {scene->gradient};
    const struct kernel_combination what = {.dtype = DTYPE_FLOAT64,
                                            .op = REDUCE_MEAN,
                                            .count = DEATH_SOURCES,
                                            .sources = sources,
                                            .total = DEATH_SOURCES};
    for (int s = 1; s < DEATH_SOURCES; s++)
        sources[s] = scene->others;
    for (;;) {
        kernel_copy(scene->gradient, scene->input, sizeof(scene->gradient), false);
        kernel_combine(&what, scene->gradient, DEATH_COUNT);
        atomic_fetch_add(&scene->rounds, 1);
    }
}

static void scene_kill(struct scene *scene, uint64_t pauses)
{
    const pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (child == 0)
        scene_run(scene);
    const uint64_t seen = atomic_load(&scene->rounds);
    while (atomic_load(&scene->rounds) < seen + 2)
        sched_yield();
    for (volatile uint64_t i = 0; i < pauses; i++)
        ;
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_intact_or_final(void **state)
{
    struct scene *scene =
        mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_ptr_not_equal(scene, MAP_FAILED);
    for (int i = 0; i < DEATH_COUNT; i++) {
        scene->gradient[i] = scene->input[i] = 9.0 * i;
        scene->others[i] = 18.0 * i;
        scene->final[i] = 17.0 * i;
    }
    for (int death = 0; death < DEATHS; death++) {
        scene_kill(scene, random_below(20000));
        for (int i = 0; i < DEATH_COUNT; i++)
            assert_true(scene->gradient[i] == scene->input[i] ||
                        scene->gradient[i] == scene->final[i]);
    }
    munmap(scene, sizeof(*scene));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_rounded_once),
        cmocka_unit_test(test_product_is_rounded_first),
        cmocka_unit_test(test_weight_zero_is_not_read),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_intact_or_final),
    };
    return cmocka_run_group_tests_name("kernels_combine", tests, allocate, release);
}
