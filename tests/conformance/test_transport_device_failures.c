// SPDX-License-Identifier: Apache-2.0
//
// Collectives on fake devices when a device, NCCL or a rank fails or hangs. Ranks are threads
// (transport_rig.h).

#include "tests/conformance/transport_rig.h"
#include "worker/device/memory.h"
#include "worker/transport/inspect.h"
#include "worker/transport/lifecycle.h"

#include "base/clock.h"
#include "base/thread.h"
#include "worker/device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define GIVE_UP_MS 4000 // Time limit for giving up, before fleet_bound_ms().

// ---- waiting for others -------------------------------------------------------------------------

static void idle_until(struct member *member, bool (*happens)(struct member *, const void *),
                       const void *argument, const char *what)
{
    const uint64_t since_ms = clock_now_ms();
    member->waits_for = what;
    while (!happens(member, argument)) {
        transport_progress(member->transport, 1);
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
    }
    member->waits_for = NULL;
}

// True once the event that one rank waits for has happened. Until then the other ranks run, too.
static atomic_bool seen;

static bool is_seen(struct member *member, const void *unused)
{
    (void)member;
    (void)unused;
    return atomic_load(&seen);
}

static void run_failing(enum fleet_devices devices, uint32_t world, void (*script)(struct member *),
                        struct play *play)
{
    atomic_store(&seen, false);
    rig_run(devices, world, script, play);
}

// ---- failures -----------------------------------------------------------------------------------

static void member_give_up(struct member *member, uint64_t most_ms)
{
    const uint64_t since_ms = clock_now_ms();
    transport_abandon(member->transport);
    MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(most_ms));
    member_barrier(member);
    transport_close(member->transport);
    member->closed = true;
}

// The begin of a script in which only rank 0 launches a collective.
static void script_launch_alone(struct member *member, struct rig *rig, struct shot *shot)
{
    rig_open(member, rig);
    rig_fill(member, rig, shot_value(member->rank, 0));
    if (member->rank != 0)
        return;
    shot_launch(member, shot, rig, 0);
    member_idle(member, 20);
}

// The end of a script whose collective has failed.
static void script_give_up(struct member *member, struct rig *rig)
{
    member_barrier(member);
    member_give_up(member, GIVE_UP_MS);
    rig_close(member, rig);
}

// Only rank 0 launches a collective, and then gives up. Its gradients are unchanged, whatever NCCL
// has left in its buffers. No memory was reserved for its second collective, and none can be
// allocated while NCCL waits for the other ranks.
static void script_given_up(struct member *member)
{
    struct rig rig;
    struct shot shot;
    struct shot second;
    rig_open(member, &rig);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    if (member->rank == 0) {
        shot_launch(member, &shot, &rig, 0);
        member_idle(member, 20);
        shot_launch(member, &second, &rig, 1);
        member_idle(member, 20);
        MEMBER_CHECK(member, member->done_count == 0 && member->failed_count == 0);
    }
    member_barrier(member);
    member_give_up(member, GIVE_UP_MS);
    if (member->rank == 0) {
        MEMBER_CHECK(member, !shot.collective.state);
        MEMBER_CHECK(member, !device_failed(member->device));
        CUDA(member, stream_synchronize(rig.makes));
        MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_value(0, 0)));
    }
    rig_close(member, &rig);
}

static void test_given_up(void **state)
{
    (void)state;
    // As with NCCL, a rank that gives up ends its own kernels only.
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=own", NULL);
    for (uint32_t world = 2; world <= 4; world++) {
        run_failing(FLEET_NCCL, world, script_given_up, &(struct play){.pieces = false});
        run_failing(FLEET_NCCL, world, script_given_up, &(struct play){.pieces = true});
        run_failing(FLEET_STAGED, world, script_given_up, &(struct play){.pieces = true});
        run_failing(FLEET_MIXED, world + 1, script_given_up, &(struct play){.pieces = true});
    }
}

// A device does not read the inputs of its rank after the rank has given up: the trainer may free
// them.
static void script_reads_are_over(struct member *member)
{
    const uint32_t n = rig_elements(member);
    const size_t bytes = n * sizeof(float);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MEMBER_CHECK(member, memory != MAP_FAILED);
    struct extent extent = {.in = memory, .out = memory, .elements = n};
    struct collective collective = {.dtype = DTYPE_FLOAT32,
                                    .op = REDUCE_SUM,
                                    .algorithm = ALGORITHM_RING,
                                    .tag = {.step = 1, .space = 2},
                                    .extents = &extent,
                                    .extent_count = 1,
                                    .elements = n};
    member_place(member, &collective);
    member_barrier(member);
    if (member->device)
        transport_launch(member->transport, &collective);
    transport_abandon(member->transport);
    MEMBER_CHECK(member, mprotect(memory, bytes, PROT_NONE) == 0); // A late read ends the process.
    MEMBER_CHECK(member, !member->device || !device_failed(member->device));
    member_barrier(member);
    transport_close(member->transport);
    member->closed = true;
    MEMBER_CHECK(member, munmap(memory, bytes) == 0);
}

static void test_reads_are_over(void **state)
{
    (void)state;
    // The read is late only sometimes.
    for (uint32_t round = 0; round < 4; round++)
        for (uint32_t world = 2; world <= 3; world++) {
            run_failing(FLEET_STAGED, world, script_reads_are_over,
                        &(struct play){.pieces = false});
            run_failing(FLEET_STAGED, world, script_reads_are_over,
                        &(struct play){.segment_bytes = SEGMENT_BYTES});
        }
}

// The trainer's stream never makes the gradient. A rank that gives up does not wait for it.
static void script_never_ready(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    member_barrier(member);
    if (member->rank == 0)
        fake->hold(0, true);
    member_barrier(member);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    member_idle(member, 20);
    MEMBER_CHECK(member, member->done_count == 0);
    member_give_up(member, GIVE_UP_MS);
    fake->hold(0, false);
    if (member->device)
        CUDA(member, stream_synchronize(rig.makes));
    if (member->rank == 0)
        MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_value(0, 0)));
    rig_close(member, &rig);
}

static void test_never_ready(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, NULL);
    run_failing(FLEET_STAGED, 2, script_never_ready, &(struct play){.pieces = true, .hangs = true});
    run_failing(FLEET_NCCL, 2, script_never_ready, &(struct play){.pieces = true, .hangs = true});
    run_failing(FLEET_MIXED, 3, script_never_ready, &(struct play){.pieces = true, .hangs = true});
}

// The device of rank 0 fails as the settings of the fake say. The failure is reported once, and the
// collective is not done on rank 0.
static void script_failing(struct member *member)
{
    const struct play *play = rig_play(member);
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    if (member->rank == 0) {
        member_until(member, &member->failed_count, 1, "the failure");
        char said[64];
        MEMBER_CHECK(member, strstr(member->failed_text, play->says) != NULL);
        MEMBER_CHECK(member, member->done_count == 0);
        transport_inspect_nccl(member->transport, said, sizeof(said));
        if (strstr(play->says, "said last"))
            MEMBER_CHECK(member, said[0] != '\0' && strstr(play->says, said));
        member_idle(member, 5);
        MEMBER_CHECK(member, member->failed_count == 1);
        atomic_store(&seen, true);
    } else {
        idle_until(member, is_seen, NULL, "what rank 0 is told");
    }
    script_give_up(member, &rig);
}

static void test_device_fails(void **state)
{
    static const struct {
        const char *weather;
        const char *says;
    } faults[] = {
        // The trainer launches a kernel of its own first, so faults name Lockstep's kernels.
        {"FAKE_CUDA_FAIL=lockstep_gather:1:700@0", "(700)"},
        {"FAKE_CUDA_FAIL=copy:1:700@0", "(700)"},
        {"FAKE_CUDA_FAIL=lockstep_scatter:1:719@0", "(719)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        fake_gpu_weather(DEVICES, faults[i].weather, NULL);
        run_failing(FLEET_STAGED, 2, script_failing,
                    &(struct play){.pieces = true, .says = faults[i].says});
    }
    fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=lockstep_pack:1:700@0", NULL);
    run_failing(FLEET_NCCL, 2, script_failing, &(struct play){.pieces = true, .says = "(700)"});
    fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=lockstep_finish:1:700@0", NULL);
    run_failing(FLEET_NCCL, 2, script_failing, &(struct play){.pieces = true, .says = "(700)"});
}

// The device fails in each stage: packing, the copies of the header and of the share, and the way
// back.
static void test_mixed_device_fails(void **state)
{
    static const char *const weathers[] = {
        "FAKE_CUDA_FAIL=lockstep_pack:1:700@0",
        "FAKE_CUDA_FAIL=copy:2:700@0",
        "FAKE_CUDA_FAIL=copy:3:700@0",
        "FAKE_CUDA_FAIL=copy:4:700@0",
        "FAKE_CUDA_FAIL=lockstep_scatter:1:700@0",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(weathers) / sizeof(weathers[0]); i++) {
        fake_gpu_weather(DEVICES, weathers[i], NULL);
        run_failing(FLEET_MIXED, 4, script_failing,
                    &(struct play){.pieces = true, .says = "(700)"});
    }
}

static void test_nccl_fails(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=all_reduce:1:6@0", NULL);
    run_failing(FLEET_NCCL, 2, script_failing,
                &(struct play){.pieces = true,
                               .says =
                                   "NCCL: remote process exited or there was a network error; "
                                   "NCCL said last: 'all_reduce on rank 0:  as it was told to'"});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=all_reduce:1:6@0", NULL);
    run_failing(FLEET_NCCL, 3, script_failing, &(struct play){.says = "NCCL"});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=reduce_scatter:1:6@0", NULL);
    run_failing(FLEET_MIXED, 4, script_failing, &(struct play){.pieces = true, .says = "NCCL"});
}

// ---- a segment that never lands -----------------------------------------------------------------

static bool first_is_final(struct member *member, const void *rig)
{
    const float mean = shot_mean(member, 0);
    return memcmp(((const struct rig *)rig)->host, &mean, sizeof(mean)) == 0;
}

// True if more copies were enqueued than the segments to the host need, so a segment goes back.
static bool some_goes_back(struct member *member, const void *unused)
{
    (void)member;
    (void)unused;
    return fake->calls("cuMemcpyAsync") > SEGMENTS;
}

// Checks that memory to which the device still copies is not free for others.
static void check_kept(struct member *member)
{
    device_enter(member->device);
    const struct device_block *block =
        device_find(member->device, MEMORY_PINNED, rig_bytes(member));
    device_leave(member->device);
    MEMBER_CHECK(member, !block);
}

// The event behind the last segment of rank 0 hangs. Rank 1 still gets the first elements, and rank
// 0 copies final elements back to its device. The last elements are final on no rank, and the
// collective is not done. Rank 0 then gives up; with play->lost its device is lost before, which is
// reported.
static void script_last_never_lands(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    member_barrier(member);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    idle_until(member, some_goes_back, NULL, "a segment that goes back");
    if (!member->device)
        idle_until(member, first_is_final, &rig, "the first segment");
    MEMBER_CHECK(member, member->done_count == 0 && member->failed_count == 0);
    if (!member->device) {
        const float own = shot_value(member->rank, 0);
        MEMBER_CHECK(member, memcmp(&rig.host[rig_elements(member) - 1], &own, sizeof(own)) == 0);
    }
    if (member->device && rig_play(member)->lost) {
        fake->lose(0, 719);
        member_until(member, &member->failed_count, 1, "the failure");
        MEMBER_CHECK(member, strstr(member->failed_text, "(719)") != NULL);
    }
    member_barrier(member);
    transport_abandon(member->transport);
    if (member->device && !rig_play(member)->lost) {
        check_kept(member);
        MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_value(0, 0)));
        fake->lose(0, 719);
    }
    member_give_up(member, GIVE_UP_MS);
    rig_close(member, &rig);
}

static void test_last_segment_never_lands(void **state)
{
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        // The trainer records the first event.
        fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=record:4:hang@0", NULL);
        run_failing(FLEET_STAGED, 2, script_last_never_lands,
                    &(struct play){.segment_bytes = SEGMENT_BYTES, .lost = lost == 1});
    }
}

// All ranks have weight 0, so the hosts are done without any data. Rank 0 is done only after its
// device has made all copies that were enqueued.
static void script_nothing_counts(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    member_barrier(member);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    if (!member->device) {
        member_until(member, &member->done_count, 1, "the collective");
        atomic_store(&seen, true);
    } else {
        idle_until(member, is_seen, NULL, "the rank without a device");
        member_idle(member, 50);
        MEMBER_CHECK(member, member->done_count == 0 && member->failed_count == 0);
        fake->lose(0, 719);
        member_until(member, &member->failed_count, 1, "the failure");
    }
    script_give_up(member, &rig);
}

static void test_copies_of_nothing_are_awaited(void **state)
{
    (void)state;
    // The copy of the last segment. No other stream copies, so it is the same one on every run.
    fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=copy:4:hang@0", NULL);
    run_failing(FLEET_STAGED, 2, script_nothing_counts,
                &(struct play){.memory = true,
                               .weightless = true,
                               .elements = ELEMENTS_MOST,
                               .segment_bytes = ELEMENTS_MOST}); // Four segments.
}

// True if the rank says that it waits for its device and for nothing else.
static bool device_is_awaited(struct member *member, const void *collective)
{
    const struct device_held held = transport_inspect_device(member->transport);
    return held.hold == DEVICE_HOLD_STREAM && held.collective == collective && !held.ready;
}

// The sum is whole, and rank 0's device never writes it. No other rank and no stream is blamed.
static void script_never_written(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    rig_fill(member, &rig, shot_value(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    if (member->rank != 0) {
        member_until(member, &member->done_count, 1, "the collective");
    } else {
        idle_until(member, device_is_awaited, &shot.collective, "what is awaited");
        fake->lose(0, 719);
        member_until(member, &member->failed_count, 1, "the failure");
    }
    script_give_up(member, &rig);
}

static void test_a_device_that_does_not_write(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=lockstep_finish:1:hang@0", NULL);
    run_failing(FLEET_NCCL, 2, script_never_written, &(struct play){.pieces = true});
}

// Another rank gives up, which also ends the kernels of this rank. Their output is not taken as a
// result.
static void script_ended_elsewhere(struct member *member)
{
    struct rig rig;
    struct shot shot;
    script_launch_alone(member, &rig, &shot);
    member_barrier(member);
    if (member->rank == 1)
        transport_abandon(member->transport);
    if (member->rank == 0) {
        if (rig_play(member)->late)
            CUDA(member, stream_synchronize(device_stream(member->device, DEVICE_REDUCE)));
        member_until(member, &member->failed_count, 1, "the failure");
        MEMBER_CHECK(member, member->done_count == 0);
        MEMBER_CHECK(member, strstr(member->failed_text, "NCCL") != NULL);
    }
    script_give_up(member, &rig);
}

static void test_ended_elsewhere(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", NULL);
    run_failing(FLEET_NCCL, 2, script_ended_elsewhere, &(struct play){.pieces = true});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", NULL);
    run_failing(FLEET_MIXED, 3, script_ended_elsewhere, &(struct play){.pieces = true});
}

// All enqueued work is done when Lockstep checks, and NCCL reports no error at first. NCCL's later
// error still fails the collective.
static void test_ended_elsewhere_late(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", "FAKE_NCCL_LATE_ERRORS=1", NULL);
    run_failing(FLEET_NCCL, 2, script_ended_elsewhere,
                &(struct play){.pieces = true, .late = true});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", "FAKE_NCCL_LATE_ERRORS=1", NULL);
    run_failing(FLEET_MIXED, 3, script_ended_elsewhere,
                &(struct play){.pieces = true, .late = true});
}

// True while no thread can be started that ends a communicator.
static atomic_bool no_threads;

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*body)(void *), void *argument)
{
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_load(&no_threads) && // All threads of this program are a struct thread.
        strcmp(((const struct thread *)argument)->name, "lockstep-nccl") == 0)
        return EAGAIN;
    return create(thread, attributes, body, argument);
}

static void test_given_up_without_a_thread(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=own", NULL);
    atomic_store(&no_threads, true);
    run_failing(FLEET_NCCL, 2, script_given_up, &(struct play){.pieces = true});
    atomic_store(&no_threads, false);
    assert_int_equal(fake->nccl_live(), 0);
}

// Lockstep does not wait for an abort that never returns, and reports it.
static void script_abort_hangs(struct member *member)
{
    struct rig rig;
    struct shot shot;
    script_launch_alone(member, &rig, &shot);
    member_give_up(member, GIVE_UP_MS);
    if (member->device)
        MEMBER_CHECK(member, strstr(device_failed(member->device), "NCCL") != NULL);
    if (member->rank == 0)
        MEMBER_CHECK(member, rig_all_are(member, rig_look(member, &rig), shot_value(0, 0)));
    rig_close(member, &rig);
}

static void test_abort_hangs(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT_HANGS=1", NULL);
    run_failing(FLEET_NCCL, 2, script_abort_hangs, &(struct play){.pieces = true, .hangs = true});
}

// Uses other devices than earlier tests, because work on the first two devices hangs for ever.
static void test_mixed_abort_hangs(void **state)
{
    const struct fleet_options options = {.name = "mixed",
                                          .kind = TRANSPORT_LOOPBACK,
                                          .world = 3,
                                          .chunk_bytes = 4096,
                                          .abort_ms = ABORT_MS,
                                          .devices = FLEET_MIXED,
                                          .first_device = 2};
    struct play play = {.pieces = true};
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT_HANGS=1", NULL);
    fleet_run(&options, script_abort_hangs, &play);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_given_up, rig_nothing_left),
        cmocka_unit_test_teardown(test_given_up_without_a_thread, rig_nothing_left),
        cmocka_unit_test_teardown(test_reads_are_over, rig_nothing_left),
        cmocka_unit_test_teardown(test_never_ready, rig_nothing_left),
        cmocka_unit_test_teardown(test_ended_elsewhere, rig_nothing_left),
        cmocka_unit_test_teardown(test_ended_elsewhere_late, rig_nothing_left),
        cmocka_unit_test(test_device_fails),
        cmocka_unit_test(test_mixed_device_fails),
        cmocka_unit_test(test_last_segment_never_lands),
        cmocka_unit_test(test_copies_of_nothing_are_awaited),
        cmocka_unit_test(test_a_device_that_does_not_write),
        cmocka_unit_test(test_nccl_fails),
        cmocka_unit_test(test_abort_hangs),
        cmocka_unit_test(test_mixed_abort_hangs),
    };
    return cmocka_run_group_tests_name("devices: failures", tests, rig_setup, NULL);
}
