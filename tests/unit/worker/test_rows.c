// SPDX-License-Identifier: Apache-2.0
//
// Rows without links: one rank describes its memory, and another rank in the same process reads the
// description; impossible descriptions are refused.

#include "worker/transport/host/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGIONS 3
#define REGION_FLOATS (16 * 1024)
#define MOST 8

// Rank 0 has regions, and rank 1 has mapped them.
struct stage {
    struct regions *own;
    struct regions *mate;
    float *memory[REGIONS];
    struct board_row said[MOST];
    struct row rows[MOST];
    struct row read[MOST];
};

static void stage_open(struct stage *stage)
{
    memset(stage, 0, sizeof(*stage));
    stage->own = regions_open();
    stage->mate = regions_open();
    regions_begin(stage->own, 0, 2);
    regions_begin(stage->mate, 1, 2);
    for (uint32_t i = 0; i < REGIONS; i++) {
        void *memory = NULL;
        assert_int_equal(regions_make(stage->own, REGION_FLOATS * sizeof(float), &memory), 0);
        stage->memory[i] = memory;
    }
    for (uint32_t i = 0; i < REGIONS; i++) {
        uint32_t number = 0;
        uint64_t bytes = 0;
        const int fd = regions_to_pass(stage->own, 1, &number, &bytes);
        assert_null(regions_map(stage->mate, 0, number, bytes, dup(fd)));
        regions_passed(stage->own, 1, number);
        assert_true(regions_mapped(stage->own, 1, number));
    }
}

static void stage_close(struct stage *stage)
{
    regions_close(stage->own);
    regions_close(stage->mate);
}

static struct extent in_place(float *memory, uint64_t elements)
{
    return (struct extent){memory, memory, elements};
}

static uint32_t collect(struct stage *stage, const struct extent *extents, uint32_t count,
                        uint32_t most)
{
    return rows_collect(stage->own, extents, count, sizeof(float), most, stage->said, stage->rows);
}

static bool read_back(struct stage *stage, uint32_t count, uint64_t elements)
{
    return rows_read(stage->mate, 0, stage->said, count, elements, sizeof(float), stage->read);
}

// Every element that rank 0 writes is where rank 1 looks for it.
static void expect_same(const struct stage *stage, uint32_t count, uint64_t elements)
{
    const struct rows own = {.count = count, .only = stage->rows[0], .list = stage->rows};
    const struct rows mate = {.count = count, .only = stage->read[0], .list = stage->read};
    for (uint64_t e = 0; e < elements; e++) {
        uint64_t left = 0;
        uint64_t left_there = 0;
        float *at = (float *)(void *)rows_at(&own, e, sizeof(float), &left);
        *at = (float)e + 1;
        const float *there = (float *)(void *)rows_at(&mate, e, sizeof(float), &left_there);
        assert_true(*there >= (float)e + 1 && *there <= (float)e + 1);
        assert_true(left > 0 && left == left_there && left <= elements - e);
        for (uint64_t i = 0; i < left; i += left / 2 + 1)
            assert_ptr_equal(rows_at(&own, e + i, sizeof(float), &left_there), at + i);
    }
}

static void test_any_order(void **state)
{
    (void)state;
    struct stage stage;
    stage_open(&stage);
    const struct extent extents[] = {
        in_place(stage.memory[2] + 5, 100),   in_place(NULL, 0),
        in_place(stage.memory[0], 7),         in_place(stage.memory[2] + 300, 1),
        in_place(stage.memory[2] + 301, 2), // Goes on: one row.
        in_place(stage.memory[1] + 11, 1000),
    };
    assert_int_equal(collect(&stage, extents, 6, MOST), 4);
    assert_true(read_back(&stage, 4, 1110));
    expect_same(&stage, 4, 1110);
    assert_int_equal(collect(&stage, extents, 1, 1), 1);
    assert_true(read_back(&stage, 1, 100));
    expect_same(&stage, 1, 100);
    stage_close(&stage);
}

// Where one region ends and the next begins at the same address, memory goes on, but no row does.
static void test_neighbours(void **state)
{
    (void)state;
    struct stage stage;
    stage_open(&stage);
    const size_t bytes = REGION_FLOATS * sizeof(float);
    float *low = NULL;
    for (uint32_t i = 0; i < REGIONS && !low; i++) {
        for (uint32_t j = 0; j < REGIONS; j++) {
            if (stage.memory[j] == stage.memory[i] + REGION_FLOATS)
                low = stage.memory[i];
        }
    }
    if (!low) {
        stage_close(&stage);
        skip(); // The kernel has placed them elsewhere.
    }
    const struct extent across = in_place(low + REGION_FLOATS - 3, 10);
    assert_int_equal(collect(&stage, &across, 1, MOST), 2);
    assert_int_equal(stage.said[0].offset, bytes - 3 * sizeof(float));
    assert_int_equal(stage.said[0].elements, 3);
    assert_int_equal(stage.said[1].offset, 0);
    assert_true(read_back(&stage, 2, 10));
    expect_same(&stage, 2, 10);
    assert_int_equal(collect(&stage, &across, 1, 1), 0);
    stage_close(&stage);
}

static void test_not_in_regions(void **state)
{
    (void)state;
    struct stage stage;
    float elsewhere[8];
    stage_open(&stage);
    struct extent extents[] = {in_place(stage.memory[0], 8), in_place(stage.memory[1], 8)};
    assert_int_equal(collect(&stage, extents, 2, MOST), 2);
    assert_int_equal(collect(&stage, extents, 2, 1), 0); // Too many.
    extents[1] = in_place(elsewhere, 8);
    assert_int_equal(collect(&stage, extents, 2, MOST), 0);
    extents[1] = (struct extent){stage.memory[1], stage.memory[2], 8}; // Not in place.
    assert_int_equal(collect(&stage, extents, 2, MOST), 0);
    extents[1] = (struct extent){NULL, stage.memory[2], 8};
    assert_int_equal(collect(&stage, extents, 2, MOST), 0);
    extents[1] = (struct extent){stage.memory[2], NULL, 8};
    assert_int_equal(collect(&stage, extents, 2, MOST), 0);
    extents[1] = (struct extent){NULL, NULL, 8};
    assert_int_equal(collect(&stage, extents, 2, MOST), 0);
    char *odd = (char *)stage.memory[2] + 2;
    extents[1] = (struct extent){odd, odd, 8};
    assert_int_equal(collect(&stage, extents, 2, MOST), 0);
    stage_close(&stage);
}

static void test_what_cannot_be_is_refused(void **state)
{
    (void)state;
    struct stage stage;
    stage_open(&stage);
    const struct board_row good = {.region = 1, .offset = 64, .elements = 8};
    static const struct board_row bad[] = {
        {.region = 0, .offset = 64, .elements = 8},
        {.region = REGIONS + 1, .offset = 64, .elements = 8},
        {.region = UINT32_MAX, .offset = 64, .elements = 8},
        {.region = 1, .offset = REGION_FLOATS * sizeof(float) - 28, .elements = 8},
        {.region = 1, .offset = UINT64_MAX - 3, .elements = 8},
        {.region = 1, .offset = 66, .elements = 8},
        {.region = 1, .offset = 64, .elements = 0},
        {.region = 1, .offset = 64, .elements = 9},
        {.region = 1, .offset = 64, .elements = 7},
        {.region = 1, .offset = 64, .elements = UINT64_MAX},
        {.region = 1, .offset = 64, .elements = UINT64_MAX / 4 + 3},
    };
    stage.said[0] = stage.said[1] = good;
    assert_true(read_back(&stage, 2, 16));
    assert_false(read_back(&stage, 2, 15));
    assert_false(read_back(&stage, 2, 17));
    assert_false(read_back(&stage, 2, 8));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (int at = 0; at < 2; at++) {
            stage.said[at] = bad[i];
            stage.said[1 - at] = good;
            assert_false(read_back(&stage, 2, 16));
        }
    }
    stage_close(&stage);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_not_in_regions),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
