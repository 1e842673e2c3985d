// SPDX-License-Identifier: Apache-2.0
//
// The references of a device's kernels against worker/kernels/kernels.h, element by element: every
// pair of dtypes, pieces anywhere, numbers of every kind; and that nothing is written that must not
// be. The tables that they walk over are compared with what extents and units say of every element.

#include "tests/support/device_case.h"
#include "tests/support/device_reference.h"
#include "worker/kernels/combine.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/units.h"
#include "worker/transport/device/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const uint64_t weights[] = {1, 0, 3, 16777217, (uint64_t)1 << 40};
static const int exponents[] = {0, -7, 5};

static uint8_t *copy_of(const struct case_block *block)
{
    uint8_t *copy = malloc(block->size);
    assert_non_null(copy);
    memcpy(copy, block->bytes, block->size);
    return copy;
}

static struct device_row row_of(const struct device_case *made)
{
    return (struct device_row){.pieces = made->pieces,
                               .tiles = made->tiles,
                               .elements = made->elements,
                               .count = made->piece_count};
}

static uint64_t elements_of(const struct device_piece *piece)
{
    return piece[1].first - piece[0].first;
}

// ---- one element, by worker/kernels/kernels.h ---------------------------------------------------

struct factors {
    uint64_t weight; // 1: none.
    uint64_t total; // 1: none.
    int exponent;
    bool exponent_first;
};

static void element_factors(enum dtype dtype, void *value, const struct factors *factors)
{
    if (factors->exponent != 0 && factors->exponent_first)
        kernel_scale_power(dtype, value, value, factors->exponent, 1);
    if (factors->weight != 1)
        kernel_scale(dtype, value, value, factors->weight, 1);
    if (factors->total != 1)
        kernel_divide(dtype, value, value, factors->total, 1);
    if (factors->exponent != 0 && !factors->exponent_first)
        kernel_scale_power(dtype, value, value, factors->exponent, 1);
}

static bool computes(const struct factors *factors)
{
    return factors->weight != 1 || factors->total != 1 || factors->exponent != 0;
}

static void element_narrow(enum dtype dtype, void *to, const float *value)
{
    if (dtype == DTYPE_FLOAT32)
        memcpy(to, value, sizeof(*value));
    else
        kernel_narrow(dtype, to, value, 1);
}

// From one format to another, by way of a third one; what computes leaves one NaN.
static void element(enum dtype from_dtype, const void *from, enum dtype to_dtype, void *to,
                    enum dtype between, const struct factors *factors)
{
    uint8_t rounded[8];
    if (from_dtype == to_dtype && between == to_dtype && !computes(factors)) {
        memcpy(to, from, dtype_size(to_dtype));
        return;
    }
    if (from_dtype == DTYPE_FLOAT64) {
        double value;
        memcpy(&value, from, sizeof(value));
        element_factors(DTYPE_FLOAT64, &value, factors);
        value = isnan(value) ? nan("") : value;
        memcpy(to, &value, sizeof(value));
        return;
    }
    float value;
    if (from_dtype == DTYPE_FLOAT32)
        memcpy(&value, from, sizeof(value));
    else
        kernel_widen(from_dtype, &value, from, 1);
    element_factors(DTYPE_FLOAT32, &value, factors);
    if (computes(factors) && isnan(value))
        value = nanf("");
    if (between != DTYPE_FLOAT32) {
        element_narrow(between, rounded, &value);
        kernel_widen(between, &value, (const void *)rounded, 1);
    }
    element_narrow(to_dtype, to, &value);
}

// ---- pack ---------------------------------------------------------------------------------------

static void expect_packed(const struct device_case *made, const struct device_pack *pack,
                          uint8_t *packed)
{
    const size_t size = dtype_size(made->dtype);
    const size_t wire_size = dtype_size(made->wire);
    const struct factors factors = {pack->weight, 1, pack->exponent, true};
    for (uint32_t p = 0; p < made->piece_count; p++) {
        const struct device_piece *piece = &made->pieces[p];
        for (uint64_t i = 0; i < elements_of(piece); i++) {
            uint8_t *to = packed + (piece->first + i) * wire_size;
            if (!piece->in || pack->weight == 0)
                memset(to, 0, wire_size);
            else
                element(made->dtype, (const uint8_t *)piece->in + i * size, made->wire, to,
                        made->wire, &factors);
        }
    }
}

static void check_pack(const struct device_case *made, uint64_t weight, int exponent)
{
    const uint64_t header_from[3] = {weight, 1, 0};
    uint64_t header_to[3] = {9, 9, 9};
    const struct device_pack pack = {.row = row_of(made),
                                     .packed = made->packed.bytes,
                                     .weight = weight,
                                     .exponent = exponent,
                                     .dtype = made->dtype,
                                     .wire = made->wire,
                                     .header_words = 2,
                                     .header_from = header_from,
                                     .header_to = header_to};
    uint8_t *expected = copy_of(&made->packed);
    uint8_t *input = copy_of(&made->in);
    expect_packed(made, &pack, expected);
    device_reference_pack(&pack, NULL);
    assert_memory_equal(made->packed.bytes, expected, made->packed.size);
    assert_memory_equal(made->in.bytes, input, made->in.size);
    assert_true(header_to[0] == weight && header_to[1] == 1 && header_to[2] == 9);
    free(expected);
    free(input);
}

// ---- finish -------------------------------------------------------------------------------------

static bool is_written(const struct device_case *made, const struct device_piece *piece)
{
    return piece->out && (piece->unit == DEVICE_NO_UNIT || made->header[1 + piece->unit] > 0);
}

static void expect_finished(const struct device_case *made, const struct device_finish *finish,
                            uint8_t *out)
{
    const size_t size = dtype_size(made->dtype);
    const size_t wire_size = dtype_size(made->wire);
    const uint64_t total = finish->divides ? made->header[0] : 1;
    const struct factors factors = {1, total, -finish->exponent, false};
    if (total == 0)
        return;
    for (uint32_t p = 0; p < made->piece_count; p++) {
        const struct device_piece *piece = &made->pieces[p];
        for (uint64_t i = 0; i < elements_of(piece) && is_written(made, piece); i++)
            element(made->wire, made->packed.bytes + (piece->first + i) * wire_size, made->dtype,
                    out + made->places[p] + i * size, (enum dtype)finish->final, &factors);
    }
}

static struct device_finish finish_of(const struct device_case *made, int exponent, bool divides)
{
    return (struct device_finish){
        .row = row_of(made),
        .packed = made->packed.bytes,
        .header = made->header,
        .exponent = exponent,
        .dtype = made->dtype,
        .wire = made->wire,
        .final = made->wire == DTYPE_BFLOAT16 ? DTYPE_BFLOAT16 : made->dtype,
        .divides = divides,
    };
}

static void check_finish(const struct device_case *made, int exponent, bool divides)
{
    const struct device_finish finish = finish_of(made, exponent, divides);
    uint8_t *expected = copy_of(&made->out);
    uint8_t *packed = copy_of(&made->packed);
    expect_finished(made, &finish, expected);
    device_reference_finish(&finish, NULL);
    assert_memory_equal(made->out.bytes, expected, made->out.size);
    assert_memory_equal(made->packed.bytes, packed, made->packed.size);
    free(expected);
    free(packed);
}

// ---- every pair ---------------------------------------------------------------------------------

static void check_pair(struct device_pair pair, uint64_t seed, uint32_t pieces, uint64_t elements)
{
    const bool has_exponent = pair.dtype == DTYPE_FLOAT16 && pair.wire == DTYPE_FLOAT16;
    for (size_t w = 0; w < LENGTH(weights); w++) {
        for (size_t e = 0; e < (has_exponent ? LENGTH(exponents) : 1); e++) {
            struct device_case made;
            device_case_draw(&made, &(struct device_draw){.seed = seed + w * 3 + e,
                                                          .dtype = pair.dtype,
                                                          .wire = pair.wire,
                                                          .pieces = pieces,
                                                          .piece_elements = elements,
                                                          .weight = weights[w]});
            check_finish(&made, exponents[e], w % 2 == 0);
            check_finish(&made, exponents[e], w % 2 != 0);
            check_pack(&made, weights[w], exponents[e]);
            device_case_free(&made);
        }
    }
}

static void test_packs_and_finishes_every_pair(void **state)
{
    (void)state;
    for (size_t p = 0; p < DEVICE_PAIRS; p++) {
        check_pair(device_pairs[p], 1000 + p, 1, 1);
        check_pair(device_pairs[p], 2000 + p, 1, 5000);
        check_pair(device_pairs[p], 3000 + p, 7, 700);
        check_pair(device_pairs[p], 4000 + p, 500, 40);
    }
}

// Packing, adding up and finishing on n ranks gives the same as many sources at once, where nothing
// is rounded in between.
static void test_a_mean_is_that_of_the_kernels(void **state)
{
    (void)state;
    enum {
        COUNT = 3000,
        RANKS = 3
    };
    static const uint64_t given[RANKS] = {2, 0, 5};
    static float gradients[RANKS][COUNT];
    static float packed[RANKS][COUNT] __attribute__((aligned(DEVICE_ALIGNMENT)));
    static float result[COUNT];
    static float expected[COUNT];
    uint64_t random = 77;
    uint32_t tiles[COUNT / DEVICE_TILE_ELEMENTS + 1];
    const void *sources[RANKS];
    uint64_t header[2] = {0, 0};
    for (int r = 0; r < RANKS; r++) {
        struct device_piece pieces[2] = {{.in = gradients[r], .unit = 0}, {.first = COUNT}};
        for (int i = 0; i < COUNT; i++)
            gradients[r][i] = (float)(int64_t)((random = random * 6364136223846793005u + 1) >> 40);
        device_piece_tiles(pieces, 1, tiles);
        device_reference_pack(&(struct device_pack){.row = {pieces, tiles, COUNT, 1, 0},
                                                    .packed = packed[r],
                                                    .weight = given[r],
                                                    .dtype = DEVICE_FLOAT32,
                                                    .wire = DEVICE_FLOAT32},
                              NULL);
        if (r > 0)
            kernel_reduce(DTYPE_FLOAT32, REDUCE_SUM, packed[0], packed[r], COUNT);
        sources[r] = gradients[r];
        header[0] += given[r];
        header[1] += given[r] > 0;
    }
    struct device_piece pieces[2] = {{.out = result, .unit = 0}, {.first = COUNT}};
    device_reference_finish(&(struct device_finish){.row = {pieces, tiles, COUNT, 1, 0},
                                                    .packed = packed[0],
                                                    .header = header,
                                                    .dtype = DEVICE_FLOAT32,
                                                    .wire = DEVICE_FLOAT32,
                                                    .final = DEVICE_FLOAT32,
                                                    .divides = 1},
                            NULL);
    const struct kernel_combination all = {.dtype = DTYPE_FLOAT32,
                                           .op = REDUCE_MEAN,
                                           .count = RANKS,
                                           .sources = sources,
                                           .weights = given,
                                           .total = header[0]};
    kernel_combine(&all, expected, COUNT);
    assert_memory_equal(result, expected, sizeof(expected));
}

// ---- what must not be written -------------------------------------------------------------------

static void drawn(struct device_case *made, uint64_t seed)
{
    device_case_draw(made, &(struct device_draw){.seed = seed,
                                                 .dtype = DTYPE_FLOAT32,
                                                 .wire = DTYPE_FLOAT32,
                                                 .pieces = 20,
                                                 .piece_elements = 300,
                                                 .weight = 2});
}

static void test_revoked_launches_write_nothing(void **state)
{
    (void)state;
    struct device_case made;
    drawn(&made, 5);
    struct device_finish finish = finish_of(&made, 0, true);
    uint8_t *before = copy_of(&made.out);
    uint32_t revoked = 1;
    uint32_t decision = DEVICE_UNDECIDED;
    finish.revoked = &revoked;
    finish.decision = &decision;
    device_reference_finish(&finish, NULL);
    assert_int_equal(decision, DEVICE_SKIPS);
    assert_memory_equal(made.out.bytes, before, made.out.size);

    revoked = 0; // Decided is decided.
    device_reference_finish(&finish, NULL);
    assert_int_equal(decision, DEVICE_SKIPS);
    assert_memory_equal(made.out.bytes, before, made.out.size);

    decision = DEVICE_UNDECIDED;
    device_reference_finish(&finish, NULL);
    assert_int_equal(decision, DEVICE_WRITES);
    expect_finished(&made, &finish, before);
    assert_memory_equal(made.out.bytes, before, made.out.size);
    free(before);
    device_case_free(&made);
}

static void test_a_row_of_nothing_decides_and_copies_its_header(void **state)
{
    (void)state;
    const uint64_t from[2] = {7, 1};
    uint64_t to[2] = {0, 0};
    const uint32_t revoked = 0;
    uint32_t decision = DEVICE_UNDECIDED;
    device_reference_pack(&(struct device_pack){.dtype = DEVICE_FLOAT32,
                                                .wire = DEVICE_FLOAT32,
                                                .weight = 1,
                                                .header_words = 2,
                                                .header_from = from,
                                                .header_to = to},
                          NULL);
    assert_memory_equal(to, from, sizeof(from));
    device_reference_finish(&(struct device_finish){.dtype = DEVICE_FLOAT32,
                                                    .wire = DEVICE_FLOAT32,
                                                    .final = DEVICE_FLOAT32,
                                                    .revoked = &revoked,
                                                    .decision = &decision},
                            NULL);
    assert_int_equal(decision, DEVICE_WRITES);
    assert_int_equal(device_blocks(0), 1);
}

// ---- gather, scatter, add -----------------------------------------------------------------------

static void check_bytes(enum dtype dtype, uint64_t seed)
{
    struct device_case made;
    device_case_draw(&made, &(struct device_draw){.seed = seed,
                                                  .dtype = dtype,
                                                  .wire = dtype,
                                                  .pieces = 60,
                                                  .piece_elements = 500,
                                                  .weight = 1});
    const struct device_scatter scatter = {.row = row_of(&made),
                                           .packed = made.packed.bytes,
                                           .used = made.units > 0 ? made.used : NULL,
                                           .dtype = dtype};
    const struct device_gather gather = {
        .row = row_of(&made), .packed = made.packed.bytes, .dtype = dtype};
    uint8_t *out = copy_of(&made.out);
    uint8_t *packed = copy_of(&made.packed);
    const size_t size = dtype_size(dtype);
    for (uint32_t p = 0; p < made.piece_count; p++) {
        const struct device_piece *piece = &made.pieces[p];
        const size_t bytes = elements_of(piece) * size;
        if (is_written(&made, piece))
            memcpy(out + made.places[p], packed + piece->first * size, bytes);
    }
    device_reference_scatter(&scatter, NULL);
    assert_memory_equal(made.out.bytes, out, made.out.size);
    for (uint32_t p = 0; p < made.piece_count; p++) {
        const struct device_piece *piece = &made.pieces[p];
        const size_t bytes = elements_of(piece) * size;
        memset(packed + piece->first * size, 0, bytes);
        if (piece->in)
            memcpy(packed + piece->first * size, piece->in, bytes);
    }
    device_reference_gather(&gather, NULL);
    assert_memory_equal(made.packed.bytes, packed, made.packed.size);
    free(out);
    free(packed);
    device_case_free(&made);
}

static void test_gathers_and_scatters_bytes(void **state)
{
    (void)state;
    for (uint32_t dtype = DTYPE_FLOAT32; dtype <= DTYPE_LAST; dtype++) {
        check_bytes((enum dtype)dtype, 10 + dtype);
        check_bytes((enum dtype)dtype, 30 + dtype);
        check_bytes((enum dtype)dtype, 50 + dtype);
    }
}

static void one_nan(enum dtype dtype, uint8_t *at)
{
    double wide;
    float narrow;
    memcpy(&wide, at, dtype == DTYPE_FLOAT64 ? sizeof(wide) : 0);
    memcpy(&narrow, at, dtype == DTYPE_FLOAT32 ? sizeof(narrow) : 0);
    if (dtype_is_small(dtype))
        kernel_widen(dtype, &narrow, (const void *)at, 1);
    if (dtype == DTYPE_FLOAT64 && isnan(wide)) {
        wide = nan("");
        memcpy(at, &wide, sizeof(wide));
    } else if (dtype != DTYPE_FLOAT64 && isnan(narrow)) {
        narrow = nanf("");
        element_narrow(dtype, at, &narrow);
    }
}

// adds: there is something to add; else the sum is only divided.
static void check_add(enum dtype dtype, uint64_t divisor, bool adds)
{
    enum {
        COUNT = 3333
    };
    uint64_t random = 31 + divisor;
    _Alignas(8) static uint8_t acc[COUNT * 8];
    _Alignas(8) static uint8_t in[COUNT * 8];
    _Alignas(8) static uint8_t expected[COUNT * 8];
    const size_t size = dtype_size(dtype);
    device_numbers(&random, dtype, acc, COUNT);
    device_numbers(&random, dtype, in, COUNT);
    memcpy(expected, acc, sizeof(acc));
    if (adds)
        kernel_reduce(dtype, REDUCE_SUM, expected, in, COUNT);
    if (divisor != 1)
        kernel_divide(dtype, expected, expected, divisor, COUNT);
    for (size_t i = 0; i < COUNT && dtype_is_float(dtype) && (adds || divisor != 1); i++)
        one_nan(dtype, expected + i * size);
    device_reference_add(&(struct device_add){.acc = acc,
                                              .in = adds ? in : NULL,
                                              .elements = COUNT,
                                              .divisor = divisor,
                                              .dtype = dtype},
                         NULL);
    assert_memory_equal(acc, expected, COUNT * size);
}

static void test_adds_replicas(void **state)
{
    (void)state;
    static const enum dtype floats[] = {DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_FLOAT16,
                                        DTYPE_BFLOAT16};
    static const enum dtype integers[] = {DTYPE_INT32, DTYPE_INT64, DTYPE_UINT8};
    for (size_t d = 0; d < LENGTH(floats); d++) {
        check_add(floats[d], 1, true);
        check_add(floats[d], 3, true);
        check_add(floats[d], 1, false);
        check_add(floats[d], 3, false);
    }
    for (size_t d = 0; d < LENGTH(integers); d++) {
        check_add(integers[d], 1, true);
        check_add(integers[d], 1, false);
    }
}

// ---- addresses of a device ----------------------------------------------------------------------

#define FAR ((uintptr_t)1 << 60)

static uint64_t reach_bytes;

static void *reach_far(const void *address, uint64_t bytes)
{
    reach_bytes += bytes;
    return (uintptr_t)address < FAR ? NULL : (void *)((uintptr_t)address - FAR);
}

static void *far(const void *address)
{
    return (void *)((uintptr_t)address + FAR);
}

static void test_reaches_memory_only_where_it_is_told(void **state)
{
    (void)state;
    struct device_case made;
    drawn(&made, 7);
    struct device_scatter scatter = {.row = row_of(&made),
                                     .packed = far(made.packed.bytes),
                                     .used = far(made.used),
                                     .dtype = DEVICE_FLOAT32};
    uint8_t *before = copy_of(&made.out);
    const struct device_reference *by_name = device_reference_find(DEVICE_SCATTER);
    by_name->run(&scatter, reach_far); // Tables that it cannot reach.
    assert_memory_equal(made.out.bytes, before, made.out.size);

    for (uint32_t p = 0; p < made.piece_count; p++)
        made.pieces[p].out = made.pieces[p].out ? far(made.pieces[p].out) : NULL;
    scatter.row.pieces = far(made.pieces);
    scatter.row.tiles = far(made.tiles);
    reach_bytes = 0;
    by_name->run(&scatter, reach_far);
    uint64_t written = 0;
    for (uint32_t p = 0; p < made.piece_count; p++) {
        const struct device_piece *piece = &made.pieces[p];
        const size_t bytes = elements_of(piece) * 4;
        if (!is_written(&made, piece))
            continue;
        written += bytes;
        memcpy(before + made.places[p], made.packed.bytes + piece->first * 4, bytes);
    }
    assert_memory_equal(made.out.bytes, before, made.out.size);
    const uint64_t tables = (made.piece_count + (uint64_t)1) * sizeof(struct device_piece) +
                            device_tiles(made.elements) * 4 +
                            units_words(made.units) * sizeof(uint64_t);
    assert_int_equal(reach_bytes, 2 * written + tables);
    free(before);
    device_case_free(&made);
}

static void test_finds_kernels_by_name(void **state)
{
    (void)state;
    assert_int_equal(device_reference_find("lockstep_pack")->parameter_bytes,
                     sizeof(struct device_pack));
    assert_int_equal(device_reference_find("lockstep_finish")->parameter_bytes,
                     sizeof(struct device_finish));
    assert_non_null(device_reference_find(DEVICE_GATHER));
    assert_non_null(device_reference_find(DEVICE_ADD));
    assert_null(device_reference_find("lockstep_hash"));
}

// ---- tables -------------------------------------------------------------------------------------

// Facts about an element, found by counting.
struct said {
    const void *in;
    void *out;
    uint32_t unit;
};

static struct said say(const struct collective *collective, uint64_t element, size_t size)
{
    struct said said = {.unit = DEVICE_NO_UNIT};
    uint64_t left = element;
    uint32_t e = 0;
    for (; left >= collective->extents[e].elements; e++)
        left -= collective->extents[e].elements;
    const struct extent *extent = &collective->extents[e];
    said.in = extent->in ? (const char *)extent->in + left * size : NULL;
    said.out = extent->out ? (char *)extent->out + left * size : NULL;
    for (uint32_t u = 0; u < collective->unit_count && said.unit == DEVICE_NO_UNIT; u++) {
        if (element < collective->unit_ends[u])
            said.unit = u;
    }
    return said;
}

static void check_pieces(const struct collective *collective, const struct device_piece *pieces,
                         uint32_t count)
{
    const size_t size = dtype_size(collective->dtype);
    uint32_t tiles[64];
    assert_true(count <= device_pieces_most(collective));
    assert_int_equal(pieces[count].first, collective->elements);
    assert_true(device_tiles(collective->elements) <= LENGTH(tiles));
    device_piece_tiles(pieces, count, tiles);
    uint32_t piece = 0;
    for (uint64_t i = 0; i < collective->elements; i++) {
        const struct said said = say(collective, i, size);
        while (pieces[piece + 1].first <= i)
            piece++;
        const uint64_t bytes = (i - pieces[piece].first) * size;
        assert_true(pieces[piece].first <= i);
        assert_ptr_equal(said.in, pieces[piece].in ? (const char *)pieces[piece].in + bytes : NULL);
        assert_ptr_equal(said.out, pieces[piece].out ? (char *)pieces[piece].out + bytes : NULL);
        assert_int_equal(said.unit, pieces[piece].unit);
        if (i % DEVICE_TILE_ELEMENTS == 0)
            assert_int_equal(tiles[i / DEVICE_TILE_ELEMENTS], piece);
    }
}

static void test_cuts_extents_at_units(void **state)
{
    (void)state;
    enum {
        EXTENTS = 9,
        UNITS = 12
    };
    static char memory[1 << 20];
    struct device_piece pieces[EXTENTS + UNITS + 1];
    for (unsigned seed = 0; seed < 300; seed++) {
        srand(seed);
        struct extent extents[EXTENTS];
        uint64_t ends[UNITS];
        struct collective collective = {.dtype = seed % 2 ? DTYPE_FLOAT32 : DTYPE_UINT8,
                                        .extents = extents,
                                        .extent_count = EXTENTS,
                                        .unit_ends = ends,
                                        .unit_count = seed % 3 ? UNITS : 0};
        for (int e = 0; e < EXTENTS; e++) {
            const uint64_t elements = rand() % 4 ? (uint64_t)rand() % 1500 : 0;
            char *at = memory + (uint64_t)rand() % 1000 * 64;
            extents[e] = (struct extent){rand() % 4 ? at : NULL, rand() % 4 ? at : NULL, elements};
            collective.elements += elements;
        }
        for (int u = 0; u < UNITS; u++) // Some are empty.
            ends[u] = collective.elements * (uint64_t)(u / 2 * 2 + 2) / UNITS;
        check_pieces(&collective, pieces, device_pieces(&collective, pieces));
    }
}

static int environment(void **state)
{
    (void)state;
    kernels_environment();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts_extents_at_units),
        cmocka_unit_test(test_packs_and_finishes_every_pair),
        cmocka_unit_test(test_a_mean_is_that_of_the_kernels),
        cmocka_unit_test(test_revoked_launches_write_nothing),
        cmocka_unit_test(test_a_row_of_nothing_decides_and_copies_its_header),
        cmocka_unit_test(test_gathers_and_scatters_bytes),
        cmocka_unit_test(test_adds_replicas),
        cmocka_unit_test(test_reaches_memory_only_where_it_is_told),
        cmocka_unit_test(test_finds_kernels_by_name),
    };
    return cmocka_run_group_tests(tests, environment, NULL);
}
