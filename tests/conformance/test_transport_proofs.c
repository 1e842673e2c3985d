// SPDX-License-Identifier: Apache-2.0
//
// Peers that cannot prove membership, on either side of a connection. Their proofs are recorded
// ones, the rank's own, made for another rank or purpose, or missing.

#include "base/clock.h"
#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_stage.h"
#include "worker/link/loopback.h"
#include "worker/link/tcp.h"
#include "worker/link/tls.h"
#include "worker/link/unix.h"
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

// ---- what is proven for something else ----------------------------------------------------------

#define PROOFS 11

static uint8_t other_secret[LOCKSTEP_SECRET_BYTES];

// Changes the data of a proof in way number `way`. Returns the side whose proof is made.
static enum hello_side spoil(struct hello *hello, size_t way, enum hello_side side)
{
    const uint32_t connector = hello->connector;
    switch (way) {
    case 0:
        hello->secret = other_secret;
        break;
    case 1:
        hello->generation.number--; // The previous generation.
        break;
    case 2:
        hello->generation.incarnation++;
        break;
    case 3:
        hello->world_size++;
        break;
    case 4:
        hello->connector += 2;
        break;
    case 5:
        hello->acceptor += 2;
        break;
    case 6: // The same pair with connector and acceptor exchanged.
        hello->connector = hello->acceptor;
        hello->acceptor = connector;
        break;
    case 7:
        hello->challenge[5] ^= 1;
        break;
    case 8:
        hello->nonce[5] ^= 1;
        break;
    case 9:
        hello->encrypts = !hello->encrypts;
        break;
    default: // The proof of the other side.
        return side == HELLO_CONNECTOR ? HELLO_ACCEPTOR : HELLO_CONNECTOR;
    }
    return side;
}

// The puppet connects and sends a correct hello, except that its proof is made of wrong data.
static void foreign_hellos_are_refused(void **state)
{
    struct stage stage;
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    const struct frame_header header = stage_hello(&stage);
    for (size_t way = 0; way < PROOFS; way++) {
        uint8_t byte = 0;
        uint8_t challenge[LOCKSTEP_NONCE_BYTES];
        uint8_t payload[STAGE_PROOF_BYTES];
        const uint64_t before = stage_refused(&stage);
        stage.puppet = stage_connect(&stage);
        stage_challenge(&stage, stage.puppet, challenge);
        struct hello hello = stage_secrets(&stage, challenge);
        memcpy(payload, hello.nonce, LOCKSTEP_NONCE_BYTES);
        const enum hello_side side = spoil(&hello, way, HELLO_CONNECTOR);
        assert_true(hello_prove(&hello, side, payload + LOCKSTEP_NONCE_BYTES));
        (void)stage_send_frame(&stage, &header, payload);
        stage_until_refused(&stage, before + 1);
        assert_false(stage_receive(&stage, stage.puppet, &byte, 1)); // It gets no answer.
        stage.puppet->ops->close(stage.puppet, false);
        stage.puppet = NULL;
    }
    assert_false(stage.formed);
    stage_join(&stage);
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
}

// A member proves membership but has another configuration, so forming fails at once.
static void members_that_differ_end_forming(void **state)
{
    struct stage stage;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    struct frame_header header = stage_hello(&stage);
    header.credit = !header.credit;
    stage.puppet = stage_connect(&stage);
    stage_challenge(&stage, stage.puppet, challenge);
    struct hello hello = stage_secrets(&stage, challenge);
    // A stranger without a valid proof cannot make forming fail.
    stage_proof(&hello, payload);
    (void)stage_send_frame(&stage, &header, payload);
    stage_until_refused(&stage, 1);
    assert_false(stage.differs);
    stage.puppet->ops->close(stage.puppet, false);
    stage.puppet = stage_connect(&stage);
    stage_challenge(&stage, stage.puppet, challenge);
    hello = stage_secrets(&stage, challenge);
    hello.encrypts = header.credit;
    stage_proof(&hello, payload);
    (void)stage_send_frame(&stage, &header, payload);
    stage_until(&stage, &stage.differs);
    assert_false(stage.form_failed);
    stage_close(&stage);
}

// Both sides have proven membership, perhaps through a man in the middle. What follows is not
// encrypted, or not with their key.
static void what_follows_has_to_be_encrypted(void **state)
{
    const struct stage_variant *variant = *state;
    if (!variant->encrypts) {
        print_message("not over %s: nothing is encrypted there\n", variant->name);
        skip();
    }
    for (int i = 0; i < 4; i++) {
        struct stage stage;
        uint8_t challenge[LOCKSTEP_NONCE_BYTES];
        uint8_t bytes[300];
        memset(bytes, i == 0 ? 0x16 : 0x55, sizeof(bytes)); // 0x16 begins a TLS handshake record.
        stage_open(&stage, variant);
        assert_int_equal(transport_form(stage.transport, &stage.world), 0);
        const struct frame_header header = stage_hello(&stage);
        stage.puppet = stage_connect_bare(&stage);
        stage_challenge(&stage, stage.puppet, challenge);
        const struct hello hello = stage_secrets(&stage, challenge);
        stage_proof(&hello, bytes);
        assert_true(stage_send_frame(&stage, &header, bytes));
        stage_welcome(&stage, &hello);
        const struct frame_header wave = stage_small(&stage, FRAME_WAVE);
        if (i == 2)
            (void)stage_send_frame(&stage, &wave, NULL);
        else if (i == 3)
            stage.puppet->ops->shut(stage.puppet);
        else
            (void)stage_send(&stage, stage.puppet, bytes, sizeof(bytes));
        stage_until_count(&stage, &stage.lost, 1);
        assert_false(stage.formed);
        stage_close(&stage);
    }
}

// A recorded hello of a member is sent again: in the same generation, and before and after the
// world has formed again.
static void recorded_hellos_are_refused(void **state)
{
    struct stage stage;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    const struct frame_header header = stage_hello(&stage);
    stage.puppet = stage_connect(&stage);
    stage_challenge(&stage, stage.puppet, challenge);
    const struct hello hello = stage_secrets(&stage, challenge);
    stage_proof(&hello, payload);
    assert_true(stage_send_frame(&stage, &header, payload));
    stage_welcome(&stage, &hello);
    stage_until(&stage, &stage.formed);
    for (int i = 0; i < 3; i++) {
        uint8_t other[LOCKSTEP_NONCE_BYTES];
        transport_abandon(stage.transport);
        stage.puppet->ops->close(stage.puppet, false);
        stage.formed = false;
        assert_int_equal(transport_form(stage.transport, &stage.world), 0);
        const uint64_t before = stage_refused(&stage);
        stage.puppet = stage_connect(&stage);
        stage_challenge(&stage, stage.puppet, other);
        assert_memory_not_equal(challenge, other, sizeof(other));
        (void)stage_send_frame(&stage, &header, payload);
        stage_until_refused(&stage, before + 1);
        assert_false(stage.formed);
    }
    stage.puppet->ops->close(stage.puppet, false);
    stage.puppet = NULL;
    stage_join(&stage);
    stage_close(&stage);
}

// A hello that ends early, after any number of bytes.
static void hellos_that_end_are_refused(void **state)
{
    struct stage stage;
    uint64_t before = 0;
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    for (size_t length = 0; length < LOCKSTEP_HELLO_BYTES; length += 5, before++) {
        uint8_t bytes[LOCKSTEP_HELLO_BYTES] = {0};
        uint8_t challenge[LOCKSTEP_NONCE_BYTES];
        const struct frame_header header = stage_hello(&stage);
        frame_encode(&header, bytes);
        struct link *link = stage_connect(&stage);
        stage_challenge(&stage, link, challenge);
        (void)stage_send(&stage, link, bytes, length);
        link->ops->close(link, false);
        stage_until_refused(&stage, before + 1);
    }
    stage_join(&stage);
    stage_close(&stage);
}

// Strangers send a whole hello before this rank knows the generation. Data behind the hello is
// refused, and many strangers do not keep a member out.
static void early_strangers_make_room(void **state)
{
    struct stage stage;
    struct link *links[LOCKSTEP_MAX_UNPROVEN];
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES] = {0};
    uint8_t byte = 0;
    stage_open(&stage, *state);
    const struct frame_header header = stage_hello(&stage);
    for (size_t i = 0; i < LENGTH(links); i++) {
        stage.puppet = links[i] = stage_connect_bare(&stage);
        assert_true(stage_send_frame(&stage, &header, payload));
    }
    transport_progress(stage.transport, 1);
    assert_int_equal(stage_refused(&stage), 0);
    // The member connects; the oldest stranger is removed for it.
    stage.puppet = stage_connect(&stage);
    stage_challenge(&stage, stage.puppet, challenge);
    const struct hello hello = stage_secrets(&stage, challenge);
    stage_proof(&hello, payload);
    assert_true(stage_send_frame(&stage, &header, payload));
    for (int i = 0; i < 5; i++)
        transport_progress(stage.transport, 1);
    assert_int_equal(stage_refused(&stage), 1);
    if (!stage.variant->mates) {
        (void)stage_send(&stage, links[1], &byte, 1);
        stage_until_refused(&stage, 2);
    }
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_welcome(&stage, &hello);
    stage_until(&stage, &stage.formed);
    stage_until_refused(&stage, LENGTH(links));
    for (size_t i = 0; i < LENGTH(links); i++)
        links[i]->ops->close(links[i], false);
    stage_close(&stage);
}

// Strangers open connections as fast as they can. A member can still join.
static void a_flood_keeps_no_member_out(void **state)
{
    enum {
        FLOOD = 16,
        ROUNDS = 40
    };
    struct stage stage;
    struct link *links[FLOOD * ROUNDS];
    size_t count = 0;
    size_t closed = 0;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    const struct frame_header header = stage_hello(&stage);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < FLOOD; i++)
            links[count++] = stage_connect(&stage);
        transport_progress(stage.transport, 0);
        if (round == ROUNDS / 2) {
            stage.puppet = stage_connect(&stage);
            stage_challenge(&stage, stage.puppet, challenge);
        }
        if (round == ROUNDS / 2 + 1) {
            const struct hello hello = stage_secrets(&stage, challenge);
            stage_proof(&hello, payload);
            assert_true(stage_send_frame(&stage, &header, payload));
            stage_welcome(&stage, &hello);
        }
        for (; count - closed > 2 * LOCKSTEP_MAX_UNPROVEN; closed++) // Already refused ones.
            links[closed]->ops->close(links[closed], true);
    }
    stage_until(&stage, &stage.formed);
    for (; closed < count; closed++)
        links[closed]->ops->close(links[closed], true);
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
}

// ---- the side that connects ---------------------------------------------------------------------

// A stage on which rank 1 is under test and connects; the puppet is rank 0 and accepts.
struct counter {
    struct stage stage;
    struct listener *listener;
    struct hello hello; // Has the nonce of rank 1 after its hello.
    uint8_t payload[STAGE_PROOF_BYTES];
};

static void counter_open(struct counter *counter, const struct stage_variant *variant,
                         uint64_t form_timeout_ms)
{
    struct stage *stage = &counter->stage;
    char error[256] = "";
    stage_open(stage, variant);
    if (variant->mates)
        counter->listener = unix_listener_open(error, sizeof(error));
    else if (variant->kind == TRANSPORT_TCP)
        counter->listener = tcp_listener_open("127.0.0.1", 0, 0, error, sizeof(error));
    else
        counter->listener = loopback_listener_open(variant->torn_bytes, error, sizeof(error));
    assert_non_null(counter->listener);
    stage->world.rank = 1;
    stage->plays = 0;
    stage->peers[0].rank = 0;
    stage->world.form_timeout_ms = form_timeout_ms;
    (void)snprintf(stage->peers[0].address, sizeof(stage->peers[0].address), "%s%.100s",
                   variant->mates ? "tcp:127.0.0.1:1;" : "", counter->listener->address);
    if (variant->mates)
        stage->world.locality =
            (struct locality){.hosts = 1, .mate_count = 2, .mates = {0, 1}, .local = 1, .rings = 1};
    assert_int_equal(transport_form(stage->transport, &stage->world), 0);
}

static void counter_close(struct counter *counter)
{
    counter->listener->ops->close(counter->listener);
    stage_close(&counter->stage);
}

// Accepts the next connection of rank 1.
static void counter_accept(struct counter *counter)
{
    struct stage *stage = &counter->stage;
    const uint64_t since_ms = clock_now_ms();
    if (stage->puppet)
        stage->puppet->ops->close(stage->puppet, false);
    while (!(stage->puppet = counter->listener->ops->accept(counter->listener))) {
        transport_progress(stage->transport, 1);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
    if (stage->variant->encrypts)
        stage->puppet = link_encrypt(stage->puppet, true);
}

static void counter_challenge(struct counter *counter)
{
    struct stage *stage = &counter->stage;
    const struct frame_header header = {.kind = FRAME_CHALLENGE,
                                        .payload_bytes = LOCKSTEP_NONCE_BYTES};
    struct frame_header answer;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[LOCKSTEP_WAVE_BYTES];
    memset(challenge, 0x44, sizeof(challenge));
    do // Connections from before counter_renew() may come first; they have ended.
        counter_accept(counter);
    while (!stage_send_frame(stage, &header, challenge) ||
           !stage_receive_frame(stage, &answer, payload));
    assert_int_equal(answer.kind, FRAME_HELLO);
    assert_int_equal(answer.chunk, 1);
    assert_int_equal(answer.part, 0);
    memcpy(counter->payload, payload, STAGE_PROOF_BYTES);
    counter->hello = (struct hello){.secret = stage->world.secret,
                                    .generation = stage->world.generation,
                                    .world_size = 2,
                                    .encrypts = stage->variant->encrypts,
                                    .connector = 1,
                                    .acceptor = 0};
    memcpy(counter->hello.challenge, challenge, LOCKSTEP_NONCE_BYTES);
    memcpy(counter->hello.nonce, payload, LOCKSTEP_NONCE_BYTES);
    assert_true(hello_check(&counter->hello, HELLO_CONNECTOR, payload + LOCKSTEP_NONCE_BYTES));
}

static struct frame_header counter_welcome(const struct counter *counter)
{
    return (struct frame_header){.kind = FRAME_WELCOME,
                                 .payload_bytes = LOCKSTEP_PROOF_BYTES,
                                 .generation = counter->stage.world.generation,
                                 .part = 1,
                                 .chunk = 0,
                                 .credit = counter->stage.variant->encrypts};
}

// Makes rank 1 form its world again, because a refused rank waits longer before each new attempt.
// Before that it runs for a while, so that rank 1 makes its first new attempt by itself.
static void counter_renew(struct counter *counter)
{
    struct transport *transport = counter->stage.transport;
    for (const uint64_t since_ms = clock_now_ms(); clock_now_ms() - since_ms < 5;)
        transport_progress(transport, 1);
    transport_abandon(transport);
    assert_int_equal(transport_form(transport, &counter->stage.world), 0);
}

// Waits until rank 1 accepts the link. Mates would then wait for memory of the puppet, which passes
// none, so for mates the test only waits for the memory of the link.
static void counter_stands(struct counter *counter)
{
    struct stage *stage = &counter->stage;
    uint8_t byte = 0;
    const struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    stage_prove(stage, &counter->hello);
    if (!stage->variant->mates) {
        stage_until(stage, &stage->formed);
        return;
    }
    const uint64_t since_ms = clock_now_ms();
    while (!stage->puppet->ops->ready(stage->puppet)) {
        transport_progress(stage->transport, 1);
        assert_int_equal(stage->puppet->ops->receive(stage->puppet, &vector, 1), -1);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
}

// The puppet sends a welcome. Rank 1 accepts the link if the welcome is right, and else ends it.
static void counter_answers(struct counter *counter, const struct frame_header *header,
                            const uint8_t *proof, bool right)
{
    struct stage *stage = &counter->stage;
    uint8_t byte = 0;
    (void)stage_send_frame(stage, header, proof);
    if (right) {
        counter_stands(counter);
        return;
    }
    assert_false(stage_receive(stage, stage->puppet, &byte, 1));
    assert_false(stage->formed);
    assert_int_equal(stage->lost, 0);
    counter_renew(counter);
}

static void foreign_welcomes_are_refused(void **state)
{
    struct counter counter = {.listener = NULL};
    counter_open(&counter, *state, fleet_bound_ms(STAGE_BOUND_MS));
    const struct frame_header good = counter_welcome(&counter);
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    for (size_t way = 0; way < PROOFS; way++) {
        counter_challenge(&counter);
        const enum hello_side side = spoil(&counter.hello, way, HELLO_ACCEPTOR);
        assert_true(hello_prove(&counter.hello, side, proof));
        counter_answers(&counter, &good, proof, false);
    }
    // The puppet sends back rank 1's own proof.
    counter_challenge(&counter);
    counter_answers(&counter, &good, counter.payload + LOCKSTEP_NONCE_BYTES, false);
    struct frame_header bad[7];
    for (size_t i = 0; i < LENGTH(bad); i++)
        bad[i] = good;
    bad[0].generation.number++;
    bad[1].generation.incarnation++;
    bad[2].chunk = 1;
    bad[3].part = 0;
    bad[4].payload_bytes--;
    bad[5].kind = FRAME_HELLO;
    bad[6].credit = !bad[6].credit; // The flag of encryption.
    for (size_t i = 0; i < LENGTH(bad); i++) {
        counter_challenge(&counter);
        assert_true(hello_prove(&counter.hello, HELLO_ACCEPTOR, proof));
        counter_answers(&counter, &bad[i], proof, false);
    }
    counter_challenge(&counter);
    assert_true(hello_prove(&counter.hello, HELLO_ACCEPTOR, proof));
    counter_answers(&counter, &good, proof, true);
    counter_close(&counter);
}

// The puppet sends the welcome of an earlier connection again.
static void recorded_welcomes_are_refused(void **state)
{
    struct counter counter = {.listener = NULL};
    uint8_t recorded[LOCKSTEP_PROOF_BYTES];
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    counter_open(&counter, *state, fleet_bound_ms(STAGE_BOUND_MS));
    const struct frame_header good = counter_welcome(&counter);
    counter_challenge(&counter);
    assert_true(hello_prove(&counter.hello, HELLO_ACCEPTOR, recorded));
    for (int i = 0; i < 3; i++) {
        counter_challenge(&counter); // The same challenge, but rank 1 has another nonce.
        counter_answers(&counter, &good, recorded, false);
    }
    counter_challenge(&counter);
    assert_true(hello_prove(&counter.hello, HELLO_ACCEPTOR, proof));
    counter_answers(&counter, &good, proof, true);
    counter_close(&counter);
}

// Strangers accept the connections of rank 1 and send wrong frames, garbage or nothing. Rank 1 goes
// on connecting until its time limit.
#define STRANGERS_MS 4000
static void strangers_that_accept(void **state)
{
    static const enum frame_kind kinds[] = {FRAME_WELCOME, FRAME_HELLO, FRAME_WAVE, FRAME_LEAVE};
    struct counter counter = {.listener = NULL};
    struct stage *stage = &counter.stage;
    uint8_t byte = 0;
    uint8_t garbage[LOCKSTEP_CHALLENGE_BYTES];
    memset(garbage, 0x55, sizeof(garbage));
    counter_open(&counter, *state, STRANGERS_MS);
    for (size_t i = 0; i < LENGTH(kinds); i++) {
        struct frame_header header = counter_welcome(&counter);
        header.kind = kinds[i];
        header.payload_bytes = kinds[i] == FRAME_LEAVE ? 0 : LOCKSTEP_PROOF_BYTES;
        counter_accept(&counter);
        (void)stage_send_frame(stage, &header, NULL);
        assert_false(stage_receive(stage, stage->puppet, &byte, 1));
    }
    counter_accept(&counter);
    (void)stage_send(stage, stage->puppet, garbage, sizeof(garbage));
    assert_false(stage_receive(stage, stage->puppet, &byte, 1));
    // A second challenge, which would make rank 1 prove something else.
    counter_challenge(&counter);
    const struct frame_header again = {.kind = FRAME_CHALLENGE,
                                       .payload_bytes = LOCKSTEP_NONCE_BYTES};
    (void)stage_send_frame(stage, &again, NULL);
    assert_false(stage_receive(stage, stage->puppet, &byte, 1));
    counter_accept(&counter);
    stage_until(stage, &stage->form_failed);
    assert_true(strlen(stage->text) > 0);
    assert_false(stage->formed);
    counter_close(&counter);
}

// Rank 1 connects to a stranger. The stranger connects to rank 1, forwards rank 1's own challenge
// to it, and so gets a proof of rank 1. The proof is refused.
static void proofs_are_no_use_to_their_maker(void **state)
{
    struct counter counter = {.listener = NULL};
    struct stage *stage = &counter.stage;
    const struct frame_header header = {.kind = FRAME_CHALLENGE,
                                        .payload_bytes = LOCKSTEP_NONCE_BYTES};
    struct frame_header hello;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[LOCKSTEP_WAVE_BYTES];
    uint8_t byte = 0;
    counter_open(&counter, *state, fleet_bound_ms(STAGE_BOUND_MS));
    for (uint32_t claimed = 0; claimed < 2; claimed++) {
        counter_accept(&counter);
        struct link *victim = stage->puppet;
        struct link *back = stage_connect(stage);
        stage_challenge(stage, back, challenge);
        assert_true(stage_send_frame(stage, &header, challenge));
        assert_true(stage_receive_frame(stage, &hello, payload));
        const uint64_t before = stage_refused(stage);
        hello.chunk = claimed; // The stranger claims to be rank 0, and then rank 1.
        hello.part = 1;
        stage->puppet = back;
        (void)stage_send_frame(stage, &hello, payload);
        stage_until_refused(stage, before + 1);
        assert_false(stage_receive(stage, back, &byte, 1));
        back->ops->close(back, false);
        stage->puppet = victim;
    }
    assert_false(stage->formed);
    counter_close(&counter);
}

static const struct stage_test tests[] = {
    STAGE_TEST(foreign_hellos_are_refused),       STAGE_TEST(recorded_hellos_are_refused),
    STAGE_TEST(members_that_differ_end_forming),  STAGE_TEST(what_follows_has_to_be_encrypted),
    STAGE_TEST(early_strangers_make_room),        STAGE_TEST(hellos_that_end_are_refused),
    STAGE_TEST(a_flood_keeps_no_member_out),      STAGE_TEST(foreign_welcomes_are_refused),
    STAGE_TEST(recorded_welcomes_are_refused),    STAGE_TEST(strangers_that_accept),
    STAGE_TEST(proofs_are_no_use_to_their_maker),
};

int main(void)
{
    return stage_run("transport and proofs", tests, LENGTH(tests));
}
