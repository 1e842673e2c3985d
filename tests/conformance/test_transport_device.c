// SPDX-License-Identifier: Apache-2.0
//
// Collectives on devices whose memory the host must not touch, and whose streams begin an operation
// as late as they may: a wait that is missing shows each time. And what becomes of them when a
// device, NCCL or a rank fails. The devices are fakes (tests/fake_gpu/fake_gpu.h); ranks are
// threads. What is computed is checked by test_transport.c, over the same two ways.

#include "tests/conformance/transport_fleet.h"
#include "tests/support/fake_gpu.h"

#include "base/clock.h"
#include "worker/cuda.h"
#include "worker/device.h"
#include "worker/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS 3000
#define ELEMENTS_MOST 150000 // In several pieces of shared memory.
#define PIECES 3
#define ROUNDS 4
#define SEGMENT_BYTES 4000
#define SEGMENTS 3 // Of a row of ELEMENTS: of 1024 elements each, because they are whole lines.
// Who asks for one segment does not have the next one with it.
#define LATE "FAKE_CUDA_DELAY_US=4000-8000"
#define LAZY "FAKE_CUDA_LAZY_US=300000"
#define MARK (-77.0f) // What a trainer writes late.
#define DEVICES "FAKE_CUDA_DEVICES=8"
#define GIVE_UP_MS 4000 // Of fleet_bound_ms().
#define ABORT_MS 300 // Where an abort hangs; elsewhere the default, which nothing is to reach.

static const struct fake_controls *fake;
static const struct cuda *cuda;

// What a script does.
struct play {
    bool pieces; // Three extents instead of one.
    bool follows; // Results are read by a stream, as soon as they are enqueued.
    bool idle; // Rank 0 has no input, and its stream still writes to its memory.
    bool hangs; // An abort, or what the device was given, never ends.
    bool late; // NCCL has ended with an error, of which it tells when it is asked again.
    bool memory; // Ranks share it.
    bool weightless; // Nobody's gradients count.
    bool leaves_out; // Rank 0 has no input for the first piece, and says late what may be written.
    bool lost; // The device that stands still is lost in the end.
    uint32_t elements; // At most ELEMENTS_MOST. 0: ELEMENTS.
    uint64_t segment_bytes; // 0: the row is one segment.
    const char *weather; // NULL: LAZY.
    const char *says; // What the failure's text has in it.
};

static const struct play *play_of(const struct member *member)
{
    return member->fleet->argument;
}

static uint32_t elements_of(const struct member *member)
{
    const uint32_t elements = play_of(member)->elements;
    return elements == 0 ? ELEMENTS : elements;
}

static size_t bytes_of(const struct member *member)
{
    return elements_of(member) * sizeof(float);
}

// ---- a rank's memory and streams ----------------------------------------------------------------

struct rig {
    void *context;
    void *makes; // Streams of the trainer.
    void *reads;
    void *module;
    void *fill;
    void *event;
    uint64_t address; // Of the device; so many elements, ...
    float *host; // ... as here: pinned, or the gradient of a rank without a device.
};

#define CUDA(member, call) MEMBER_CHECK(member, cuda->call == CUDA_OK)

static int rig_ordinal(const struct member *member)
{
    return (int)(member->fleet->options.first_device + member->rank);
}

static void rig_open(struct member *member, struct rig *rig)
{
    *rig = (struct rig){.context = NULL};
    if (!member->device) {
        rig->host = calloc(elements_of(member), sizeof(float));
        return;
    }
    CUDA(member, device_primary_ctx_retain(&rig->context, rig_ordinal(member)));
    CUDA(member, ctx_set_current(rig->context));
    CUDA(member, stream_create_with_priority(&rig->makes, CUDA_STREAM_NON_BLOCKING, 0));
    CUDA(member, stream_create_with_priority(&rig->reads, CUDA_STREAM_NON_BLOCKING, 0));
    CUDA(member, module_load_data(&rig->module, "anything"));
    CUDA(member, module_get_function(&rig->fill, rig->module, "fake_fill"));
    CUDA(member, mem_alloc(&rig->address, bytes_of(member)));
    CUDA(member, mem_host_alloc((void **)&rig->host, bytes_of(member), 0));
    rig->event = device_event_make(member->device);
    MEMBER_CHECK(member, rig->event != NULL);
    MEMBER_CHECK(member, transport_reserve_device(member->transport, 1, bytes_of(member), PIECES,
                                                  PIECES) == 0);
}

// After a device was lost nothing of it can be given back.
static void rig_close(struct member *member, struct rig *rig)
{
    if (!member->device) {
        free(rig->host);
        return;
    }
    if (!device_failed(member->device)) {
        device_event_free(member->device, rig->event);
        CUDA(member, mem_free_host(rig->host));
        CUDA(member, mem_free(rig->address));
        CUDA(member, module_unload(rig->module));
        CUDA(member, stream_destroy(rig->makes));
        CUDA(member, stream_destroy(rig->reads));
    }
    CUDA(member, ctx_set_current(NULL));
    CUDA(member, device_primary_ctx_release(rig_ordinal(member)));
}

static void rig_fill(struct member *member, const struct rig *rig, float value)
{
    const uint32_t elements = elements_of(member);
    struct fake_fill fill = {.to = (uint32_t *)(uintptr_t)rig->address, .count = elements};
    void *parameters[] = {&fill};
    for (uint32_t i = 0; !member->device && i < elements; i++)
        rig->host[i] = value;
    if (!member->device)
        return;
    memcpy(&fill.value, &value, sizeof(value));
    CUDA(member, launch_kernel(rig->fill, 1, 1, 1, 32, 1, 1, 0, rig->makes, parameters, NULL));
}

static bool some_are(const float *values, uint32_t count, float value)
{
    for (uint32_t i = 0; i < count; i++) {
        if (memcmp(&values[i], &value, sizeof(value)) != 0)
            return false;
    }
    return true;
}

static bool all_are(const struct member *member, const float *values, float value)
{
    return some_are(values, elements_of(member), value);
}

// What is in the gradients at this moment, whatever the device has still to do.
static const float *rig_look(const struct member *member, const struct rig *rig)
{
    return member->device ? fake->peek(rig->address, bytes_of(member)) : rig->host;
}

// What a stream of the trainer reads.
static const float *rig_read(struct member *member, const struct rig *rig)
{
    if (!member->device)
        return rig->host;
    CUDA(member, memcpy_dtoh_async(rig->host, rig->address, bytes_of(member), rig->reads));
    CUDA(member, stream_synchronize(rig->reads));
    return rig->host;
}

// ---- one collective -----------------------------------------------------------------------------

struct shot {
    struct collective collective;
    struct extent extents[PIECES];
    uint64_t ends[PIECES];
    uint64_t used;
    struct device_ready ready;
    struct device_behind behind;
};

// The pieces lie in another order than they have in the row.
static void shot_lay(struct shot *shot, const struct member *member, const struct rig *rig,
                     bool pieces)
{
    float *memory = member->device ? (float *)(uintptr_t)rig->address : rig->host;
    const uint32_t count = pieces ? PIECES : 1;
    const uint64_t each = elements_of(member) / count;
    for (uint32_t i = 0; i < count; i++) {
        float *piece = memory + (count - 1 - i) * each;
        shot->extents[i] = (struct extent){.in = piece, .out = piece, .elements = each};
        shot->ends[i] = (i + 1) * each;
    }
    shot->used = ((uint64_t)1 << count) - 1;
    shot->collective.extents = shot->extents;
    shot->collective.extent_count = count;
    shot->collective.unit_ends = shot->ends;
    shot->collective.unit_count = count;
    shot->collective.used = &shot->used;
}

// The first piece of the row, which lies behind the others.
static void shot_leave_out(struct shot *shot)
{
    shot->extents[0].in = NULL;
    shot->used &= ~(uint64_t)1;
    shot->collective.behind = &shot->behind;
}

// The weight of a rank is its number and one.
static void shot_launch(struct member *member, struct shot *shot, const struct rig *rig,
                        uint32_t round)
{
    const struct play *play = play_of(member);
    const bool idle = play->idle && member->rank == 0;
    const bool leaves_out = play->leaves_out && member->rank == 0 && round == 0;
    *shot =
        (struct shot){.collective = {.dtype = DTYPE_FLOAT32,
                                     .op = REDUCE_MEAN,
                                     .tag = {.step = round, .space = 3},
                                     .signature = 4,
                                     .algorithm = play->memory ? ALGORITHM_SHARED : ALGORITHM_RING,
                                     .elements = elements_of(member),
                                     .weight = idle || play->weightless ? 0 : member->rank + 1,
                                     .ready = &shot->ready,
                                     .ready_count = 1}};
    shot_lay(shot, member, rig, play->pieces);
    for (uint32_t i = 0; idle && i < PIECES; i++)
        shot->extents[i].in = NULL;
    if (idle)
        shot->used = 0;
    if (leaves_out)
        shot_leave_out(shot);
    member_place(member, &shot->collective);
    if (member->device) {
        MEMBER_CHECK(member, device_event_record(member->device, rig->event, rig->makes) == 0);
        shot->ready =
            (struct device_ready){.event = rig->event, .stream = rig->makes, .pending = true};
    }
    transport_launch(member->transport, &shot->collective);
}

static float value_of(uint32_t rank, uint32_t round)
{
    return (float)(8 * rank + round + 1);
}

// Of what the ranks from `first` contribute, by the weights of those from `weighs`.
static float mean_from(const struct member *member, uint32_t round, uint32_t first, uint32_t weighs)
{
    float sum = 0;
    float weights = 0;
    for (uint32_t r = 0; r < member->fleet->options.world; r++) {
        sum += r < first ? 0 : (float)(r + 1) * value_of(r, round);
        weights += r < weighs ? 0 : (float)(r + 1);
    }
    return sum / weights;
}

static float mean_of(const struct member *member, uint32_t round)
{
    const uint32_t first = play_of(member)->idle ? 1 : 0;
    return mean_from(member, round, first, first);
}

static const char *name_of(enum fleet_devices devices)
{
    return devices == FLEET_NCCL ? "nccl" : devices == FLEET_MIXED ? "mixed" : "staged";
}

// ---- waits --------------------------------------------------------------------------------------

static void script_rounds(struct member *member)
{
    const struct play *play = play_of(member);
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t done = member->done_count + 1;
        rig_fill(member, &rig, value_of(member->rank, round));
        shot_launch(member, &shot, &rig, round);
        if (play->follows && member->device) {
            member_until(member, &member->enqueued_count, round + 1, "what is enqueued");
            MEMBER_CHECK(member, device_stream_follow(member->device, rig.reads) == 0);
            MEMBER_CHECK(member, all_are(member, rig_read(member, &rig), mean_of(member, round)));
        }
        member_until(member, &member->done_count, done, "the collective");
        MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), mean_of(member, round)));
        MEMBER_CHECK(member, shot.used == (play->pieces ? 7 : 1));
        // And stays, when all that was enqueued before it has happened.
        if (member->device)
            CUDA(member, stream_synchronize(rig.makes));
        MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), mean_of(member, round)));
    }
    rig_close(member, &rig);
}

// In several stripes: each rank is the first to send something of each share.
static void run_rounds(enum fleet_devices devices, uint32_t world, struct play play)
{
    const struct fleet_options options = {.name = name_of(devices),
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

// A row in several segments: those that have landed travel, and what is final goes back, while the
// others are on their way. Shares of a mixed world end inside of a segment.
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

// Segments of shared memory: so large that there are several pieces.
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

// Who has no input waits all the same for streams that write where the result goes.
static void test_results_come_last(void **state)
{
    (void)state;
    run_rounds(FLEET_STAGED, 3, (struct play){.idle = true, .pieces = true});
    run_rounds(FLEET_NCCL, 3, (struct play){.idle = true, .pieces = true});
    run_rounds(FLEET_MIXED, 4, (struct play){.idle = true, .pieces = true});
}

// A world of one copies nothing: what lies there is the result, when it is there.
static void test_alone(void **state)
{
    (void)state;
    run_rounds(FLEET_STAGED, 1, (struct play){.pieces = true});
    assert_int_equal(fake->calls("cuMemcpyAsync"), 0);
    assert_int_equal(fake->calls("cuLaunchKernel"), ROUNDS); // The trainer's.
    run_rounds(FLEET_STAGED, 1, (struct play){.follows = true});
}

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

// What one rank waits for has happened: until then the others take part.
static atomic_bool seen;

static bool is_seen(struct member *member, const void *unused)
{
    (void)member;
    (void)unused;
    return atomic_load(&seen);
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
        rig_fill(member, &rig, value_of(member->rank, round));
        shot_launch(member, &shot, &rig, round);
        member_until(member, &member->done_count, round + 1, "the collective");
    }
    member_barrier(member);
    MEMBER_CHECK(member, allocations() == before);
    member_barrier(member);
    rig_close(member, &rig);
}

static void run_script(enum fleet_devices devices, uint32_t world, void (*script)(struct member *),
                       struct play *play)
{
    const struct fleet_options options = {.name = name_of(devices),
                                          .kind = play->memory ? TRANSPORT_TCP : TRANSPORT_LOOPBACK,
                                          .world = world,
                                          .mates = play->memory,
                                          .chunk_bytes = 4096,
                                          .abort_ms = play->hangs ? ABORT_MS : 0,
                                          .segment_bytes = play->segment_bytes,
                                          .devices = devices};
    atomic_store(&seen, false);
    fleet_run(&options, script, play);
}

static void test_steady_state_allocates_nothing(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, NULL);
    run_script(FLEET_STAGED, 3, script_steady, &(struct play){.pieces = true});
    run_script(FLEET_NCCL, 3, script_steady, &(struct play){.pieces = true});
    run_script(FLEET_MIXED, 5, script_steady, &(struct play){.pieces = true});
    run_script(FLEET_STAGED, 3, script_steady,
               &(struct play){.pieces = true, .segment_bytes = SEGMENT_BYTES});
    run_script(FLEET_MIXED, 5, script_steady,
               &(struct play){.pieces = true, .segment_bytes = SEGMENT_BYTES});
}

// Events behind segments are there where a row has several, and nowhere else.
static void test_short_rows_have_no_marks(void **state)
{
    uint64_t events[2];
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        fake_gpu_weather(DEVICES, NULL);
        run_script(FLEET_STAGED, 3, script_steady,
                   &(struct play){.pieces = true, .segment_bytes = ELEMENTS * sizeof(float) - i});
        events[i] = fake->calls("cuEventCreate");
    }
    assert_true(events[1] > events[0]);
}

// ---- results that come late ---------------------------------------------------------------------

static void take_what_is_aside(struct member *member, struct rig *rig, struct shot *shot)
{
    const uint32_t each = elements_of(member) / PIECES;
    rig_fill(member, rig, MARK);
    MEMBER_CHECK(member, device_event_record(member->device, rig->event, rig->makes) == 0);
    const struct device_ready ready = {.event = rig->event, .stream = rig->makes, .pending = true};
    atomic_store(&shot->behind.ready, &ready);
    member_until(member, &member->done_count, 2, "what was put aside");
    const float *result = rig_look(member, rig);
    MEMBER_CHECK(member, some_are(result, 2 * each, mean_of(member, 0)));
    MEMBER_CHECK(member, some_are(result + 2 * each, each, mean_from(member, 0, 1, 0)));
}

// What rank 0 left out in the first collective is on the host when the second one needs its place,
// and is put aside: nothing is allocated. Then the trainer writes there, and says so.
static void script_put_aside(struct member *member)
{
    struct rig rig;
    struct shot shots[2];
    rig_open(member, &rig);
    if (member->device) {
        // Each of the two has extents, and so tables, of its own.
        MEMBER_CHECK(member, transport_reserve_tables(member->transport, member->device, 1,
                                                      bytes_of(member), 2 * PIECES) == 0);
        MEMBER_CHECK(member, transport_reserve_aside(member->transport, 2, 2 * bytes_of(member),
                                                     bytes_of(member), PIECES) == 0);
    }
    member_barrier(member);
    const uint64_t before = allocations();
    for (uint32_t round = 0; round < 2; round++) {
        rig_fill(member, &rig, value_of(member->rank, round));
        shot_launch(member, &shots[round], &rig, round);
        if (member->rank == 0 && round == 0)
            member_until(member, &member->summed_count, 1, "a sum");
        else
            member_until(member, &member->done_count, member->rank == 0 ? 1 : round + 1, "a mean");
    }
    MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), mean_of(member, 1)));
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
    run_script(FLEET_STAGED, 2, script_put_aside, &play);
    run_script(FLEET_MIXED, 4, script_put_aside, &play);
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

// Rank 0 launches what the others never do, and gives up. Its gradients stay what they were,
// whatever NCCL has left in its buffers. Memory for the second of its collectives was not reserved,
// and cannot be had while NCCL waits for the others.
static void script_given_up(struct member *member)
{
    struct rig rig;
    struct shot shot;
    struct shot second;
    rig_open(member, &rig);
    rig_fill(member, &rig, value_of(member->rank, 0));
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
        MEMBER_CHECK(member, shot.collective.state == NULL);
        MEMBER_CHECK(member, device_failed(member->device) == NULL);
        CUDA(member, stream_synchronize(rig.makes));
        MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), value_of(0, 0)));
    }
    rig_close(member, &rig);
}

static void test_given_up(void **state)
{
    (void)state;
    // As NCCL is: whoever gives up ends its own kernels, not those of others.
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=own", NULL);
    for (uint32_t world = 2; world <= 4; world++) {
        run_script(FLEET_NCCL, world, script_given_up, &(struct play){.pieces = false});
        run_script(FLEET_NCCL, world, script_given_up, &(struct play){.pieces = true});
        run_script(FLEET_STAGED, world, script_given_up, &(struct play){.pieces = true});
        run_script(FLEET_MIXED, world + 1, script_given_up, &(struct play){.pieces = true});
    }
}

// The trainer's stream never comes to the gradient: whoever gives up does not wait for that.
static void script_never_ready(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    member_barrier(member);
    if (member->rank == 0)
        fake->hold(0, true);
    member_barrier(member);
    rig_fill(member, &rig, value_of(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    member_idle(member, 20);
    MEMBER_CHECK(member, member->done_count == 0);
    member_give_up(member, GIVE_UP_MS);
    fake->hold(0, false);
    if (member->device)
        CUDA(member, stream_synchronize(rig.makes));
    if (member->rank == 0)
        MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), value_of(0, 0)));
    rig_close(member, &rig);
}

static void test_never_ready(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, NULL);
    run_script(FLEET_STAGED, 2, script_never_ready, &(struct play){.pieces = true, .hangs = true});
    run_script(FLEET_NCCL, 2, script_never_ready, &(struct play){.pieces = true, .hangs = true});
    run_script(FLEET_MIXED, 3, script_never_ready, &(struct play){.pieces = true, .hangs = true});
}

// Rank 0's device fails, by what the weather says. It is told once, and nothing is done there.
static void script_failing(struct member *member)
{
    const struct play *play = play_of(member);
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    rig_fill(member, &rig, value_of(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    if (member->rank == 0) {
        member_until(member, &member->failed_count, 1, "the failure");
        char said[64];
        MEMBER_CHECK(member, strstr(member->failed_text, play->says) != NULL);
        MEMBER_CHECK(member, member->done_count == 0);
        transport_inspect_nccl(member->transport, said, sizeof(said));
        if (strstr(play->says, "said last"))
            MEMBER_CHECK(member, said[0] != '\0' && strstr(play->says, said) != NULL);
        member_idle(member, 5);
        MEMBER_CHECK(member, member->failed_count == 1);
        atomic_store(&seen, true);
    } else {
        idle_until(member, is_seen, NULL, "what rank 0 is told");
    }
    member_barrier(member);
    member_give_up(member, GIVE_UP_MS);
    rig_close(member, &rig);
}

static void test_device_fails(void **state)
{
    static const struct {
        const char *weather;
        const char *says;
    } faults[] = {
        // The first launch is the trainer's own.
        {"FAKE_CUDA_FAIL=lockstep_gather:1:700@0", "(700)"},
        {"FAKE_CUDA_FAIL=copy:1:700@0", "(700)"},
        {"FAKE_CUDA_FAIL=lockstep_scatter:1:719@0", "(719)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        fake_gpu_weather(DEVICES, faults[i].weather, NULL);
        run_script(FLEET_STAGED, 2, script_failing,
                   &(struct play){.pieces = true, .says = faults[i].says});
    }
    fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=lockstep_pack:1:700@0", NULL);
    run_script(FLEET_NCCL, 2, script_failing, &(struct play){.pieces = true, .says = "(700)"});
    fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=lockstep_finish:1:700@0", NULL);
    run_script(FLEET_NCCL, 2, script_failing, &(struct play){.pieces = true, .says = "(700)"});
}

// In each stage: packing, the copies of the header and of the share, the way back.
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
        run_script(FLEET_MIXED, 4, script_failing, &(struct play){.pieces = true, .says = "(700)"});
    }
}

static void test_nccl_fails(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=all_reduce:1:6@0", NULL);
    run_script(FLEET_NCCL, 2, script_failing,
               &(struct play){.pieces = true,
                              .says =
                                  "NCCL: remote process exited or there was a network error; "
                                  "NCCL said last: 'all_reduce on rank 0:  as it was told to'"});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=all_reduce:1:6@0", NULL);
    run_script(FLEET_NCCL, 3, script_failing, &(struct play){.says = "NCCL"});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_FAIL=reduce_scatter:1:6@0", NULL);
    run_script(FLEET_MIXED, 4, script_failing, &(struct play){.pieces = true, .says = "NCCL"});
}

// ---- a segment that never lands -----------------------------------------------------------------

static bool first_is_final(struct member *member, const void *rig)
{
    const float mean = mean_of(member, 0);
    return memcmp(((const struct rig *)rig)->host, &mean, sizeof(mean)) == 0;
}

// More copies were enqueued than there are segments on the way to the host.
static bool some_goes_back(struct member *member, const void *unused)
{
    (void)member;
    (void)unused;
    return fake->calls("cuMemcpyAsync") > SEGMENTS;
}

// What the device still copies to is nobody else's.
static void check_kept(struct member *member)
{
    device_enter(member->device);
    const struct device_block *block = device_find(member->device, MEMORY_PINNED, bytes_of(member));
    device_leave(member->device);
    MEMBER_CHECK(member, block == NULL);
}

// What tells that the last segment of rank 0 has landed stands still. Rank 1 has the first elements
// all the same, and rank 0 takes back what is final; the last ones are nobody's, and nothing is
// done. The device is given up as it is, or is lost first, which is told.
static void script_last_never_lands(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    member_barrier(member);
    rig_fill(member, &rig, value_of(member->rank, 0));
    shot_launch(member, &shot, &rig, 0);
    idle_until(member, some_goes_back, NULL, "a segment that goes back");
    if (!member->device)
        idle_until(member, first_is_final, &rig, "the first segment");
    MEMBER_CHECK(member, member->done_count == 0 && member->failed_count == 0);
    if (!member->device) {
        const float own = value_of(member->rank, 0);
        MEMBER_CHECK(member, memcmp(&rig.host[elements_of(member) - 1], &own, sizeof(own)) == 0);
    }
    if (member->device && play_of(member)->lost) {
        fake->lose(0, 719);
        member_until(member, &member->failed_count, 1, "the failure");
        MEMBER_CHECK(member, strstr(member->failed_text, "(719)") != NULL);
    }
    member_barrier(member);
    transport_abandon(member->transport);
    if (member->device && !play_of(member)->lost) {
        check_kept(member);
        MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), value_of(0, 0)));
        fake->lose(0, 719);
    }
    member_give_up(member, GIVE_UP_MS);
    rig_close(member, &rig);
}

static void test_last_segment_never_lands(void **state)
{
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        // The first event is the trainer's.
        fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=record:4:hang@0", NULL);
        run_script(FLEET_STAGED, 2, script_last_never_lands,
                   &(struct play){.segment_bytes = SEGMENT_BYTES, .lost = lost == 1});
    }
}

// Nobody has a weight, so the hosts are done without having looked at anything. Rank 0 is not,
// before its device has copied what it was told to.
static void script_nothing_counts(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    member_barrier(member);
    rig_fill(member, &rig, value_of(member->rank, 0));
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
    member_barrier(member);
    member_give_up(member, GIVE_UP_MS);
    rig_close(member, &rig);
}

static void test_copies_of_nothing_are_awaited(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_CUDA_FAIL=record:5:hang@0", NULL);
    run_script(FLEET_STAGED, 2, script_nothing_counts,
               &(struct play){.memory = true,
                              .weightless = true,
                              .elements = ELEMENTS_MOST,
                              .segment_bytes = ELEMENTS_MOST}); // Four segments.
}

// Another rank gives up, and ends the kernels of this one, too: what they leave is not taken for a
// result.
static void script_ended_elsewhere(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    rig_fill(member, &rig, value_of(member->rank, 0));
    if (member->rank == 0) {
        shot_launch(member, &shot, &rig, 0);
        member_idle(member, 20);
    }
    member_barrier(member);
    if (member->rank == 1)
        transport_abandon(member->transport);
    if (member->rank == 0) {
        if (play_of(member)->late)
            CUDA(member, stream_synchronize(device_stream(member->device, DEVICE_REDUCE)));
        member_until(member, &member->failed_count, 1, "the failure");
        MEMBER_CHECK(member, member->done_count == 0);
        MEMBER_CHECK(member, strstr(member->failed_text, "NCCL") != NULL);
    }
    member_barrier(member);
    member_give_up(member, GIVE_UP_MS);
    rig_close(member, &rig);
}

static void test_ended_elsewhere(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", NULL);
    run_script(FLEET_NCCL, 2, script_ended_elsewhere, &(struct play){.pieces = true});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", NULL);
    run_script(FLEET_MIXED, 3, script_ended_elsewhere, &(struct play){.pieces = true});
}

// All that was enqueued has happened when the driver looks, and NCCL says that all is well. What it
// says behind that counts.
static void test_ended_elsewhere_late(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", "FAKE_NCCL_LATE_ERRORS=1", NULL);
    run_script(FLEET_NCCL, 2, script_ended_elsewhere, &(struct play){.pieces = true, .late = true});
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT=all", "FAKE_NCCL_LATE_ERRORS=1", NULL);
    run_script(FLEET_MIXED, 3, script_ended_elsewhere,
               &(struct play){.pieces = true, .late = true});
}

// An abort that never returns is left behind, and said.
static void script_abort_hangs(struct member *member)
{
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    rig_fill(member, &rig, value_of(member->rank, 0));
    if (member->rank == 0) {
        shot_launch(member, &shot, &rig, 0);
        member_idle(member, 20);
    }
    member_give_up(member, GIVE_UP_MS);
    if (member->device)
        MEMBER_CHECK(member, strstr(device_failed(member->device), "NCCL") != NULL);
    if (member->rank == 0)
        MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), value_of(0, 0)));
    rig_close(member, &rig);
}

static void test_abort_hangs(void **state)
{
    (void)state;
    fake_gpu_weather(DEVICES, "FAKE_NCCL_ABORT_HANGS=1", NULL);
    run_script(FLEET_NCCL, 2, script_abort_hangs, &(struct play){.pieces = true, .hangs = true});
}

// On other devices: what the first two have been given stands for ever.
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

// ---- forming ------------------------------------------------------------------------------------

// Every rank is told why no communicator came to be, or that none came in time.
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
    MEMBER_CHECK(member, strstr(member->lost_text, play_of(member)->says) != NULL);
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
    fleet->options = (struct fleet_options){.name = name_of(devices),
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

// One communicator after the other, each of its generation.
static void script_generations(struct member *member)
{
    struct transport_world world;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];
    struct rig rig;
    struct shot shot;
    rig_open(member, &rig);
    // Large enough for NCCL to be told of it.
    MEMBER_CHECK(member, transport_reserve_device(member->transport, 1, 1 << 20, 1, 1) == 0);
    for (uint32_t round = 0; round < 3; round++) {
        MEMBER_CHECK(member, !member->device || fake->nccl_calls("ncclCommRegister") > round);
        rig_fill(member, &rig, value_of(member->rank, round));
        shot_launch(member, &shot, &rig, round);
        member_until(member, &member->done_count, round + 1, "the collective");
        MEMBER_CHECK(member, all_are(member, rig_look(member, &rig), mean_of(member, round)));
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
    run_script(FLEET_NCCL, 3, script_generations, &(struct play){.pieces = true});
    fake_gpu_weather(DEVICES, NULL);
    run_script(FLEET_MIXED, 4, script_generations, &(struct play){.pieces = true});
    assert_int_equal(fake->nccl_live(), 0);
}

// ---- after each ---------------------------------------------------------------------------------

static int setup(void **state)
{
    char error[300];
    (void)state;
    fake = fake_gpu_install();
    fake_gpu_weather(DEVICES, NULL);
    cuda = cuda_load(error, sizeof(error));
    return cuda && cuda->init(0) == CUDA_OK ? 0 : -1;
}

static int nothing_left(void **state)
{
    const struct fake_gpu_live none = {0};
    struct fake_gpu_live live;
    (void)state;
    fake->live(&live);
    if (memcmp(&live, &none, sizeof(live)) == 0)
        return 0;
    print_message("left: %u contexts, %u streams, %u events, %u modules, %u and %u allocations\n",
                  live.contexts, live.streams, live.events, live.modules, live.device_allocations,
                  live.host_allocations);
    return -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_staged_waits, nothing_left),
        cmocka_unit_test_teardown(test_nccl_waits, nothing_left),
        cmocka_unit_test_teardown(test_mixed_waits, nothing_left),
        cmocka_unit_test_teardown(test_streams_follow, nothing_left),
        cmocka_unit_test_teardown(test_segments_wait, nothing_left),
        cmocka_unit_test_teardown(test_segments_wait_in_memory, nothing_left),
        cmocka_unit_test_teardown(test_results_come_last, nothing_left),
        cmocka_unit_test_teardown(test_alone, nothing_left),
        cmocka_unit_test_teardown(test_steady_state_allocates_nothing, nothing_left),
        cmocka_unit_test_teardown(test_short_rows_have_no_marks, nothing_left),
        cmocka_unit_test_teardown(test_segments_are_put_aside, nothing_left),
        cmocka_unit_test_teardown(test_given_up, nothing_left),
        cmocka_unit_test_teardown(test_generations, nothing_left),
        cmocka_unit_test_teardown(test_never_ready, nothing_left),
        cmocka_unit_test_teardown(test_ended_elsewhere, nothing_left),
        cmocka_unit_test_teardown(test_ended_elsewhere_late, nothing_left),
        cmocka_unit_test(test_forms_in_vain),
        cmocka_unit_test(test_device_fails),
        cmocka_unit_test(test_mixed_device_fails),
        cmocka_unit_test(test_last_segment_never_lands),
        cmocka_unit_test(test_copies_of_nothing_are_awaited),
        cmocka_unit_test(test_nccl_fails),
        cmocka_unit_test(test_abort_hangs),
        cmocka_unit_test(test_mixed_abort_hangs),
    };
    return cmocka_run_group_tests_name("devices", tests, setup, NULL);
}
