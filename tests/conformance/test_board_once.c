// SPDX-License-Identifier: Apache-2.0
//
// The board: a rank reads each word that a mate has written only once, because a hostile mate may
// change the word between its check and its use. The test observes each read (between_reads.h) and
// fails if a word is read twice. It also checks that a block is read consistently, even if the
// block's rank goes on to later blocks between two reads.

#include "tests/conformance/transport_couple.h"
#include "tests/support/between_reads.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/host/host.h"
#include "worker/transport/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define WORDS 512 // Maximum number of watched words, of four bytes each.

static const uint8_t *watched; // Start of the watched memory.
static size_t watched_bytes;
static uint32_t reads[WORDS]; // How often each of the watched words was read.

static void count_read(const void *address)
{
    const size_t at = (size_t)((const uint8_t *)address - watched);
    if ((const uint8_t *)address >= watched && at < watched_bytes)
        reads[at / 4]++;
}

static void watch(const void *memory, size_t bytes)
{
    uint8_t *page = (uint8_t *)((uintptr_t)memory / PAGE * PAGE);
    watched = memory;
    watched_bytes = bytes;
    assert_true(bytes <= sizeof(reads));
    memset(reads, 0, sizeof(reads));
    between_begin(page, ((uintptr_t)memory + bytes - (uintptr_t)page + PAGE - 1) / PAGE * PAGE,
                  count_read);
}

// Ends the watch and checks that no word was read more than once.
static void expect_once(const char *what)
{
    between_end();
    for (size_t i = 0; i < watched_bytes / 4; i++) {
        if (reads[i] > 1)
            fail_msg("%s: word %zu was read %u times", what, i, reads[i]);
    }
}

// The board as the victim has it mapped.
static struct board_head *board_of(const struct couple *couple)
{
    return couple_board(couple->victim);
}

static void a_run_is_read_once(void **state)
{
    static const uint64_t sizes[] = {COUPLE_LARGE, 1200};
    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct couple *couple = malloc(sizeof(*couple));
        couple_open(couple, 1);
        couple_launch(couple, sizes[i]);
        struct board_head *head = board_of(couple);
        const struct board_run *run = &head->run[(board_read(&head->runs) - 1) % BOARD_RUNS];
        watch(run, sizeof(*run));
        couple_work(couple->victim, 3);
        expect_once("a run");
        assert_int_equal(reads[offsetof(struct board_run, kind) / 4], 1);
        assert_int_equal(reads[offsetof(struct board_run, records) / 4 + 1], 1);
        assert_int_equal(couple->victim->lost, 0);
        transport_abandon(couple->victim->transport);
        couple_close(couple);
        free(couple);
    }
}

// The leader reads a record twice: when the mate joins, and again for the run. From the first
// reading it then uses only the tag.
static void a_record_is_read_once_at_a_time(void **state)
{
    struct couple *couple = malloc(sizeof(*couple));
    (void)state;
    couple_open(couple, 0);
    couple_launch(couple, COUPLE_LARGE);
    struct board_seat *seat = &board_of(couple)->seat[1];
    const uint32_t last = seat->queue[(board_read(&seat->joined) - 1) % BOARD_QUEUE];
    const struct board_record *record = &seat->records[last];
    watch(record, offsetof(struct board_record, tiny));
    couple_work(couple->victim, 3);
    between_end();
    for (size_t i = 0; i < offsetof(struct board_record, tiny) / 4; i++)
        assert_true(reads[i] <= 2);
    assert_int_equal(couple->victim->lost, 0);
    transport_abandon(couple->victim->transport);
    couple_close(couple);
    free(couple);
}

// ---- a block ------------------------------------------------------------------------------------

static struct board_block *moving; // A block whose rank goes on between two reads of its mate.
static uint64_t moves; // Number of later blocks that the rank still makes.
static uint32_t act_at; // Number of reads before the rank goes on; then it does at every read.
static uint32_t seen; // Reads so far.

// Makes the next block. All fields of a block follow from its number, so a mixture of two blocks
// is detected.
static void fill_next(const void *address)
{
    (void)address;
    if (seen++ < act_at || moves == 0)
        return;
    const uint64_t next = board_read(&moving->spread) + 2;
    moves--;
    board_publish(&moving->spread, next - 1);
    board_describe(moving, next, 10 * next, 100 * next);
    board_publish(&moving->filled, next);
}

static void a_block_is_read_whole(void **state)
{
    (void)state;
    moving = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(moving != MAP_FAILED);
    for (uint32_t at = 0; at < 8; at++) {
        for (uint64_t blocks = 1; blocks < 4; blocks++) {
            struct board_place block = {.filled = false};
            board_describe(moving, 5, 50, 500);
            board_publish(&moving->filled, 5);
            board_publish(&moving->spread, 4);
            act_at = at;
            moves = blocks;
            seen = 0;
            between_begin(moving, PAGE, fill_next);
            const bool taken = board_take_block(moving, &block);
            between_end();
            assert_true(taken);
            if (!block.filled)
                continue; // Its description may be incomplete.
            assert_int_equal(block.first, 10 * block.run);
            assert_int_equal(block.count, 100 * block.run);
            assert_true(block.run >= 5 && block.run <= 5 + blocks);
        }
    }
    (void)munmap(moving, PAGE);
}

static void a_block_is_taken_when_it_is_filled(void **state)
{
    struct board_block *block = aligned_alloc(BOARD_LINE, sizeof(*block));
    struct board_place taken = {.filled = true};
    (void)state;
    memset(block, 0, sizeof(*block));
    assert_true(board_take_block(block, &taken));
    assert_false(taken.filled); // No block was made yet.
    board_describe(block, 7, 70, 700);
    assert_true(board_take_block(block, &taken));
    assert_false(taken.filled); // The block is being summed.
    board_publish(&block->filled, 1);
    assert_true(board_take_block(block, &taken));
    assert_true(taken.filled);
    assert_false(taken.spread);
    assert_int_equal(taken.run, 7);
    assert_int_equal(taken.first, 70);
    assert_int_equal(taken.count, 700);
    board_publish(&block->spread, 1);
    assert_true(board_take_block(block, &taken));
    assert_true(taken.spread); // All ranks have the block.
    board_describe(block, 8, 80, 800);
    assert_true(board_take_block(block, &taken));
    assert_false(taken.filled);
    assert_int_equal(taken.first, 80);
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_taken_when_it_is_filled),
#if BETWEEN_READS
        cmocka_unit_test(a_run_is_read_once),
        cmocka_unit_test(a_record_is_read_once_at_a_time),
        cmocka_unit_test(a_block_is_read_whole),
#endif
    };
    (void)watch;
    (void)expect_once;
    (void)a_run_is_read_once;
    (void)a_record_is_read_once_at_a_time;
    (void)a_block_is_read_whole;
    kernels_environment();
    return cmocka_run_group_tests_name("board once", tests, NULL, NULL);
}
