// SPDX-License-Identifier: Apache-2.0
//
// The schedule of reductions whose inputs go straight to the owner: owners share all elements, and
// the pieces of a run are the run.

#include "worker/transport/direct/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const uint64_t sizes[] = {0, 1, 15, 16, 17, 1000, 65536, 1000003, 40000000000u};

static void test_owners_share_all_elements(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3, 5, 8, 64, 1024};
    (void)state;
    for (size_t w = 0; w < LENGTH(worlds); w++) {
        for (size_t s = 0; s < LENGTH(sizes); s++) {
            uint64_t next = 0;
            for (uint32_t i = 0; i < worlds[w]; i++) {
                const struct ring_span span = direct_owned(sizes[s], worlds[w], i);
                assert_int_equal(span.first, next);
                assert_true(span.count <= sizes[s] / worlds[w] + SCHEDULE_GRAIN);
                next += span.count;
            }
            assert_int_equal(next, sizes[s]);
        }
    }
}

static void test_pieces_are_the_run(void **state)
{
    static const uint32_t chunks[] = {8, 64, 4096, 65536, 1048576};
    (void)state;
    for (size_t c = 0; c < LENGTH(chunks); c++) {
        for (size_t s = 0; s + 1 < LENGTH(sizes); s++) {
            const struct ring_span run = {7, sizes[s]};
            const uint64_t piece = direct_piece_of_sum(run.count, 4, chunks[c]);
            const uint32_t pieces = direct_pieces(run.count, piece);
            uint64_t next = run.first;
            assert_in_range(piece, 1, chunks[c] / 4);
            for (uint32_t i = 0; i < pieces; i++) {
                const struct ring_span span = direct_piece(run, piece, i);
                assert_int_equal(span.first, next);
                assert_in_range(span.count, 1, piece);
                next += span.count;
            }
            assert_int_equal(next, run.first + run.count);
        }
    }
}

// A run of some size has a few pieces, so that sums overlap with transfers.
static void test_a_run_has_a_few_pieces(void **state)
{
    (void)state;
    assert_int_equal(direct_pieces(16000, direct_piece_of_sum(16000, 4, 1048576)), 1);
    assert_int_equal(direct_pieces(262144, direct_piece_of_sum(262144, 4, 1048576)), 4);
    assert_int_equal(direct_pieces(26214400, direct_piece_of_sum(26214400, 4, 1048576)), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners_share_all_elements),
        cmocka_unit_test(test_pieces_are_the_run),
        cmocka_unit_test(test_a_run_has_a_few_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
