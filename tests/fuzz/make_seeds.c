// SPDX-License-Identifier: Apache-2.0
//
// Writes seeds that our own encoders make: one message of each kind, one frame of each kind, a
// layout, and the messages of a small job for fuzz_core.
//
//     make_seeds tests/fuzz/seeds

#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/codec/up.h"
#include "protos/farewell.h"
#include "protos/frame.h"
#include "protos/topology.h"
#include "worker/order/order.h"
#include "worker/transport/host/board.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *root;

static void seed_write(const char *folder, const char *name, const void *bytes, size_t size)
{
    char path[4096];
    FILE *file;
    snprintf(path, sizeof(path), "%s/%s", root, folder);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof(path), "%s/%s/%s", root, folder, name);
    file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

// ---- Messages ----------------------------------------------------------------------------------

static void up_fill(struct up_message *message, uint8_t rank)
{
    struct up_hello *hello = &message->u.hello;
    message->generation = (struct generation_id){.number = 1, .incarnation = 0xc0};
    if (message->kind == UP_HELLO) {
        message->generation = (struct generation_id){0};
        hello->version = LOCKSTEP_PROTOCOL_VERSION;
        snprintf(hello->job, sizeof(hello->job), "job");
        hello->uuid.bytes[0] = rank;
        snprintf(hello->host_id, sizeof(hello->host_id), "h%d", rank);
        snprintf(hello->host, sizeof(hello->host), "h%d", rank);
        snprintf(hello->address, sizeof(hello->address), "tcp:127.0.0.1:%d", 4000 + rank);
        hello->world_min = hello->world_max = 2;
        hello->open_timeout_ms = 1000;
    } else if (message->kind == UP_START) {
        message->u.start.item_count = 3;
    } else if (message->kind == UP_READY) {
        message->u.ready.step = 1;
        message->u.ready.dtype = DTYPE_FLOAT32;
        message->u.ready.elements = 10;
    } else if (message->kind == UP_LINKS) {
        message->u.links.latency_ns = 1000;
        message->u.links.bytes_per_s = 1000000;
    } else if (message->kind == UP_FAIL) {
        message->u.fail.kind = HALT_ORDER;
        snprintf(message->u.fail.text, sizeof(message->u.fail.text), "why");
    } else if (message->kind == UP_LAYOUT_PART) {
        message->u.layout_part = (struct layout_part){.total = 3, .count = 3, .words = {1, 1, 0}};
    } else if (message->kind == UP_REACH) {
        message->u.reach.count = 1;
    } else if (message->kind == UP_RECORD_PART) {
        message->u.record_part = (struct record_part){
            .kind = RECORD_RUNS, .total = 3, .count = 3, .words = {100, 0, 50}};
    } else if (message->kind == UP_REPORT) {
        message->u.report =
            (struct up_report){.ballot = {2, 0xc0}, .settled = 1, .step = 2, .flags = REPORT_BEGUN};
    } else if (message->kind == UP_REFUSE) {
        message->u.refuse.promised = (struct generation_id){2, 0xc0};
    } else if (message->kind == UP_END) {
        message->u.end.step = 1;
    }
}

static size_t up_encode(enum up_kind kind, uint8_t rank, uint8_t *bytes)
{
    static struct up_message message;
    size_t size = 0;
    memset(&message, 0, sizeof(message));
    message.kind = kind;
    up_fill(&message, rank);
    return codec_encode_up(&message, bytes, LOCKSTEP_MESSAGE_BYTES, &size) == CODEC_OK ? size : 0;
}

static void seeds_up(void)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    for (int kind = UP_NONE + 1; kind < 32; kind++) {
        char name[16];
        const size_t size = up_encode((enum up_kind)kind, 1, bytes);
        snprintf(name, sizeof(name), "kind_%02d", kind);
        if (size > 0)
            seed_write("up", name, bytes, size);
    }
}

static void seeds_down(void)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    static struct down_message message;
    for (int kind = DOWN_NONE + 1; kind < 32; kind++) {
        char name[16];
        size_t size = 0;
        memset(&message, 0, sizeof(message));
        message.kind = (enum down_kind)kind;
        message.generation = (struct generation_id){.number = 1, .incarnation = 0xc0};
        if (message.kind == DOWN_PREPARE)
            message.u.prepare.ballot = (struct generation_id){2, 0xc0};
        if (message.kind == DOWN_RECORD_PART)
            message.u.record_part = (struct record_part){
                .kind = RECORD_ROWS, .total = 3, .count = 3, .words = {0, 50, 2}};
        if (message.kind == DOWN_DECISION)
            message.u.decision.ballot = (struct generation_id){2, 0xc0};
        if (message.kind == DOWN_EXCLUDED)
            message.u.excluded.ballot = (struct generation_id){2, 0xc0};
        if (message.kind == DOWN_HALT)
            message.u.halt.kind = HALT_LOST;
        if (message.kind == DOWN_PLAN_PART)
            message.u.plan_part.last = true;
        if (message.kind == DOWN_GENERATION)
            message.u.generation_start =
                (struct down_generation){.world_size = 1, .local_size = 1, .chunk_bytes = 65536};
        if (message.kind == DOWN_ADDRESSES) {
            message.u.addresses = (struct down_addresses){
                .count = 1, .peers = {{.rank = 3, .address = "tcp:10.0.0.7:4711", .host = "h"}}};
        }
        snprintf(name, sizeof(name), "kind_%02d", kind);
        if (codec_encode_down(&message, bytes, sizeof(bytes), &size) == CODEC_OK)
            seed_write("down", name, bytes, size);
    }
}

// Two workers join, start, learn a step; then one of them ends.
static void seeds_core(void)
{
    static const enum up_kind story[] = {UP_HELLO, UP_LINKS, UP_START, UP_READY, UP_END};
    static uint8_t rows[8 * LOCKSTEP_MESSAGE_BYTES];
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    size_t size = 0;
    for (size_t i = 0; i < sizeof(story) / sizeof(story[0]); i++) {
        for (uint8_t who = 0; who < 2; who++) {
            const size_t length = up_encode(story[i], (uint8_t)(who + 1), bytes);
            rows[size++] = who;
            rows[size++] = (uint8_t)(length >> 8);
            rows[size++] = (uint8_t)length;
            memcpy(rows + size, bytes, length);
            size += length;
        }
    }
    memcpy(rows + size, "\xf0\0\0\xf8\0\0\xf8\0\0", 9);
    seed_write("core", "job_of_two", rows, size + 9);
}

// ---- Generations and the board -----------------------------------------------------------------

// Worlds of one host, of hosts with two ranks each, and of one rank on each.
static void seeds_generation(void)
{
    static const struct {
        const char *name;
        uint32_t world;
        uint32_t mates;
    } worlds[] = {{"alone", 1, 1}, {"one_host", 3, 3}, {"two_levels", 6, 2}, {"apart", 5, 1}};
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    static struct down_message message;
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct down_generation *start = &message.u.generation_start;
        uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
        uint32_t count = topology_neighbours(0, worlds[i].world, ranks);
        size_t size = 0;
        memset(&message, 0, sizeof(message));
        message.kind = DOWN_GENERATION;
        message.generation = (struct generation_id){.number = 1, .incarnation = 0xc0};
        start->world_size = worlds[i].world;
        start->local_size = start->locality.mate_count = worlds[i].mates;
        start->chunk_bytes = 65536;
        start->locality.hosts = worlds[i].world / worlds[i].mates;
        start->locality.rings = worlds[i].mates;
        for (uint32_t m = 0; m < worlds[i].mates; m++)
            start->locality.mates[m] = m;
        for (uint32_t m = 1; m < worlds[i].mates; m++)
            count = topology_add(ranks, count, 0, m);
        if (start->locality.hosts > 1) {
            start->locality.successor = worlds[i].mates;
            start->locality.predecessor = worlds[i].world - worlds[i].mates;
            count = topology_add(ranks, count, 0, start->locality.successor);
            count = topology_add(ranks, count, 0, start->locality.predecessor);
        }
        start->peer_count = count;
        for (uint32_t p = 0; p < count; p++) {
            start->peers[p].rank = ranks[p];
            snprintf(start->peers[p].address, sizeof(start->peers[p].address), "loopback:%u", p);
        }
        if (codec_encode_down(&message, bytes, sizeof(bytes), &size) == CODEC_OK)
            seed_write("generation", worlds[i].name, bytes, size);
    }
}

// tests/fuzz/fuzz_board.c describes the format of an input.
static void seeds_board(void)
{
    static const enum board_run_kind kinds[] = {BOARD_RUN_PIECES, BOARD_RUN_MISMATCH,
                                                BOARD_RUN_REGISTERED};
    static struct {
        struct board_record record;
        struct board_run run;
        struct board_block block;
        struct board_row rows[2];
    } said;
    static uint8_t bytes[1 + sizeof(said)];
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const size_t head = offsetof(struct board_record, tiny);
        const size_t tail = offsetof(struct board_record, block);
        char name[16];
        size_t size = 1;
        memset(&said, 0, sizeof(said));
        said.record.block = BOARD_NONE;
        said.record.payload = BOARD_TINY;
        said.run.kind = kinds[i];
        said.run.one = 1;
        for (uint32_t seat = 0; seat < 2; seat++)
            said.run.memory[seat] = (struct board_memory){.rows = 1, .row = {0, 1000, 1}};
        board_describe(&said.block, 3, 8, 9);
        board_publish(&said.block.filled, 1);
        said.rows[0] = (struct board_row){.offset = 64, .elements = 600, .region = 1};
        said.rows[1] = (struct board_row){.offset = 8000, .elements = 400, .region = 1};
        bytes[0] = 1 + LOCKSTEP_MAX_MATES; // Two seats, two rows.
        memcpy(bytes + size, &said.record, head);
        size += head;
        memcpy(bytes + size, (const uint8_t *)&said.record + tail, sizeof(said.record) - tail);
        size += sizeof(said.record) - tail;
        memcpy(bytes + size, &said.run, sizeof(said.run));
        size += sizeof(said.run);
        memcpy(bytes + size, &said.block, sizeof(said.block));
        size += sizeof(said.block);
        memcpy(bytes + size, said.rows, sizeof(said.rows));
        size += sizeof(said.rows);
        snprintf(name, sizeof(name), "run_%d", (int)kinds[i]);
        seed_write("board", name, bytes, size);
    }
}

// ---- Waves -------------------------------------------------------------------------------------

// Payloads of ranks 0 and 1 of two. tests/fuzz/fuzz_wave.c describes the format of an input.
static void seed_wave(enum wave_kind kind, const char *name, const void *one, const void *other,
                      size_t size)
{
    uint8_t bytes[2 + 2 * LOCKSTEP_WAVE_BYTES] = {(uint8_t)kind, 0};
    memcpy(bytes + 2, one, size);
    memcpy(bytes + 2 + size, other, size);
    seed_write("wave", name, bytes, 2 + 2 * size);
}

static void seeds_waves(void)
{
    struct open_wave open[2] = {{.first = 0, .phase = "policy"},
                                {.exhausted = 1, .first = OPEN_NOBODY}};
    struct close_wave close[2] = {{.plan_number = 1, .extra_total = 1, .extras = {{2, 0}}},
                                  {.plan_number = 2, .extra_total = 2, .extras = {{2, 0}, {1, 2}}}};
    struct commit_wave commit[2];
    memset(commit, 0, sizeof(commit));
    for (uint32_t rank = 0; rank < 2; rank++)
        commit[rank] = (struct commit_wave){
            .unused_total = 2,
            .unused_errors = 1,
            .unused_warnings = 1,
            .unused_named = 2,
            .unused = {{0, 3, rank, 0, 0}, {1, 0, rank, 1, 2}},
            .counter_count = 2,
            .counters = {{1 + rank, -5}, {9, 5}},
            .aborted_total = 1,
            .aborted_named = 1,
            .aborted = {{1, rank, 1}},
            .called = 7,
            .weighted = 5,
            .metrics = {.count = 2,
                        .parts = {{"loss", 0.5, METRIC_MEAN, 3}, {"lr", 0.1, 3 + rank, 1}}},
        };
    seed_wave(WAVE_OPEN, "open", &open[0], &open[1], sizeof(open[0]));
    seed_wave(WAVE_CLOSE, "close", &close[0], &close[1], sizeof(close[0]));
    seed_wave(WAVE_COMMIT, "commit", &commit[0], &commit[1], sizeof(commit[0]));
}

// ---- Frames ------------------------------------------------------------------------------------

static void seeds_frames(void)
{
    static uint8_t bytes[2 + LOCKSTEP_FRAME_HEADER_BYTES + 8 + 64] = {20, 2};
    for (int kind = FRAME_HELLO; kind < 32; kind++) {
        const uint32_t most = frame_payload_max((enum frame_kind)kind);
        struct frame_header header = {.kind = (enum frame_kind)kind,
                                      .generation = {.number = 1, .incarnation = 2},
                                      .step = 3,
                                      .payload_bytes = most < 64 ? most : 64};
        char name[16];
        if (most == 0 && kind != FRAME_CREDIT && kind != FRAME_LEAVE && kind != FRAME_RUN)
            continue;
        snprintf(name, sizeof(name), "kind_%02d", kind);
        frame_encode(&header, bytes + 2);
        seed_write("frame", name, bytes + 2, LOCKSTEP_FRAME_HEADER_BYTES);
        seed_write("stream", name, bytes, 2 + LOCKSTEP_FRAME_HEADER_BYTES + header.payload_bytes);
    }
}

static void seeds_farewells(void)
{
    static const char *const names[] = {"closed", "lost", "left"};
    for (int kind = 0; kind < 3; kind++) {
        uint8_t bytes[FAREWELL_BYTES];
        struct farewell farewell = {
            .kind = (enum farewell_kind)kind, .rank = 2, .witness = 1, .step = 812};
        snprintf(farewell.host, sizeof(farewell.host), "host");
        snprintf(farewell.text, sizeof(farewell.text), "connection reset by peer");
        seed_write("farewell", names[kind], bytes, farewell_encode(&farewell, bytes));
    }
}

static void seeds_layout(void)
{
    static const uint32_t words[] = {2, 8, 11, 11, 10, 8, 7, 4, 2, 1, 3 + 3, 9, 6, 0};
    seed_write("layout", "two_buckets", words, sizeof(words));
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    root = argv[1];
    seeds_up();
    seeds_down();
    seeds_core();
    seeds_waves();
    seeds_generation();
    seeds_board();
    seeds_frames();
    seeds_farewells();
    seeds_layout();
    return 0;
}
