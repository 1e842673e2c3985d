// SPDX-License-Identifier: Apache-2.0
//
// Strangers on a transport's port; members that connect early, twice or never; and a forked child
// that keeps its inherited descriptors.

#include "base/clock.h"
#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_job.h"
#include "tests/conformance/transport_stage.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- strangers ----------------------------------------------------------------------------------

static void strangers_are_refused(void **state)
{
    struct stage stage;
    uint64_t random = 4711;
    uint64_t count = 0;
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    // Garbage of every length.
    for (size_t i = 0; i < 150; i++) {
        uint8_t bytes[400];
        for (size_t b = 0; b < sizeof(bytes); b++)
            bytes[b] = (uint8_t)job_random(&random);
        struct link *link = stage_connect_bare(&stage);
        (void)stage_send(&stage, link, bytes, 1 + i * 2);
        link->ops->close(link, i % 2 == 0);
        stage_until_refused(&stage, ++count);
    }
    assert_false(stage.formed);
    stage_join(&stage);
    assert_int_equal(stage_refused(&stage), count);
    stage_close(&stage);
}

// Sends a hello with a wrong header, or with one wrong bit in nonce and proof (bit -1: none), and
// checks that it is refused.
static void wrong_hello(struct stage *stage, const struct frame_header *header, int bit)
{
    uint8_t byte = 0;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    const uint64_t before = stage_refused(stage);
    struct link *kept = stage->puppet;
    stage->puppet = stage_connect(stage);
    stage_challenge(stage, stage->puppet, challenge);
    const struct hello hello = stage_secrets(stage, challenge);
    stage_proof(&hello, payload);
    if (bit >= 0)
        payload[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    (void)stage_send_frame(stage, header, payload);
    stage_until_refused(stage, before + 1);
    assert_false(stage_receive(stage, stage->puppet, &byte, 1)); // The stranger gets no answer.
    stage->puppet->ops->close(stage->puppet, false);
    stage->puppet = kept;
}

static void wrong_hellos_are_refused(void **state)
{
    struct stage stage;
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    const struct frame_header good = stage_hello(&stage);
    for (int i = 0; i < STAGE_PROOF_BYTES; i++)
        wrong_hello(&stage, &good, 8 * i + i % 8);
    struct frame_header bad[11];
    for (size_t i = 0; i < LENGTH(bad); i++)
        bad[i] = good;
    bad[0].generation.number++;
    bad[1].generation.incarnation++;
    bad[2].chunk = 0;
    bad[3].chunk = 2;
    bad[4].part = 1;
    bad[5].payload_bytes--;
    bad[6].kind = FRAME_WAVE;
    bad[7].kind = FRAME_MEASURE; // Only members send this kind.
    bad[8].kind = FRAME_RUN;
    bad[8].payload_bytes = 0;
    bad[9].kind = FRAME_CHALLENGE; // Only the side that has accepted sends this kind.
    bad[10].kind = FRAME_WELCOME;
    for (size_t i = 0; i < LENGTH(bad); i++)
        wrong_hello(&stage, &bad[i], -1);
    stage_join(&stage);
    // A second hello of the same rank.
    wrong_hello(&stage, &good, -1);
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
}

static void unproven_connections_are_bounded(void **state)
{
    struct stage stage;
    struct link *links[LOCKSTEP_MAX_UNPROVEN * 2];
    const struct stage_variant *variant = *state;
    if (variant->encrypts) {
        print_message("not over %s: what comes before proofs is as over tcp\n", variant->name);
        skip();
    }
    stage_open(&stage, variant);
    const struct frame_header header = stage_hello(&stage);
    uint8_t hello[LOCKSTEP_FRAME_HEADER_BYTES];
    frame_encode(&header, hello);
    // Strangers connect before rank 0 knows its generation. Some send one byte, others only the
    // header of a hello.
    for (size_t i = 0; i < LENGTH(links); i++) {
        links[i] = stage_connect(&stage);
        (void)stage_send(&stage, links[i], hello, i % 2 == 0 ? 1 : sizeof(hello));
    }
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_until_refused(&stage, LOCKSTEP_MAX_UNPROVEN);
    assert_int_equal(stage_refused(&stage), LOCKSTEP_MAX_UNPROVEN);
    stage_join(&stage);
    // Rank 0 refuses silent and incomplete strangers after a while.
    stage_until_refused(&stage, LENGTH(links));
    for (size_t i = 0; i < LENGTH(links); i++)
        links[i]->ops->close(links[i], false);
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
}

// A member that knows the generation earlier than this rank sends its hello early.
static void an_early_hello_waits(void **state)
{
    struct stage stage;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    stage_open(&stage, *state);
    struct frame_header header = stage_hello(&stage);
    stage.puppet = stage_connect(&stage);
    stage_challenge(&stage, stage.puppet, challenge);
    const struct hello hello = stage_secrets(&stage, challenge);
    stage_proof(&hello, payload);
    assert_true(stage_send_frame(&stage, &header, payload));
    for (int i = 0; i < 20; i++)
        transport_progress(stage.transport, 1);
    assert_int_equal(stage_refused(&stage), 0);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_welcome(&stage, &hello);
    stage_until(&stage, &stage.formed);
    stage_close(&stage);
}

// Bytes after an early hello are refused, although they come with it.
static void an_early_hello_is_all(void **state)
{
    struct stage stage;
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES + STAGE_PROOF_BYTES + 1] = {0};
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    const struct stage_variant *variant = *state;
    if (variant->encrypts || variant->mates) {
        print_message("not over %s: such a link sends nothing with its hello\n", variant->name);
        skip();
    }
    stage_open(&stage, variant);
    stage.puppet = stage_connect(&stage);
    stage_challenge(&stage, stage.puppet, challenge);
    const struct hello hello = stage_secrets(&stage, challenge);
    const struct frame_header header = stage_hello(&stage);
    frame_encode(&header, bytes);
    stage_proof(&hello, bytes + LOCKSTEP_FRAME_HEADER_BYTES);
    (void)stage_send(&stage, stage.puppet, bytes, sizeof(bytes));
    stage_until_refused(&stage, 1);
    stage.puppet->ops->close(stage.puppet, false);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_join(&stage);
    stage_close(&stage);
}

static void forming_fails_in_time(void **state)
{
    struct stage stage;
    stage_open(&stage, *state);
    stage.world.form_timeout_ms = 50;
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_until(&stage, &stage.form_failed);
    assert_true(strlen(stage.text) > 0);
    // The same for a rank that connects where no peer listens.
    transport_abandon(stage.transport);
    stage.form_failed = false;
    stage.text[0] = '\0';
    stage.world.rank = 1;
    stage.peers[0].rank = 0;
    snprintf(stage.peers[0].address, sizeof(stage.peers[0].address), "%s",
             stage.variant->kind == TRANSPORT_TCP ? "tcp:127.0.0.1:1" : "loopback:0");
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_until(&stage, &stage.form_failed);
    assert_non_null(strstr(stage.text, "refused"));
    stage_close(&stage);
}

// A transport abandons a generation and forms the next one.
static void forming_again(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    stage_form(&stage, *state);
    for (int i = 0; i < 3; i++) {
        stage_launch(&stage, launched, 40000, 0, COLLECTIVE_ALLREDUCE);
        for (int k = 0; k < 3; k++)
            transport_progress(stage.transport, 0);
        transport_abandon(stage.transport);
        assert_null(launched->collective.state);
        stage.puppet->ops->close(stage.puppet, false);
        stage.puppet = NULL;
        stage.formed = false;
        stage.world.generation.number++;
        assert_int_equal(transport_form(stage.transport, &stage.world), 0);
        stage_join(&stage);
    }
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
    free(launched);
}

// ---- a forked child -----------------------------------------------------------------------------

static void a_forked_child_holds_nothing(void **state)
{
    struct stage stage;
    uint8_t byte = 0;
    int hold[2];
    stage_form(&stage, *state);
    if (stage.variant->kind != TRANSPORT_TCP) {
        stage_close(&stage);
        skip();
    }
    assert_int_equal(pipe(hold), 0);
    const pid_t child = fork();
    if (child == 0) {
        transport_forked(stage.transport);
        (void)close(stage.puppet->fd); // The puppet's side is the test's.
        (void)close(hold[1]);
        _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    (void)close(hold[0]);
    transport_close(stage.transport);
    // The child lives but has closed its parent's descriptors, so the peer sees the end at once.
    const uint64_t since_ms = clock_now_ms();
    for (;;) {
        const struct iovec vector = {.iov_base = &byte, .iov_len = 1};
        const ssize_t received = stage.puppet->ops->receive(stage.puppet, &vector, 1);
        if (received == 0 || (received < 0 && errno != EAGAIN))
            break;
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(5000));
    }
    (void)close(hold[1]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    stage.puppet->ops->close(stage.puppet, false);
}

static const struct stage_test tests[] = {
    STAGE_TEST(strangers_are_refused),
    STAGE_TEST(wrong_hellos_are_refused),
    STAGE_TEST(unproven_connections_are_bounded),
    STAGE_TEST(an_early_hello_waits),
    STAGE_TEST(an_early_hello_is_all),
    STAGE_TEST(forming_fails_in_time),
    STAGE_TEST(forming_again),
    STAGE_TEST(a_forked_child_holds_nothing),
};

int main(void)
{
    return stage_run("transport and strangers", tests, LENGTH(tests));
}
