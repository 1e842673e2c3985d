// SPDX-License-Identifier: Apache-2.0
//
// A hostile member that breaks the protocols beside tensors: the measurement of a link (MEASURE),
// and the agreement of all hosts on the next collective (RUN).

#include "base/clock.h"
#include "tests/conformance/transport_stage.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/measure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RUN_JOINED 1
#define RUN_RUNS 2
#define MEASURE_PING 1
#define MEASURE_PONG 2
#define MEASURE_BURST 3
#define MEASURE_TAKEN 4
#define MEASURE_FRAME_BYTES (256 * 1024)
#define PINGS 20
#define QUIET_MS 90

static void work_for_a_while(struct stage *stage)
{
    for (int i = 0; i < 10; i++)
        transport_progress(stage->transport, 1);
}

// ---- MEASURE ------------------------------------------------------------------------------------

static struct frame_header measure_header(const struct stage *stage, uint32_t part,
                                          uint32_t payload_bytes)
{
    struct frame_header header = stage_small(stage, FRAME_MEASURE);
    header.part = part;
    header.payload_bytes = payload_bytes;
    header.slot = 1;
    return header;
}

struct wrong_measure {
    uint32_t part;
    uint32_t payload_bytes;
    uint32_t used_bytes;
    uint32_t off; // Added to the sender's rank in the frame.
};

static const struct wrong_measure wrong_measures[] = {
    {0, 0, 0, 0}, // Unknown parts.
    {MEASURE_TAKEN + 1, 0, 0, 0},
    {UINT32_MAX, MEASURE_FRAME_BYTES, 0, 0},
    {MEASURE_PING, 4, 0, 0}, // Wrong lengths.
    {MEASURE_PONG, MEASURE_FRAME_BYTES, 0, 0},
    {MEASURE_TAKEN, LOCKSTEP_FRAME_BYTES, 0, 0},
    {MEASURE_BURST, 0, 0, 0},
    {MEASURE_BURST, MEASURE_FRAME_BYTES - 4, 0, 0},
    {MEASURE_BURST, MEASURE_FRAME_BYTES + 4, 0, 0},
    {MEASURE_BURST, LOCKSTEP_FRAME_BYTES, 0, 0},
    {MEASURE_BURST, MEASURE_FRAME_BYTES, 8, 0}, // Use bits, which a measurement has not.
    {MEASURE_PING, 0, LOCKSTEP_USED_BYTES, 0},
    {MEASURE_PING, 0, 0, 1}, // A ping of another rank.
    {MEASURE_BURST, MEASURE_FRAME_BYTES, 0, 1},
};

static void impossible_measures_lose_the_peer(void **state)
{
    static const uint8_t used[LOCKSTEP_USED_BYTES];
    for (size_t i = 0; i < LENGTH(wrong_measures); i++) {
        const struct wrong_measure *wrong = &wrong_measures[i];
        struct stage stage;
        stage_form(&stage, *state);
        struct frame_header header = measure_header(&stage, wrong->part, wrong->payload_bytes);
        header.used_bytes = wrong->used_bytes;
        header.chunk += wrong->off;
        (void)stage_send_used(&stage, &header, used);
        stage_expect_impossible(&stage);
        stage_close(&stage);
    }
}

// Answers without a question change nothing, in any order.
static void unasked_answers_are_passed_over(void **state)
{
    static const uint32_t parts[] = {MEASURE_TAKEN, MEASURE_PONG, MEASURE_TAKEN, MEASURE_PONG};
    struct stage stage;
    struct transport_links before;
    struct transport_links after;
    stage_form(&stage, *state);
    transport_links(stage.transport, &before);
    for (size_t i = 0; i < LENGTH(parts); i++) {
        struct frame_header header = measure_header(&stage, parts[i], 0);
        header.slot = (uint32_t)i;
        assert_true(stage_send_frame(&stage, &header, NULL));
    }
    work_for_a_while(&stage);
    transport_links(stage.transport, &after);
    assert_int_equal(stage.lost, 0);
    assert_int_equal(after.latency_ns, before.latency_ns);
    assert_int_equal(after.bytes_per_s, before.bytes_per_s);
    stage_close(&stage);
}

// A peer that measures for ever is lost. It only gets answers without payload.
static void measuring_is_bounded(void **state)
{
    struct stage stage;
    uint32_t sent = 0;
    stage_form(&stage, *state);
    while (stage.lost == 0) {
        struct frame_header header = measure_header(&stage, MEASURE_PING, 0);
        header.slot = sent++;
        (void)stage_send_frame(&stage, &header, NULL);
        transport_progress(stage.transport, 0);
        assert_true(sent < 10000);
    }
    assert_true(sent > 20); // An honest peer needs this many.
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

// Measurements that are in flight at the end of the measuring time arrive after the tuning. Rank 0
// reads them without an answer, up to the number that a measurement needs.
static void late_measures_are_passed_over(void **state)
{
    static const uint32_t parts[] = {MEASURE_PONG, MEASURE_TAKEN, MEASURE_PING, MEASURE_BURST};
    const struct stage_variant *variant = *state;
    // A loopback is not measured, so it takes no bursts.
    const size_t count = LENGTH(parts) - (variant->kind == TRANSPORT_LOOPBACK);
    struct stage stage;
    struct transport_statistics before;
    struct transport_statistics after;
    uint32_t sent = 0;
    stage_form(&stage, variant);
    transport_tuned(stage.transport, 1);
    transport_statistics(stage.transport, &before);
    for (size_t i = 0; i < count; i++) {
        struct frame_header header =
            measure_header(&stage, parts[i], parts[i] == MEASURE_BURST ? MEASURE_FRAME_BYTES : 0);
        header.credit = 1;
        assert_true(stage_send_frame(&stage, &header, NULL));
    }
    work_for_a_while(&stage);
    transport_statistics(stage.transport, &after);
    assert_int_equal(stage.lost, 0);
    assert_int_equal(after.bytes_sent, before.bytes_sent);
    while (stage.lost == 0) {
        const struct frame_header header = measure_header(&stage, MEASURE_PING, 0);
        (void)stage_send_frame(&stage, &header, NULL);
        transport_progress(stage.transport, 0);
        assert_true(sent++ < 10000);
    }
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

#define SLOW_BURSTS 2
#define SLOW_NS 30000000

// The puppet answers the first bursts late. Returns the number of bursts, and the measured links.
static uint32_t measure_slow_bursts(const struct stage_variant *variant,
                                    struct transport_links *links)
{
    static uint8_t bytes[MEASURE_FRAME_BYTES];
    const struct timespec pause = {.tv_nsec = SLOW_NS};
    struct stage stage;
    uint32_t bursts = 0;
    stage_open_measuring(&stage, variant);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_greet(&stage);
    while (!stage.formed) {
        struct frame_header header;
        assert_true(stage_receive_frame(&stage, &header, bytes));
        assert_int_equal(header.kind, FRAME_MEASURE);
        if (header.part == MEASURE_BURST && header.credit == 0)
            continue;
        if (header.part == MEASURE_BURST && ++bursts <= SLOW_BURSTS)
            nanosleep(&pause, NULL);
        struct frame_header answer =
            measure_header(&stage, header.part == MEASURE_PING ? MEASURE_PONG : MEASURE_TAKEN, 0);
        answer.slot = header.slot;
        assert_true(stage_send_frame(&stage, &answer, NULL));
        transport_progress(stage.transport, 1);
    }
    transport_links(stage.transport, links);
    stage_close(&stage);
    return bursts;
}

static void answer_pings(struct stage *stage, uint8_t *bytes)
{
    for (uint32_t i = 0; i < PINGS; i++) {
        struct frame_header header;
        assert_true(stage_receive_frame(stage, &header, bytes));
        assert_int_equal(header.part, MEASURE_PING);
        struct frame_header answer = measure_header(stage, MEASURE_PONG, 0);
        answer.slot = header.slot;
        assert_true(stage_send_frame(stage, &answer, NULL));
    }
}

// Bursts come after pings are answered, because they would delay the answers to another rank's
// pings. On a machine where pings take longer than their time limit, the test shows nothing.
static void bursts_come_when_pings_are_answered(void **state)
{
    static uint8_t bytes[MEASURE_FRAME_BYTES];
    const struct stage_variant *variant = *state;
    struct stage stage;
    struct frame_header header;
    if (variant->kind == TRANSPORT_LOOPBACK)
        skip(); // A loopback is not measured.
    stage_open_measuring(&stage, variant);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_greet(&stage);
    answer_pings(&stage, bytes);
    const uint64_t begin_ms = clock_now_ms();
    for (uint32_t i = 0; i < PINGS; i++) {
        struct frame_header ping = measure_header(&stage, MEASURE_PING, 0);
        ping.slot = i;
        assert_true(stage_send_frame(&stage, &ping, NULL));
        assert_true(stage_receive_frame(&stage, &header, bytes));
        if (clock_now_ms() - begin_ms >= QUIET_MS)
            break;
        assert_int_equal(header.part, MEASURE_PONG);
    }
    while (header.part != MEASURE_BURST)
        assert_true(stage_receive_frame(&stage, &header, bytes));
    stage_close(&stage);
}

// The first bursts are slow for another reason than the link, such as a busy core, and do not
// count. If this machine is so busy that all bursts are slow or no time is left, the test tries
// again.
static void slow_bursts_are_measured_again(void **state)
{
    const struct stage_variant *variant = *state;
    const uint64_t slow_bytes_per_s = UINT64_C(1000000000) / SLOW_NS * MEASURE_FRAME_BYTES;
    struct transport_links links = {0};
    uint32_t bursts = 0;
    if (variant->kind == TRANSPORT_LOOPBACK || variant->mates)
        skip(); // A loopback is never measured, and shared memory has no room for such bursts.
    for (int i = 0; i < 20; i++) {
        bursts = measure_slow_bursts(variant, &links);
        if (bursts > SLOW_BURSTS && links.bytes_per_s > 2 * slow_bytes_per_s)
            break;
    }
    assert_true(bursts > SLOW_BURSTS);
    assert_true(links.latency_ns > 0);
    assert_true(links.bytes_per_s > 2 * slow_bytes_per_s);
}

// ---- RUN ----------------------------------------------------------------------------------------

static struct frame_header run_header(const struct stage *stage, uint32_t part, uint32_t slot)
{
    struct frame_header header = stage_small(stage, FRAME_RUN);
    header.part = part;
    header.step = STAGE_STEP;
    header.space = STAGE_SPACE;
    header.slot = slot;
    header.signature = STAGE_SIGNATURE;
    return header;
}

// With one host no rank may send RUN frames.
static void runs_without_hosts_lose_the_peer(void **state)
{
    for (uint32_t part = 0; part <= 3; part++) {
        struct stage stage;
        stage_form(&stage, *state);
        const struct frame_header header = run_header(&stage, part, 0);
        (void)stage_send_frame(&stage, &header, NULL);
        stage_expect_impossible(&stage);
        stage_close(&stage);
    }
}

struct wrong_run {
    uint32_t host; // A host that rank 0 leads.
    uint32_t part;
    uint32_t times;
    uint32_t payload_bytes;
    uint64_t generation; // Subtracted from the generation in the frame.
    uint32_t off; // Added to the sender's rank in the frame.
};

static const struct wrong_run wrong_runs[] = {
    {0, 0, 1, 0, 0, 0}, // Unknown parts.
    {0, 3, 1, 0, 0, 0},          {1, UINT32_MAX, 1, 0, 0, 0},
    {0, RUN_RUNS, 1, 0, 0, 0}, // Host 0 decides what runs.
    {1, RUN_RUNS, 1, 0, 0, 0}, // No rank of this host has joined the collective.
    {1, RUN_JOINED, 1, 0, 0, 0}, // No host comes after the last one.
    {0, RUN_JOINED, 2, 0, 0, 0}, // The same frame twice.
    {0, RUN_JOINED, 1, 4, 0, 0}, // A payload.
    {0, RUN_JOINED, 1, 0, 1, 0}, // A run of another generation.
    {0, RUN_JOINED, 1, 0, 0, 1}, // A run of another rank.
};

static void impossible_runs_lose_the_peer(void **state)
{
    for (size_t i = 0; i < LENGTH(wrong_runs); i++) {
        const struct wrong_run *wrong = &wrong_runs[i];
        struct stage stage;
        stage_form_two(&stage, *state, wrong->host);
        struct frame_header header = run_header(&stage, wrong->part, 0);
        header.payload_bytes = wrong->payload_bytes;
        header.generation.number -= wrong->generation;
        header.chunk += wrong->off;
        for (uint32_t k = 0; k < wrong->times; k++)
            (void)stage_send_frame(&stage, &header, NULL);
        stage_expect_impossible(&stage);
        assert_int_equal(stage.lost_rank, 1);
        stage_close(&stage);
    }
}

// A rank that does not lead a neighbouring host must not send RUN frames.
static void runs_of_another_rank_lose_it(void **state)
{
    for (uint32_t part = RUN_JOINED; part <= RUN_RUNS; part++) {
        struct stage stage;
        stage_form_two(&stage, *state, 0);
        struct link *leader = stage.puppet;
        stage.puppet = stage.second;
        stage.second = leader;
        struct frame_header header = run_header(&stage, part, 0);
        header.chunk = 2;
        (void)stage_send_frame(&stage, &header, NULL);
        stage_expect_impossible(&stage);
        assert_int_equal(stage.lost_rank, 2);
        stage_close(&stage);
    }
}

static void early_runs_are_bounded(void **state)
{
    struct stage stage;
    uint32_t sent = 0;
    stage_form_two(&stage, *state, 0);
    while (stage.lost == 0) {
        const struct frame_header header = run_header(&stage, RUN_JOINED, sent++);
        (void)stage_send_frame(&stage, &header, NULL);
        assert_true(sent < 10 * LOCKSTEP_EARLY_COLLECTIVES);
        transport_progress(stage.transport, 0);
    }
    assert_true(sent > LOCKSTEP_EARLY_COLLECTIVES);
    stage_expect_impossible(&stage);
    stage_close(&stage);
}

static void swap_puppets(struct stage *stage)
{
    struct link *second = stage->second;
    stage->second = stage->puppet;
    stage->puppet = second;
}

// Rank 1 sends the maximum number of credits and frames of collectives that rank 0 has not
// launched. Rank 2 may still send its own.
static void early_collectives_are_bounded_by_peer(void **state)
{
    struct stage stage;
    uint32_t slot = 0;
    stage_form_two(&stage, *state, 0);
    struct frame_header credit = stage_tensor(&stage, FRAME_CREDIT, 0, 0);
    credit.credit = 1;
    for (; slot < LOCKSTEP_EARLY_FLOWS_OF_PEER; slot++) {
        credit.slot = slot;
        assert_true(stage_send_frame(&stage, &credit, NULL));
    }
    work_for_a_while(&stage);
    assert_int_equal(stage.lost, 0);
    swap_puppets(&stage);
    for (uint32_t i = 0; i < LOCKSTEP_PARKINGS_OF_PEER; i++) {
        struct frame_header header = stage_tensor(&stage, FRAME_REDUCE, 0, 4);
        header.slot = slot++;
        assert_true(stage_send_frame(&stage, &header, NULL));
    }
    work_for_a_while(&stage);
    assert_int_equal(stage.lost, 0);
    swap_puppets(&stage);
    credit.slot = slot;
    (void)stage_send_frame(&stage, &credit, NULL);
    stage_expect_impossible(&stage);
    assert_int_equal(stage.lost_rank, 1);
    stage_close(&stage);
}

// The other host joins the same collective with other properties, before and after this host joins.
static void hosts_disagree(void **state)
{
    struct launched *launched = malloc(2 * sizeof(*launched));
    struct stage stage;
    stage_form_two(&stage, *state, 0);
    struct frame_header header = run_header(&stage, RUN_JOINED, 0);
    header.signature++;
    assert_true(stage_send_frame(&stage, &header, NULL));
    work_for_a_while(&stage);
    stage_launch_pair(&stage, &launched[0], 1000, 0, ALGORITHM_TWO_LEVEL);
    stage_until_count(&stage, &stage.mismatches, 1);
    stage_launch_pair(&stage, &launched[1], 1000, 1, ALGORITHM_TWO_LEVEL);
    work_for_a_while(&stage);
    header.slot = 1;
    header.signature--;
    header.weight = 77; // The shape of the collective.
    assert_true(stage_send_frame(&stage, &header, NULL));
    stage_until_count(&stage, &stage.mismatches, 2);
    assert_int_equal(stage.lost, 0);
    assert_int_equal(stage.done, 0);
    launched_untouched(&launched[0]);
    launched_untouched(&launched[1]);
    transport_abandon(stage.transport);
    stage_close(&stage);
    free(launched);
}

// A host that lets the same collective run twice is lost.
static void a_run_comes_twice(void **state)
{
    struct launched *launched = malloc(sizeof(*launched));
    struct stage stage;
    stage_form_two(&stage, *state, 1);
    stage_launch_pair(&stage, launched, 1000, 0, ALGORITHM_TWO_LEVEL);
    work_for_a_while(&stage);
    const struct frame_header header = run_header(&stage, RUN_RUNS, 0);
    assert_true(stage_send_frame(&stage, &header, NULL));
    (void)stage_send_frame(&stage, &header, NULL);
    stage_expect_impossible(&stage);
    assert_int_equal(stage.done, 0);
    transport_abandon(stage.transport);
    launched_untouched(launched);
    stage_close(&stage);
    free(launched);
}

static const struct stage_test tests[] = {
    STAGE_TEST(impossible_measures_lose_the_peer),
    STAGE_TEST(unasked_answers_are_passed_over),
    STAGE_TEST(measuring_is_bounded),
    STAGE_TEST(late_measures_are_passed_over),
    STAGE_TEST(bursts_come_when_pings_are_answered),
    STAGE_TEST(slow_bursts_are_measured_again),
    STAGE_TEST(runs_without_hosts_lose_the_peer),
    STAGE_TEST(impossible_runs_lose_the_peer),
    STAGE_TEST(runs_of_another_rank_lose_it),
    STAGE_TEST(early_runs_are_bounded),
    STAGE_TEST(early_collectives_are_bounded_by_peer),
    STAGE_TEST(hosts_disagree),
    STAGE_TEST(a_run_comes_twice),
};

int main(void)
{
    return stage_run("transport and hostile hosts", tests, LENGTH(tests));
}
