// SPDX-License-Identifier: Apache-2.0
//
// Exchanges: small blocking collectives. The last rank finds the notices of all other ranks and is
// done at once. The first rank finds none, and launches a normal collective. Both get the same
// result, even if notices are overwritten, differ, or are impossible. The tests run two ranks in
// one thread, where the order is fixed, and in two threads.
//
// Parts that are read in the memory of the other rank are here, too, because their order is fixed.

#include "base/clock.h"
#include "tests/conformance/transport_couple.h"
#include "tests/conformance/transport_fleet.h"
#include "worker/transport/host/host.h"
#include "worker/transport/idle.h"
#include "worker/transport/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define MOST 8193 // Maximum number of elements; more than fit in a shot.
#define CALLS 20000

// A rank that runs one collective after the other.
struct caller {
    struct couple_rank *rank;
    struct collective collective;
    struct extent extent;
    float values[MOST + 1];
    uint32_t slot;
    uint32_t exchanged; // Number of collectives that were complete at once.
    uint32_t launched; // Number of collectives that were launched.
};

static float input(uint32_t rank, uint32_t slot, uint64_t element)
{
    return (float)((element * 7 + slot * 13) % 1000 + 1000 * rank);
}

static void caller_prepare(struct caller *caller, uint64_t elements, enum reduce_op op)
{
    for (uint64_t e = 0; e < elements; e++)
        caller->values[e] = input(caller->rank->number, caller->slot, e);
    caller->values[elements] = -1;
    caller->extent = (struct extent){caller->values, caller->values, elements};
    caller->collective = (struct collective){.kind = COLLECTIVE_ALLREDUCE,
                                             .dtype = DTYPE_FLOAT32,
                                             .op = op,
                                             .weight = 1,
                                             .algorithm = ALGORITHM_SHARED,
                                             .tag = {.space = 77, .slot = caller->slot++},
                                             .signature = 3,
                                             .extents = &caller->extent,
                                             .extent_count = 1,
                                             .elements = elements};
}

// Exchanges the collective, or else launches it. Returns true if it was complete at once.
static bool caller_call(struct caller *caller)
{
    struct transport *transport = caller->rank->transport;
    if (transport_exchange(transport, &caller->collective)) {
        caller->exchanged++;
        return true;
    }
    transport_launch(transport, &caller->collective);
    caller->launched++;
    return false;
}

static void caller_check(const struct caller *caller)
{
    const struct collective *collective = &caller->collective;
    const uint32_t slot = collective->tag.slot;
    for (uint64_t e = 0; e < collective->elements; e++) {
        const float sum = input(0, slot, e) + input(1, slot, e);
        assert_true(caller->values[e] == (collective->op == REDUCE_MEAN ? sum / 2 : sum));
    }
    assert_true(caller->values[collective->elements] == -1);
    if (collective->op == REDUCE_MEAN)
        assert_int_equal(collective->weight_total, 2);
}

static void callers_open(struct couple *couple, struct caller callers[2])
{
    couple_open(couple, 1);
    memset(callers, 0, 2 * sizeof(callers[0]));
    for (int i = 0; i < 2; i++) {
        callers[i].rank = &couple->ranks[i];
        couple->ranks[i].done = 0;
    }
}

// Waits until all launched collectives are done on both ranks.
static void callers_settle(const struct caller callers[2])
{
    const uint64_t since_ms = clock_now_ms();
    while (callers[0].rank->done < callers[0].launched ||
           callers[1].rank->done < callers[1].launched) {
        for (int i = 0; i < 2; i++)
            transport_progress(callers[i].rank->transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(COUPLE_BOUND_MS));
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(callers[i].rank->lost, 0);
}

// ---- the last rank is done at once --------------------------------------------------------------

static void last_is_done_at_once(void **state)
{
    static const uint64_t elements[] = {1, 2, 4, 5, 20, 21, 256, 257, 1024, MOST};
    struct couple couple;
    struct caller callers[2];
    (void)state;
    callers_open(&couple, callers);
    for (uint32_t k = 0; k < 200 * LENGTH(elements); k++) {
        const uint64_t count = elements[k % LENGTH(elements)];
        struct caller *first = &callers[k / 3 % 2];
        struct caller *last = &callers[1 - k / 3 % 2];
        for (int i = 0; i < 2; i++)
            caller_prepare(&callers[i], count, k % 4 == 0 ? REDUCE_MEAN : REDUCE_SUM);
        assert_false(caller_call(first));
        if (caller_call(last))
            caller_check(last);
        callers_settle(callers);
        caller_check(first);
        caller_check(last);
    }
    // 9 of 10 sizes fit in a shot, and the last rank launches one of many instead of exchanging it.
    assert_in_range(callers[0].exchanged + callers[1].exchanged, 1750, 1800);
    couple_close(&couple);
}

// ---- rows ---------------------------------------------------------------------------------------

#define PART_MOST (COLLECTIVE_ROW_BYTES / 2 / sizeof(float))

// A caller whose collectives have a part for each rank.
struct mover {
    struct caller *caller;
    struct collective_part sends[2];
    struct collective_part receives[2];
    struct collective_parts parts;
    float in[2 * PART_MOST];
    float out[2 * PART_MOST + 1];
};

static float part_input(uint32_t rank, uint32_t slot, uint32_t to, uint64_t element)
{
    return input(rank, slot, element) + (float)to * 500;
}

static void mover_prepare(struct mover *mover, uint64_t elements, bool reduces)
{
    struct caller *caller = mover->caller;
    const uint32_t own = caller->rank->number;
    for (uint32_t p = 0; p < 2; p++) {
        const uint64_t first = p * elements;
        for (uint64_t e = 0; e < elements; e++)
            mover->in[first + e] = part_input(own, caller->slot, p, e);
        mover->sends[p] = (struct collective_part){p, mover->in + first, elements, first};
        mover->receives[p] = (struct collective_part){reduces ? own : p, mover->out + first,
                                                      elements, own * elements};
    }
    mover->out[(reduces ? 1 : 2) * elements] = -1;
    mover->parts =
        (struct collective_parts){mover->sends, mover->receives, 2, reduces ? 1 : 2, 2 * elements};
    caller->collective =
        (struct collective){.kind = reduces ? COLLECTIVE_REDUCE_SCATTER : COLLECTIVE_EXCHANGE,
                            .dtype = DTYPE_FLOAT32,
                            .weight = 1,
                            .algorithm = ALGORITHM_SHARED,
                            .tag = {.space = 77, .slot = caller->slot++},
                            .signature = 3,
                            .parts = &mover->parts};
}

static void mover_check(const struct mover *mover)
{
    const struct collective *collective = &mover->caller->collective;
    const uint32_t own = mover->caller->rank->number;
    const uint32_t slot = collective->tag.slot;
    const uint64_t elements = mover->parts.row / 2;
    const bool reduces = collective->kind == COLLECTIVE_REDUCE_SCATTER;
    for (uint64_t e = 0; e < elements; e++) {
        const float of[] = {part_input(0, slot, own, e), part_input(1, slot, own, e)};
        assert_true(mover->out[e] == (reduces ? of[0] + of[1] : of[0]));
        assert_true(reduces || mover->out[elements + e] == of[1]);
    }
    assert_true(mover->out[mover->parts.receive_count * elements] == -1);
}

static void rows_are_done_at_once(void **state)
{
    static const uint64_t elements[] = {1, 2, 10, 11, 128, 129, 1000, PART_MOST};
    struct couple couple;
    struct caller callers[2];
    static struct mover movers[2];
    (void)state;
    callers_open(&couple, callers);
    for (uint32_t k = 0; k < 100 * LENGTH(elements); k++) {
        const uint32_t first = k / 3 % 2;
        for (int i = 0; i < 2; i++) {
            movers[i].caller = &callers[i];
            mover_prepare(&movers[i], elements[k % LENGTH(elements)], k / 8 % 2 == 1);
        }
        assert_false(caller_call(&callers[first]));
        if (caller_call(&callers[1 - first]))
            mover_check(&movers[1 - first]);
        callers_settle(callers);
        for (int i = 0; i < 2; i++)
            mover_check(&movers[i]);
    }
    assert_in_range(callers[0].exchanged + callers[1].exchanged, 780, 800);
    couple_close(&couple);
}

// ---- collectives that cannot be exchanged -------------------------------------------------------

// With different signatures no collective is done, and no memory is changed.
static void other_signatures_do_not_meet(void **state)
{
    struct couple couple;
    struct caller callers[2];
    (void)state;
    callers_open(&couple, callers);
    for (int i = 0; i < 2; i++) {
        caller_prepare(&callers[i], 4, REDUCE_SUM);
        callers[i].collective.signature += (uint64_t)i;
        assert_false(caller_call(&callers[i]));
    }
    for (int k = 0; k < 100; k++) {
        for (int i = 0; i < 2; i++)
            transport_progress(callers[i].rank->transport, 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(callers[i].rank->done, 0);
        for (uint32_t e = 0; e < 4; e++)
            assert_true(callers[i].values[e] == input(i, 0, e));
    }
    couple_close(&couple);
}

// Rank 0 is so far ahead that its first notices are overwritten.
static void notices_are_gone(void **state)
{
    struct couple couple;
    struct caller callers[2];
    static struct caller ahead[2 * BOARD_NOTICES];
    (void)state;
    callers_open(&couple, callers);
    for (uint32_t k = 0; k < LENGTH(ahead); k++) {
        ahead[k] = callers[0];
        ahead[k].slot = k;
        caller_prepare(&ahead[k], 2, REDUCE_SUM);
        ahead[k].collective.extents = &ahead[k].extent;
        transport_launch(ahead[k].rank->transport, &ahead[k].collective);
        callers[0].launched++;
    }
    for (uint32_t k = 0; k < LENGTH(ahead); k++) {
        caller_prepare(&callers[1], 2, REDUCE_SUM);
        (void)caller_call(&callers[1]);
        while (callers[1].rank->done < callers[1].launched)
            transport_progress(callers[1].rank->transport, 0);
        caller_check(&callers[1]);
    }
    assert_true(callers[1].launched > 0);
    callers_settle(callers);
    for (uint32_t k = 0; k < LENGTH(ahead); k++)
        caller_check(&ahead[k]);
    couple_close(&couple);
}

// An exchange does not overtake collectives in flight.
static void something_is_in_flight(void **state)
{
    struct couple couple;
    struct caller callers[2];
    struct caller before[2];
    (void)state;
    callers_open(&couple, callers);
    memcpy(before, callers, sizeof(before));
    for (int i = 0; i < 2; i++) {
        caller_prepare(&callers[i], 2, REDUCE_SUM);
        before[i].slot = 1000;
        caller_prepare(&before[i], 2, REDUCE_SUM);
    }
    transport_launch(before[0].rank->transport, &before[0].collective);
    assert_false(caller_call(&callers[0]));
    assert_false(caller_call(&callers[1]));
    transport_launch(before[1].rank->transport, &before[1].collective);
    for (int i = 0; i < 2; i++)
        callers[i].launched++;
    callers_settle(callers);
    for (int i = 0; i < 2; i++) {
        caller_check(&before[i]);
        caller_check(&callers[i]);
    }
    couple_close(&couple);
}

// ---- lies ---------------------------------------------------------------------------------------

static struct board_notice *last_notice(const struct couple_rank *liar)
{
    struct board_seat *seat = couple_seat(liar);
    const uint64_t last = atomic_load(&seat->shots.last) >> BOARD_SHOT_BITS;
    return &seat->notices[(last - 1) % BOARD_NOTICES];
}

static void behind_records(struct board_notice *notice)
{
    atomic_store(&notice->shot, atomic_load(&notice->shot) | ((1u << BOARD_SHOT_BITS) - 1));
}

static void too_many(struct board_notice *notice)
{
    atomic_store(&notice->shot, UINT64_MAX);
}

static void of_other_bytes(struct board_notice *notice)
{
    atomic_store(&notice->bytes, UINT64_MAX);
}

static void in_no_block(struct board_notice *notice)
{
    atomic_store(&notice->bytes, (uint64_t)99 << 32 | (uint32_t)atomic_load(&notice->bytes));
}

static void of_other_slot(struct board_notice *notice)
{
    atomic_store(&notice->slot_use, 9999);
}

// Impossible notices are ignored; the correct record decides.
static void lies_are_not_believed(void **state)
{
    static void (*const lies[])(struct board_notice *) = {behind_records, too_many, of_other_bytes,
                                                          of_other_slot, in_no_block};
    struct couple couple;
    struct caller callers[2];
    (void)state;
    callers_open(&couple, callers);
    for (uint32_t k = 0; k < LENGTH(lies); k++) {
        for (int i = 0; i < 2; i++)
            caller_prepare(&callers[i], 300, REDUCE_SUM);
        assert_false(caller_call(&callers[0]));
        lies[k](last_notice(callers[0].rank));
        assert_false(caller_call(&callers[1]));
        callers_settle(callers);
        for (int i = 0; i < 2; i++)
            caller_check(&callers[i]);
    }
    couple_close(&couple);
}

// ---- two threads --------------------------------------------------------------------------------

static void *calls(void *argument)
{
    struct caller *caller = argument;
    uint64_t wrong = 0;
    transport_own(caller->rank->transport);
    for (uint32_t k = 0; k < CALLS; k++) {
        caller_prepare(caller, 1 + k % 40, REDUCE_SUM);
        (void)caller_call(caller);
        while (caller->rank->done < caller->launched && caller->rank->lost == 0)
            transport_progress(caller->rank->transport, 1000);
        for (uint64_t e = 0; e < caller->collective.elements; e++)
            wrong += caller->values[e] != input(0, k, e) + input(1, k, e);
    }
    transport_disown(caller->rank->transport);
    return (void *)(uintptr_t)wrong;
}

static void two_threads_agree(void **state)
{
    struct couple couple;
    struct caller callers[2];
    pthread_t threads[2];
    (void)state;
    callers_open(&couple, callers);
    for (int i = 0; i < 2; i++)
        transport_disown(callers[i].rank->transport);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, calls, &callers[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
        assert_int_equal(callers[i].rank->lost, 0);
    }
    for (int i = 0; i < 2; i++)
        transport_own(callers[i].rank->transport);
    couple_close(&couple);
}

// ---- a part is read in the memory of the other rank ---------------------------------------------

#define PART 200000 // Elements of a part. They are read and copied in two blocks.

// An all-gather of a rank.
struct gatherer {
    struct couple_rank *rank;
    struct collective collective;
    struct collective_part sends[2];
    struct collective_part receives[2];
    struct collective_parts parts;
    float input[PART];
    float output[2][PART];
    uint32_t reads;
};

static struct gatherer *reader; // NULL: no rank is watched.

// In place of the C library's. When a rank reads a part, the other rank has been told everything,
// and the own part, for which nobody waits, is not copied.
ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long here_count,
                         const struct iovec *there, unsigned long there_count, unsigned long flags)
{
    if (reader && here->iov_len > sizeof(uint64_t)) {
        const struct flows *flows = &reader->rank->transport->flows;
        assert_true(list_empty(&flows->links.all[0]->stream.queue));
        assert_true(reader->output[reader->rank->number][0] == -1);
        reader->reads++;
    }
    return syscall(SYS_process_vm_readv, pid, here, here_count, there, there_count, flags);
}

static void gatherer_launch(struct gatherer *gatherer, uint64_t elements)
{
    const uint32_t own = gatherer->rank->number;
    for (uint32_t e = 0; e < PART; e++) {
        gatherer->input[e] = input(own, 0, e);
        gatherer->output[0][e] = gatherer->output[1][e] = -1;
    }
    for (uint32_t i = 0; i < 2; i++) {
        gatherer->sends[i] = (struct collective_part){i, gatherer->input, elements, 0};
        gatherer->receives[i] = (struct collective_part){i, gatherer->output[i], elements, 0};
    }
    gatherer->parts = (struct collective_parts){.sends = gatherer->sends,
                                                .send_count = 2,
                                                .receives = gatherer->receives,
                                                .receive_count = 2};
    gatherer->collective = (struct collective){.kind = COLLECTIVE_EXCHANGE,
                                               .dtype = DTYPE_FLOAT32,
                                               .algorithm = ALGORITHM_DIRECT,
                                               .tag = {.space = 78, .slot = 0},
                                               .signature = 4,
                                               .parts = &gatherer->parts};
    transport_launch(gatherer->rank->transport, &gatherer->collective);
}

static void gatherers_open(struct couple *couple, struct gatherer gatherers[2])
{
    couple_open(couple, 1);
    memset(gatherers, 0, 2 * sizeof(gatherers[0]));
    for (int i = 0; i < 2; i++) {
        gatherers[i].rank = &couple->ranks[i];
        couple->ranks[i].done = 0;
    }
}

// Waits until both ranks have the parts of both, and checks them.
static void gatherers_settle(const struct gatherer gatherers[2], uint64_t elements)
{
    const uint64_t since_ms = clock_now_ms();
    while (gatherers[0].rank->done == 0 || gatherers[1].rank->done == 0) {
        for (int i = 0; i < 2; i++)
            transport_progress(gatherers[i].rank->transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(COUPLE_BOUND_MS));
    }
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t r = 0; r < 2; r++)
            for (uint32_t e = 0; e < PART; e++)
                assert_true(gatherers[i].output[r][e] == (e < elements ? input(r, 0, e) : -1));
}

static struct gatherer gatherers[2]; // Too large for a stack.

static void frames_leave_before_bytes_move(void **state)
{
    struct couple couple;
    (void)state;
    gatherers_open(&couple, gatherers);
    gatherer_launch(&gatherers[1], PART);
    couple_work(&couple.ranks[1], 10);
    couple_work(&couple.ranks[0], 10); // Rank 0 hears of the part of rank 1 first.
    reader = &gatherers[0];
    gatherer_launch(&gatherers[0], PART);
    transport_wake(couple.ranks[0].transport);
    transport_progress(couple.ranks[0].transport, COUPLE_BOUND_MS);
    assert_int_equal(gatherers[0].reads, 1); // The request is answered before the second block.
    couple_work(&couple.ranks[0], 10);
    assert_int_equal(gatherers[0].reads, 2);
    reader = NULL;
    gatherers_settle(gatherers, PART);
    couple_close(&couple);
}

// ---- a part that comes before its launch --------------------------------------------------------

#define EARLY_PART 1000 // Elements of a part that is sent without credit.

// A part that waits for its launch is copied straight to its place: the empty pool stays empty.
static void an_early_part_takes_no_block(void **state)
{
    struct couple couple;
    (void)state;
    gatherers_open(&couple, gatherers);
    struct flows *flows = &couple.ranks[0].transport->flows;
    gatherer_launch(&gatherers[1], EARLY_PART);
    couple_work(&couple.ranks[1], 10);
    couple_work(&couple.ranks[0], 10);
    assert_int_equal(flows->frames_parked, 1);
    const struct scratch chunks = flows->pools.chunks;
    scratch_init(&flows->pools.chunks, chunks.block_bytes);
    gatherer_launch(&gatherers[0], EARLY_PART);
    assert_int_equal(flows->pools.chunks.blocks, 0);
    flows->pools.chunks = chunks;
    assert_int_equal(flows->frames_parked, 0);
    gatherers_settle(gatherers, EARLY_PART);
    assert_int_equal(couple.ranks[0].lost, 0);
    couple_close(&couple);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(last_is_done_at_once),
        cmocka_unit_test(rows_are_done_at_once),
        cmocka_unit_test(other_signatures_do_not_meet),
        cmocka_unit_test(notices_are_gone),
        cmocka_unit_test(something_is_in_flight),
        cmocka_unit_test(lies_are_not_believed),
        cmocka_unit_test(two_threads_agree),
        cmocka_unit_test(frames_leave_before_bytes_move),
        cmocka_unit_test(an_early_part_takes_no_block),
    };
    return cmocka_run_group_tests_name("transport_exchange", tests, NULL, NULL);
}
