// SPDX-License-Identifier: Apache-2.0
//
// A hostile member that breaks the protocol of the algorithms doubling and halving.

#include "tests/conformance/transport_stage.h"
#include "worker/transport/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

// The header of the puppet's frame of a round.
static struct frame_header pair_header(const struct stage *stage, uint32_t round,
                                       uint32_t payload_bytes)
{
    struct frame_header header = stage_tensor(stage, FRAME_PAIR, 1, payload_bytes);
    header.part = round;
    return header;
}

// An error in the frame of a collective of 100 elements; fields that are 0 are correct.
struct wrong_pair {
    enum plan_algorithm algorithm;
    uint32_t round;
    uint32_t payload_bytes;
    uint32_t stripe;
    uint32_t used_bytes;
    uint32_t sender;
    enum dtype dtype;
    uint64_t weight;
};

static const struct wrong_pair wrong_pairs[] = {
    {ALGORITHM_DOUBLING, 0, 400, 0, 0, 1, DTYPE_FLOAT32, 0}, // Rounds that do not exist.
    {ALGORITHM_DOUBLING, 2, 400, 0, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 4000000000u, 400, 0, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_HALVING, 3, 200, 0, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_HALVING, 2, 200, 0, 0, 1, DTYPE_FLOAT32, 0}, // Final values too early.
    {ALGORITHM_DOUBLING, 1, 404, 0, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 1, 399, 0, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 1, 0, 0, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_HALVING, 1, 400, 0, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 1, 400, 1, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 1, 400, 4000000000u, 0, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 1, 400, 0, 8, 1, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 1, 400, 0, 0, 0, DTYPE_FLOAT32, 0},
    {ALGORITHM_DOUBLING, 1, 400, 0, 0, 1, DTYPE_INT32, 0},
    {ALGORITHM_DOUBLING, 1, 400, 0, 0, 1, DTYPE_FLOAT32, LOCKSTEP_MAX_WEIGHT_SUM + 1},
    {ALGORITHM_HALVING, 1, 200, 0, 0, 1, DTYPE_FLOAT32, UINT64_MAX},
};

static struct frame_header wrong_pair_header(const struct stage *stage,
                                             const struct wrong_pair *wrong)
{
    struct frame_header header = pair_header(stage, wrong->round, wrong->payload_bytes);
    header.credit = wrong->stripe;
    header.used_bytes = wrong->used_bytes;
    header.chunk = wrong->sender;
    header.dtype = wrong->dtype;
    if (wrong->weight > 0)
        header.weight = wrong->weight;
    return header;
}

// Impossible frames lose the peer, before and after the launch.
static void impossible_rounds_lose_the_peer(void **state)
{
    static const uint8_t used[LOCKSTEP_USED_BYTES];
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < 2 * LENGTH(wrong_pairs); i++) {
        const struct wrong_pair *wrong = &wrong_pairs[i / 2];
        struct stage stage;
        stage_form(&stage, *state);
        const struct frame_header header = wrong_pair_header(&stage, wrong);
        if (i % 2 == 0)
            stage_launch_pair(&stage, launched, 100, 0, wrong->algorithm);
        (void)stage_send_used(&stage, &header, used);
        if (i % 2 == 1) {
            for (int k = 0; k < 5; k++)
                transport_progress(stage.transport, 1);
            stage_launch_pair(&stage, launched, 100, 0, wrong->algorithm);
        }
        stage_until_count(&stage, &stage.lost, 1);
        assert_false(stage.left);
        assert_int_equal(stage.done, 0);
        launched_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

static void a_round_comes_twice(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    stage_form(&stage, *state);
    stage_launch_pair(&stage, launched, 100, 0, ALGORITHM_HALVING);
    const struct frame_header header = pair_header(&stage, 1, 200);
    assert_true(stage_send_frame(&stage, &header, NULL));
    (void)stage_send_frame(&stage, &header, NULL);
    stage_expect_impossible(&stage);
    assert_int_equal(stage.done, 0);
    stage_close(&stage);
    free(launched);
}

// Impossible credits: where no credit is needed, for data that does not exist, and lower than
// before.
static void impossible_credit_of_a_pair(void **state)
{
    static const struct {
        uint64_t elements;
        uint32_t credit;
    } wrong[] = {{100, 1}, {40000, 0}, {40000, 400}};
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < LENGTH(wrong); i++) {
        struct stage stage;
        stage_form(&stage, *state);
        stage_launch_pair(&stage, launched, wrong[i].elements, 0, ALGORITHM_DOUBLING);
        struct frame_header header = stage_tensor(&stage, FRAME_CREDIT, 0, 0);
        header.part = FRAME_CREDIT_PAIR;
        header.credit = wrong[i].credit;
        (void)stage_send_frame(&stage, &header, NULL);
        stage_expect_impossible(&stage);
        launched_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

static void rounds_without_credit(void **state)
{
    struct stage stage;
    stage_form(&stage, *state);
    const struct frame_header header = pair_header(&stage, 1, LOCKSTEP_EAGER_BYTES + 4);
    (void)stage_send_frame(&stage, &header, NULL);
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

// The peer has another signature or algorithm: in a frame after the launch, in a frame before the
// launch, and in a credit before the launch.
static void pairs_disagree(void **state)
{
    struct launched *launched = malloc(5 * sizeof(*launched));
    struct stage stage;
    stage_form(&stage, *state);
    stage_launch_pair(&stage, &launched[0], 100, 0, ALGORITHM_DOUBLING);
    struct frame_header header = pair_header(&stage, 1, 400);
    header.signature++;
    assert_true(stage_send_frame(&stage, &header, NULL));
    stage_until_count(&stage, &stage.mismatches, 1);
    stage_launch(&stage, &launched[1], 100, 1, COLLECTIVE_ALLREDUCE);
    header = pair_header(&stage, 1, 400);
    header.slot = 1;
    assert_true(stage_send_frame(&stage, &header, NULL));
    stage_until_count(&stage, &stage.mismatches, 2);
    header.slot = 2;
    assert_true(stage_send_frame(&stage, &header, NULL));
    header = stage_tensor(&stage, FRAME_REDUCE, 0, 400);
    header.slot = 3;
    assert_true(stage_send_frame(&stage, &header, NULL));
    header = stage_tensor(&stage, FRAME_CREDIT, 0, 0);
    header.part = FRAME_CREDIT_PAIR;
    header.credit = 1;
    header.slot = 4;
    assert_true(stage_send_frame(&stage, &header, NULL));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    stage_launch(&stage, &launched[2], 100, 2, COLLECTIVE_ALLREDUCE);
    stage_launch_pair(&stage, &launched[3], 100, 3, ALGORITHM_HALVING);
    stage_launch(&stage, &launched[4], 40000, 4, COLLECTIVE_ALLREDUCE);
    stage_until_count(&stage, &stage.mismatches, 5);
    assert_int_equal(stage.lost, 0);
    assert_int_equal(stage.done, 0);
    for (size_t i = 0; i < 5; i++)
        launched_untouched(&launched[i]);
    transport_abandon(stage.transport);
    stage_close(&stage);
    free(launched);
}

// The puppet does its part of the sum, and ends its link inside an element of the result.
static void a_death_inside_a_result(void **state)
{
    static const uint32_t cuts[] = {0, 1, 4, 5, 9999, 19998};
    struct launched *launched = malloc(sizeof(*launched));
    uint8_t *bytes = calloc(1, 20000);
    for (size_t c = 0; c < LENGTH(cuts); c++) {
        struct stage stage;
        struct frame_header answer;
        uint8_t head[LOCKSTEP_FRAME_HEADER_BYTES];
        stage_form(&stage, *state);
        stage_launch_pair(&stage, launched, 10000, 0, ALGORITHM_HALVING);
        memset(bytes, 0, 20000);
        struct frame_header header = pair_header(&stage, 1, 20000);
        assert_true(stage_send_frame(&stage, &header, bytes));
        assert_true(
            stage_receive_frame(&stage, &answer, bytes)); // The peer's input for the upper half.
        assert_true(stage_receive_frame(&stage, &answer, bytes)); // The sum of the lower half.
        assert_int_equal(answer.part, 2);
        memset(bytes, 0xee, 20000);
        header = pair_header(&stage, 2, 20000);
        frame_encode(&header, head);
        assert_true(stage_send(&stage, stage.puppet, head, sizeof(head)));
        assert_true(stage_send(&stage, stage.puppet, bytes, cuts[c]));
        stage.puppet->ops->close(stage.puppet, false);
        stage.puppet = NULL;
        stage_until_count(&stage, &stage.lost, 1);
        const size_t whole = cuts[c] / 4;
        for (size_t i = 0; i < 5000; i++) // The puppet's input was 0.
            assert_true(launched->memory[i] == (float)i);
        assert_memory_equal(launched->memory + 5000, bytes, whole * 4);
        for (size_t i = 5000 + whole; i < 10000; i++)
            assert_true(launched->memory[i] == (float)i);
        assert_int_equal(stage.done, 0);
        stage_close(&stage);
    }
    free(bytes);
    free(launched);
}

static const struct stage_test tests[] = {
    STAGE_TEST(impossible_rounds_lose_the_peer),
    STAGE_TEST(a_round_comes_twice),
    STAGE_TEST(impossible_credit_of_a_pair),
    STAGE_TEST(rounds_without_credit),
    STAGE_TEST(pairs_disagree),
    STAGE_TEST(a_death_inside_a_result),
};

int main(void)
{
    return stage_run("transport and a hostile partner", tests, LENGTH(tests));
}
