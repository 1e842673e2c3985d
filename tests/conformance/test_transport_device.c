// SPDX-License-Identifier: Apache-2.0
//
// Collectives on fake devices. The host must not access their memory, and their streams begin each
// operation as late as possible, so a missing wait fails the test every time. Ranks are threads
// (transport_rig.h). test_transport.c checks computed values with the same transports;
// test_transport_device_failures.c checks failures.

#include "tests/conformance/transport_rig.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/reserve.h"

#include "worker/device/device.h"
#include "worker/device/open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 4
// Delays with which a rank that waits for one segment does not also find the next one.
#define LATE "FAKE_CUDA_DELAY_US=4000-8000"
#define MARK (-77.0f) // The value that the trainer writes late.

// ---- waits --------------------------------------------------------------------------------------

static void script_rounds(struct member *member)
{
    const struct play *play = rig_play(member);
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t done = member->done_count + 1;
        rig_fill(member, &rig, shot_value(member->rank, round));
        shot_launch(member, &shot, &rig, round);
        if (play->follows && member->device) {
            member_until(member, &member->enqueued_count, round + 1, "what is enqueued");
            MEMBER_CHECK(member, device_stream_follow(member->device, rig.reads) == 0);
            MEMBER_CHECK(member,
                         rig_all_are(member, rig_read(member, &rig), shot_mean(member, round)));
        }
        member_until(member, &member->done_count, done, "the collective");
        MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_mean(member, round)));
        MEMBER_CHECK(member, shot.used == (play->pieces ? 7 : 1));
        // The result must not change when all work enqueued earlier is done.
        if (member->device)
            CUDA(member, stream_synchronize(rig.makes));
        MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_mean(member, round)));
    }
    rig_close(member, &rig);
}

// Rows of several stripes, in which each rank is the first to send for some share.
static void run_rounds(enum fleet_devices devices, uint32_t world, struct play play)
{
    const struct fleet_options options = {.name = rig_name(devices),
                                          .kind = play.memory ? TRANSPORT_TCP : TRANSPORT_LOOPBACK,
                                          .world = world,
                                          .mates = play.memory,
                                          .chunk_bytes = 1024,
                                          .segment_bytes = play.segment_bytes,
                                          .devices = devices};
    char complaint[400];
    fake_gpu_weather(DEVICES, play.weather ? play.weather : LAZY, NULL);
    fleet_run(&options, script_rounds, &play);
    fake->complaint(complaint, sizeof(complaint));
    assert_string_equal(complaint, "");
}

static void test_staged_waits(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 3; world++) {
        run_rounds(FLEET_STAGED, world, (struct play){.pieces = false});
        run_rounds(FLEET_STAGED, world, (struct play){.pieces = true});
    }
}

static void test_nccl_waits(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 4; world++) {
        run_rounds(FLEET_NCCL, world, (struct play){.pieces = false});
        run_rounds(FLEET_NCCL, world, (struct play){.pieces = true});
    }
}

static void test_mixed_waits(void **state)
{
    (void)state;
    for (uint32_t world = 3; world <= 5; world++) {
        run_rounds(FLEET_MIXED, world, (struct play){.pieces = false});
        run_rounds(FLEET_MIXED, world, (struct play){.pieces = true});
    }
    assert_true(fake->nccl_calls("ncclReduceScatter") > 0);
    assert_int_equal(fake->nccl_calls("ncclAllGather"), 0);
}

static void test_streams_follow(void **state)
{
    (void)state;
    run_rounds(FLEET_MIXED, 4, (struct play){.follows = true});
    run_rounds(FLEET_MIXED, 4, (struct play){.follows = true, .pieces = true});
    run_rounds(FLEET_STAGED, 2, (struct play){.follows = true});
    run_rounds(FLEET_STAGED, 2, (struct play){.follows = true, .pieces = true});
    run_rounds(FLEET_NCCL, 2, (struct play){.follows = true});
    run_rounds(FLEET_NCCL, 2, (struct play){.follows = true, .pieces = true});
}

// Rows of several segments. Segments that have arrived on the host travel, and final segments
// return to the device, while other segments are still being copied. Shares of a mixed world end
// inside a segment.
static void run_segments(struct play play)
{
    play.segment_bytes = SEGMENT_BYTES;
    play.weather = LATE;
    for (uint32_t world = 2; world <= 3; world++)
        run_rounds(FLEET_STAGED, world, play);
    for (uint32_t world = 3; world <= 5; world += 2)
        run_rounds(FLEET_MIXED, world, play);
}

static void test_segments_wait(void **state)
{
    (void)state;
    run_segments((struct play){.pieces = false});
    run_segments((struct play){.pieces = true});
    run_segments((struct play){.pieces = true, .follows = true});
    run_segments((struct play){.pieces = true, .idle = true});
}

// Segments with shared memory, of a row large enough for several pieces.
static void test_segments_wait_in_memory(void **state)
{
    const struct play play = {.pieces = true,
                              .memory = true,
                              .elements = ELEMENTS_MOST,
                              .segment_bytes = ELEMENTS_MOST, // Four segments.
                              .weather = LATE};
    (void)state;
    run_rounds(FLEET_STAGED, 2, play);
    run_rounds(FLEET_STAGED, 3, play);
    run_rounds(FLEET_MIXED, 4, play);
}

// A rank without input also waits for streams that write to the memory of the result.
static void test_results_come_last(void **state)
{
    (void)state;
    run_rounds(FLEET_STAGED, 3, (struct play){.idle = true, .pieces = true});
    run_rounds(FLEET_NCCL, 3, (struct play){.idle = true, .pieces = true});
    run_rounds(FLEET_MIXED, 4, (struct play){.idle = true, .pieces = true});
}

// A world of one rank copies nothing: its gradient is the result once its streams have made it.
static void test_alone(void **state)
{
    (void)state;
    run_rounds(FLEET_STAGED, 1, (struct play){.pieces = true});
    assert_int_equal(fake->calls("cuMemcpyAsync"), 0);
    assert_int_equal(fake->calls("cuLaunchKernel"), ROUNDS); // Only the trainer's kernels.
    run_rounds(FLEET_STAGED, 1, (struct play){.follows = true});
}

// ---- the steady state ---------------------------------------------------------------------------

static uint64_t allocations(void)
{
    return fake->calls("cuMemAlloc_v2") + fake->calls("cuMemHostAlloc") +
           fake->calls("cuEventCreate") + fake->calls("cuMemFree_v2");
}

static void script_steady(struct member *member)
{
    struct rig rig;
    struct shot shot;
    uint64_t before = 0;
    rig_open(member, &rig);
    member_barrier(member);
    before = allocations();
    member_barrier(member);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        rig_fill(member, &rig, shot_value(member->rank, round));
        shot_launch(member, &shot, &rig, round);
        member_until(member, &member->done_count, round + 1, "the collective");
    }
    member_barrier(member);
    MEMBER_CHECK(member, allocations() == before);
    member_barrier(member);
    rig_close(member, &rig);
}

static void test_steady_state_allocates_nothing(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, NULL);
    rig_run(FLEET_STAGED, 3, script_steady, &(struct play){.pieces = true});
    rig_run(FLEET_NCCL, 3, script_steady, &(struct play){.pieces = true});
    rig_run(FLEET_MIXED, 5, script_steady, &(struct play){.pieces = true});
    rig_run(FLEET_STAGED, 3, script_steady,
            &(struct play){.pieces = true, .segment_bytes = SEGMENT_BYTES});
    rig_run(FLEET_MIXED, 5, script_steady,
            &(struct play){.pieces = true, .segment_bytes = SEGMENT_BYTES});
}

// Only rows of several segments use events behind segments.
static void test_short_rows_have_no_segment_events(void **state)
{
    uint64_t events[2];
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        fake_gpu_weather(DEVICES, NULL);
        rig_run(FLEET_STAGED, 3, script_steady,
                &(struct play){.pieces = true, .segment_bytes = ELEMENTS * sizeof(float) - i});
        events[i] = fake->calls("cuEventCreate");
    }
    assert_true(events[1] > events[0]);
}

// ---- results that come late ---------------------------------------------------------------------

static void take_what_is_aside(struct member *member, struct rig *rig, struct shot *shot)
{
    const uint32_t each = rig_elements(member) / PIECES;
    rig_fill(member, rig, MARK);
    MEMBER_CHECK(member, device_event_record(member->device, rig->event, rig->makes) == 0);
    const struct device_ready ready = {.event = rig->event, .stream = rig->makes, .pending = true};
    atomic_store(&shot->behind.ready, &ready);
    member_until(member, &member->done_count, 2, "what was put aside");
    const float *result = rig_look(member, rig);
    MEMBER_CHECK(member, rig_some_are(result, 2 * each, shot_mean(member, 0)));
    MEMBER_CHECK(member, rig_some_are(result + 2 * each, each, shot_mean_from(member, 0, 1, 0)));
}

// The result of a gradient that rank 0 left out waits on the host, and the second collective needs
// its memory block. The result is set aside without an allocation. Then the trainer writes to the
// gradient, and tells that the result may be written.
static void script_put_aside(struct member *member)
{
    struct rig rig;
    struct shot shots[2];
    rig_open(member, &rig);
    if (member->device) {
        // Each of the two collectives has extents of its own, and so tables of its own.
        MEMBER_CHECK(member, transport_reserve_tables(member->transport, member->device, 1,
                                                      rig_bytes(member), 2 * PIECES) == 0);
        MEMBER_CHECK(member, transport_reserve_offload(member->transport, 2, 2 * rig_bytes(member),
                                                       rig_bytes(member), PIECES) == 0);
    }
    member_barrier(member);
    const uint64_t before = allocations();
    for (uint32_t round = 0; round < 2; round++) {
        rig_fill(member, &rig, shot_value(member->rank, round));
        shot_launch(member, &shots[round], &rig, round);
        if (member->rank == 0 && round == 0)
            member_until(member, &member->summed_count, 1, "a sum");
        else
            member_until(member, &member->done_count, member->rank == 0 ? 1 : round + 1, "a mean");
    }
    MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_mean(member, 1)));
    member_barrier(member);
    MEMBER_CHECK(member, allocations() == before);
    if (member->rank == 0)
        take_what_is_aside(member, &rig, &shots[0]);
    member_barrier(member);
    rig_close(member, &rig);
}

static void test_segments_are_put_aside(void **state)
{
    struct play play = {.pieces = true, .leaves_out = true, .segment_bytes = SEGMENT_BYTES};
    (void)state;
    fake_gpu_weather(DEVICES, LATE, NULL);
    rig_run(FLEET_STAGED, 2, script_put_aside, &play);
    rig_run(FLEET_MIXED, 4, script_put_aside, &play);
}

// ---- forming ------------------------------------------------------------------------------------

// Forming fails on every rank, with the reason why NCCL made no communicator, or that it did not in
// time.
static void *form_in_vain(void *argument)
{
    struct member *member = argument;
    struct transport_world world;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];
    char error[256] = "";
    char choice[32];
    snprintf(choice, sizeof(choice), "cuda:%u", member->rank);
    MEMBER_CHECK(member, !fleet_has_device(member->fleet, member->rank) ||
                             device_open(choice, &member->device, error, sizeof(error)) == 0);
    member->transport = fleet_open(member);
    snprintf(member->fleet->addresses[member->rank], LOCKSTEP_ADDRESS_BYTES, "%s",
             transport_address(member->transport));
    member_barrier(member);
    fleet_world(member->fleet, member->rank, &world, peers);
    world.form_timeout_ms = fleet_bound_ms(1000);
    MEMBER_CHECK(member, transport_form(member->transport, &world) == 0);
    member_until_true(member, &member->form_failed, "the failure to form");
    MEMBER_CHECK(member, !member->formed && member->lost_rank == member->rank);
    MEMBER_CHECK(member, strstr(member->lost_text, rig_play(member)->says) != NULL);
    member_barrier(member);
    transport_abandon(member->transport);
    transport_close(member->transport);
    device_close(member->device);
    return NULL;
}

static void run_in_vain(enum fleet_devices devices, uint32_t world, const char *weather,
                        const char *says)
{
    struct play play = {.says = says};
    struct fleet *fleet = calloc(1, sizeof(*fleet));
    pthread_t threads[FLEET_MAX];
    fleet->options = (struct fleet_options){.name = rig_name(devices),
                                            .kind = TRANSPORT_LOOPBACK,
                                            .world = world,
                                            .chunk_bytes = 4096,
                                            .devices = devices};
    fleet->argument = &play;
    pthread_barrier_init(&fleet->barrier, NULL, world);
    fake_gpu_weather(DEVICES, weather, NULL);
    for (uint32_t i = 0; i < world; i++) {
        fleet->members[i].fleet = fleet;
        fleet->members[i].rank = i;
        pthread_create(&threads[i], NULL, form_in_vain, &fleet->members[i]);
    }
    for (uint32_t i = 0; i < world; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&fleet->barrier);
    free(fleet);
}

static void test_forms_in_vain(void **state)
{
    (void)state;
    run_in_vain(FLEET_NCCL, 2, "FAKE_NCCL_FAIL=ncclGetUniqueId:1:3", "ncclGetUniqueId");
    run_in_vain(FLEET_MIXED, 3, "FAKE_NCCL_FAIL=ncclGetUniqueId:1:3", "ncclGetUniqueId");
}

// Several generations, each with a communicator of its own.
static void script_generations(struct member *member)
{
    struct transport_world world;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    // Large enough to be registered with NCCL.
    MEMBER_CHECK(member, transport_reserve_device(member->transport, 1, 1 << 20, 1, 1) == 0);
    for (uint32_t round = 0; round < 3; round++) {
        MEMBER_CHECK(member, !member->device || fake->nccl_calls("ncclCommRegister") > round);
        rig_fill(member, &rig, shot_value(member->rank, round));
        shot_launch(member, &shot, &rig, round);
        member_until(member, &member->done_count, round + 1, "the collective");
        MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_mean(member, round)));
        member_barrier(member);
        transport_abandon(member->transport);
        member_barrier(member);
        fleet_world(member->fleet, member->rank, &world, peers);
        world.generation.number += round + 1;
        member->formed = false;
        MEMBER_CHECK(member, transport_form(member->transport, &world) == 0);
        member_until_true(member, &member->formed, "the next world to form");
        member->lost_count = 0;
    }
    member_barrier(member);
    rig_close(member, &rig);
}

static void test_generations(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, NULL);
    rig_run(FLEET_NCCL, 3, script_generations, &(struct play){.pieces = true});
    fake_gpu_weather(DEVICES, NULL);
    rig_run(FLEET_MIXED, 4, script_generations, &(struct play){.pieces = true});
    assert_int_equal(fake->nccl_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_staged_waits, rig_nothing_left),
        cmocka_unit_test_teardown(test_nccl_waits, rig_nothing_left),
        cmocka_unit_test_teardown(test_mixed_waits, rig_nothing_left),
        cmocka_unit_test_teardown(test_streams_follow, rig_nothing_left),
        cmocka_unit_test_teardown(test_segments_wait, rig_nothing_left),
        cmocka_unit_test_teardown(test_segments_wait_in_memory, rig_nothing_left),
        cmocka_unit_test_teardown(test_results_come_last, rig_nothing_left),
        cmocka_unit_test_teardown(test_alone, rig_nothing_left),
        cmocka_unit_test_teardown(test_steady_state_allocates_nothing, rig_nothing_left),
        cmocka_unit_test_teardown(test_short_rows_have_no_segment_events, rig_nothing_left),
        cmocka_unit_test_teardown(test_segments_are_put_aside, rig_nothing_left),
        cmocka_unit_test_teardown(test_generations, rig_nothing_left),
        cmocka_unit_test(test_forms_in_vain),
    };
    return cmocka_run_group_tests_name("devices", tests, rig_setup, NULL);
}
