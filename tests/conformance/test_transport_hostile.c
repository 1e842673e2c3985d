// SPDX-License-Identifier: Apache-2.0
//
// A transport and whoever may speak to it: strangers on its port, and a member that breaks the
// protocol. One thread: the transport under test is rank 0 of 2, the other side is a puppet that
// writes frames by hand over a bare link. No bytes may crash it, write what is not final, or make
// it hold more than its bounds.

#include "base/clock.h"
#include "protos/frame.h"
#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_job.h"
#include "worker/kernels.h"
#include "worker/link.h"

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

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define CHUNK 65536
#define BOUND_MS 20000

struct variant {
    const char *name;
    enum transport_kind kind;
    uint32_t torn_bytes;
    bool mates;
};

static const struct variant variants[] = {
    {"loopback", TRANSPORT_LOOPBACK, 0, false},
    {"torn 7", TRANSPORT_LOOPBACK, 7, false},
    {"tcp", TRANSPORT_TCP, 0, false},
    {"memory", TRANSPORT_TCP, 0, true},
};

// Rank 0, what its events said, and the puppet.
struct stage {
    const struct variant *variant;
    struct transport *transport;
    struct transport_world world;
    struct peer peer;
    bool formed;
    bool form_failed;
    uint32_t done;
    uint32_t waves;
    uint32_t headers;
    uint32_t mismatches;
    uint32_t lost;
    bool left;
    char text[256];
    struct link *puppet;
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

static void on_lost(void *context, uint32_t rank, bool left, const char *text)
{
    struct stage *stage = context;
    assert_int_equal(rank, 1);
    stage->lost++;
    stage->left = left;
    snprintf(stage->text, sizeof(stage->text), "%s", text);
}

static void stage_open(struct stage *stage, const struct variant *variant)
{
    *stage = (struct stage){.variant = variant};
    // A puppet answers no pings: its link is taken for a fast one.
    const struct transport_config config = {.kind = variant->kind,
                                            .latency_ns = 1000,
                                            .bytes_per_s = 1000000000,
                                            .host = "127.0.0.1",
                                            .torn_bytes = variant->torn_bytes,
                                            .shares = variant->mates,
                                            .events = {.formed = on_formed,
                                                       .form_failed = on_form_failed,
                                                       .done = on_done,
                                                       .wave_done = on_wave_done,
                                                       .header = on_header,
                                                       .mismatch = on_mismatch,
                                                       .peer_lost = on_lost,
                                                       .context = stage}};
    char error[256] = "";
    assert_int_equal(transport_open(&config, &stage->transport, error, sizeof(error)), 0);
    stage->peer = (struct peer){.rank = 1, .address = "loopback:0"};
    stage->world = (struct transport_world){.generation = {.number = 3, .incarnation = 99},
                                            .rank = 0,
                                            .world_size = 2,
                                            .chunk_bytes = CHUNK,
                                            .peer_count = 1,
                                            .peers = &stage->peer,
                                            .form_timeout_ms = fleet_bound_ms(BOUND_MS)};
    memset(stage->world.secret, 0x77, sizeof(stage->world.secret));
}

static void stage_close(struct stage *stage)
{
    if (stage->puppet)
        stage->puppet->ops->close(stage->puppet, false);
    transport_close(stage->transport);
}

static uint64_t refused(const struct stage *stage)
{
    struct transport_statistics statistics;
    transport_statistics(stage->transport, &statistics);
    return statistics.strangers_refused;
}

// ---- the puppet ---------------------------------------------------------------------------------

static struct link *connect_link(const struct stage *stage)
{
    char error[256] = "";
    char token[LINK_TOKEN_BYTES] = "";
    const char *address = transport_address(stage->transport);
    assert_true(link_token(address, token) == stage->variant->mates);
    struct link *link = stage->variant->mates ? link_connect_unix(token, error, sizeof(error))
                                              : link_connect(address, 0, error, sizeof(error));
    assert_non_null(link);
    return link;
}

// Sends all, the transport working meanwhile. False: the link was closed.
static bool send_all(struct stage *stage, struct link *link, const void *bytes, size_t size)
{
    const uint64_t since_ms = clock_now_ms();
    size_t done = 0;
    while (done < size) {
        const struct iovec vector = {.iov_base = (uint8_t *)(uintptr_t)bytes + done,
                                     .iov_len = size - done};
        const ssize_t sent = link->ops->send(link, &vector, 1);
        if (sent > 0)
            done += (size_t)sent;
        else if (errno != EAGAIN && errno != ENOTCONN)
            return false;
        transport_progress(stage->transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(BOUND_MS));
    }
    return true;
}

// Receives all. False: the link ended before.
static bool receive_all(struct stage *stage, struct link *link, void *bytes, size_t size)
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
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(BOUND_MS));
    }
    return true;
}

static bool send_frame(struct stage *stage, const struct frame_header *header, const void *payload)
{
    static const uint8_t zeros[LOCKSTEP_FRAME_BYTES];
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    frame_encode(header, bytes);
    return send_all(stage, stage->puppet, bytes, sizeof(bytes)) &&
           send_all(stage, stage->puppet, payload ? payload : zeros, header->payload_bytes);
}

static bool send_used_frame(struct stage *stage, const struct frame_header *header,
                            const uint8_t *used)
{
    static const uint8_t zeros[LOCKSTEP_FRAME_BYTES];
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    frame_encode(header, bytes);
    return send_all(stage, stage->puppet, bytes, sizeof(bytes)) &&
           send_all(stage, stage->puppet, used, header->used_bytes) &&
           send_all(stage, stage->puppet, zeros, header->payload_bytes);
}

static bool receive_frame(struct stage *stage, struct frame_header *header, uint8_t *payload)
{
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    if (!receive_all(stage, stage->puppet, bytes, sizeof(bytes)))
        return false;
    assert_int_equal(frame_decode(bytes, header, NULL), FRAME_OK);
    return receive_all(stage, stage->puppet, payload, header->payload_bytes);
}

#define PROOF_BYTES (LOCKSTEP_SECRET_BYTES + 4)

static struct frame_header hello_header(const struct stage *stage)
{
    return (struct frame_header){.kind = FRAME_HELLO,
                                 .payload_bytes = PROOF_BYTES,
                                 .generation = stage->world.generation,
                                 .part = 0,
                                 .chunk = 1};
}

static void hello_proof(const struct stage *stage, uint8_t proof[PROOF_BYTES])
{
    memcpy(proof, stage->world.secret, LOCKSTEP_SECRET_BYTES);
    memset(proof + LOCKSTEP_SECRET_BYTES, 0, 4);
    proof[LOCKSTEP_SECRET_BYTES] = (uint8_t)stage->world.world_size;
}

static void until(struct stage *stage, const bool *flag)
{
    const uint64_t since_ms = clock_now_ms();
    while (!*flag) {
        transport_progress(stage->transport, 10);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(BOUND_MS));
    }
}

static void until_count(struct stage *stage, const uint32_t *count, uint32_t least)
{
    const uint64_t since_ms = clock_now_ms();
    while (*count < least) {
        transport_progress(stage->transport, 10);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(BOUND_MS));
    }
}

static void until_refused(struct stage *stage, uint64_t least)
{
    const uint64_t since_ms = clock_now_ms();
    while (refused(stage) < least) {
        transport_progress(stage->transport, 10);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(BOUND_MS));
    }
}

// The puppet has the answer to its hello.
static void prove(struct stage *stage)
{
    if (stage->puppet->ops->proven)
        stage->puppet->ops->proven(stage->puppet);
}

// The puppet says hello and is answered.
static void join(struct stage *stage)
{
    uint8_t proof[PROOF_BYTES];
    uint8_t answer[LOCKSTEP_WAVE_BYTES];
    struct frame_header header = hello_header(stage);
    hello_proof(stage, proof);
    stage->puppet = connect_link(stage);
    assert_true(send_frame(stage, &header, proof));
    assert_true(receive_frame(stage, &header, answer));
    assert_int_equal(header.kind, FRAME_HELLO);
    assert_int_equal(header.chunk, 0);
    assert_memory_equal(answer, proof, PROOF_BYTES);
    prove(stage);
    until(stage, &stage->formed);
}

static void form_and_join(struct stage *stage, const struct variant *variant)
{
    stage_open(stage, variant);
    assert_int_equal(transport_form(stage->transport, &stage->world), 0);
    join(stage);
}

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
        struct link *link = connect_link(&stage);
        (void)send_all(&stage, link, bytes, 1 + i * 2);
        link->ops->close(link, i % 2 == 0);
        until_refused(&stage, ++count);
    }
    assert_false(stage.formed);
    join(&stage);
    assert_int_equal(refused(&stage), count);
    stage_close(&stage);
}

// A hello with something wrong in it.
static void wrong_hello(struct stage *stage, const struct frame_header *header,
                        const uint8_t proof[PROOF_BYTES])
{
    uint8_t byte = 0;
    const uint64_t before = refused(stage);
    struct link *kept = stage->puppet;
    stage->puppet = connect_link(stage);
    (void)send_frame(stage, header, proof);
    until_refused(stage, before + 1);
    assert_false(receive_all(stage, stage->puppet, &byte, 1)); // Not a byte of an answer.
    stage->puppet->ops->close(stage->puppet, false);
    stage->puppet = kept;
}

static void wrong_hellos_are_refused(void **state)
{
    struct stage stage;
    uint8_t proof[PROOF_BYTES];
    stage_open(&stage, *state);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    const struct frame_header good = hello_header(&stage);
    for (size_t i = 0; i < PROOF_BYTES; i++) {
        hello_proof(&stage, proof);
        proof[i] ^= (uint8_t)(1u << (i % 8));
        wrong_hello(&stage, &good, proof);
    }
    hello_proof(&stage, proof);
    struct frame_header bad[7];
    for (size_t i = 0; i < LENGTH(bad); i++)
        bad[i] = good;
    bad[0].generation.number++;
    bad[1].generation.incarnation++;
    bad[2].chunk = 0;
    bad[3].chunk = 2;
    bad[4].part = 1;
    bad[5].payload_bytes--;
    bad[6].kind = FRAME_WAVE;
    for (size_t i = 0; i < LENGTH(bad); i++)
        wrong_hello(&stage, &bad[i], proof);
    join(&stage);
    // A second one in the same name.
    wrong_hello(&stage, &good, proof);
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
}

static void unproven_connections_are_bounded(void **state)
{
    struct stage stage;
    struct link *links[LOCKSTEP_MAX_UNPROVEN * 2];
    stage_open(&stage, *state);
    // Before it even knows its generation.
    for (size_t i = 0; i < LENGTH(links); i++) {
        links[i] = connect_link(&stage);
        transport_progress(stage.transport, 0);
    }
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    until_refused(&stage, LOCKSTEP_MAX_UNPROVEN);
    assert_int_equal(refused(&stage), LOCKSTEP_MAX_UNPROVEN);
    join(&stage);
    // Those that say nothing go in time.
    until_refused(&stage, LENGTH(links));
    for (size_t i = 0; i < LENGTH(links); i++)
        links[i]->ops->close(links[i], false);
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
}

// A member that was told of the generation before this rank was.
static void an_early_hello_waits(void **state)
{
    struct stage stage;
    uint8_t proof[PROOF_BYTES];
    uint8_t answer[LOCKSTEP_WAVE_BYTES];
    stage_open(&stage, *state);
    struct frame_header header = hello_header(&stage);
    hello_proof(&stage, proof);
    stage.puppet = connect_link(&stage);
    assert_true(send_frame(&stage, &header, proof));
    for (int i = 0; i < 20; i++)
        transport_progress(stage.transport, 1);
    assert_int_equal(refused(&stage), 0);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    assert_true(receive_frame(&stage, &header, answer));
    prove(&stage);
    until(&stage, &stage.formed);
    stage_close(&stage);
}

static void forming_fails_in_time(void **state)
{
    struct stage stage;
    stage_open(&stage, *state);
    stage.world.form_timeout_ms = 50;
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    until(&stage, &stage.form_failed);
    assert_true(strlen(stage.text) > 0);
    // And as the one that connects, where nobody listens.
    transport_abandon(stage.transport);
    stage.form_failed = false;
    stage.text[0] = '\0';
    stage.world.rank = 1;
    stage.peer.rank = 0;
    snprintf(stage.peer.address, sizeof(stage.peer.address), "%s",
             stage.variant->kind == TRANSPORT_TCP ? "tcp:127.0.0.1:1" : "loopback:0");
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    until(&stage, &stage.form_failed);
    assert_non_null(strstr(stage.text, "refused"));
    stage_close(&stage);
}

// ---- a member that breaks the protocol ----------------------------------------------------------

#define TAG_STEP 5
#define TAG_SPACE 6
#define SIGNATURE 1234

struct launched {
    float memory[40000];
    struct extent extent;
    struct collective collective;
};

static void launch(struct stage *stage, struct launched *launched, uint64_t elements, uint32_t slot,
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
                            .tag = {.step = TAG_STEP, .space = TAG_SPACE, .slot = slot},
                            .signature = SIGNATURE,
                            .extents = &launched->extent,
                            .extent_count = 1,
                            .elements = elements};
    transport_launch(stage->transport, &launched->collective);
}

static void launch_pair(struct stage *stage, struct launched *launched, uint64_t elements,
                        uint32_t slot, enum plan_algorithm algorithm)
{
    for (size_t i = 0; i < LENGTH(launched->memory); i++)
        launched->memory[i] = (float)i;
    launched->extent = (struct extent){launched->memory, launched->memory, elements};
    launched->collective =
        (struct collective){.dtype = DTYPE_FLOAT32,
                            .op = REDUCE_SUM,
                            .algorithm = algorithm,
                            .tag = {.step = TAG_STEP, .space = TAG_SPACE, .slot = slot},
                            .signature = SIGNATURE,
                            .extents = &launched->extent,
                            .extent_count = 1,
                            .elements = elements};
    transport_launch(stage->transport, &launched->collective);
}

static struct frame_header tensor_header(const struct stage *stage, enum frame_kind kind,
                                         uint32_t chunk, uint32_t payload_bytes)
{
    return (struct frame_header){.kind = kind,
                                 .dtype = DTYPE_FLOAT32,
                                 .payload_bytes = payload_bytes,
                                 .generation = stage->world.generation,
                                 .step = TAG_STEP,
                                 .space = TAG_SPACE,
                                 .chunk = chunk,
                                 .signature = SIGNATURE};
}

static struct frame_header small_header(const struct stage *stage, enum frame_kind kind)
{
    return (struct frame_header){.kind = kind, .generation = stage->world.generation, .chunk = 1};
}

// The puppet is lost, by name, and its link is closed.
static void expect_impossible(struct stage *stage)
{
    until_count(stage, &stage->lost, 1);
    assert_false(stage->left);
    assert_non_null(strstr(stage->text, "impossible"));
    assert_int_equal(stage->lost, 1);
}

typedef struct frame_header wrong_frame(const struct stage *stage);

static struct frame_header wrong_dtype(const struct stage *stage)
{
    struct frame_header header = tensor_header(stage, FRAME_REDUCE, 0, 400);
    header.dtype = DTYPE_INT32;
    return header;
}

static struct frame_header wrong_length(const struct stage *stage)
{
    return tensor_header(stage, FRAME_REDUCE, 0, 404);
}

static struct frame_header wrong_short(const struct stage *stage)
{
    return tensor_header(stage, FRAME_REDUCE, 0, 399);
}

static struct frame_header wrong_chunk(const struct stage *stage)
{
    return tensor_header(stage, FRAME_REDUCE, 1, 400);
}

static struct frame_header wrong_chunk_far(const struct stage *stage)
{
    return tensor_header(stage, FRAME_REDUCE, 4000000000u, 400);
}

static struct frame_header wrong_stripe(const struct stage *stage)
{
    struct frame_header header = tensor_header(stage, FRAME_REDUCE, 0, 400);
    header.part = 1;
    return header;
}

static struct frame_header wrong_kind(const struct stage *stage)
{
    return tensor_header(stage, FRAME_BROADCAST, 0, 400);
}

static struct frame_header wrong_own_gather(const struct stage *stage)
{
    return tensor_header(stage, FRAME_GATHER, 0, 400);
}

static struct frame_header wrong_generation(const struct stage *stage)
{
    struct frame_header header = tensor_header(stage, FRAME_REDUCE, 0, 400);
    header.generation.number--;
    return header;
}

static struct frame_header wrong_used_bits(const struct stage *stage)
{
    struct frame_header header = tensor_header(stage, FRAME_REDUCE, 0, 400);
    header.used_bytes = 8;
    return header;
}

static struct frame_header wrong_credit(const struct stage *stage)
{
    struct frame_header header = tensor_header(stage, FRAME_CREDIT, 0, 0);
    header.credit = 1; // An eager collective.
    return header;
}

static struct frame_header wrong_second_hello(const struct stage *stage)
{
    return hello_header(stage);
}

static struct frame_header wrong_wave_round(const struct stage *stage)
{
    struct frame_header header = small_header(stage, FRAME_WAVE);
    header.part = 5;
    return header;
}

static struct frame_header wrong_wave_sender(const struct stage *stage)
{
    struct frame_header header = small_header(stage, FRAME_WAVE);
    header.part = 1;
    header.chunk = 0;
    return header;
}

static struct frame_header wrong_leave_payload(const struct stage *stage)
{
    struct frame_header header = small_header(stage, FRAME_LEAVE);
    header.payload_bytes = 4;
    return header;
}

static wrong_frame *const wrong_frames[] = {
    wrong_dtype,  wrong_length,       wrong_short,      wrong_chunk,       wrong_chunk_far,
    wrong_stripe, wrong_kind,         wrong_own_gather, wrong_generation,  wrong_used_bits,
    wrong_credit, wrong_second_hello, wrong_wave_round, wrong_wave_sender, wrong_leave_payload,
};

static void check_untouched(const struct launched *launched)
{
    for (size_t i = 0; i < LENGTH(launched->memory); i++)
        assert_true(launched->memory[i] == (float)i);
}

static void impossible_frames_lose_the_peer(void **state)
{
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < LENGTH(wrong_frames); i++) {
        struct stage stage;
        form_and_join(&stage, *state);
        launch(&stage, launched, 100, 0, COLLECTIVE_ALLREDUCE);
        const struct frame_header header = wrong_frames[i](&stage);
        (void)send_frame(&stage, &header, NULL);
        expect_impossible(&stage);
        check_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

// 2048 elements in two chunks and ten units: units 0 to 5 meet chunk 0, 5 to 9 chunk 1.
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
                            .tag = {.step = TAG_STEP, .space = TAG_SPACE, .slot = 0},
                            .signature = SIGNATURE,
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
    uint8_t bits; // The first byte; the others are zero.
    uint64_t own; // What rank 0 uses.
};

static const struct wrong_use wrong_uses[] = {
    {FRAME_REDUCE, 4096, 0, 0, 0}, // Too few, too many, far too many.
    {FRAME_REDUCE, 4096, 2, 0, 0},
    {FRAME_REDUCE, 4096, LOCKSTEP_USED_BYTES, 0, 0},
    {FRAME_REDUCE, 4096, 1, 0x40, 0}, // Of a seventh unit.
    {FRAME_REDUCE, 4096, 1, 0, 0}, // Unused so far, and with bytes.
    {FRAME_REDUCE, 0, 1, 0x01, 0}, // Used, and without bytes.
    {FRAME_GATHER, 4096, 1, 0x03, 1 << 7}, // Denies what rank 0 uses.
    {FRAME_GATHER, 4096, 1, 0x20, 0},
    {FRAME_GATHER, 0, 1, 0x04, 1 << 7}, // Used, and without bytes.
    {FRAME_GATHER, 4096, 1, 0, 0}, // Unused, and with bytes.
};

static void impossible_used_bits_lose_the_peer(void **state)
{
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < LENGTH(wrong_uses); i++) {
        const struct wrong_use *wrong = &wrong_uses[i];
        struct stage stage;
        struct units units;
        uint8_t used[LOCKSTEP_USED_BYTES] = {wrong->bits};
        form_and_join(&stage, *state);
        launch_units(&stage, launched, &units, wrong->own);
        struct frame_header header =
            tensor_header(&stage, wrong->kind, wrong->kind == FRAME_GATHER, wrong->payload_bytes);
        header.used_bytes = wrong->used_bytes;
        (void)send_used_frame(&stage, &header, used);
        expect_impossible(&stage);
        check_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

// Of a collective not launched here: the first is parked, the second is more than there can be.
static void parked_used_bits_are_bounded(void **state)
{
    static const uint8_t used[LOCKSTEP_USED_BYTES];
    struct stage stage;
    form_and_join(&stage, *state);
    struct frame_header header = tensor_header(&stage, FRAME_REDUCE, 0, 4);
    header.used_bytes = LOCKSTEP_USED_BYTES;
    assert_true(send_used_frame(&stage, &header, used));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    assert_int_equal(stage.lost, 0);
    (void)send_used_frame(&stage, &header, used);
    expect_impossible(&stage);
    stage_close(&stage);
}

static void a_frame_comes_twice(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    form_and_join(&stage, *state);
    // 8 KiB: two chunks, so the collective is not done after one frame.
    launch(&stage, launched, 2048, 0, COLLECTIVE_ALLREDUCE);
    const struct frame_header header = tensor_header(&stage, FRAME_REDUCE, 0, 4096);
    assert_true(send_frame(&stage, &header, NULL));
    (void)send_frame(&stage, &header, NULL);
    expect_impossible(&stage);
    stage_close(&stage);
    free(launched);
}

static void frames_without_credit(void **state)
{
    struct stage stage;
    form_and_join(&stage, *state);
    const struct frame_header header =
        tensor_header(&stage, FRAME_REDUCE, 0, LOCKSTEP_EAGER_BYTES + 4);
    (void)send_frame(&stage, &header, NULL);
    expect_impossible(&stage);
    stage_close(&stage);
}

// Sends eager frames of ever new collectives until it is told off.
static void parked_frames_are_bounded(void **state)
{
    struct stage stage;
    uint32_t sent = 0;
    form_and_join(&stage, *state);
    while (stage.lost == 0) {
        struct frame_header header = tensor_header(&stage, FRAME_REDUCE, 0, 4);
        header.slot = sent++;
        (void)send_frame(&stage, &header, NULL);
        assert_true(sent < 10 * LOCKSTEP_EARLY_COLLECTIVES);
        transport_progress(stage.transport, 0);
    }
    assert_true(sent >= LOCKSTEP_EARLY_COLLECTIVES);
    expect_impossible(&stage);
    stage_close(&stage);
}

static void early_waves_and_headers_are_bounded(void **state)
{
    struct stage stage;
    uint32_t sent = 0;
    form_and_join(&stage, *state);
    while (stage.lost == 0) {
        struct frame_header header = small_header(&stage, FRAME_WAVE);
        header.part = 1;
        header.step = sent++;
        header.payload_bytes = 8;
        (void)send_frame(&stage, &header, NULL);
        assert_true(sent < 10 * LOCKSTEP_EARLY_WAVES);
        transport_progress(stage.transport, 0);
    }
    assert_true(sent >= LOCKSTEP_EARLY_WAVES);
    expect_impossible(&stage);
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
        form_and_join(&stage, *state);
        launch(&stage, launched, 10000, 0, COLLECTIVE_BROADCAST);
        const struct frame_header header = tensor_header(&stage, FRAME_BROADCAST, 1, 40000);
        frame_encode(&header, bytes);
        assert_true(send_all(&stage, stage.puppet, bytes, sizeof(bytes)));
        assert_true(send_all(&stage, stage.puppet, final, cuts[c]));
        stage.puppet->ops->close(stage.puppet, false);
        stage.puppet = NULL;
        until_count(&stage, &stage.lost, 1);
        assert_false(stage.left);
        // Exactly the whole elements are final; the others are as they were.
        const size_t whole = cuts[c] / 4;
        assert_memory_equal(launched->memory, final, whole * 4);
        for (size_t i = whole; i < 10000; i++)
            assert_true(launched->memory[i] == (float)i);
        stage_close(&stage);
    }
    free(final);
    free(launched);
}

// What was received before an end is worked off, and its events come before the loss.
static void bytes_before_the_end_count(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    uint8_t *final = calloc(1, 40000);
    form_and_join(&stage, *state);
    launch(&stage, launched, 10000, 0, COLLECTIVE_BROADCAST);
    const struct frame_header header = tensor_header(&stage, FRAME_BROADCAST, 1, 40000);
    assert_true(send_frame(&stage, &header, final));
    const struct frame_header step = small_header(&stage, FRAME_STEP_HEADER);
    assert_true(send_frame(&stage, &step, NULL));
    stage.puppet->ops->close(stage.puppet, false);
    stage.puppet = NULL;
    until_count(&stage, &stage.lost, 1);
    assert_int_equal(stage.done, 1);
    assert_int_equal(stage.headers, 1);
    assert_memory_equal(launched->memory, final, 40000);
    stage_close(&stage);
    free(final);
    free(launched);
}

static void mismatch_is_an_event(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    form_and_join(&stage, *state);
    // One that comes late, one that waits for its launch, one by its credit.
    launch(&stage, launched, 100, 0, COLLECTIVE_ALLREDUCE);
    struct frame_header header = tensor_header(&stage, FRAME_REDUCE, 0, 96);
    header.signature++;
    assert_true(send_frame(&stage, &header, NULL));
    until_count(&stage, &stage.mismatches, 1);
    header.slot = 1;
    assert_true(send_frame(&stage, &header, NULL));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    struct launched *second = malloc(sizeof(*second));
    launch(&stage, second, 100, 1, COLLECTIVE_ALLREDUCE);
    until_count(&stage, &stage.mismatches, 2);
    header = tensor_header(&stage, FRAME_CREDIT, 0, 0);
    header.signature++;
    header.credit = 3;
    header.slot = 2;
    assert_true(send_frame(&stage, &header, NULL));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    struct launched *third = malloc(sizeof(*third));
    launch(&stage, third, 40000, 2, COLLECTIVE_ALLREDUCE);
    until_count(&stage, &stage.mismatches, 3);
    assert_int_equal(stage.lost, 0);
    assert_int_equal(stage.done, 0);
    check_untouched(launched);
    check_untouched(second);
    check_untouched(third);
    transport_abandon(stage.transport);
    stage_close(&stage);
    free(launched);
    free(second);
    free(third);
}

// ---- by pairs -----------------------------------------------------------------------------------

// A frame of a round from the puppet.
static struct frame_header pair_header(const struct stage *stage, uint32_t round,
                                       uint32_t payload_bytes)
{
    struct frame_header header = tensor_header(stage, FRAME_PAIR, 1, payload_bytes);
    header.part = round;
    return header;
}

// What is wrong with the frame of 100 elements; zeros are right.
struct wrong_pair {
    enum plan_algorithm algorithm;
    uint32_t round;
    uint32_t payload_bytes;
    uint32_t stripe;
    uint32_t used_bytes;
    uint32_t sender;
    enum dtype dtype;
};

static const struct wrong_pair wrong_pairs[] = {
    {ALGORITHM_DOUBLING, 0, 400, 0, 0, 1, DTYPE_FLOAT32}, // Rounds that do not exist.
    {ALGORITHM_DOUBLING, 2, 400, 0, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 4000000000u, 400, 0, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_HALVING, 3, 200, 0, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_HALVING, 2, 200, 0, 0, 1, DTYPE_FLOAT32}, // Final before its time.
    {ALGORITHM_DOUBLING, 1, 404, 0, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 1, 399, 0, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 1, 0, 0, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_HALVING, 1, 400, 0, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 1, 400, 1, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 1, 400, 4000000000u, 0, 1, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 1, 400, 0, 8, 1, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 1, 400, 0, 0, 0, DTYPE_FLOAT32},
    {ALGORITHM_DOUBLING, 1, 400, 0, 0, 1, DTYPE_INT32},
};

static struct frame_header wrong_pair_header(const struct stage *stage,
                                             const struct wrong_pair *wrong)
{
    struct frame_header header = pair_header(stage, wrong->round, wrong->payload_bytes);
    header.credit = wrong->stripe;
    header.used_bytes = wrong->used_bytes;
    header.chunk = wrong->sender;
    header.dtype = wrong->dtype;
    return header;
}

// Before and after the launch.
static void impossible_rounds_lose_the_peer(void **state)
{
    static const uint8_t used[LOCKSTEP_USED_BYTES];
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < 2 * LENGTH(wrong_pairs); i++) {
        const struct wrong_pair *wrong = &wrong_pairs[i / 2];
        struct stage stage;
        form_and_join(&stage, *state);
        const struct frame_header header = wrong_pair_header(&stage, wrong);
        if (i % 2 == 0)
            launch_pair(&stage, launched, 100, 0, wrong->algorithm);
        (void)send_used_frame(&stage, &header, used);
        if (i % 2 == 1) {
            for (int k = 0; k < 5; k++)
                transport_progress(stage.transport, 1);
            launch_pair(&stage, launched, 100, 0, wrong->algorithm);
        }
        until_count(&stage, &stage.lost, 1);
        assert_false(stage.left);
        assert_int_equal(stage.done, 0);
        check_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

static void a_round_comes_twice(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    form_and_join(&stage, *state);
    launch_pair(&stage, launched, 100, 0, ALGORITHM_HALVING);
    const struct frame_header header = pair_header(&stage, 1, 200);
    assert_true(send_frame(&stage, &header, NULL));
    (void)send_frame(&stage, &header, NULL);
    expect_impossible(&stage);
    assert_int_equal(stage.done, 0);
    stage_close(&stage);
    free(launched);
}

// Credit where none is needed, for what is not there, and less than before.
static void impossible_credit_of_a_pair(void **state)
{
    static const struct {
        uint64_t elements;
        uint32_t credit;
    } wrong[] = {{100, 1}, {40000, 0}, {40000, 400}};
    struct launched *launched = malloc(sizeof(*launched));
    for (size_t i = 0; i < LENGTH(wrong); i++) {
        struct stage stage;
        form_and_join(&stage, *state);
        launch_pair(&stage, launched, wrong[i].elements, 0, ALGORITHM_DOUBLING);
        struct frame_header header = tensor_header(&stage, FRAME_CREDIT, 0, 0);
        header.part = FRAME_CREDIT_PAIR;
        header.credit = wrong[i].credit;
        (void)send_frame(&stage, &header, NULL);
        expect_impossible(&stage);
        check_untouched(launched);
        stage_close(&stage);
    }
    free(launched);
}

static void rounds_without_credit(void **state)
{
    struct stage stage;
    form_and_join(&stage, *state);
    const struct frame_header header = pair_header(&stage, 1, LOCKSTEP_EAGER_BYTES + 4);
    (void)send_frame(&stage, &header, NULL);
    expect_impossible(&stage);
    stage_close(&stage);
}

// Its signature, or its algorithm, is another one: in a frame that comes late, in one that waits
// for the launch, in a credit that does.
static void pairs_disagree(void **state)
{
    struct launched *launched = malloc(5 * sizeof(*launched));
    struct stage stage;
    form_and_join(&stage, *state);
    launch_pair(&stage, &launched[0], 100, 0, ALGORITHM_DOUBLING);
    struct frame_header header = pair_header(&stage, 1, 400);
    header.signature++;
    assert_true(send_frame(&stage, &header, NULL));
    until_count(&stage, &stage.mismatches, 1);
    launch(&stage, &launched[1], 100, 1, COLLECTIVE_ALLREDUCE);
    header = pair_header(&stage, 1, 400);
    header.slot = 1;
    assert_true(send_frame(&stage, &header, NULL));
    until_count(&stage, &stage.mismatches, 2);
    header.slot = 2;
    assert_true(send_frame(&stage, &header, NULL));
    header = tensor_header(&stage, FRAME_REDUCE, 0, 400);
    header.slot = 3;
    assert_true(send_frame(&stage, &header, NULL));
    header = tensor_header(&stage, FRAME_CREDIT, 0, 0);
    header.part = FRAME_CREDIT_PAIR;
    header.credit = 1;
    header.slot = 4;
    assert_true(send_frame(&stage, &header, NULL));
    for (int i = 0; i < 10; i++)
        transport_progress(stage.transport, 1);
    launch(&stage, &launched[2], 100, 2, COLLECTIVE_ALLREDUCE);
    launch_pair(&stage, &launched[3], 100, 3, ALGORITHM_HALVING);
    launch(&stage, &launched[4], 40000, 4, COLLECTIVE_ALLREDUCE);
    until_count(&stage, &stage.mismatches, 5);
    assert_int_equal(stage.lost, 0);
    assert_int_equal(stage.done, 0);
    for (size_t i = 0; i < 5; i++)
        check_untouched(&launched[i]);
    transport_abandon(stage.transport);
    stage_close(&stage);
    free(launched);
}

// The puppet does its part of the sum, and dies inside an element of the result.
static void a_death_inside_a_result(void **state)
{
    static const uint32_t cuts[] = {0, 1, 4, 5, 9999, 19998};
    struct launched *launched = malloc(sizeof(*launched));
    uint8_t *bytes = calloc(1, 20000);
    for (size_t c = 0; c < LENGTH(cuts); c++) {
        struct stage stage;
        struct frame_header answer;
        uint8_t head[LOCKSTEP_FRAME_HEADER_BYTES];
        form_and_join(&stage, *state);
        launch_pair(&stage, launched, 10000, 0, ALGORITHM_HALVING);
        memset(bytes, 0, 20000);
        struct frame_header header = pair_header(&stage, 1, 20000);
        assert_true(send_frame(&stage, &header, bytes));
        assert_true(receive_frame(&stage, &answer, bytes)); // Its input for the upper half, ...
        assert_true(receive_frame(&stage, &answer, bytes)); // ... and the sum of the lower one.
        assert_int_equal(answer.part, 2);
        memset(bytes, 0xee, 20000);
        header = pair_header(&stage, 2, 20000);
        frame_encode(&header, head);
        assert_true(send_all(&stage, stage.puppet, head, sizeof(head)));
        assert_true(send_all(&stage, stage.puppet, bytes, cuts[c]));
        stage.puppet->ops->close(stage.puppet, false);
        stage.puppet = NULL;
        until_count(&stage, &stage.lost, 1);
        const size_t whole = cuts[c] / 4;
        for (size_t i = 0; i < 5000; i++) // Zeros were added to it.
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

static void goodbye_is_no_death(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    form_and_join(&stage, *state);
    const struct frame_header leave = small_header(&stage, FRAME_LEAVE);
    assert_true(send_frame(&stage, &leave, NULL));
    stage.puppet->ops->shut(stage.puppet);
    uint8_t byte = 0;
    assert_false(receive_all(&stage, stage.puppet, &byte, 1)); // It ends its side too.
    for (int i = 0; i < 20; i++)
        transport_progress(stage.transport, 1);
    assert_int_equal(stage.lost, 0);
    launch(&stage, launched, 100, 0, COLLECTIVE_ALLREDUCE);
    until_count(&stage, &stage.lost, 1);
    assert_true(stage.left);
    check_untouched(launched);
    stage_close(&stage);
    free(launched);
}

static void goodbye_with_a_wave_joined(void **state)
{
    struct stage stage;
    struct wave wave = {.step = 1, .kind = 0, .size = 8};
    form_and_join(&stage, *state);
    transport_wave(stage.transport, &wave);
    const struct frame_header leave = small_header(&stage, FRAME_LEAVE);
    assert_true(send_frame(&stage, &leave, NULL));
    until_count(&stage, &stage.lost, 1);
    assert_true(stage.left);
    assert_int_equal(stage.waves, 0);
    stage_close(&stage);
}

// A generation is abandoned, and the next one formed, on the same transport.
static void forming_again(void **state)
{
    struct stage stage;
    struct launched *launched = malloc(sizeof(*launched));
    form_and_join(&stage, *state);
    for (int i = 0; i < 3; i++) {
        launch(&stage, launched, 40000, 0, COLLECTIVE_ALLREDUCE);
        for (int k = 0; k < 3; k++)
            transport_progress(stage.transport, 0);
        transport_abandon(stage.transport);
        assert_null(launched->collective.state);
        stage.puppet->ops->close(stage.puppet, false);
        stage.puppet = NULL;
        stage.formed = false;
        stage.world.generation.number++;
        assert_int_equal(transport_form(stage.transport, &stage.world), 0);
        join(&stage);
    }
    assert_int_equal(stage.lost, 0);
    stage_close(&stage);
    free(launched);
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
    header.step = job_random(random) % 8 ? TAG_STEP : job_random(random) % 3;
    header.space = TAG_SPACE;
    header.slot = (uint32_t)(job_random(random) % 4);
    header.part = (uint32_t)(job_random(random) % 3);
    header.chunk = (uint32_t)(job_random(random) % 3);
    header.credit = (uint32_t)(job_random(random) % 4);
    header.weight = job_random(random) % 3;
    header.signature = SIGNATURE + (job_random(random) % 8 == 0);
    return header;
}

static void merge_nothing(void *into, const void *from)
{
    (void)into;
    (void)from;
}

// A member that sends valid headers without sense, while collectives and waves are under way.
static void noise_from_a_member(void **state)
{
    static const uint64_t elements[] = {1, 100, 2048, 40000};
    struct launched *launched = malloc(4 * sizeof(*launched));
    const struct variant *variant = *state;
    const uint64_t rounds = variant->torn_bytes ? 60 : 400;
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        struct stage stage;
        struct wave wave = {.step = TAG_STEP, .size = 8, .merge = merge_nothing};
        uint64_t random = seed;
        form_and_join(&stage, variant);
        if (seed % 3 == 0)
            transport_wave(stage.transport, &wave);
        for (uint32_t i = 0; i < 4; i++)
            if (job_random(&random) % 3 == 0)
                launch_pair(&stage, &launched[i], elements[i], i,
                            seed % 2 ? ALGORITHM_DOUBLING : ALGORITHM_HALVING);
            else if (job_random(&random) % 2)
                launch(&stage, &launched[i], elements[i], i,
                       i == 3 && seed % 2 ? COLLECTIVE_BROADCAST : COLLECTIVE_ALLREDUCE);
        for (int i = 0; i < 12 && stage.lost == 0; i++) {
            const struct frame_header header = noise_header(&stage, &random);
            (void)send_frame(&stage, &header, NULL);
        }
        transport_progress(stage.transport, 0);
        transport_abandon(stage.transport);
        stage_close(&stage);
    }
    free(launched);
}

// ---- a forked child -----------------------------------------------------------------------------

static void a_forked_child_holds_nothing(void **state)
{
    struct stage stage;
    uint8_t byte = 0;
    int hold[2];
    form_and_join(&stage, *state);
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
    // The child lives and has the descriptors of its parent no more: the end is seen at once.
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

#define TEST(function) \
    { \
#function, function \
    }

static const struct {
    const char *name;
    void (*function)(void **state);
} tests[] = {
    TEST(strangers_are_refused),
    TEST(wrong_hellos_are_refused),
    TEST(unproven_connections_are_bounded),
    TEST(an_early_hello_waits),
    TEST(forming_fails_in_time),
    TEST(impossible_frames_lose_the_peer),
    TEST(impossible_used_bits_lose_the_peer),
    TEST(parked_used_bits_are_bounded),
    TEST(a_frame_comes_twice),
    TEST(frames_without_credit),
    TEST(parked_frames_are_bounded),
    TEST(early_waves_and_headers_are_bounded),
    TEST(a_death_inside_an_element),
    TEST(bytes_before_the_end_count),
    TEST(mismatch_is_an_event),
    TEST(impossible_rounds_lose_the_peer),
    TEST(a_round_comes_twice),
    TEST(impossible_credit_of_a_pair),
    TEST(rounds_without_credit),
    TEST(pairs_disagree),
    TEST(a_death_inside_a_result),
    TEST(goodbye_is_no_death),
    TEST(goodbye_with_a_wave_joined),
    TEST(forming_again),
    TEST(noise_from_a_member),
    TEST(a_forked_child_holds_nothing),
};

int main(void)
{
    static struct CMUnitTest stamped[LENGTH(tests) * LENGTH(variants)];
    static char names[LENGTH(stamped)][80];
    const char *only = getenv("LOCKSTEP_TEST_ONLY");
    size_t count = 0;
    kernels_environment();
    for (size_t v = 0; v < LENGTH(variants); v++) {
        for (size_t t = 0; t < LENGTH(tests); t++) {
            snprintf(names[count], sizeof(names[count]), "%s/%s", tests[t].name, variants[v].name);
            if (only && !strstr(names[count], only))
                continue;
            stamped[count] = (struct CMUnitTest){.name = names[count],
                                                 .test_func = tests[t].function,
                                                 .initial_state = (void *)(uintptr_t)&variants[v]};
            count++;
        }
    }
    return _cmocka_run_group_tests("transport and hostile peers", stamped, count, NULL, NULL);
}
