// SPDX-License-Identifier: Apache-2.0
//
// Small blocks of shared memory by themselves: each has pages of its own, zero however often they
// were used, gaps are filled, and nothing is left.

#include "worker/memory/arenas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 300

static int count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    int count = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "memfd:lockstep-region") != NULL;
    fclose(maps);
    return count;
}

static struct arenas arenas_of(struct regions *regions)
{
    assert_non_null(regions);
    return (struct arenas){.regions = regions};
}

static uint8_t *get(struct arenas *arenas, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(arenas_get(arenas, bytes, &memory), 0);
    assert_int_equal((uintptr_t)memory % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    return memory;
}

static void expect_all(const uint8_t *memory, size_t bytes, uint8_t value)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(memory[i], value);
}

// Blocks come and go at random; each keeps what was written to it, and begins with zeros.
static void test_blocks_keep_what_they_hold(void **state)
{
    struct regions *regions = regions_open();
    struct arenas arenas = arenas_of(regions);
    uint8_t *memory[BLOCKS] = {NULL};
    size_t bytes[BLOCKS];
    (void)state;
    srand(11);
    for (int i = 0; i < 4 * BLOCKS; i++) {
        const int b = rand() % BLOCKS;
        if (memory[b]) {
            expect_all(memory[b], bytes[b], (uint8_t)b);
            assert_true(arenas_put(&arenas, memory[b], bytes[b]));
        }
        bytes[b] = 1 + (size_t)rand() % (rand() % 8 == 0 ? 200000 : 9000);
        memory[b] = get(&arenas, bytes[b]);
        expect_all(memory[b], bytes[b], 0);
        memset(memory[b], b, bytes[b]);
    }
    assert_true(count_mappings() > 1 && count_mappings() < 12); // Not one for each.
    for (int b = 0; b < BLOCKS; b++) {
        if (memory[b])
            assert_true(arenas_put(&arenas, memory[b], bytes[b]));
    }
    assert_int_equal(count_mappings(), 0);
    assert_int_equal(arenas.bytes, 0);
    regions_close(regions);
}

static void test_gaps_are_filled(void **state)
{
    struct regions *regions = regions_open();
    struct arenas arenas = arenas_of(regions);
    uint8_t *first = get(&arenas, 10000);
    uint8_t *second = get(&arenas, 4096);
    (void)state;
    assert_ptr_equal(second, first + 12288);
    assert_true(arenas_put(&arenas, first, 10000));
    assert_ptr_equal(get(&arenas, 12289), second + 4096);
    assert_ptr_equal(get(&arenas, 12288), first);
    // However often: no other region is needed.
    for (int i = 0; i < 1000; i++)
        assert_true(arenas_put(&arenas, get(&arenas, 20000), 20000));
    assert_int_equal(count_mappings(), 1);
    assert_false(arenas_put(&arenas, &first, 1));
    assert_false(arenas_put(&arenas, first - 1, 1));
    arenas_fini(&arenas);
    regions_close(regions);
    assert_int_equal(count_mappings(), 0);
}

// The allocated memory grows with the requests.
static void test_growth(void **state)
{
    struct regions *regions = regions_open();
    struct arenas arenas = arenas_of(regions);
    size_t asked = 0;
    void *more = NULL;
    (void)state;
    for (int i = 0; i < 60; i++) {
        (void)get(&arenas, ARENA_BLOCK_BYTES);
        asked += ARENA_BLOCK_BYTES;
        assert_true(arenas.bytes >= asked && arenas.bytes <= 2 * asked);
    }
    assert_true(count_mappings() < 12);
    // No region is left for another arena.
    while (regions_make(regions, LOCKSTEP_REGION_BYTES, &more) == 0)
        ;
    while (arenas_get(&arenas, ARENA_BLOCK_BYTES, &more) == 0)
        ;
    assert_int_equal(arenas_get(&arenas, ARENA_BLOCK_BYTES, &more), -ENOSPC);
    assert_null(more);
    arenas_fini(&arenas);
    regions_close(regions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_keep_what_they_hold),
        cmocka_unit_test(test_gaps_are_filled),
        cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
