// SPDX-License-Identifier: Apache-2.0
//
// The kernels on a GPU against their references, bit by bit: every pair of dtypes, alignment, size,
// weight and exponent; every value of 16 bits, and a part of those of 32. Whole blocks of memory
// are compared, so what is written beside a piece is found. Needs a GPU.

#include "tests/gpu/gpu.h"
#include "tests/support/device_case.h"
#include "tests/support/device_reference.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/units.h"
#include "worker/transport/device/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static struct gpu_rig gpu;
static void *pack_kernel, *finish_kernel, *gather_kernel, *scatter_kernel, *add_kernel;

// ---- a case on the device -----------------------------------------------------------------------

// Copies of a case's memory; `row` is what kernels get.
struct mirror {
    uint64_t in;
    uint64_t out;
    uint64_t packed;
    uint64_t pieces;
    uint64_t tiles;
    uint64_t header;
    uint64_t used;
    struct device_row row;
};

static void *on_device(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void mirror_make(struct mirror *mirror, const struct device_case *made)
{
    const size_t piece_bytes = (made->piece_count + (size_t)1) * sizeof(*made->pieces);
    struct device_piece *pieces = malloc(piece_bytes);
    assert_non_null(pieces);
    memcpy(pieces, made->pieces, piece_bytes);
    mirror->in = gpu_copy(&gpu, made->in.bytes, made->in.size);
    mirror->out = gpu_copy(&gpu, made->out.bytes, made->out.size);
    mirror->packed = gpu_copy(&gpu, made->packed.bytes, made->packed.size);
    for (uint32_t p = 0; p < made->piece_count; p++) {
        pieces[p].in = pieces[p].in ? on_device(mirror->in + made->places[p]) : NULL;
        pieces[p].out = pieces[p].out ? on_device(mirror->out + made->places[p]) : NULL;
    }
    mirror->pieces = gpu_copy(&gpu, pieces, piece_bytes);
    mirror->tiles =
        gpu_copy(&gpu, made->tiles, device_tiles(made->elements) * sizeof(*made->tiles));
    mirror->header = gpu_copy(&gpu, made->header, (made->units + (size_t)1) * sizeof(uint64_t));
    mirror->used = gpu_copy(&gpu, made->used, units_words(made->units) * sizeof(uint64_t));
    mirror->row = (struct device_row){.pieces = on_device(mirror->pieces),
                                      .tiles = on_device(mirror->tiles),
                                      .elements = made->elements,
                                      .count = made->piece_count};
    free(pieces);
}

static void mirror_free(const struct mirror *mirror)
{
    gpu_free(&gpu, mirror->in);
    gpu_free(&gpu, mirror->out);
    gpu_free(&gpu, mirror->packed);
    gpu_free(&gpu, mirror->pieces);
    gpu_free(&gpu, mirror->tiles);
    gpu_free(&gpu, mirror->header);
    gpu_free(&gpu, mirror->used);
}

static void compare(uint64_t address, const struct case_block *expected)
{
    uint8_t *bytes = malloc(expected->size);
    assert_non_null(bytes);
    gpu_download(&gpu, bytes, address, expected->size);
    assert_memory_equal(bytes, expected->bytes, expected->size);
    free(bytes);
}

static void mirror_compare(const struct mirror *mirror, const struct device_case *made)
{
    compare(mirror->in, &made->in);
    compare(mirror->out, &made->out);
    compare(mirror->packed, &made->packed);
}

static struct device_row row_of(const struct device_case *made)
{
    return (struct device_row){.pieces = made->pieces,
                               .tiles = made->tiles,
                               .elements = made->elements,
                               .count = made->piece_count};
}

// ---- finish, then pack --------------------------------------------------------------------------

static void check_finish(struct device_case *made, const struct mirror *mirror, int exponent)
{
    const uint32_t decided = DEVICE_UNDECIDED;
    const uint64_t revoked = gpu_copy(&gpu, &(uint32_t){0}, sizeof(uint32_t));
    const uint64_t decision = gpu_copy(&gpu, &decided, sizeof(decided));
    struct device_finish finish = {
        .row = row_of(made),
        .packed = made->packed.bytes,
        .header = made->header,
        .exponent = exponent,
        .dtype = made->dtype,
        .wire = made->wire,
        .final = made->wire == DTYPE_BFLOAT16 ? DTYPE_BFLOAT16 : made->dtype,
        .divides = made->random % 5 != 0,
    };
    device_reference_finish(&finish, NULL);
    finish.row = mirror->row;
    finish.packed = on_device(mirror->packed);
    finish.header = on_device(mirror->header);
    finish.revoked = on_device(revoked);
    finish.decision = on_device(decision);
    gpu_launch(&gpu, finish_kernel, made->elements, &finish);
    gpu_wait(&gpu);
    mirror_compare(mirror, made);
    gpu_free(&gpu, revoked);
    gpu_free(&gpu, decision);
}

static void check_pack(struct device_case *made, const struct mirror *mirror, int exponent)
{
    uint64_t header_to[2] = {0, 0};
    struct device_pack pack = {.row = row_of(made),
                               .packed = made->packed.bytes,
                               .weight = made->header[0],
                               .exponent = exponent,
                               .dtype = made->dtype,
                               .wire = made->wire};
    device_reference_pack(&pack, NULL);
    const uint64_t copied = gpu_copy(&gpu, header_to, sizeof(header_to));
    pack.row = mirror->row;
    pack.packed = on_device(mirror->packed);
    pack.header_words = 1;
    pack.header_from = on_device(mirror->header);
    pack.header_to = on_device(copied);
    gpu_launch(&gpu, pack_kernel, made->elements, &pack);
    gpu_wait(&gpu);
    mirror_compare(mirror, made);
    gpu_download(&gpu, header_to, copied, sizeof(header_to));
    assert_true(header_to[0] == made->header[0] && header_to[1] == 0);
    gpu_free(&gpu, copied);
}

static void check_draw(const struct device_draw *draw, int exponent)
{
    struct device_case made;
    struct mirror mirror;
    device_case_draw(&made, draw);
    mirror_make(&mirror, &made);
    check_finish(&made, &mirror, exponent);
    check_pack(&made, &mirror, exponent);
    mirror_free(&mirror);
    device_case_free(&made);
}

// A mean of denormals over 6 may lie halfway between two of them.
static const uint64_t weights[] = {1, 0, 4, 3, 6, (uint64_t)1 << 40, 16777217};

static void test_packs_and_finishes_every_pair(void **state)
{
    (void)state;
    static const int exponents[] = {0, -7, 5};
    uint64_t seed = 0;
    for (size_t p = 0; p < DEVICE_PAIRS; p++) {
        for (size_t w = 0; w < LENGTH(weights); w++) {
            for (size_t e = 0; e < (device_pairs[p].wire == DTYPE_FLOAT16 ? 3 : 1); e++) {
                struct device_draw draw = {.dtype = device_pairs[p].dtype,
                                           .wire = device_pairs[p].wire,
                                           .weight = weights[w]};
                draw.seed = ++seed, draw.pieces = 1, draw.piece_elements = 300000;
                check_draw(&draw, exponents[e]);
                draw.seed = ++seed, draw.pieces = 500, draw.piece_elements = 3000;
                check_draw(&draw, exponents[e]);
                draw.seed = ++seed, draw.pieces = 500, draw.piece_elements = 40;
                check_draw(&draw, exponents[e]);
                draw.seed = ++seed, draw.pieces = 40, draw.piece_elements = 20000, draw.tidy = true;
                check_draw(&draw, exponents[e]);
            }
        }
    }
}

static void test_packs_and_finishes_every_size(void **state)
{
    (void)state;
    for (size_t p = 0; p < DEVICE_PAIRS; p++) {
        for (uint64_t size = 1; size < 9000; size += size < 70 ? 1 : size / 7) {
            struct device_draw draw = {.seed = 1 + p * 100 + size,
                                       .dtype = device_pairs[p].dtype,
                                       .wire = device_pairs[p].wire,
                                       .pieces = 3,
                                       .piece_elements = size,
                                       .weight = size % 2 == 0 ? 1 : 3};
            check_draw(&draw, 0);
        }
    }
}

// ---- every value --------------------------------------------------------------------------------

#define VALUES (1 << 20)

// One finish of VALUES elements that are values of the wire.
static void check_values(enum dtype dtype, enum dtype wire, const void *values)
{
    const uint64_t header[2] = {3, 1};
    static uint32_t tiles[VALUES / DEVICE_TILE_ELEMENTS + 1];
    struct device_case made = {.dtype = dtype, .wire = wire, .elements = VALUES, .piece_count = 1};
    made.out.size = VALUES * dtype_size(dtype);
    made.out.bytes = malloc(made.out.size);
    assert_non_null(made.out.bytes);
    const uint64_t out = gpu_alloc(&gpu, made.out.size);
    const uint64_t packed = gpu_copy(&gpu, values, VALUES * dtype_size(wire));
    const uint64_t header_there = gpu_copy(&gpu, header, sizeof(header));
    struct device_piece pieces[2] = {{.out = made.out.bytes}, {.first = VALUES}};
    struct device_finish finish = {.row = {pieces, tiles, VALUES, 1, 0},
                                   .packed = values,
                                   .header = header,
                                   .dtype = dtype,
                                   .wire = wire,
                                   .final = dtype};
    for (finish.divides = 0; finish.divides < 2; finish.divides++) { // Cast alone; divided by 3.
        finish.row.pieces = pieces, finish.row.tiles = tiles;
        finish.packed = values, finish.header = header;
        pieces[0].out = made.out.bytes;
        device_reference_finish(&finish, NULL);
        pieces[0].out = on_device(out);
        const uint64_t pieces_there = gpu_copy(&gpu, pieces, sizeof(pieces));
        const uint64_t tiles_there = gpu_copy(&gpu, tiles, sizeof(tiles));
        finish.row.pieces = on_device(pieces_there), finish.row.tiles = on_device(tiles_there);
        finish.packed = on_device(packed), finish.header = on_device(header_there);
        gpu_launch(&gpu, finish_kernel, VALUES, &finish);
        gpu_wait(&gpu);
        compare(out, &made.out);
        gpu_free(&gpu, pieces_there);
        gpu_free(&gpu, tiles_there);
    }
    gpu_free(&gpu, out);
    gpu_free(&gpu, packed);
    gpu_free(&gpu, header_there);
    free(made.out.bytes);
}

static void test_widens_every_value_of_16_bits(void **state)
{
    (void)state;
    uint16_t *values = aligned_alloc(256, VALUES * sizeof(*values));
    assert_non_null(values);
    for (uint32_t i = 0; i < VALUES; i++)
        values[i] = (uint16_t)i;
    check_values(DTYPE_FLOAT16, DTYPE_FLOAT16, values);
    check_values(DTYPE_BFLOAT16, DTYPE_BFLOAT16, values);
    check_values(DTYPE_FLOAT32, DTYPE_BFLOAT16, values);
    free(values);
}

// Each pattern of the upper 20 bits, with lower ones that are just below, at, and just above a half
// of what is rounded away.
static void test_narrows_values_of_32_bits(void **state)
{
    (void)state;
    static const uint32_t below[] = {0, 1, 0x7ff, 0x800, 0x801, 0xfff, 0x555, 0xaaa};
    uint32_t *values = aligned_alloc(256, VALUES * sizeof(*values));
    assert_non_null(values);
    for (size_t b = 0; b < LENGTH(below); b++) {
        for (uint32_t i = 0; i < VALUES; i++)
            values[i] = (uint32_t)i << 12 | below[b];
        check_values(DTYPE_FLOAT16, DTYPE_FLOAT32, values);
        check_values(DTYPE_BFLOAT16, DTYPE_FLOAT32, values);
        check_values(DTYPE_FLOAT32, DTYPE_FLOAT32, values);
    }
    free(values);
}

// ---- revoked ------------------------------------------------------------------------------------

static void test_a_revoked_finish_writes_nothing(void **state)
{
    (void)state;
    struct device_case made;
    struct mirror mirror;
    device_case_draw(&made, &(struct device_draw){.seed = 8,
                                                  .dtype = DTYPE_FLOAT32,
                                                  .wire = DTYPE_FLOAT32,
                                                  .pieces = 300,
                                                  .piece_elements = 9000,
                                                  .weight = 2});
    mirror_make(&mirror, &made);
    for (uint32_t revoked = 2; revoked-- > 0;) { // As the host writes it: pinned, and mapped.
        uint32_t *word = NULL;
        uint64_t there = 0;
        uint32_t decided = DEVICE_UNDECIDED;
        gpu_check(&gpu,
                  gpu.cuda->mem_host_alloc((void **)&word, sizeof(*word), CUDA_HOST_ALLOC_MAPPED),
                  "cuMemHostAlloc");
        gpu_check(&gpu, gpu.cuda->mem_host_get_device_pointer(&there, word, 0),
                  "cuMemHostGetDevicePointer");
        *word = revoked;
        const uint64_t decision = gpu_copy(&gpu, &decided, sizeof(decided));
        struct device_finish finish = {.row = row_of(&made),
                                       .packed = made.packed.bytes,
                                       .header = made.header,
                                       .dtype = made.dtype,
                                       .wire = made.wire,
                                       .final = made.dtype,
                                       .divides = 1};
        if (revoked == 0)
            device_reference_finish(&finish, NULL);
        finish.row = mirror.row;
        finish.packed = on_device(mirror.packed);
        finish.header = on_device(mirror.header);
        finish.revoked = on_device(there);
        finish.decision = on_device(decision);
        gpu_launch(&gpu, finish_kernel, made.elements, &finish);
        gpu_download(&gpu, &decided, decision, sizeof(decided));
        assert_int_equal(decided, revoked != 0 ? DEVICE_SKIPS : DEVICE_WRITES);
        mirror_compare(&mirror, &made);
        gpu_free(&gpu, decision);
        gpu_check(&gpu, gpu.cuda->mem_free_host(word), "cuMemFreeHost");
    }
    mirror_free(&mirror);
    device_case_free(&made);
}

// ---- bytes, and sums ----------------------------------------------------------------------------

static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_FLOAT64,  DTYPE_INT32, DTYPE_INT64,
                                    DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_UINT8};

static void check_bytes(const struct device_draw *draw)
{
    struct device_case made;
    struct mirror mirror;
    device_case_draw(&made, draw);
    mirror_make(&mirror, &made);
    struct device_scatter scatter = {.row = row_of(&made),
                                     .packed = made.packed.bytes,
                                     .used = made.units > 0 ? made.used : NULL,
                                     .dtype = draw->dtype};
    device_reference_scatter(&scatter, NULL);
    scatter.row = mirror.row;
    scatter.packed = on_device(mirror.packed);
    scatter.used = made.units > 0 ? on_device(mirror.used) : NULL;
    gpu_launch(&gpu, scatter_kernel, made.elements, &scatter);
    mirror_compare(&mirror, &made);
    struct device_gather gather = {
        .row = row_of(&made), .packed = made.packed.bytes, .dtype = draw->dtype};
    device_reference_gather(&gather, NULL);
    gather.row = mirror.row;
    gather.packed = on_device(mirror.packed);
    gpu_launch(&gpu, gather_kernel, made.elements, &gather);
    mirror_compare(&mirror, &made);
    mirror_free(&mirror);
    device_case_free(&made);
}

static void test_gathers_and_scatters_bytes(void **state)
{
    (void)state;
    for (uint32_t dtype = DTYPE_FLOAT32; dtype <= DTYPE_LAST; dtype++) {
        for (uint64_t round = 0; round < 12; round++) {
            struct device_draw draw = {.seed = 1 + dtype * 12 + round,
                                       .dtype = (enum dtype)dtype,
                                       .wire = (enum dtype)dtype,
                                       .pieces = round % 2 == 0 ? 12 : 500,
                                       .piece_elements = round % 2 == 0 ? 150000 : 60,
                                       .weight = 1};
            check_bytes(&draw);
        }
    }
}

// adds: there is something to add; else the sum is only divided.
static void check_add(enum dtype dtype, uint64_t divisor, uint64_t count, bool adds)
{
    const size_t bytes = count * dtype_size(dtype);
    uint64_t random = 17 + divisor + dtype;
    struct case_block acc = {.bytes = malloc(bytes), .size = bytes};
    uint8_t *in = malloc(bytes);
    assert_true(acc.bytes && in);
    device_numbers(&random, dtype, acc.bytes, count);
    device_numbers(&random, dtype, in, count);
    const uint64_t acc_there = gpu_copy(&gpu, acc.bytes, bytes);
    const uint64_t in_there = gpu_copy(&gpu, in, bytes);
    struct device_add add = {.acc = acc.bytes,
                             .in = adds ? in : NULL,
                             .elements = count,
                             .divisor = divisor,
                             .dtype = dtype};
    device_reference_add(&add, NULL);
    add.acc = on_device(acc_there);
    add.in = adds ? on_device(in_there) : NULL;
    gpu_launch(&gpu, add_kernel, count, &add);
    compare(acc_there, &acc);
    gpu_free(&gpu, acc_there);
    gpu_free(&gpu, in_there);
    free(acc.bytes);
    free(in);
}

static void test_adds_replicas(void **state)
{
    (void)state;
    for (size_t d = 0; d < LENGTH(dtypes); d++) {
        const uint64_t divisor = dtype_is_float(dtypes[d]) ? 3 : 1;
        check_add(dtypes[d], 1, 1000003, true);
        check_add(dtypes[d], divisor, 31, true);
        check_add(dtypes[d], divisor, 31, false);
    }
}

static int begin(void **state)
{
    (void)state;
    kernels_environment();
    pack_kernel = gpu_kernel(&gpu, DEVICE_PACK);
    finish_kernel = gpu_kernel(&gpu, DEVICE_FINISH);
    gather_kernel = gpu_kernel(&gpu, DEVICE_GATHER);
    scatter_kernel = gpu_kernel(&gpu, DEVICE_SCATTER);
    add_kernel = gpu_kernel(&gpu, DEVICE_ADD);
    return 0;
}

static int end(void **state)
{
    (void)state;
    gpu_close(&gpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packs_and_finishes_every_pair),
        cmocka_unit_test(test_packs_and_finishes_every_size),
        cmocka_unit_test(test_widens_every_value_of_16_bits),
        cmocka_unit_test(test_narrows_values_of_32_bits),
        cmocka_unit_test(test_a_revoked_finish_writes_nothing),
        cmocka_unit_test(test_gathers_and_scatters_bytes),
        cmocka_unit_test(test_adds_replicas),
    };
    gpu_open_or_skip(&gpu);
    return cmocka_run_group_tests(tests, begin, end);
}
