// SPDX-License-Identifier: Apache-2.0
//
// A transport under test and a puppet; see transport_stage.h.

#include "tests/conformance/transport_stage.h"

#include "worker/link/tls.h"
#include "worker/link/unix.h"
#include "worker/transport/lifecycle.h"

#include "base/clock.h"
#include "tests/conformance/transport_fleet.h"
#include "worker/kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGE_CHUNK 65536

static const struct stage_variant variants[] = {
    {.name = "loopback", .kind = TRANSPORT_LOOPBACK},
    {.name = "torn 7", .kind = TRANSPORT_LOOPBACK, .torn_bytes = 7},
    {.name = "tcp", .kind = TRANSPORT_TCP},
    {.name = "memory", .kind = TRANSPORT_TCP, .mates = true},
    {.name = "tls", .kind = TRANSPORT_TCP, .encrypts = true},
};

static void on_formed(void *context)
{
    ((struct stage *)context)->formed = true;
}

static void on_form_failed(void *context, uint32_t rank, const char *text)
{
    struct stage *stage = context;
    assert_int_equal(rank, 1 - stage->world.rank);
    stage->form_failed = true;
    snprintf(stage->text, sizeof(stage->text), "%s", text);
}

static void on_encryption_differs(void *context, uint32_t rank)
{
    struct stage *stage = context;
    assert_int_equal(rank, 1 - stage->world.rank);
    stage->differs = true;
}

static void on_done(void *context, struct collective *collective)
{
    (void)collective;
    ((struct stage *)context)->done++;
}

static void on_wave_done(void *context, struct wave *wave)
{
    (void)wave;
    ((struct stage *)context)->waves++;
}

static void on_header(void *context, const struct step_header *header, const uint8_t *note,
                      uint32_t note_bytes)
{
    (void)header;
    (void)note;
    (void)note_bytes;
    ((struct stage *)context)->headers++;
}

static void on_mismatch(void *context, struct collective *collective, uint32_t rank,
                        const char *text)
{
    (void)collective;
    (void)text;
    assert_int_equal(rank, 1);
    ((struct stage *)context)->mismatches++;
}

static void on_lost(void *context, uint32_t rank, enum peer_loss loss, const char *text)
{
    struct stage *stage = context;
    stage->lost++;
    stage->lost_rank = rank;
    stage->left = loss == LOSS_LEFT;
    stage->here = loss == LOSS_HERE;
    snprintf(stage->text, sizeof(stage->text), "%s", text);
}

static void open_with(struct stage *stage, const struct stage_variant *variant, uint64_t latency_ns,
                      uint64_t bytes_per_s)
{
    *stage = (struct stage){.variant = variant};
    const struct transport_config config = {.kind = variant->kind,
                                            .latency_ns = latency_ns,
                                            .bytes_per_s = bytes_per_s,
                                            .host = "127.0.0.1",
                                            .torn_bytes = variant->torn_bytes,
                                            .shares = variant->mates,
                                            .encrypts = variant->encrypts,
                                            .events = {.formed = on_formed,
                                                       .form_failed = on_form_failed,
                                                       .encryption_differs = on_encryption_differs,
                                                       .done = on_done,
                                                       .wave_done = on_wave_done,
                                                       .header = on_header,
                                                       .mismatch = on_mismatch,
                                                       .peer_lost = on_lost,
                                                       .context = stage}};
    char error[256] = "";
    assert_int_equal(transport_open(&config, &stage->transport, error, sizeof(error)), 0);
    stage->plays = 1;
    for (uint32_t i = 0; i < STAGE_PEERS; i++)
        stage->peers[i] = (struct peer){.rank = i + 1, .address = "loopback:0"};
    stage->world = (struct transport_world){.generation = {.number = 3, .incarnation = 99},
                                            .rank = 0,
                                            .world_size = 2,
                                            .chunk_bytes = STAGE_CHUNK,
                                            .peer_count = 1,
                                            .peers = stage->peers,
                                            .form_timeout_ms = fleet_bound_ms(STAGE_BOUND_MS)};
    memset(stage->world.secret, 0x77, sizeof(stage->world.secret));
}

void stage_open(struct stage *stage, const struct stage_variant *variant)
{
    open_with(stage, variant, 1000, 1000000000);
}

void stage_open_measuring(struct stage *stage, const struct stage_variant *variant)
{
    open_with(stage, variant, 0, 0);
}

void stage_close(struct stage *stage)
{
    if (stage->puppet)
        stage->puppet->ops->close(stage->puppet, false);
    if (stage->second)
        stage->second->ops->close(stage->second, false);
    transport_close(stage->transport);
}

uint64_t stage_refused(const struct stage *stage)
{
    struct transport_statistics statistics;
    transport_statistics(stage->transport, &statistics);
    return statistics.strangers_refused;
}

// ---- the puppet ---------------------------------------------------------------------------------

struct link *stage_connect_bare(const struct stage *stage)
{
    char error[256] = "";
    char token[LINK_TOKEN_BYTES] = "";
    const char *address = transport_address(stage->transport);
    const bool mates = stage->variant->mates && stage->world.locality.hosts < 2;
    assert_true(link_token(address, token) == stage->variant->mates);
    struct link *link = mates ? link_connect_unix(token, error, sizeof(error))
                              : link_connect(address, 0, error, sizeof(error));
    assert_non_null(link);
    return link;
}

struct link *stage_connect(const struct stage *stage)
{
    struct link *link = stage_connect_bare(stage);
    return stage->variant->encrypts ? link_encrypt(link, false) : link;
}

bool stage_send(struct stage *stage, struct link *link, const void *bytes, size_t size)
{
    const uint64_t since_ms = clock_now_ms();
    size_t done = 0;
    while (done < size) {
        const struct iovec vector = {.iov_base = (uint8_t *)(uintptr_t)bytes + done,
                                     .iov_len = size - done};
        const ssize_t sent = link->ops->send(link, &vector, 1);
        if (sent > 0)
            done += (size_t)sent;
        else if ((errno != EAGAIN && errno != ENOTCONN) || stage->lost > 0)
            return false;
        transport_progress(stage->transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
    return true;
}

bool stage_receive(struct stage *stage, struct link *link, void *bytes, size_t size)
{
    const uint64_t since_ms = clock_now_ms();
    size_t done = 0;
    while (done < size) {
        const struct iovec vector = {.iov_base = (uint8_t *)bytes + done, .iov_len = size - done};
        const ssize_t received = link->ops->receive(link, &vector, 1);
        if (received > 0)
            done += (size_t)received;
        else if (received == 0 || errno != EAGAIN)
            return false;
        transport_progress(stage->transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
    return true;
}

bool stage_send_frame(struct stage *stage, const struct frame_header *header, const void *payload)
{
    static const uint8_t zeros[LOCKSTEP_FRAME_BYTES];
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    frame_encode(header, bytes);
    return stage_send(stage, stage->puppet, bytes, sizeof(bytes)) &&
           stage_send(stage, stage->puppet, payload ? payload : zeros, header->payload_bytes);
}

bool stage_send_used(struct stage *stage, const struct frame_header *header, const uint8_t *used)
{
    static const uint8_t zeros[LOCKSTEP_FRAME_BYTES];
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    frame_encode(header, bytes);
    return stage_send(stage, stage->puppet, bytes, sizeof(bytes)) &&
           stage_send(stage, stage->puppet, used, header->used_bytes) &&
           stage_send(stage, stage->puppet, zeros, header->payload_bytes);
}

bool stage_receive_frame(struct stage *stage, struct frame_header *header, uint8_t *payload)
{
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    if (!stage_receive(stage, stage->puppet, bytes, sizeof(bytes)))
        return false;
    assert_int_equal(frame_decode(bytes, header, NULL), FRAME_OK);
    return stage_receive(stage, stage->puppet, payload, header->payload_bytes);
}

void stage_challenge(struct stage *stage, struct link *link,
                     uint8_t challenge[LOCKSTEP_NONCE_BYTES])
{
    struct frame_header header;
    uint8_t bytes[LOCKSTEP_CHALLENGE_BYTES];
    assert_true(stage_receive(stage, link, bytes, sizeof(bytes)));
    assert_int_equal(frame_decode(bytes, &header, NULL), FRAME_OK);
    assert_int_equal(header.kind, FRAME_CHALLENGE);
    assert_int_equal(header.payload_bytes, LOCKSTEP_NONCE_BYTES);
    // All other fields are 0.
    assert_true(header.generation.number == 0 && header.generation.incarnation == 0);
    assert_true(header.part == 0 && header.chunk == 0 && header.credit == 0);
    memcpy(challenge, bytes + LOCKSTEP_FRAME_HEADER_BYTES, LOCKSTEP_NONCE_BYTES);
}

struct hello stage_secrets(const struct stage *stage, const uint8_t challenge[LOCKSTEP_NONCE_BYTES])
{
    struct hello hello = {.secret = stage->world.secret,
                          .generation = stage->world.generation,
                          .world_size = stage->world.world_size,
                          .encrypts = stage->variant->encrypts,
                          .connector = stage->plays,
                          .acceptor = stage->world.rank};
    memcpy(hello.challenge, challenge, LOCKSTEP_NONCE_BYTES);
    memset(hello.nonce, 0x31, LOCKSTEP_NONCE_BYTES);
    return hello;
}

struct frame_header stage_hello(const struct stage *stage)
{
    return (struct frame_header){.kind = FRAME_HELLO,
                                 .payload_bytes = STAGE_PROOF_BYTES,
                                 .generation = stage->world.generation,
                                 .part = 0,
                                 .chunk = stage->plays,
                                 .credit = stage->variant->encrypts};
}

void stage_proof(const struct hello *hello, uint8_t payload[STAGE_PROOF_BYTES])
{
    memcpy(payload, hello->nonce, LOCKSTEP_NONCE_BYTES);
    assert_true(hello_prove(hello, HELLO_CONNECTOR, payload + LOCKSTEP_NONCE_BYTES));
}

void stage_until(struct stage *stage, const bool *flag)
{
    const uint64_t since_ms = clock_now_ms();
    while (!*flag) {
        transport_progress(stage->transport, 10);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
}

void stage_until_count(struct stage *stage, const uint32_t *count, uint32_t least)
{
    const uint64_t since_ms = clock_now_ms();
    while (*count < least) {
        transport_progress(stage->transport, 10);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
}

void stage_until_refused(struct stage *stage, uint64_t least)
{
    const uint64_t since_ms = clock_now_ms();
    while (stage_refused(stage) < least) {
        transport_progress(stage->transport, 10);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
}

void stage_prove(struct stage *stage, const struct hello *hello)
{
    struct link *link = stage->puppet;
    const uint64_t since_ms = clock_now_ms();
    uint8_t key[LOCKSTEP_PROOF_BYTES];
    uint8_t byte = 0;
    const struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    assert_true(hello_key(hello, key));
    if (link->ops->proven)
        link->ops->proven(link, key);
    while (stage->variant->encrypts && link->ops->ready && !link->ops->ready(link)) {
        assert_int_equal(link->ops->receive(link, &vector, 1), -1);
        assert_int_equal(errno, EAGAIN);
        transport_progress(stage->transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(STAGE_BOUND_MS));
    }
}

void stage_welcome(struct stage *stage, const struct hello *hello)
{
    struct frame_header header;
    uint8_t proof[LOCKSTEP_WAVE_BYTES];
    assert_true(stage_receive_frame(stage, &header, proof));
    assert_int_equal(header.kind, FRAME_WELCOME);
    assert_int_equal(header.chunk, stage->world.rank);
    assert_int_equal(header.part, stage->plays);
    assert_int_equal(header.payload_bytes, LOCKSTEP_PROOF_BYTES);
    assert_true(hello_check(hello, HELLO_ACCEPTOR, proof));
    stage_prove(stage, hello);
}

void stage_greet(struct stage *stage)
{
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    struct frame_header header = stage_hello(stage);
    stage->puppet = stage_connect(stage);
    stage_challenge(stage, stage->puppet, challenge);
    const struct hello hello = stage_secrets(stage, challenge);
    stage_proof(&hello, payload);
    assert_true(stage_send_frame(stage, &header, payload));
    stage_welcome(stage, &hello);
}

void stage_join(struct stage *stage)
{
    stage_greet(stage);
    stage_until(stage, &stage->formed);
}

void stage_form_two(struct stage *stage, const struct stage_variant *variant, uint32_t host)
{
    stage_open(stage, variant);
    stage->world.world_size = 3;
    stage->world.peer_count = 2;
    stage->world.locality = (struct locality){
        .hosts = 2, .host = host, .rings = 1, .mate_count = 1, .predecessor = 1, .successor = 1};
    assert_int_equal(transport_form(stage->transport, &stage->world), 0);
    stage->plays = 2;
    stage_greet(stage);
    stage->second = stage->puppet;
    stage->plays = 1;
    stage_join(stage);
}

void stage_form(struct stage *stage, const struct stage_variant *variant)
{
    stage_open(stage, variant);
    assert_int_equal(transport_form(stage->transport, &stage->world), 0);
    stage_join(stage);
}

// ---- collectives --------------------------------------------------------------------------------

void stage_launch(struct stage *stage, struct launched *launched, uint64_t elements, uint32_t slot,
                  enum collective_kind kind)
{
    for (size_t i = 0; i < LENGTH(launched->memory); i++)
        launched->memory[i] = (float)i;
    launched->extent = (struct extent){launched->memory, launched->memory, elements};
    launched->collective =
        (struct collective){.kind = kind,
                            .dtype = DTYPE_FLOAT32,
                            .op = REDUCE_SUM,
                            .root = 1,
                            .tag = {.step = STAGE_STEP, .space = STAGE_SPACE, .slot = slot},
                            .signature = STAGE_SIGNATURE,
                            .extents = &launched->extent,
                            .extent_count = 1,
                            .elements = elements};
    transport_launch(stage->transport, &launched->collective);
}

void stage_launch_pair(struct stage *stage, struct launched *launched, uint64_t elements,
                       uint32_t slot, enum plan_algorithm algorithm)
{
    for (size_t i = 0; i < LENGTH(launched->memory); i++)
        launched->memory[i] = (float)i;
    launched->extent = (struct extent){launched->memory, launched->memory, elements};
    launched->collective =
        (struct collective){.dtype = DTYPE_FLOAT32,
                            .op = REDUCE_SUM,
                            .algorithm = algorithm,
                            .tag = {.step = STAGE_STEP, .space = STAGE_SPACE, .slot = slot},
                            .signature = STAGE_SIGNATURE,
                            .extents = &launched->extent,
                            .extent_count = 1,
                            .elements = elements};
    transport_launch(stage->transport, &launched->collective);
}

struct frame_header stage_tensor(const struct stage *stage, enum frame_kind kind, uint32_t chunk,
                                 uint32_t payload_bytes)
{
    return (struct frame_header){.kind = kind,
                                 .dtype = DTYPE_FLOAT32,
                                 .payload_bytes = payload_bytes,
                                 .generation = stage->world.generation,
                                 .step = STAGE_STEP,
                                 .space = STAGE_SPACE,
                                 .chunk = chunk,
                                 .signature = STAGE_SIGNATURE};
}

struct frame_header stage_small(const struct stage *stage, enum frame_kind kind)
{
    return (struct frame_header){.kind = kind, .generation = stage->world.generation, .chunk = 1};
}

void launched_untouched(const struct launched *launched)
{
    for (size_t i = 0; i < LENGTH(launched->memory); i++)
        assert_true(launched->memory[i] == (float)i);
}

void stage_expect_impossible(struct stage *stage)
{
    stage_until_count(stage, &stage->lost, 1);
    assert_false(stage->left);
    assert_non_null(strstr(stage->text, "impossible"));
    assert_int_equal(stage->lost, 1);
}

// ---- stamping -----------------------------------------------------------------------------------

int stage_run(const char *group, const struct stage_test *tests, size_t count)
{
    static struct CMUnitTest stamped[STAGE_MAX_TESTS];
    static char names[STAGE_MAX_TESTS][80];
    const char *only = getenv("LOCKSTEP_TEST_ONLY");
    size_t used = 0;
    kernels_environment();
    for (size_t v = 0; v < LENGTH(variants); v++) {
        for (size_t t = 0; t < count && used < STAGE_MAX_TESTS; t++) {
            snprintf(names[used], sizeof(names[used]), "%s/%s", tests[t].name, variants[v].name);
            if (only && !strstr(names[used], only))
                continue;
            stamped[used] = (struct CMUnitTest){.name = names[used],
                                                .test_func = tests[t].function,
                                                .initial_state = (void *)(uintptr_t)&variants[v]};
            used++;
        }
    }
    return _cmocka_run_group_tests(group, stamped, used, NULL, NULL);
}
