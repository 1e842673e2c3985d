// SPDX-License-Identifier: Apache-2.0
//
// A hostile mate that writes impossible data to the shared board. It works honestly at first; then
// the test changes words of the board that only the mate's rank writes, and runs only the other
// rank, the victim. If the victim can detect the lie, it ends the link with a sentence. The victim
// never crashes, hangs, or writes outside the collective's memory. Also: a rank does not sleep
// through news that a mate writes while the board is made.

#include "base/clock.h"
#include "tests/conformance/transport_couple.h"
#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_job.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/setup.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define FUZZ_SEEDS 150

// ---- lies to the leader -------------------------------------------------------------------------

static uint32_t last_record(const struct couple_rank *liar)
{
    const struct board_seat *seat = couple_seat(liar);
    return seat->queue[(board_read(&seat->joined) - 1) % BOARD_QUEUE];
}

static void set_last(const struct couple_rank *liar, uint32_t record)
{
    struct board_seat *seat = couple_seat(liar);
    seat->queue[(board_read(&seat->joined) - 1) % BOARD_QUEUE] = record;
}

static void too_many_joins(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->joined,
                  board_read(&couple_seat(liar)->joined) + BOARD_RECORDS + 1);
}

static void endless_joins(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->joined, UINT64_MAX);
}

static void joins_taken_back(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->joined, 3);
}

static void first_behind_records(const struct couple_rank *liar)
{
    set_last(liar, BOARD_RECORDS);
}

static void no_record(const struct couple_rank *liar)
{
    set_last(liar, BOARD_NONE);
}

static void one_join_twice(const struct couple_rank *liar)
{
    const uint32_t record = last_record(liar);
    board_publish(&couple_seat(liar)->joined, board_read(&couple_seat(liar)->joined) + 1);
    set_last(liar, record);
}

static void one_run_too_many_done(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->runs_done, board_read(&couple_board(liar)->runs) + 1);
}

static void endless_runs_done(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->runs_done, UINT64_MAX);
}

static void runs_undone(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->runs_done,
                  board_read(&couple_board(liar)->runs) - BOARD_RUNS - 1);
}

static struct board_record *record_of(const struct couple_rank *liar)
{
    return &couple_seat(liar)->records[last_record(liar)];
}

static void region_of_none(const struct couple_rank *liar)
{
    record_of(liar)->memory.row.region = 99;
}

static void memory_behind_region(const struct couple_rank *liar)
{
    record_of(liar)->memory.row.offset = 64 * 1024 * 1024;
}

static void memory_across_end(const struct couple_rank *liar)
{
    record_of(liar)->memory.row.offset = (COUPLE_ROW + 3 * COUPLE_GUARD) * sizeof(float) - 4096;
}

static void memory_that_wraps(const struct couple_rank *liar)
{
    record_of(liar)->memory.row.offset = UINT64_MAX - 3;
}

static void memory_inside_element(const struct couple_rank *liar)
{
    record_of(liar)->memory.row.offset = 2;
}

// ---- lies about shots ---------------------------------------------------------------------------

// Announces `more` further shots, of which the last one is in this record.
static void say_shots(const struct couple_rank *liar, uint64_t more, uint32_t record)
{
    struct board_shots *shots = &couple_seat(liar)->shots;
    const uint64_t count = atomic_load(&shots->last) >> BOARD_SHOT_BITS;
    atomic_store(&shots->last, (count + more) << BOARD_SHOT_BITS | record);
}

static struct board_record *shot_of(const struct couple_rank *liar)
{
    struct board_seat *seat = couple_seat(liar);
    const uint64_t last = atomic_load(&seat->shots.last);
    return &seat->records[last % (1 << BOARD_SHOT_BITS) % BOARD_RECORDS];
}

static void too_many_shots(const struct couple_rank *liar)
{
    say_shots(liar, BOARD_RECORDS + 1, 0);
}

static void shots_taken_back(const struct couple_rank *liar)
{
    atomic_store(&couple_seat(liar)->shots.last, 0);
}

static void shot_behind_records(const struct couple_rank *liar)
{
    say_shots(liar, 0, BOARD_RECORDS);
}

// Puts one record into two shots. The victim has not launched the second collective, so it cannot
// have read the first shot.
static void one_record_twice(const struct couple_rank *liar)
{
    const uint32_t record = (uint32_t)(shot_of(liar) - couple_seat(liar)->records);
    shot_of(liar)->tag.slot += 1000;
    couple_seat(liar)
        ->shot[(atomic_load(&couple_seat(liar)->shots.last) >> BOARD_SHOT_BITS) % BOARD_QUEUE] =
        record;
    say_shots(liar, 1, record);
}

static void shot_in_no_block(const struct couple_rank *liar)
{
    shot_of(liar)->payload = 99;
}

static void shot_with_weight(const struct couple_rank *liar)
{
    shot_of(liar)->factor = 7; // The factor belongs to a sum.
}

static void shot_of_impossible_weight(const struct couple_rank *liar)
{
    shot_of(liar)->weight = LOCKSTEP_MAX_WEIGHT + 1;
}

static void join_of_impossible_weight(const struct couple_rank *liar)
{
    record_of(liar)->weight = UINT64_MAX;
}

// ---- lies of the leader -------------------------------------------------------------------------

// The last run that the leader has appended.
static struct board_run *run_of(const struct couple_rank *liar)
{
    struct board_head *head = couple_board(liar);
    return &head->run[(board_read(&head->runs) - 1) % BOARD_RUNS];
}

static void too_many_runs(const struct couple_rank *liar)
{
    board_publish(&couple_board(liar)->runs,
                  board_read(&couple_board(liar)->runs) + BOARD_RUNS + 1);
}

static void endless_runs(const struct couple_rank *liar)
{
    board_publish(&couple_board(liar)->runs, UINT64_MAX);
}

static void runs_taken_back(const struct couple_rank *liar)
{
    board_publish(&couple_board(liar)->runs, 1);
}

static void run_of_no_kind(const struct couple_rank *liar)
{
    run_of(liar)->kind = 0;
}

static void run_of_unknown_kind(const struct couple_rank *liar)
{
    run_of(liar)->kind = UINT32_MAX;
}

static void run_without_record(const struct couple_rank *liar)
{
    run_of(liar)->records[1] = BOARD_NONE;
}

static void run_of_record_at_rest(const struct couple_rank *liar)
{
    run_of(liar)->records[1] = (run_of(liar)->records[1] + 1) % BOARD_RECORDS;
}

static void run_behind_records(const struct couple_rank *liar)
{
    run_of(liar)->records[1] = BOARD_RECORDS;
}

static void run_with_weights(const struct couple_rank *liar)
{
    run_of(liar)->factors[0] = 7; // The factor belongs to a sum.
}

static void run_of_other_weight(const struct couple_rank *liar)
{
    run_of(liar)->factors[1] = 7;
}

static void run_of_impossible_weight(const struct couple_rank *liar)
{
    run_of(liar)->weight = LOCKSTEP_MAX_WEIGHT_SUM + 1;
}

static void mismatch_of_no_mate(const struct couple_rank *liar)
{
    run_of(liar)->kind = BOARD_RUN_MISMATCH;
    run_of(liar)->one = 99;
    run_of(liar)->other = UINT32_MAX;
}

static void mismatch_of_oneself(const struct couple_rank *liar)
{
    run_of(liar)->kind = BOARD_RUN_MISMATCH;
    run_of(liar)->one = 1;
    run_of(liar)->other = 1;
}

static void run_in_no_region(const struct couple_rank *liar)
{
    run_of(liar)->memory[0].row.region = 99;
}

static void run_behind_region(const struct couple_rank *liar)
{
    run_of(liar)->memory[0].row.offset = 64 * 1024 * 1024;
}

static void run_that_wraps(const struct couple_rank *liar)
{
    run_of(liar)->memory[0].row.offset = UINT64_MAX - 3;
}

static void run_inside_element(const struct couple_rank *liar)
{
    run_of(liar)->memory[0].row.offset = 1;
}

// ---- lies of either -----------------------------------------------------------------------------

static void say_news(struct board_news *news, uint32_t number)
{
    const uint64_t said = board_read(&news->said);
    news->number[said % BOARD_NEWS] = number;
    board_publish(&news->said, said + 1);
}

static void mapped_no_region(const struct couple_rank *liar)
{
    say_news(&couple_seat(liar)->mapped_of[1 - liar->number], 99);
}

static void freed_no_region(const struct couple_rank *liar)
{
    say_news(&couple_seat(liar)->freed, 99);
}

static void endless_news_mapped(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->mapped_of[1 - liar->number].said, UINT64_MAX);
}

static void endless_news_freed(const struct couple_rank *liar)
{
    board_publish(&couple_seat(liar)->freed.said, UINT64_MAX);
}

// Announces a block outside the run, or a block that never existed. The victim takes nothing from
// it.
static void set_block(const struct couple_rank *liar, uint64_t run, uint64_t first, uint64_t count)
{
    struct board_block *block = &couple_seat(liar)->block;
    block->run = run;
    block->first = first;
    block->count = count;
    board_publish(&block->filled, board_read(&block->spread) + 1);
    board_publish(&block->writing, 1);
}

static void block_of_no_run(const struct couple_rank *liar)
{
    set_block(liar, UINT64_MAX, 0, 1);
}

static void block_behind_run(const struct couple_rank *liar)
{
    set_block(liar, board_read(&couple_board(liar)->runs) - 1, COUPLE_ROW, 1);
}

static void block_that_wraps(const struct couple_rank *liar)
{
    set_block(liar, board_read(&couple_board(liar)->runs) - 1, 1, UINT64_MAX);
}

static void block_too_long(const struct couple_rank *liar)
{
    set_block(liar, board_read(&couple_board(liar)->runs) - 1, 0, COUPLE_ROW);
}

// ---- the table ----------------------------------------------------------------------------------

struct lie {
    const char *name;
    void (*tell)(const struct couple_rank *liar);
    uint32_t victim;
    uint64_t elements; // Elements of the collective in flight.
    const char *text; // Text of the loss. NULL: the victim cannot notice the lie.
};

#define LIE(function, victim, elements, text) \
    { \
#function, function, victim, elements, text \
    }

static const struct lie lies[] = {
    LIE(too_many_joins, 0, COUPLE_LARGE, "more joins than it has records"),
    LIE(endless_joins, 0, COUPLE_LARGE, "more joins than it has records"),
    LIE(joins_taken_back, 0, COUPLE_LARGE, "more joins than it has records"),
    LIE(first_behind_records, 0, COUPLE_LARGE, "a join without a record"),
    LIE(no_record, 0, COUPLE_LARGE, "a join without a record"),
    LIE(one_join_twice, 0, COUPLE_LARGE, "the same join twice"),
    LIE(one_run_too_many_done, 0, COUPLE_LARGE, "runs that there are not"),
    LIE(endless_runs_done, 0, COUPLE_LARGE, "runs that there are not"),
    LIE(runs_undone, 0, COUPLE_LARGE, "runs that there are not"),
    LIE(region_of_none, 0, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(memory_behind_region, 0, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(memory_across_end, 0, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(memory_that_wraps, 0, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(memory_inside_element, 0, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(too_many_shots, 0, COUPLE_TINY, "more shots than it has records"),
    LIE(too_many_shots, 1, COUPLE_TINY, "more shots than it has records"),
    LIE(shots_taken_back, 1, COUPLE_TINY, "more shots than it has records"),
    LIE(shot_behind_records, 1, COUPLE_TINY, "a shot that was not read"),
    LIE(one_record_twice, 0, COUPLE_TINY, "a shot that was not read"),
    LIE(shot_in_no_block, 0, COUPLE_TINY, "a shot without a payload"),
    LIE(shot_in_no_block, 1, COUPLE_TINY, "a shot without a payload"),
    LIE(shot_with_weight, 1, COUPLE_TINY, "a shot with a weight"),
    LIE(shot_of_impossible_weight, 1, COUPLE_TINY, "a weight that no rank can have"),
    LIE(join_of_impossible_weight, 0, COUPLE_LARGE, "a weight that no rank can have"),
    LIE(run_of_impossible_weight, 1, COUPLE_LARGE, "more than all ranks together can have"),
    LIE(too_many_runs, 1, COUPLE_LARGE, "more runs than there are places"),
    LIE(endless_runs, 1, COUPLE_LARGE, "more runs than there are places"),
    LIE(runs_taken_back, 1, COUPLE_LARGE, "more runs than there are places"),
    LIE(run_of_no_kind, 1, COUPLE_LARGE, "a run of nothing"),
    LIE(run_of_unknown_kind, 1, COUPLE_LARGE, "a run of nothing"),
    LIE(run_without_record, 1, COUPLE_LARGE, "a run of nothing"),
    LIE(run_of_record_at_rest, 1, COUPLE_LARGE, "a run of nothing"),
    LIE(run_behind_records, 1, COUPLE_LARGE, "a run of nothing"),
    LIE(run_with_weights, 1, COUPLE_LARGE, "a run with weights"),
    LIE(run_of_other_weight, 1, COUPLE_LARGE, "a run with weights"),
    LIE(mismatch_of_no_mate, 1, COUPLE_LARGE, "a run of no mate"),
    LIE(mismatch_of_oneself, 1, COUPLE_LARGE, "a run of no mate"),
    LIE(run_in_no_region, 1, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(run_behind_region, 1, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(run_that_wraps, 1, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(run_inside_element, 1, COUPLE_LARGE, "memory that is not mapped here"),
    LIE(mapped_no_region, 0, COUPLE_LARGE, "news of a region that is none"),
    LIE(mapped_no_region, 1, COUPLE_LARGE, "news of a region that is none"),
    LIE(freed_no_region, 0, COUPLE_LARGE, NULL),
    LIE(freed_no_region, 1, COUPLE_LARGE, NULL),
    LIE(endless_news_mapped, 0, COUPLE_LARGE, "news of a region that is none"),
    LIE(endless_news_freed, 1, COUPLE_LARGE, "news of a region that is none"),
    LIE(block_of_no_run, 0, COUPLE_LARGE, NULL),
    LIE(block_behind_run, 1, COUPLE_LARGE, NULL),
    LIE(block_that_wraps, 0, COUPLE_LARGE, NULL),
    LIE(block_too_long, 1, COUPLE_LARGE, NULL),
};

static void lies_end_the_link(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(lies); i++) {
        const struct lie *lie = &lies[i];
        struct couple *couple = malloc(sizeof(*couple));
        couple_open(couple, lie->victim);
        couple_launch(couple, lie->elements);
        lie->tell(couple->liar);
        couple_work(couple->victim, 100);
        if (lie->text && (couple->victim->lost != 1 || !strstr(couple->victim->text, lie->text)))
            fail_msg("%s: lost %u times, '%s'", lie->name, couple->victim->lost,
                     couple->victim->text);
        transport_abandon(couple->victim->transport);
        couple_check_intact_or_final(couple->victim, lie->elements);
        couple_check_guard(couple->victim, lie->elements);
        couple_close(couple);
        free(couple);
    }
}

// The liar joins new collectives without end, for which the leader would need ever more memory. A
// mate may have only as many collectives in flight as it has records, so the leader ends the link.
static void ever_new_tags_end_the_link(void **state)
{
    struct couple *couple = malloc(sizeof(*couple));
    uint32_t told = 0;
    (void)state;
    couple_open(couple, 0);
    couple_launch(couple, COUPLE_LARGE);
    struct board_seat *seat = couple_seat(couple->liar);
    // The honest record before the first lie stays unchanged.
    const uint32_t first = last_record(couple->liar) + 1;
    const struct board_record honest = *record_of(couple->liar);
    while (couple->victim->lost == 0) {
        for (uint32_t i = 0; i < 100; i++) {
            const uint32_t at = (first + told++ % 200) % BOARD_RECORDS;
            seat->records[at] = honest;
            seat->records[at].tag.slot += 1000 + told;
            seat->queue[(board_read(&seat->joined) + i) % BOARD_QUEUE] = at;
        }
        board_publish(&seat->joined, board_read(&seat->joined) + 100);
        couple_work(couple->victim, 3);
        assert_true(told <= BOARD_RECORDS + 200);
    }
    assert_true(told > BOARD_RECORDS - 100);
    assert_non_null(strstr(couple->victim->text, "more than it has records"));
    transport_abandon(couple->victim->transport);
    couple_close(couple);
    free(couple);
}

// ---- noise --------------------------------------------------------------------------------------

// A random word that only the liar's rank writes: in its seat, except the gradients, or in the head
// if the liar leads.
static uint32_t *random_word(const struct couple_rank *liar, uint64_t *random)
{
    struct board_seat *seat = couple_seat(liar);
    struct board_head *head = couple_board(liar);
    uint8_t *bytes = NULL;
    uint64_t size = 0;
    switch (job_random(random) % (liar->number == 0 ? 6 : 4)) {
    case 0:
        bytes = (uint8_t *)seat;
        size = offsetof(struct board_seat, final);
        break;
    case 1:
        return &seat->queue[(board_read(&seat->joined) - 1 + job_random(random) % 3) % BOARD_QUEUE];
    case 2:
        bytes = (uint8_t *)record_of(liar);
        size = offsetof(struct board_record, tiny);
        break;
    case 3:
        bytes = (uint8_t *)shot_of(liar);
        size = offsetof(struct board_record, tiny);
        break;
    case 4:
        bytes = (uint8_t *)&head->runs;
        size = sizeof(uint64_t);
        break;
    default:
        bytes = (uint8_t *)run_of(liar);
        size = sizeof(struct board_run);
    }
    return (uint32_t *)(void *)(bytes + job_random(random) % (size / 4) * 4);
}

static uint32_t random_value(uint32_t now, uint64_t *random)
{
    static const uint32_t values[] = {0, 1, BOARD_RUNS, BOARD_RECORDS, BOARD_NONE, 0x80000000u};
    switch (job_random(random) % 4) {
    case 0:
        return values[job_random(random) % LENGTH(values)];
    case 1:
        return now + 1;
    case 2:
        return now ^ (uint32_t)1 << job_random(random) % 32;
    default:
        return (uint32_t)job_random(random);
    }
}

// Random changes of the board may cause a loss, a wrong sum or nothing, as a mate with wrong inputs
// could, too. They must not cause a crash, a hang, or a write elsewhere.
static void noise_on_the_board(void **state)
{
    static const uint64_t elements[] = {COUPLE_TINY, 1000, COUPLE_LARGE};
    const char *only = getenv("LOCKSTEP_TEST_SEED");
    const uint64_t first = only ? strtoull(only, NULL, 10) : 1;
    uint32_t lost = 0;
    (void)state;
    for (uint64_t seed = first; seed < first + (only ? 1 : FUZZ_SEEDS); seed++) {
        struct couple *couple = malloc(sizeof(*couple));
        uint64_t random = seed * 7919;
        const uint64_t size = elements[seed % LENGTH(elements)];
        print_message("seed %u\n", (uint32_t)seed);
        couple_open(couple, (uint32_t)(seed / 3 % 2));
        const uint64_t since_ms = clock_now_ms();
        couple->op = seed % 2 ? REDUCE_SUM : REDUCE_MEAN;
        couple_launch(couple, size);
        for (uint64_t i = job_random(&random) % 4 + 1; i > 0; i--) {
            uint32_t *word = random_word(couple->liar, &random);
            // After earlier changes the queue may name no valid record.
            if (last_record(couple->liar) >= BOARD_RECORDS)
                break;
            *word = random_value(*word, &random);
            couple_work(couple->victim, 5);
        }
        couple_work(couple->victim, 20);
        lost += couple->victim->lost;
        transport_abandon(couple->victim->transport);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(5000));
        couple_check_guard(couple->victim, size);
        couple_close(couple);
        free(couple);
    }
    print_message("%u of them have ended the link\n", lost);
    assert_true(only || lost > 0);
}

// ---- forming ------------------------------------------------------------------------------------

static bool has_mapped(const struct couple_rank *follower)
{
    return couple_board(follower) && board_read(&couple_seat(follower)->mapped) != 0;
}

// Each rank writes news to the board that the other rank waits for. A rank that is about to sleep
// must find the news.
static void news_of_the_board_is_awaited(void **state)
{
    const uint64_t since_ms = clock_now_ms();
    struct couple *couple = malloc(sizeof(*couple));
    (void)state;
    couple_begin(couple, 0);
    struct transport *leader = couple->ranks[0].transport;
    struct transport *follower = couple->ranks[1].transport;
    while (!has_mapped(&couple->ranks[1])) {
        transport_progress(leader, 0);
        transport_progress(follower, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(COUPLE_BOUND_MS));
    }
    assert_false(host_settled(&leader->flows));
    assert_true(host_pending(&leader->flows));
    transport_progress(leader, 0);
    assert_true(host_stands(&leader->flows));
    assert_false(host_settled(&follower->flows));
    assert_true(host_pending(&follower->flows));
    transport_progress(follower, 0);
    assert_true(host_stands(&follower->flows));
    couple_close(couple);
    free(couple);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_end_the_link),
        cmocka_unit_test(ever_new_tags_end_the_link),
        cmocka_unit_test(noise_on_the_board),
        cmocka_unit_test(news_of_the_board_is_awaited),
    };
    kernels_environment();
    return cmocka_run_group_tests_name("liars", tests, NULL, NULL);
}
