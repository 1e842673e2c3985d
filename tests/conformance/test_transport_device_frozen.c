// SPDX-License-Identifier: Apache-2.0
//
// Ranks that freeze with collectives of NCCL in flight, and form the next world
// (docs/internals/recovery.md, "NCCL"). Ranks are threads (transport_rig.h), so that one is frozen
// for as long as a test wants before another one is. A collective on devices is repeated by rows.
// fault/test_recovery_devices kills ranks of whole jobs.

#include "tests/conformance/transport_rig.h"
#include "worker/transport/freeze.h"
#include "worker/transport/inspect.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/redo.h"

#include "base/clock.h"
#include "worker/device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define VICTIM 2
#define WHILE_MS 100 // Long enough for what must not happen.

static void freeze(struct member *member, uint64_t number)
{
    const struct generation_id ballot = {.number = number};
    MEMBER_CHECK(member, transport_freeze(member->transport, &ballot) == 0);
}

// Begins to form the next world, of the same ranks.
static void form(struct member *member, uint64_t later)
{
    struct transport_world world;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];
    fleet_world(member->fleet, member->rank, &world, peers);
    world.generation.number += later;
    member_barrier(member); // All are frozen.
    member->formed = false;
    MEMBER_CHECK(member, transport_form(member->transport, &world) == 0);
}

// The end of a script: a collective in the world that forms.
static void go_on(struct member *member, struct rig *rig, struct shot *shot)
{
    const uint32_t done = member->done_count + 1;
    member_until_true(member, &member->formed, "the next world to form");
    rig_fill(member, rig, shot_value(member->rank, 1));
    shot_launch(member, shot, rig, 1);
    member_until(member, &member->done_count, done, "the collective");
    MEMBER_CHECK(member, rig_all_are(member, rig_look(member, rig), shot_mean(member, 1)));
    member_barrier(member);
    member->lost_count = 0;
    rig_close(member, rig);
}

static void check_intact(struct member *member, const struct rig *rig, const struct shot *shot)
{
    struct transport_finals finals;
    if (member->device)
        CUDA(member, stream_synchronize(rig->makes));
    MEMBER_CHECK(member, member->done_count == 0 && member->failed_count == 0);
    MEMBER_CHECK(member, rig_all_are(member, rig_look(member, rig), shot_value(member->rank, 0)));
    if (!shot)
        return;
    transport_final(member->transport, &shot->collective, &finals);
    MEMBER_CHECK(member, !finals.unknown && finals.run_count == 0);
}

// All but one rank have launched. Rank 0 is frozen long before the others. It ends nothing of what
// NCCL does on them: they would take garbage for the sum, because NCCL reports no error.
static void script_one_is_first(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    if (member->rank != VICTIM)
        shot_launch(member, &shot, &rig, 0);
    member_idle(member, 20);
    member_barrier(member);
    if (member->rank == 0)
        freeze(member, 2);
    member_barrier(member);
    if (member->rank != 0)
        member_idle(member, WHILE_MS);
    member_barrier(member);
    if (member->rank != 0)
        freeze(member, 2);
    check_intact(member, &rig, member->rank == VICTIM ? NULL : &shot);
    form(member, 1);
    go_on(member, &rig, &shot);
}

// A rank freezes while a result is being written.
static void script_writing(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    member_until(member, &member->enqueued_count, 1, "a result that is being written");
    MEMBER_CHECK(member, member->done_count == 0);
    freeze(member, 2);
    MEMBER_CHECK(member, member->done_count == 1);
    MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_mean(member, 0)));
    MEMBER_CHECK(member, shot.collective.weight_total == 3 && shot.used == 7);
    form(member, 1);
    go_on(member, &rig, &shot);
}

// The driver need not look every millisecond: the device calls it when the gradients are made.
static void idle_seldom_looks(struct member *member)
{
    const uint64_t end_ms = clock_now_ms() + WHILE_MS;
    const uint64_t before = fake->calls("cuEventQuery");
    while (clock_now_ms() < end_ms)
        transport_progress(member->transport, WHILE_MS);
    MEMBER_CHECK(member, fake->calls("cuEventQuery") - before < WHILE_MS);
}

// Rank 0's stream comes to its gradient only long after the next world has formed. An abort of NCCL
// waits for streams, so NCCL must not have the collective yet.
static void script_not_made(struct member *member)
{
    struct rig rig;
    struct shot shot;
    uint32_t *word = NULL;
    rig_open(member, &rig);
    CUDA(member, mem_host_alloc((void **)&word, sizeof(*word), 0));
    *word = 0;
    if (member->rank == 0)
        CUDA(member, stream_wait_value32(rig.makes, (uintptr_t)word, 1, CUDA_WAIT_VALUE_EQUAL));
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    idle_seldom_looks(member);
    freeze(member, 2);
    form(member, 1);
    MEMBER_CHECK(member, !device_failed(member->device) && member->done_count == 0);
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    CUDA(member, stream_synchronize(rig.makes));
    CUDA(member, mem_free_host(word));
    go_on(member, &rig, &shot);
}

// NCCL fails, and the cause may be a death: it is not reported, and forgotten when the rank
// freezes.
static void script_failure_waits(struct member *member)
{
    struct rig rig;
    struct shot shot;
    char said[64] = "";
    rig_open(member, &rig);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    while (said[0] == '\0') { // The fake says that it fails.
        member_idle(member, 5);
        transport_inspect_nccl(member->transport, said, sizeof(said));
    }
    member_idle(member, WHILE_MS);
    freeze(member, 2);
    check_intact(member, &rig, &shot);
    form(member, 1);
    go_on(member, &rig, &shot);
}

// The same while a later world forms.
static void script_forming_waits(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    freeze(member, 2);
    form(member, 1);
    while (fake->nccl_calls("ncclCommInitRankConfig") < 4)
        member_idle(member, 5);
    member_idle(member, WHILE_MS);
    MEMBER_CHECK(member, !member->form_failed && (member->rank != 0 || !member->formed));
    freeze(member, 3);
    form(member, 2);
    go_on(member, &rig, &shot);
}

// Ranks repeat a collective. The first piece is final on one rank only, which gives it to the
// others. The other pieces are summed up again. Pieces lie in memory in reverse order.
static void script_repeats(struct member *member)
{
    const uint32_t piece = ELEMENTS / PIECES;
    const struct redo_row rows[] = {{.first = 0, .end = piece, .kind = REDO_HAVE, .owner = VICTIM},
                                    {.first = piece, .end = ELEMENTS, .kind = REDO_REDUCE}};
    const struct transport_redo redo = {.rows = rows, .count = 2, .whole = member->rank == VICTIM};
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    freeze(member, 2);
    form(member, 1);
    member_until_true(member, &member->formed, "the next world to form");
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_make(member, &shot, &rig, 0);
    MEMBER_CHECK(member, !transport_redo(member->transport, &shot.collective, &redo));
    member_until(member, &member->done_count, 1, "the repetition");
    const float *values = rig_read(member, &rig);
    MEMBER_CHECK(member, rig_some_are(values, ELEMENTS - piece, shot_mean(member, 0)));
    MEMBER_CHECK(member, rig_some_are(values + ELEMENTS - piece, piece, shot_value(VICTIM, 0)));
    MEMBER_CHECK(member, shot.collective.weight_total == 6);
    member_barrier(member);
    member->lost_count = 0;
    rig_close(member, &rig);
}

static void run(enum fleet_devices devices, uint32_t ranks, void (*script)(struct member *))
{
    const struct fleet_options options = {.name = rig_name(devices),
                                          .kind = TRANSPORT_TCP,
                                          .world = ranks,
                                          .chunk_bytes = 4096,
                                          .recovers = true,
                                          .devices = devices};
    struct play play = {.pieces = true};
    char complaint[400];
    fleet_run(&options, script, &play);
    fake->complaint(complaint, sizeof(complaint));
    assert_string_equal(complaint, "");
}

static void test_one_is_first(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_LATE_ERRORS=1000000", NULL);
    run(FLEET_NCCL, 3, script_one_is_first);
    run(FLEET_MIXED, 5, script_one_is_first);
    // NCCL is still taking the group.
    fake_gpu_weather(DEVICES, "FAKE_NCCL_LATE_ERRORS=1000000", "FAKE_NCCL_LAUNCH_US=60000", NULL);
    run(FLEET_NCCL, 3, script_one_is_first);
}

static void test_not_made(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, NULL);
    run(FLEET_NCCL, 2, script_not_made);
}

static void test_writing(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_CUDA_KERNEL_US=60000", NULL);
    run(FLEET_NCCL, 2, script_writing);
}

static void test_failure_waits(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=all_reduce:1:6@0", NULL);
    run(FLEET_NCCL, 2, script_failure_waits);
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=init:2:6@0", NULL);
    run(FLEET_NCCL, 2, script_forming_waits);
}

static void test_repeats(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, NULL);
    run(FLEET_STAGED, 3, script_repeats);
    run(FLEET_NCCL, 3, script_repeats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_one_is_first, rig_nothing_left),
        cmocka_unit_test_teardown(test_not_made, rig_nothing_left),
        cmocka_unit_test_teardown(test_writing, rig_nothing_left),
        cmocka_unit_test_teardown(test_failure_waits, rig_nothing_left),
        cmocka_unit_test_teardown(test_repeats, rig_nothing_left),
    };
    return cmocka_run_group_tests_name("devices: frozen", tests, rig_setup, NULL);
}
