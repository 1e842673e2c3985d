// SPDX-License-Identifier: Apache-2.0
//
// The source of the kernels, run by the host (device_emulation.h), against their references: every
// pair of dtypes, pieces and packed memory at every alignment, sizes round those of units, warps
// and tiles. Under AddressSanitizer this also shows that nothing beside a piece is read, under the
// one for undefined behaviour that no vector is loaded or stored where it may not lie. tests/gpu/
// has checks that only a device can make.

#include "tests/support/device_case.h"
#include "tests/support/device_emulation.h"
#include "tests/support/device_reference.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/device/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

float emulated_half_widen(uint16_t from)
{
    float value;
    kernel_widen(DTYPE_FLOAT16, &value, &from, 1);
    return value;
}

uint16_t emulated_half_narrow(float from)
{
    uint16_t half;
    kernel_narrow(DTYPE_FLOAT16, &half, &from, 1);
    return half;
}

uint16_t emulated_bfloat16_narrow(float from)
{
    uint16_t half;
    kernel_narrow(DTYPE_BFLOAT16, &half, &from, 1);
    return half;
}

static struct device_row row_of(const struct device_case *made)
{
    return (struct device_row){.pieces = made->pieces,
                               .tiles = made->tiles,
                               .elements = made->elements,
                               .count = made->piece_count};
}

// Two cases of the same draw: one for each side.
struct twins {
    struct device_case slow;
    struct device_case fast;
};

static void twins_draw(struct twins *twins, const struct device_draw *draw)
{
    device_case_draw(&twins->slow, draw);
    device_case_draw(&twins->fast, draw);
}

static void twins_free(struct twins *twins)
{
    device_case_free(&twins->slow);
    device_case_free(&twins->fast);
}

static void twins_compare(const struct twins *twins)
{
    const struct device_case *slow = &twins->slow;
    const struct device_case *fast = &twins->fast;
    assert_memory_equal(slow->in.bytes, fast->in.bytes, slow->in.size);
    assert_memory_equal(slow->out.bytes, fast->out.bytes, slow->out.size);
    assert_memory_equal(slow->packed.bytes, fast->packed.bytes, slow->packed.size);
}

// ---- what is done with a case -------------------------------------------------------------------

static struct device_finish finish_of(const struct device_case *made, int exponent)
{
    return (struct device_finish){
        .row = row_of(made),
        .packed = made->packed.bytes,
        .header = made->header,
        .exponent = exponent,
        .dtype = made->dtype,
        .wire = made->wire,
        .final = made->wire == DTYPE_BFLOAT16 ? DTYPE_BFLOAT16 : made->dtype,
        .divides = made->random % 5 != 0,
    };
}

static void check_finish(struct twins *twins, int exponent)
{
    struct device_finish slow = finish_of(&twins->slow, exponent);
    struct device_finish fast = finish_of(&twins->fast, exponent);
    const uint32_t revoked = 0;
    uint32_t decision = DEVICE_UNDECIDED;
    if (twins->slow.random % 2 == 0) {
        fast.revoked = &revoked;
        fast.decision = &decision;
    }
    device_reference_finish(&slow, NULL);
    emulate_finish(&fast);
    assert_int_equal(decision, fast.revoked ? DEVICE_WRITES : DEVICE_UNDECIDED);
    twins_compare(twins);
}

static struct device_pack pack_of(const struct device_case *made, int exponent)
{
    return (struct device_pack){.row = row_of(made),
                                .packed = made->packed.bytes,
                                .weight = made->header[0],
                                .exponent = exponent,
                                .dtype = made->dtype,
                                .wire = made->wire};
}

static void check_pack(struct twins *twins, int exponent)
{
    const uint64_t header[2] = {3, 4};
    uint64_t copied[2] = {0, 0};
    const struct device_pack slow = pack_of(&twins->slow, exponent);
    struct device_pack fast = pack_of(&twins->fast, exponent);
    fast.header_words = LENGTH(header);
    fast.header_from = header;
    fast.header_to = copied;
    device_reference_pack(&slow, NULL);
    emulate_pack(&fast);
    assert_memory_equal(copied, header, sizeof(header));
    twins_compare(twins);
}

static void check_draw(const struct device_draw *draw, int exponent)
{
    struct twins twins;
    twins_draw(&twins, draw);
    check_finish(&twins, exponent);
    check_pack(&twins, exponent);
    twins_free(&twins);
}

// ---- floats -------------------------------------------------------------------------------------

// A mean of denormals over 6 may lie halfway between two of them.
static const uint64_t weights[] = {1, 0, 4, 3, 6, (uint64_t)1 << 40, 16777217};

static void test_packs_and_finishes_every_pair(void **state)
{
    (void)state;
    uint64_t seed = 0;
    for (size_t p = 0; p < DEVICE_PAIRS; p++) {
        for (size_t w = 0; w < LENGTH(weights); w++) {
            const bool half = device_pairs[p].wire == DTYPE_FLOAT16;
            struct device_draw draw = {
                .dtype = device_pairs[p].dtype, .wire = device_pairs[p].wire, .weight = weights[w]};
            draw.seed = ++seed, draw.pieces = 1, draw.piece_elements = 3000, draw.tidy = true;
            check_draw(&draw, half ? -3 : 0);
            draw.seed = ++seed, draw.pieces = 30, draw.piece_elements = 400, draw.tidy = false;
            check_draw(&draw, 0);
            draw.seed = ++seed, draw.pieces = 200, draw.piece_elements = 40;
            check_draw(&draw, half ? 4 : 0);
        }
    }
}

// Sizes below, at and above those of units, batches, tiles and blocks.
static void test_packs_and_finishes_every_size(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1,  2,  3,  4,   5,   7,   8,   9,   15,   16,   17,   31,
                                     32, 33, 63, 127, 128, 255, 256, 257, 1023, 1024, 1025, 8192};
    for (size_t p = 0; p < DEVICE_PAIRS; p++) {
        for (size_t s = 0; s < LENGTH(sizes); s++) {
            struct device_draw draw = {.seed = 1 + p * 100 + s,
                                       .dtype = device_pairs[p].dtype,
                                       .wire = device_pairs[p].wire,
                                       .pieces = 3,
                                       .piece_elements = sizes[s],
                                       .weight = s % 2 == 0 ? 1 : 3};
            check_draw(&draw, 0);
        }
    }
}

static void test_a_revoked_finish_writes_nothing(void **state)
{
    (void)state;
    struct twins twins;
    twins_draw(&twins, &(struct device_draw){.seed = 9,
                                             .dtype = DTYPE_FLOAT32,
                                             .wire = DTYPE_FLOAT32,
                                             .pieces = 20,
                                             .piece_elements = 2000,
                                             .weight = 2});
    struct device_finish finish = finish_of(&twins.fast, 0);
    uint32_t revoked = 1;
    uint32_t decision = DEVICE_UNDECIDED;
    finish.revoked = &revoked;
    finish.decision = &decision;
    emulate_finish(&finish);
    assert_int_equal(decision, DEVICE_SKIPS);
    twins_compare(&twins); // The other one was not touched either.
    revoked = 0;
    emulate_finish(&finish);
    assert_int_equal(decision, DEVICE_SKIPS);
    twins_compare(&twins);
    twins_free(&twins);
}

static void test_a_row_of_nothing_decides_and_copies_its_header(void **state)
{
    (void)state;
    const uint64_t from[2] = {7, 1};
    uint64_t to[2] = {0, 0};
    const uint32_t revoked = 0;
    uint32_t decision = DEVICE_UNDECIDED;
    emulate_pack(&(struct device_pack){.dtype = DEVICE_FLOAT32,
                                       .wire = DEVICE_FLOAT32,
                                       .weight = 1,
                                       .header_words = 2,
                                       .header_from = from,
                                       .header_to = to});
    assert_memory_equal(to, from, sizeof(from));
    emulate_finish(&(struct device_finish){.dtype = DEVICE_FLOAT32,
                                           .wire = DEVICE_FLOAT32,
                                           .final = DEVICE_FLOAT32,
                                           .revoked = &revoked,
                                           .decision = &decision});
    assert_int_equal(decision, DEVICE_WRITES);
}

// ---- bytes --------------------------------------------------------------------------------------

static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_FLOAT64,  DTYPE_INT32, DTYPE_INT64,
                                    DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_UINT8};

static void check_bytes(const struct device_draw *draw)
{
    struct twins twins;
    twins_draw(&twins, draw);
    struct device_scatter scatter = {.row = row_of(&twins.slow),
                                     .packed = twins.slow.packed.bytes,
                                     .used = draw->seed % 4 == 0 ? NULL : twins.slow.used,
                                     .dtype = draw->dtype};
    struct device_gather gather = {
        .row = row_of(&twins.slow), .packed = twins.slow.packed.bytes, .dtype = draw->dtype};
    device_reference_scatter(&scatter, NULL);
    scatter.row = row_of(&twins.fast);
    scatter.packed = twins.fast.packed.bytes;
    emulate_scatter(&scatter);
    twins_compare(&twins);
    device_reference_gather(&gather, NULL);
    gather.row = row_of(&twins.fast);
    gather.packed = twins.fast.packed.bytes;
    emulate_gather(&gather);
    twins_compare(&twins);
    twins_free(&twins);
}

static void test_gathers_and_scatters_bytes(void **state)
{
    (void)state;
    for (uint32_t dtype = DTYPE_FLOAT32; dtype <= DTYPE_LAST; dtype++) {
        for (uint64_t round = 0; round < 8; round++) {
            struct device_draw draw = {.seed = 1 + dtype * 8 + round,
                                       .dtype = (enum dtype)dtype,
                                       .wire = (enum dtype)dtype,
                                       .pieces = round % 2 == 0 ? 12 : 150,
                                       .piece_elements = round % 2 == 0 ? 1500 : 60,
                                       .weight = 1};
            check_bytes(&draw);
        }
    }
}

// From now on nothing of the first bytes may be touched: of those that a sanitizer can tell apart.
static void forbid(uint8_t *memory, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(memory, bytes / 8 * 8);
#else
    (void)memory, (void)bytes;
#endif
}

// A piece of its own for a sanitizer to watch, at every place relative to a vector.
static void check_alone(enum dtype dtype, size_t place, size_t packed_first, size_t elements)
{
    const size_t size = dtype_size(dtype);
    uint8_t *memory = malloc(place * size + elements * size);
    uint8_t *packed =
        aligned_alloc(DEVICE_ALIGNMENT, (packed_first + elements) * size / 16 * 16 + 16);
    assert_true(memory && packed);
    uint64_t random = 1 + place + elements;
    uint8_t *at = memory + place * size;
    device_numbers(&random, dtype, at, elements);
    forbid(memory, place * size);
    struct device_piece pieces[3] = {{.first = 0, .unit = DEVICE_NO_UNIT},
                                     {.in = at, .out = at, .first = packed_first},
                                     {.first = packed_first + elements}};
    pieces[1].unit = DEVICE_NO_UNIT;
    uint32_t tiles[4];
    struct device_row row = {pieces, tiles, packed_first + elements, 2, 0};
    if (packed_first == 0)
        row.pieces = pieces + 1, row.count = 1;
    device_piece_tiles(row.pieces, row.count, tiles);
    emulate_gather(&(struct device_gather){.row = row, .packed = packed, .dtype = dtype});
    assert_memory_equal(packed + packed_first * size, at, elements * size);
    memset(at, 0, elements * size);
    emulate_scatter(&(struct device_scatter){.row = row, .packed = packed, .dtype = dtype});
    assert_memory_equal(packed + packed_first * size, at, elements * size);
    free(memory);
    free(packed);
}

static void test_reads_nothing_beside_a_piece(void **state)
{
    (void)state;
    static const enum dtype widths[] = {DTYPE_UINT8, DTYPE_BFLOAT16, DTYPE_INT32, DTYPE_FLOAT64};
    for (size_t w = 0; w < LENGTH(widths); w++) {
        const size_t places = 16 / dtype_size(widths[w]);
        for (size_t place = 0; place < places; place++) {
            for (size_t first = 0; first < places; first++) {
                check_alone(widths[w], place, first, 1 + (place * 7 + first * 3) % 40);
                check_alone(widths[w], place, first, 1000 + place + first);
            }
        }
    }
}

// adds: there is something to add; else the sum is only divided.
static void check_add(enum dtype dtype, uint64_t divisor, uint64_t count, bool adds)
{
    const size_t size = dtype_size(dtype);
    uint8_t *sums[2];
    uint64_t random = 17 + divisor;
    uint8_t *in = malloc(count * size);
    assert_non_null(in);
    device_numbers(&random, dtype, in, count);
    for (int s = 0; s < 2; s++) {
        uint64_t same = 33;
        sums[s] = malloc(count * size);
        assert_non_null(sums[s]);
        device_numbers(&same, dtype, sums[s], count);
    }
    struct device_add add = {.acc = sums[0],
                             .in = adds ? in : NULL,
                             .elements = count,
                             .divisor = divisor,
                             .dtype = dtype};
    device_reference_add(&add, NULL);
    add.acc = sums[1];
    emulate_add(&add);
    assert_memory_equal(sums[0], sums[1], count * size);
    free(sums[0]);
    free(sums[1]);
    free(in);
}

static void test_adds_replicas(void **state)
{
    (void)state;
    for (size_t d = 0; d < LENGTH(dtypes); d++) {
        const uint64_t divisor = dtype_is_float(dtypes[d]) ? 3 : 1;
        check_add(dtypes[d], 1, 9001, true);
        check_add(dtypes[d], divisor, 1024, true);
        check_add(dtypes[d], divisor, 1024, false);
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
        cmocka_unit_test(test_packs_and_finishes_every_pair),
        cmocka_unit_test(test_packs_and_finishes_every_size),
        cmocka_unit_test(test_a_revoked_finish_writes_nothing),
        cmocka_unit_test(test_a_row_of_nothing_decides_and_copies_its_header),
        cmocka_unit_test(test_gathers_and_scatters_bytes),
        cmocka_unit_test(test_reads_nothing_beside_a_piece),
        cmocka_unit_test(test_adds_replicas),
    };
    return cmocka_run_group_tests(tests, environment, NULL);
}
