// SPDX-License-Identifier: Apache-2.0
//
// Impossible frames of collectives in which any rank sends to any other. The rank under test is
// rank 0 of two; of 100 elements it owns 64, the puppet 36. Each wrong frame costs the puppet its
// link, and no element of user memory changes.

#include "tests/conformance/transport_stage.h"
#include "worker/transport/direct/direct.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static struct frame_header direct_header(const struct stage *stage, enum direct_part part,
                                         uint32_t payload_bytes)
{
    struct frame_header header = stage_tensor(stage, FRAME_DIRECT, 1, payload_bytes);
    header.part = part;
    return header;
}

struct wrong {
    uint32_t part;
    uint32_t payload_bytes;
    uint32_t piece;
    uint32_t used_bytes;
    uint32_t sender;
    enum dtype dtype;
    uint64_t weight;
};

static const struct wrong wrong_frames[] = {
    {DIRECT_INPUT, 252, 0, 0, 1, DTYPE_FLOAT32, 0}, // Another length than 64 elements.
    {DIRECT_INPUT, 260, 0, 0, 1, DTYPE_FLOAT32, 0},
    {DIRECT_INPUT, 0, 0, 0, 1, DTYPE_FLOAT32, 0},
    {DIRECT_INPUT, 256, 1, 0, 1, DTYPE_FLOAT32, 0}, // A piece that does not exist.
    {DIRECT_INPUT, 256, UINT32_MAX, 0, 1, DTYPE_FLOAT32, 0},
    {DIRECT_INPUT, 256, 0, 8, 1, DTYPE_FLOAT32, 0}, // Used bits without units.
    {DIRECT_INPUT, 256, 0, 0, 0, DTYPE_FLOAT32, 0}, // Another sender.
    {DIRECT_INPUT, 256, 0, 0, 1, DTYPE_INT32, 0},
    {DIRECT_INPUT, 256, 0, 0, 1, DTYPE_FLOAT32, LOCKSTEP_MAX_WEIGHT_SUM + 1},
    {DIRECT_SUM, 252, 0, 0, 1, DTYPE_FLOAT32, 0},
    {DIRECT_FINAL, 140, 0, 0, 1, DTYPE_FLOAT32, 0}, // Another length than 36 elements.
    {DIRECT_FINAL, 144, 1, 0, 1, DTYPE_FLOAT32, 0},
    {DIRECT_ANNOUNCE, 0, 0, 0, 1, DTYPE_FLOAT32, 0}, // What a reduction does not have.
    {DIRECT_GRANT_INPUTS, 0, 1, 0, 1, DTYPE_FLOAT32, 0}, // Credit where none is needed.
    {DIRECT_GRANT_FINALS, 0, 1, 0, 1, DTYPE_FLOAT32, 0},
    {DIRECT_TAKEN, 0, 0, 0, 1, DTYPE_FLOAT32, 0},
    {8, 0, 0, 0, 1, DTYPE_FLOAT32, 0},
    {UINT32_MAX, 0, 0, 0, 1, DTYPE_FLOAT32, 0},
};

static struct frame_header wrong_header(const struct stage *stage, const struct wrong *wrong)
{
    struct frame_header header =
        direct_header(stage, (enum direct_part)wrong->part, wrong->payload_bytes);
    header.credit = wrong->piece;
    header.used_bytes = wrong->used_bytes;
    header.chunk = wrong->sender;
    header.dtype = wrong->dtype;
    header.weight = wrong->weight;
    return header;
}

// The frame comes after the launch, or before it: then it is found when it is unparked.
static void impossible_frames(void **state)
{
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < 2 * LENGTH(wrong_frames); i++) {
        struct stage stage;
        const bool early = i % 2 == 1;
        stage_form(&stage, *state);
        const struct frame_header header = wrong_header(&stage, &wrong_frames[i / 2]);
        if (!early)
            stage_launch_pair(&stage, launched, 100, 0, ALGORITHM_DIRECT);
        uint8_t used[8] = {0};
        (void)(header.used_bytes > 0 ? stage_send_used(&stage, &header, used)
                                     : stage_send_frame(&stage, &header, NULL));
        for (int k = 0; k < 10 && early; k++)
            transport_progress(stage.transport, 1);
        if (early)
            stage_launch_pair(&stage, launched, 100, 0, ALGORITHM_DIRECT);
        stage_until_count(&stage, &stage.lost, 1);
        assert_false(stage.left || stage.here);
        assert_int_equal(stage.done, 0);
        launched_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

static void a_piece_comes_twice(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    stage_form(&stage, *state);
    stage_launch_pair(&stage, launched, 100, 0, ALGORITHM_DIRECT);
    const struct frame_header header = direct_header(&stage, DIRECT_INPUT, 256);
    assert_true(stage_send_frame(&stage, &header, NULL));
    (void)stage_send_frame(&stage, &header, NULL);
    stage_expect_impossible(&stage);
    assert_int_equal(stage.done, 0);
    stage_close(&stage);
    free(launched);
}

// Final bytes of a piece of which this rank could not send its input, because the puppet has not
// granted it.
static void a_result_without_an_input(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    stage_form(&stage, *state);
    // 20,000 elements of each owner, in pieces of the chunk of the stage.
    stage_launch_pair(&stage, launched, 40000, 0, ALGORITHM_DIRECT);
    const uint32_t bytes = 4 * (uint32_t)direct_piece_of_sum(20000, 4, stage.world.chunk_bytes);
    const struct frame_header header = direct_header(&stage, DIRECT_FINAL, bytes);
    (void)stage_send_frame(&stage, &header, NULL);
    stage_expect_impossible(&stage);
    launched_untouched(launched);
    stage_close(&stage);
    free(launched);
}

// A part of an exchange that nobody awaits, one that is not granted, and one announced with bytes.
static void impossible_parts(void **state)
{
    static const struct wrong wrong[] = {{DIRECT_FINAL, 400, 1, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_FINAL, 396, 0, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_FINAL, 400, 0, 8, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_ANNOUNCE, 4, 0, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_INPUT, 400, 0, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_GRANT_FINALS, 0, 1, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_TAKEN, 0, 0, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_GRANT_INPUTS, 0, 1, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_ANNOUNCE, 8, 0, 0, 1, DTYPE_FLOAT32, 100},
                                         {DIRECT_ASK, 0, 1, 0, 1, DTYPE_FLOAT32, 100}};
    for (size_t i = 0; i < LENGTH(wrong); i++) {
        struct stage stage;
        float memory[101];
        const struct collective_part part = {1, memory, 100, 0};
        const struct collective_parts parts = {.receives = &part, .receive_count = 1};
        struct collective collective = {.kind = COLLECTIVE_EXCHANGE,
                                        .dtype = DTYPE_FLOAT32,
                                        .algorithm = ALGORITHM_DIRECT,
                                        .tag = {.step = STAGE_STEP, .space = STAGE_SPACE},
                                        .signature = STAGE_SIGNATURE,
                                        .parts = &parts};
        for (size_t e = 0; e < LENGTH(memory); e++)
            memory[e] = 7;
        stage_form(&stage, *state);
        transport_launch(stage.transport, &collective);
        const struct frame_header header = wrong_header(&stage, &wrong[i]);
        uint8_t used[8] = {0};
        (void)(header.used_bytes > 0 ? stage_send_used(&stage, &header, used)
                                     : stage_send_frame(&stage, &header, NULL));
        stage_expect_impossible(&stage);
        for (size_t e = 0; e < LENGTH(memory); e++)
            assert_true(memory[e] == 7);
        stage_close(&stage);
    }
}

// The puppet says that it has read a part that lies in no memory of its host, and announces twice.
static void parts_that_were_not_offered(void **state)
{
    static float memory[100000]; // So many need credit.
    const struct stage_variant *variant = *state;
    // In memory the part is offered.
    for (int twice = variant->mates ? 1 : 0; twice < 2; twice++) {
        struct stage stage;
        const struct collective_part part = {1, memory, LENGTH(memory), 0};
        const struct collective_parts sends = {.sends = &part, .send_count = 1};
        const struct collective_parts receives = {.receives = &part, .receive_count = 1};
        struct collective collective = {.kind = COLLECTIVE_EXCHANGE,
                                        .dtype = DTYPE_FLOAT32,
                                        .algorithm = ALGORITHM_DIRECT,
                                        .tag = {.step = STAGE_STEP, .space = STAGE_SPACE},
                                        .signature = STAGE_SIGNATURE,
                                        .parts = twice ? &receives : &sends};
        stage_form(&stage, variant);
        struct frame_header header =
            direct_header(&stage, twice ? DIRECT_ANNOUNCE : DIRECT_TAKEN, 0);
        header.weight = LENGTH(memory);
        transport_launch(stage.transport, &collective);
        if (twice)
            assert_true(stage_send_frame(&stage, &header, NULL));
        (void)stage_send_frame(&stage, &header, NULL);
        stage_expect_impossible(&stage);
        stage_close(&stage);
    }
}

// Words of a receiver about short parts that rank 0 has sent.
struct answer {
    enum frame_kind kind;
    uint32_t part;
    uint32_t credit;
    uint32_t slot;
    bool impossible;
};

// Rank 0 sends one short part, which is gone, and the puppet answers.
static void answers_to_short_parts(void **state)
{
    static const struct answer answers[] = {
        {FRAME_CREDIT, FRAME_CREDIT_SENDS, 1, 0, false},
        {FRAME_CREDIT, FRAME_CREDIT_SENDS, 2, 0, true}, // More than were sent.
        {FRAME_CREDIT, FRAME_CREDIT_SENDS, 0, 0, true}, // Nothing new.
        {FRAME_CREDIT, FRAME_CREDIT_SENDS, UINT32_MAX, 0, true},
        {FRAME_DIRECT, DIRECT_ASK, 1, 0, false}, // The part is gone.
        {FRAME_DIRECT, DIRECT_ASK, 1, 7, false},
    };
    for (size_t i = 0; i < LENGTH(answers); i++) {
        struct stage stage;
        float memory[100] = {0};
        const struct answer *answer = &answers[i];
        const struct collective_part part = {1, memory, LENGTH(memory), 0};
        const struct collective_parts parts = {.sends = &part, .send_count = 1};
        struct collective collective = {.kind = COLLECTIVE_EXCHANGE,
                                        .dtype = DTYPE_FLOAT32,
                                        .algorithm = ALGORITHM_DIRECT,
                                        .tag = {.step = STAGE_STEP, .space = STAGE_SPACE},
                                        .signature = STAGE_SIGNATURE,
                                        .parts = &parts};
        stage_form(&stage, *state);
        transport_launch(stage.transport, &collective);
        stage_until_count(&stage, &stage.done, 1);
        struct frame_header header = stage_tensor(&stage, answer->kind, 1, 0);
        header.part = answer->part;
        header.credit = answer->credit;
        header.slot = answer->slot;
        header.weight = LENGTH(memory);
        (void)stage_send_frame(&stage, &header, NULL);
        for (int k = 0; k < 10 && !answer->impossible; k++)
            transport_progress(stage.transport, 1);
        if (answer->impossible)
            stage_expect_impossible(&stage);
        assert_int_equal(stage.lost, answer->impossible);
        assert_int_equal(stage.transport->flows.frames_parked, 0);
        stage_close(&stage);
    }
}

// Rank 0 has sent as many short parts as it may. The puppet asks for one that waits, and says what
// it has not to say of such a part.
static void short_parts_that_wait(void **state)
{
    static const struct answer answers[] = {
        {FRAME_DIRECT, DIRECT_ASK, 1, LOCKSTEP_SENDS_AHEAD, false},
        {FRAME_DIRECT, DIRECT_ASK, 2, LOCKSTEP_SENDS_AHEAD, true},
        {FRAME_DIRECT, DIRECT_GRANT_FINALS, 1, LOCKSTEP_SENDS_AHEAD, true},
        {FRAME_DIRECT, DIRECT_TAKEN, 0, LOCKSTEP_SENDS_AHEAD, true},
        {FRAME_CREDIT, FRAME_CREDIT_SENDS, 1, 0, false}, // Now there is room for it.
    };
    static struct collective collectives[LOCKSTEP_SENDS_AHEAD + 1];
    for (size_t i = 0; i < LENGTH(answers); i++) {
        struct stage stage;
        float value = 1;
        const struct answer *answer = &answers[i];
        const struct collective_part part = {1, &value, 1, 0};
        const struct collective_parts parts = {.sends = &part, .send_count = 1};
        stage_form(&stage, *state);
        for (uint32_t k = 0; k < LENGTH(collectives); k++) {
            collectives[k] =
                (struct collective){.kind = COLLECTIVE_EXCHANGE,
                                    .dtype = DTYPE_FLOAT32,
                                    .algorithm = ALGORITHM_DIRECT,
                                    .tag = {.step = STAGE_STEP, .space = STAGE_SPACE, .slot = k},
                                    .signature = STAGE_SIGNATURE,
                                    .parts = &parts};
            transport_launch(stage.transport, &collectives[k]);
            if (k < LOCKSTEP_SENDS_AHEAD)
                stage_until_count(&stage, &stage.done, k + 1);
        }
        for (int k = 0; k < 10; k++)
            transport_progress(stage.transport, 1);
        assert_int_equal(stage.done, LOCKSTEP_SENDS_AHEAD);
        assert_true(collectives[LOCKSTEP_SENDS_AHEAD].held_ms != 0);
        struct frame_header header = stage_tensor(&stage, answer->kind, 1, 0);
        header.part = answer->part;
        header.credit = answer->credit;
        header.slot = answer->slot;
        header.weight = 1;
        (void)stage_send_frame(&stage, &header, NULL);
        if (answer->impossible)
            stage_expect_impossible(&stage);
        else
            stage_until_count(&stage, &stage.done, LOCKSTEP_SENDS_AHEAD + 1);
        assert_int_equal(stage.lost, answer->impossible);
        stage_close(&stage);
    }
}

// The puppet runs another algorithm or has another signature, before and after the launch.
static void direct_disagrees(void **state)
{
    struct launched *launched = malloc(4 * sizeof(*launched));
    struct stage stage;
    stage_form(&stage, *state);
    struct frame_header header = direct_header(&stage, DIRECT_INPUT, 256);
    header.signature++;
    assert_true(stage_send_frame(&stage, &header, NULL));
    header = stage_tensor(&stage, FRAME_PAIR, 1, 400);
    header.part = 1;
    header.slot = 1;
    assert_true(stage_send_frame(&stage, &header, NULL));
    header = direct_header(&stage, DIRECT_INPUT, 256);
    header.slot = 2;
    assert_true(stage_send_frame(&stage, &header, NULL));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    stage_launch_pair(&stage, &launched[0], 100, 0, ALGORITHM_DIRECT);
    stage_launch_pair(&stage, &launched[1], 100, 1, ALGORITHM_DIRECT);
    stage_launch_pair(&stage, &launched[2], 100, 2, ALGORITHM_DOUBLING);
    stage_until_count(&stage, &stage.mismatches, 3);
    stage_launch_pair(&stage, &launched[3], 100, 3, ALGORITHM_DIRECT);
    header = stage_tensor(&stage, FRAME_PAIR, 1, 400);
    header.part = 1;
    header.slot = 3;
    assert_true(stage_send_frame(&stage, &header, NULL));
    stage_until_count(&stage, &stage.mismatches, 4);
    assert_int_equal(stage.lost, 0);
    for (size_t i = 0; i < 4; i++)
        launched_untouched(&launched[i]);
    transport_abandon(stage.transport);
    stage_close(&stage);
    free(launched);
}

int main(void)
{
    static const struct stage_test tests[] = {
        STAGE_TEST(impossible_frames),           STAGE_TEST(a_piece_comes_twice),
        STAGE_TEST(a_result_without_an_input),   STAGE_TEST(impossible_parts),
        STAGE_TEST(parts_that_were_not_offered), STAGE_TEST(answers_to_short_parts),
        STAGE_TEST(short_parts_that_wait),       STAGE_TEST(direct_disagrees),
    };
    return stage_run("hostile direct", tests, LENGTH(tests));
}
