// SPDX-License-Identifier: Apache-2.0
//
// A hostile member that breaks the protocol of the ring: impossible frames, too many frames, early
// and repeated frames, an end at any byte, and noise.

#include "tests/conformance/transport_job.h"
#include "tests/conformance/transport_stage.h"
#include "tests/support/bounds.h"
#include "worker/transport/lifecycle.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

typedef struct frame_header wrong_frame(const struct stage *stage);

static struct frame_header wrong_dtype(const struct stage *stage)
{
    struct frame_header header = stage_tensor(stage, FRAME_REDUCE, 0, 400);
    header.dtype = DTYPE_INT32;
    return header;
}

static struct frame_header wrong_length(const struct stage *stage)
{
    return stage_tensor(stage, FRAME_REDUCE, 0, 404);
}

static struct frame_header wrong_short(const struct stage *stage)
{
    return stage_tensor(stage, FRAME_REDUCE, 0, 399);
}

static struct frame_header wrong_chunk(const struct stage *stage)
{
    return stage_tensor(stage, FRAME_REDUCE, 1, 400);
}

static struct frame_header wrong_chunk_far(const struct stage *stage)
{
    return stage_tensor(stage, FRAME_REDUCE, 4000000000u, 400);
}

static struct frame_header wrong_stripe(const struct stage *stage)
{
    struct frame_header header = stage_tensor(stage, FRAME_REDUCE, 0, 400);
    header.part = 1;
    return header;
}

static struct frame_header wrong_kind(const struct stage *stage)
{
    return stage_tensor(stage, FRAME_BROADCAST, 0, 400);
}

static struct frame_header wrong_own_gather(const struct stage *stage)
{
    return stage_tensor(stage, FRAME_GATHER, 0, 400);
}

static struct frame_header wrong_generation(const struct stage *stage)
{
    struct frame_header header = stage_tensor(stage, FRAME_REDUCE, 0, 400);
    header.generation.number--;
    return header;
}

static struct frame_header wrong_used_bits(const struct stage *stage)
{
    struct frame_header header = stage_tensor(stage, FRAME_REDUCE, 0, 400);
    header.used_bytes = 8;
    return header;
}

static struct frame_header wrong_weight(const struct stage *stage)
{
    struct frame_header header = stage_tensor(stage, FRAME_REDUCE, 0, 400);
    header.weight = LOCKSTEP_MAX_WEIGHT_SUM + 1;
    return header;
}

static struct frame_header wrong_credit(const struct stage *stage)
{
    struct frame_header header = stage_tensor(stage, FRAME_CREDIT, 0, 0);
    header.credit = 1; // Eager collectives need no credit.
    return header;
}

static struct frame_header wrong_second_hello(const struct stage *stage)
{
    return stage_hello(stage);
}

static struct frame_header wrong_wave_round(const struct stage *stage)
{
    struct frame_header header = stage_small(stage, FRAME_WAVE);
    header.part = 5;
    return header;
}

static struct frame_header wrong_wave_sender(const struct stage *stage)
{
    struct frame_header header = stage_small(stage, FRAME_WAVE);
    header.part = 1;
    header.chunk = 0;
    return header;
}

static struct frame_header wrong_leave_payload(const struct stage *stage)
{
    struct frame_header header = stage_small(stage, FRAME_LEAVE);
    header.payload_bytes = 4;
    return header;
}

static struct frame_header wrong_loss_of_nobody(const struct stage *stage)
{
    return stage_small(stage, FRAME_LOST);
}

static struct frame_header wrong_loss_length(const struct stage *stage)
{
    struct frame_header header = stage_small(stage, FRAME_LOST);
    header.payload_bytes = FAREWELL_BYTES + 1;
    return header;
}

static wrong_frame *const wrong_frames[] = {
    wrong_dtype,          wrong_length,      wrong_short,       wrong_chunk,
    wrong_chunk_far,      wrong_stripe,      wrong_kind,        wrong_own_gather,
    wrong_generation,     wrong_weight,      wrong_used_bits,   wrong_credit,
    wrong_second_hello,   wrong_wave_round,  wrong_wave_sender, wrong_leave_payload,
    wrong_loss_of_nobody, wrong_loss_length,
};

static void impossible_frames_lose_the_peer(void **state)
{
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < LENGTH(wrong_frames); i++) {
        struct stage stage;
        stage_form(&stage, *state);
        stage_launch(&stage, launched, 100, 0, COLLECTIVE_ALLREDUCE);
        const struct frame_header header = wrong_frames[i](&stage);
        (void)stage_send_frame(&stage, &header, NULL);
        stage_expect_impossible(&stage);
        launched_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

// 2048 elements in two chunks and ten units. Units 0 to 5 overlap chunk 0, units 5 to 9 chunk 1.
struct units {
    uint64_t ends[10];
    uint64_t used;
};

static void launch_units(struct stage *stage, struct launched *launched, struct units *units,
                         uint64_t used)
{
    for (uint64_t u = 0; u < LENGTH(units->ends); u++)
        units->ends[u] = u == 9 ? 2048 : (u + 1) * 200;
    units->used = used;
    launched->extent = (struct extent){NULL, launched->memory, 2048};
    for (size_t i = 0; i < LENGTH(launched->memory); i++)
        launched->memory[i] = (float)i;
    launched->collective =
        (struct collective){.dtype = DTYPE_FLOAT32,
                            .op = REDUCE_SUM,
                            .tag = {.step = STAGE_STEP, .space = STAGE_SPACE, .slot = 0},
                            .signature = STAGE_SIGNATURE,
                            .extents = &launched->extent,
                            .extent_count = 1,
                            .elements = 2048,
                            .unit_ends = units->ends,
                            .unit_count = LENGTH(units->ends),
                            .used = &units->used};
    transport_launch(stage->transport, &launched->collective);
}

struct wrong_use {
    enum frame_kind kind;
    uint32_t payload_bytes;
    uint32_t used_bytes;
    uint8_t bits; // The first byte of the use bits; the others are 0.
    uint64_t own; // The units that rank 0 uses.
};

static const struct wrong_use wrong_uses[] = {
    {FRAME_REDUCE, 4096, 0, 0, 0}, // Too few, too many, and far too many bytes of use bits.
    {FRAME_REDUCE, 4096, 2, 0, 0},
    {FRAME_REDUCE, 4096, LOCKSTEP_USED_BYTES, 0, 0},
    {FRAME_REDUCE, 4096, 1, 0x40, 0}, // A seventh unit does not exist.
    {FRAME_REDUCE, 4096, 1, 0, 0}, // An unused chunk with bytes.
    {FRAME_REDUCE, 0, 1, 0x01, 0}, // A used chunk without bytes.
    {FRAME_GATHER, 4096, 1, 0x03, 1 << 7}, // Denies a unit that rank 0 uses.
    {FRAME_GATHER, 4096, 1, 0x20, 0},
    {FRAME_GATHER, 0, 1, 0x04, 1 << 7}, // A used chunk without bytes.
    {FRAME_GATHER, 4096, 1, 0, 0}, // An unused chunk with bytes.
};

static void impossible_used_bits_lose_the_peer(void **state)
{
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < LENGTH(wrong_uses); i++) {
        const struct wrong_use *wrong = &wrong_uses[i];
        struct stage stage;
        struct units units;
        uint8_t used[LOCKSTEP_USED_BYTES] = {wrong->bits};
        stage_form(&stage, *state);
        launch_units(&stage, launched, &units, wrong->own);
        struct frame_header header =
            stage_tensor(&stage, wrong->kind, wrong->kind == FRAME_GATHER, wrong->payload_bytes);
        header.used_bytes = wrong->used_bytes;
        (void)stage_send_used(&stage, &header, used);
        stage_expect_impossible(&stage);
        launched_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

// Frames of a collective that rank 0 has not launched: the first is parked, the second exceeds the
// limit.
static void parked_used_bits_are_bounded(void **state)
{
    static const uint8_t used[LOCKSTEP_USED_BYTES];
    struct stage stage;
    stage_form(&stage, *state);
    struct frame_header header = stage_tensor(&stage, FRAME_REDUCE, 0, 4);
    header.used_bytes = LOCKSTEP_USED_BYTES;
    assert_true(stage_send_used(&stage, &header, used));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    assert_int_equal(stage.lost, 0);
    (void)stage_send_used(&stage, &header, used);
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

static void a_frame_comes_twice(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    stage_form(&stage, *state);
    // 8 KiB: two chunks, so the collective is not done after one frame.
    stage_launch(&stage, launched, 2048, 0, COLLECTIVE_ALLREDUCE);
    const struct frame_header header = stage_tensor(&stage, FRAME_REDUCE, 0, 4096);
    assert_true(stage_send_frame(&stage, &header, NULL));
    (void)stage_send_frame(&stage, &header, NULL);
    stage_expect_impossible(&stage);
    stage_close(&stage);
    free(launched);
}

static void frames_without_credit(void **state)
{
    struct stage stage;
    stage_form(&stage, *state);
    const struct frame_header header =
        stage_tensor(&stage, FRAME_REDUCE, 0, LOCKSTEP_EAGER_BYTES + 4);
    (void)stage_send_frame(&stage, &header, NULL);
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

// The puppet sends eager frames of new collectives until rank 0 ends its link.
static void parked_frames_are_bounded(void **state)
{
    struct stage stage;
    uint32_t sent = 0;
    stage_form(&stage, *state);
    while (stage.lost == 0) {
        struct frame_header header = stage_tensor(&stage, FRAME_REDUCE, 0, 4);
        header.slot = sent++;
        (void)stage_send_frame(&stage, &header, NULL);
        assert_true(sent < LOCKSTEP_PARKINGS_OF_PEER + LOCKSTEP_PARKINGS_OF_PEER / 2);
        transport_progress(stage.transport, 0);
    }
    assert_true(sent > LOCKSTEP_PARKINGS_OF_PEER);
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

static void early_waves_and_headers_are_bounded(void **state)
{
    struct stage stage;
    uint32_t sent = 0;
    stage_form(&stage, *state);
    while (stage.lost == 0) {
        struct frame_header header = stage_small(&stage, FRAME_WAVE);
        header.part = 1;
        header.step = sent++;
        header.payload_bytes = 8;
        (void)stage_send_frame(&stage, &header, NULL);
        assert_true(sent < LOCKSTEP_EARLY_WAVES); // The limit holds for all peers together.
        transport_progress(stage.transport, 0);
    }
    assert_true(sent >= LOCKSTEP_EARLY_WAVES_OF_PEER);
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

// Rank 0 takes part in a broadcast by the puppet, which dies inside an element.
static void a_death_inside_an_element(void **state)
{
    static const uint32_t cuts[] = {0, 1, 2, 3, 4, 5, 4001, 4002, 9999, 20002, 39999};
    struct launched *launched = malloc(sizeof(*launched));
    uint8_t *final = malloc(40000);
    memset(final, 0xee, 40000);
    for (size_t c = 0; c < LENGTH(cuts); c++) {
        struct stage stage;
        uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
        stage_form(&stage, *state);
        stage_launch(&stage, launched, 10000, 0, COLLECTIVE_BROADCAST);
        const struct frame_header header = stage_tensor(&stage, FRAME_BROADCAST, 1, 40000);
        frame_encode(&header, bytes);
        assert_true(stage_send(&stage, stage.puppet, bytes, sizeof(bytes)));
        assert_true(stage_send(&stage, stage.puppet, final, cuts[c]));
        stage.puppet->ops->close(stage.puppet, false);
        stage.puppet = NULL;
        stage_until_count(&stage, &stage.lost, 1);
        assert_false(stage.left);
        // Exactly the complete elements are final; the others are unchanged.
        const size_t whole = cuts[c] / 4;
        assert_memory_equal(launched->memory, final, whole * 4);
        for (size_t i = whole; i < 10000; i++)
            assert_true(launched->memory[i] == (float)i);
        stage_close(&stage);
    }
    free(final);
    free(launched);
}

// Bytes that were received before an end are processed, and their events come before the loss.
static void bytes_before_the_end_count(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    uint8_t *final = calloc(1, 40000);
    stage_form(&stage, *state);
    stage_launch(&stage, launched, 10000, 0, COLLECTIVE_BROADCAST);
    const struct frame_header header = stage_tensor(&stage, FRAME_BROADCAST, 1, 40000);
    assert_true(stage_send_frame(&stage, &header, final));
    const struct frame_header step = stage_small(&stage, FRAME_STEP_HEADER);
    assert_true(stage_send_frame(&stage, &step, NULL));
    stage.puppet->ops->close(stage.puppet, false);
    stage.puppet = NULL;
    stage_until_count(&stage, &stage.lost, 1);
    assert_int_equal(stage.done, 1);
    assert_int_equal(stage.headers, 1);
    assert_memory_equal(launched->memory, final, 40000);
    stage_close(&stage);
    free(final);
    free(launched);
}

static void until_final(struct stage *stage, const float *last)
{
    const uint64_t since_ms = clock_now_ms();
    while (*last != 0) {
        transport_progress(stage->transport, 10);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
}

// A rank asks the kernel to wake it only for many bytes of a long payload. If the kernel has no
// room for that many, the peer stops sending, so the rank has to read the bytes that are there.
static void a_part_of_a_payload_is_read(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    uint8_t *final = calloc(1, 65536);
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    stage_form(&stage, *state);
    stage_launch(&stage, launched, 16384, 0, COLLECTIVE_BROADCAST);
    const struct frame_header header = stage_tensor(&stage, FRAME_BROADCAST, 1, 65536);
    frame_encode(&header, bytes);
    assert_true(stage_send(&stage, stage.puppet, bytes, sizeof(bytes)));
    assert_true(stage_send(&stage, stage.puppet, final, 8000));
    until_final(&stage, &launched->memory[1999]);
    assert_true(stage_send(&stage, stage.puppet, final, 8000));
    until_final(&stage, &launched->memory[3999]);
    stage_close(&stage);
    free(final);
    free(launched);
}

static void mismatch_is_an_event(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    stage_form(&stage, *state);
    // Mismatches in a frame after the launch, in a frame before the launch, and in a credit.
    stage_launch(&stage, launched, 100, 0, COLLECTIVE_ALLREDUCE);
    struct frame_header header = stage_tensor(&stage, FRAME_REDUCE, 0, 96);
    header.signature++;
    assert_true(stage_send_frame(&stage, &header, NULL));
    stage_until_count(&stage, &stage.mismatches, 1);
    header.slot = 1;
    assert_true(stage_send_frame(&stage, &header, NULL));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    struct launched *second = malloc(sizeof(*second));
    stage_launch(&stage, second, 100, 1, COLLECTIVE_ALLREDUCE);
    stage_until_count(&stage, &stage.mismatches, 2);
    header = stage_tensor(&stage, FRAME_CREDIT, 0, 0);
    header.signature++;
    header.credit = 3;
    header.slot = 2;
    assert_true(stage_send_frame(&stage, &header, NULL));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    struct launched *third = malloc(sizeof(*third));
    stage_launch(&stage, third, 40000, 2, COLLECTIVE_ALLREDUCE);
    stage_until_count(&stage, &stage.mismatches, 3);
    assert_int_equal(stage.lost, 0);
    assert_int_equal(stage.done, 0);
    launched_untouched(launched);
    launched_untouched(second);
    launched_untouched(third);
    transport_abandon(stage.transport);
    stage_close(&stage);
    free(launched);
    free(second);
    free(third);
}

static void goodbye_is_no_death(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    stage_form(&stage, *state);
    const struct frame_header leave = stage_small(&stage, FRAME_LEAVE);
    assert_true(stage_send_frame(&stage, &leave, NULL));
    stage.puppet->ops->shut(stage.puppet);
    uint8_t byte = 0;
    assert_false(stage_receive(&stage, stage.puppet, &byte, 1)); // Rank 0 closes its side, too.
    for (int i = 0; i < 20; i++)
        transport_progress(stage.transport, 1);
    assert_int_equal(stage.lost, 0);
    stage_launch(&stage, launched, 100, 0, COLLECTIVE_ALLREDUCE);
    stage_until_count(&stage, &stage.lost, 1);
    assert_true(stage.left);
    launched_untouched(launched);
    stage_close(&stage);
    free(launched);
}

static void goodbye_with_a_wave_joined(void **state)
{
    struct stage stage;
    struct wave wave = {.step = 1, .kind = 0, .size = 8};
    stage_form(&stage, *state);
    transport_wave(stage.transport, &wave);
    const struct frame_header leave = stage_small(&stage, FRAME_LEAVE);
    assert_true(stage_send_frame(&stage, &leave, NULL));
    stage_until_count(&stage, &stage.lost, 1);
    assert_true(stage.left);
    assert_int_equal(stage.waves, 0);
    stage_close(&stage);
}

// ---- noise --------------------------------------------------------------------------------------

static struct frame_header noise_header(const struct stage *stage, uint64_t *random)
{
    static const uint32_t lengths[] = {0, 4, 8, 400, 4096, 8192, 16384, 65536, 3};
    struct frame_header header = {.generation = stage->world.generation};
    header.kind = (enum frame_kind)(FRAME_STEP_HEADER + job_random(random) % 8);
    header.dtype = job_random(random) % 4 ? DTYPE_FLOAT32 : (enum dtype)(job_random(random) % 8);
    header.payload_bytes = lengths[job_random(random) % LENGTH(lengths)];
    if (header.payload_bytes > frame_payload_max(header.kind))
        header.payload_bytes = 0;
    header.step = job_random(random) % 8 ? STAGE_STEP : job_random(random) % 3;
    header.space = STAGE_SPACE;
    header.slot = (uint32_t)(job_random(random) % 4);
    header.part = (uint32_t)(job_random(random) % 3);
    header.chunk = (uint32_t)(job_random(random) % 3);
    header.credit = (uint32_t)(job_random(random) % 4);
    header.weight = job_random(random) % 3;
    header.signature = STAGE_SIGNATURE + (job_random(random) % 8 == 0);
    return header;
}

static void merge_nothing(void *into, const void *from)
{
    (void)into;
    (void)from;
}

// A member sends random frames with valid headers while collectives and waves are in flight.
static void noise_from_a_member(void **state)
{
    static const uint64_t elements[] = {1, 100, 2048, 40000};
    struct launched *launched = malloc(4 * sizeof(*launched));
    const struct stage_variant *variant = *state;
    const uint64_t rounds = variant->torn_bytes ? 60 : test_slow() > 1 ? 120 : 400;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        struct stage stage;
        struct wave wave = {.step = STAGE_STEP, .size = 8, .merge = merge_nothing};
        uint64_t random = seed;
        stage_form(&stage, variant);
        if (seed % 3 == 0)
            transport_wave(stage.transport, &wave);
        for (uint32_t i = 0; i < 4; i++)
            if (job_random(&random) % 3 == 0)
                stage_launch_pair(&stage, &launched[i], elements[i], i,
                                  seed % 2 ? ALGORITHM_DOUBLING : ALGORITHM_HALVING);
            else if (job_random(&random) % 2)
                stage_launch(&stage, &launched[i], elements[i], i,
                             i == 3 && seed % 2 ? COLLECTIVE_BROADCAST : COLLECTIVE_ALLREDUCE);
        for (int i = 0; i < 12 && stage.lost == 0; i++) {
            const struct frame_header header = noise_header(&stage, &random);
            (void)stage_send_frame(&stage, &header, NULL);
        }
        transport_progress(stage.transport, 0);
        transport_abandon(stage.transport);
        stage_close(&stage);
    }
    free(launched);
}

static const struct stage_test tests[] = {
    STAGE_TEST(impossible_frames_lose_the_peer),
    STAGE_TEST(impossible_used_bits_lose_the_peer),
    STAGE_TEST(parked_used_bits_are_bounded),
    STAGE_TEST(a_frame_comes_twice),
    STAGE_TEST(frames_without_credit),
    STAGE_TEST(parked_frames_are_bounded),
    STAGE_TEST(early_waves_and_headers_are_bounded),
    STAGE_TEST(a_death_inside_an_element),
    STAGE_TEST(bytes_before_the_end_count),
    STAGE_TEST(a_part_of_a_payload_is_read),
    STAGE_TEST(mismatch_is_an_event),
    STAGE_TEST(goodbye_is_no_death),
    STAGE_TEST(goodbye_with_a_wave_joined),
    STAGE_TEST(noise_from_a_member),
};

int main(void)
{
    return stage_run("transport and a hostile member", tests, LENGTH(tests));
}
