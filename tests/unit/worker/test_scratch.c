// SPDX-License-Identifier: Apache-2.0
//
// Pools of equal blocks: the last one back is the next one out, growth, reset.

#include "worker/memory/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static void last_back_is_next_out(void **state)
{
    (void)state;
    struct scratch scratch;
    scratch_init(&scratch, 1000);
    void *a = scratch_get(&scratch);
    void *b = scratch_get(&scratch);
    assert_true(a != b);
    scratch_put(&scratch, a);
    scratch_put(&scratch, b);
    assert_ptr_equal(scratch_get(&scratch), b);
    assert_ptr_equal(scratch_get(&scratch), a);
    assert_int_equal(scratch.used, 2);
    assert_int_equal(scratch.slab_count, 1);
    scratch_fini(&scratch);
    assert_int_equal(scratch.blocks, 0);
}

static void blocks_do_not_overlap(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 63, 64, 65, 4096, 100000};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct scratch scratch;
        unsigned char *blocks[200];
        scratch_init(&scratch, sizes[s]);
        for (size_t i = 0; i < 200; i++) {
            blocks[i] = scratch_get(&scratch);
            assert_non_null(blocks[i]);
            assert_int_equal((uintptr_t)blocks[i] % 64, 0);
            memset(blocks[i], (int)i, sizes[s]);
        }
        for (size_t i = 0; i < 200; i++) {
            assert_int_equal(blocks[i][0], i);
            assert_int_equal(blocks[i][sizes[s] - 1], i);
        }
        assert_true(scratch.blocks >= 200 && scratch.used == 200);
        scratch_fini(&scratch);
    }
}

static void steady_use_allocates_nothing(void **state)
{
    (void)state;
    struct scratch scratch;
    scratch_init(&scratch, 70000);
    for (int round = 0; round < 10; round++) {
        void *blocks[5];
        for (int i = 0; i < 5; i++)
            blocks[i] = scratch_get(&scratch);
        for (int i = 0; i < 5; i++)
            scratch_put(&scratch, blocks[i]);
        assert_int_equal(scratch.blocks, 5);
        assert_int_equal(scratch.slab_count, 5);
    }
    scratch_fini(&scratch);
}

static void reset_takes_all_back(void **state)
{
    (void)state;
    struct scratch scratch;
    scratch_init(&scratch, 100000);
    for (int i = 0; i < 3; i++)
        assert_non_null(scratch_get(&scratch));
    scratch_reset(&scratch);
    assert_int_equal(scratch.used, 0);
    void *seen[3];
    for (int i = 0; i < 3; i++)
        seen[i] = scratch_get(&scratch);
    assert_true(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
    assert_int_equal(scratch.blocks, 3);
    scratch_fini(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_back_is_next_out),
        cmocka_unit_test(blocks_do_not_overlap),
        cmocka_unit_test(steady_use_allocates_nothing),
        cmocka_unit_test(reset_takes_all_back),
    };
    return cmocka_run_group_tests_name("scratch", tests, NULL, NULL);
}
