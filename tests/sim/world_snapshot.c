// SPDX-License-Identifier: Apache-2.0
//
// States of a small world: saved, restored, and named by a hash.
//
// The cores are large, for they have room for 1,024 slots, and a small world uses little of it. So
// what is copied is everything but *holes*: the parts of arrays behind their counts, buffers that
// live for one event only, and what is the same in all states of a world. A field that is new in a
// core is no hole, so it is copied and hashed until somebody says otherwise here. Some of what is
// copied is not hashed: totals, which change nothing.

#include "tests/sim/world.h"

#include "coordinator/core.h"

#include <stdlib.h>
#include <string.h>

// ---- Spans of memory ---------------------------------------------------------------------------

enum {
    SPANS = 160
};

struct span {
    uint8_t *at;
    size_t bytes;
};

// Those that are hashed, and those that are only kept.
struct spans {
    struct span list[2][SPANS];
    uint32_t count[2];
};

static void span_add(struct spans *spans, void *at, size_t bytes, bool hashed)
{
    const uint32_t kind = hashed ? 0 : 1;
    if (bytes == 0)
        return;
    if (spans->count[kind] == SPANS)
        abort();
    spans->list[kind][spans->count[kind]++] = (struct span){at, bytes};
}

// Parts of one object, in the order of their addresses: kept: copied, but not hashed.
struct hole {
    const void *at;
    size_t bytes;
    bool kept;
};

struct holes {
    struct hole list[SPANS / 2];
    uint32_t count;
};

static void hole_add(struct holes *holes, const void *at, size_t bytes, bool kept)
{
    uint32_t place = holes->count;
    if (bytes == 0)
        return;
    if (holes->count == SPANS / 2)
        abort();
    for (; place > 0 && (uintptr_t)holes->list[place - 1].at > (uintptr_t)at; place--)
        holes->list[place] = holes->list[place - 1];
    holes->list[place] = (struct hole){at, bytes, kept};
    holes->count++;
}

// The array's elements behind its count.
#define HOLE_BEHIND(holes, array, count) \
    hole_add(holes, (array) + (count), sizeof(array) - (count) * sizeof((array)[0]), false)
#define HOLE(holes, field) hole_add(holes, &(field), sizeof(field), false)
#define HOLE_KEPT(holes, field) hole_add(holes, &(field), sizeof(field), true)

static void spans_of(struct spans *spans, void *object, size_t bytes, const struct holes *holes)
{
    uint8_t *at = object;
    for (uint32_t i = 0; i < holes->count; i++) {
        const struct hole *hole = &holes->list[i];
        const size_t before = (size_t)((const uint8_t *)hole->at - at);
        span_add(spans, at, before, true);
        at += before;
        if (hole->kept)
            span_add(spans, at, hole->bytes, false);
        at += hole->bytes;
    }
    span_add(spans, at, bytes - (size_t)(at - (uint8_t *)object), true);
}

// ---- The cores ---------------------------------------------------------------------------------

static void plan_holes(struct holes *holes, const struct order_plan *plan)
{
    HOLE_BEHIND(holes, plan->slots, plan->count);
    HOLE_BEHIND(holes, plan->algorithms, plan->count);
}

static void order_spans(struct spans *spans, struct order *order)
{
    struct holes holes = {.count = 0};
    for (uint32_t i = 0; i < order->plans.count; i++)
        plan_holes(&holes, &order->plans.held[i]);
    HOLE_BEHIND(&holes, order->plans.held, order->plans.count);
    plan_holes(&holes, &order->plans.newer);
    HOLE(&holes, order->plans.incoming); // A plan of a small world has one part.
    HOLE_BEHIND(&holes, order->slots, order->slot_count);
    HOLE_BEHIND(&holes, order->unplaced, order->unplaced_count);
    HOLE_BEHIND(&holes, order->halt.text, strlen(order->halt.text) + 1);
    HOLE_BEHIND(&holes, order->waits.held, order->waits.count);
    HOLE_BEHIND(&holes, order->waits.open_calls, order->waits.open_call_count);
    HOLE_BEHIND(&holes, order->waits.said.waits, order->waits.said.wait_count);
    HOLE_BEHIND(&holes, order->waits.said.lacking, order->waits.said.lack_count);
    HOLE_BEHIND(&holes, order->waits.said_wait.also, order->waits.said_wait.also_count);
    HOLE_BEHIND(&holes, order->buckets, (size_t)WORLD_MODULES);
    spans_of(spans, order, sizeof(*order), &holes);
}

static void learning_holes(struct holes *holes, const struct learning *learning)
{
    if (learning->active)
        HOLE_KEPT(holes, learning->table); // Follows from the slots.
    else
        HOLE(holes, learning->table);
    HOLE_BEHIND(holes, learning->published, learning->published_count);
    HOLE_BEHIND(holes, learning->grants, learning->grant_count);
    HOLE_BEHIND(holes, learning->slots, learning->slot_count);
    HOLE_BEHIND(holes, learning->layouts, (size_t)WORLD_MODULES);
    HOLE(holes, learning->words); // Constant. world_spans has what it points to.
}

// Nobody sends heartbeats and nobody looks for standstills here.
static void job_spans(struct spans *spans, struct job *job)
{
    struct holes holes = {.count = 0};
    HOLE_BEHIND(&holes, job->workers, job->count);
    HOLE(&holes, job->modules);
    HOLE(&holes, job->messages_total);
    HOLE(&holes, job->dropped_total);
    HOLE_BEHIND(&holes, job->halt.text, strlen(job->halt.text) + 1);
    HOLE(&holes, job->difference);
    HOLE(&holes, job->stall);
    HOLE(&holes, job->rates);
    HOLE(&holes, job->history);
    HOLE(&holes, job->formed_ms);
    HOLE(&holes, job->ended_ms);
    HOLE(&holes, job->settled);
    HOLE(&holes, job->settled_ms);
    HOLE(&holes, job->journal);
    learning_holes(&holes, &job->learning);
    spans_of(spans, job, sizeof(*job), &holes);
}

// restarts: another coordinator gets other hellos.
static void worker_spans(struct spans *spans, struct worker *worker, bool restarts)
{
    struct holes holes = {.count = 0};
    if (restarts) {
        HOLE_KEPT(&holes, worker->hello);
        HOLE_KEPT(&holes, worker->start);
    } else {
        HOLE(&holes, worker->hello);
        HOLE(&holes, worker->start);
    }
    HOLE(&holes, worker->links);
    HOLE(&holes, worker->beat);
    HOLE(&holes, worker->heartbeat.mark);
    HOLE(&holes, worker->heartbeat.place);
    HOLE(&holes, worker->heartbeat.links);
    HOLE(&holes, worker->heartbeat.mates);
    HOLE_BEHIND(&holes, worker->blocked.waits, worker->blocked.wait_count);
    HOLE_BEHIND(&holes, worker->blocked.lacking, worker->blocked.lack_count);
    spans_of(spans, worker, sizeof(*worker), &holes);
}

static void rank_spans(struct spans *spans, struct world_rank *rank)
{
    struct holes holes = {.count = 0};
    HOLE_BEHIND(&holes, rank->up, rank->up_count);
    HOLE_BEHIND(&holes, rank->down, rank->down_count);
    HOLE_BEHIND(&holes, rank->headers, rank->header_count);
    HOLE_BEHIND(&holes, rank->launches, rank->launch_count);
    HOLE_BEHIND(&holes, rank->made, rank->made_count);
    spans_of(spans, rank, sizeof(*rank), &holes);
}

static void world_spans(struct world *world, struct spans *spans)
{
    spans->count[0] = spans->count[1] = 0;
    for (uint32_t r = 0; r < world->config.ranks; r++) {
        rank_spans(spans, &world->state.ranks[r]);
        order_spans(spans, &world->orders[r]);
        worker_spans(spans, &world->core->workers[r], world->config.disaster == DISASTER_RESTART);
        // A stream that is new has the number of an old one, so no other place of the table is
        // used.
        span_add(spans, &world->core->peers[world->port[r]], sizeof(world->core->peers[0]), false);
    }
    job_spans(spans, &world->core->jobs[0]);
    span_add(spans, world->core->words[0],
             world->core->jobs[0].learning.word_count * sizeof(world->core->words[0][0]), true);
    span_add(spans, world->state.slots, sizeof(world->state.slots), true);
    span_add(spans, &world->state.published, 2, true);
    span_add(spans, &world->core->job_count, sizeof(world->core->job_count), true);
    span_add(spans, &world->core->worker_top, sizeof(world->core->worker_top), true);
    span_add(spans, &world->core->worker_free, sizeof(world->core->worker_free), true);
}

// ---- Saving and restoring ----------------------------------------------------------------------

// A snapshot is this, the spans of both kinds, and what they held: each from a multiple of 8 on,
// filled up with zeros.
struct head {
    uint64_t count[2];
    uint64_t hashed; // Bytes of the first kind.
};

static size_t padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

static size_t spans_bytes(const struct spans *spans, uint32_t kind)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < spans->count[kind]; i++)
        bytes += padded(spans->list[kind][i].bytes);
    return bytes;
}

static void snapshot_grow(struct world_snapshot *snapshot, size_t size)
{
    snapshot->size = size;
    if (snapshot->room >= size)
        return;
    free(snapshot->bytes);
    snapshot->room = size + size / 2;
    snapshot->bytes = malloc(snapshot->room);
    if (!snapshot->bytes)
        abort();
}

void world_save(struct world *world, struct world_snapshot *snapshot)
{
    struct spans spans;
    world_spans(world, &spans);
    const struct head head = {.count = {spans.count[0], spans.count[1]},
                              .hashed = spans_bytes(&spans, 0)};
    const size_t lists = (size_t)(head.count[0] + head.count[1]) * sizeof(struct span);
    snapshot_grow(snapshot, sizeof(head) + lists + head.hashed + spans_bytes(&spans, 1));
    uint8_t *list = snapshot->bytes + sizeof(head);
    uint8_t *to = list + lists;
    memcpy(snapshot->bytes, &head, sizeof(head));
    for (uint32_t kind = 0; kind < 2; kind++) {
        for (uint32_t i = 0; i < spans.count[kind]; i++) {
            const struct span *span = &spans.list[kind][i];
            const size_t bytes = padded(span->bytes);
            memset(to + bytes - 8, 0, 8);
            memcpy(to, span->at, span->bytes);
            memcpy(list, span, sizeof(*span));
            list += sizeof(*span);
            to += bytes;
        }
    }
}

void world_restore(struct world *world, const struct world_snapshot *snapshot)
{
    struct head head;
    struct span span;
    memcpy(&head, snapshot->bytes, sizeof(head));
    const uint64_t count = head.count[0] + head.count[1];
    const uint8_t *list = snapshot->bytes + sizeof(head);
    const uint8_t *from = list + count * sizeof(span);
    for (uint64_t i = 0; i < count; i++, list += sizeof(span)) {
        memcpy(&span, list, sizeof(span));
        memcpy(span.at, from, span.bytes);
        from += padded(span.bytes);
    }
    world->fault[0] = '\0';
}

void world_snapshot_free(struct world_snapshot *snapshot)
{
    free(snapshot->bytes);
    memset(snapshot, 0, sizeof(*snapshot));
}

// ---- The hash ----------------------------------------------------------------------------------

static uint64_t rotate(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}

static uint64_t mix(uint64_t word)
{
    word = (word ^ word >> 32) * UINT64_C(0xd6e8feb86659fd93);
    word = (word ^ word >> 29) * UINT64_C(0x165667b19e3779f9);
    return word ^ word >> 32;
}

static uint64_t lane_add(uint64_t lane, uint64_t word)
{
    return rotate(lane ^ word * UINT64_C(0x9e3779b185ebca87), 31) * UINT64_C(0xc2b2ae3d27d4eb4f);
}

// Adds 32 bytes. The explorer spends most of its time here, so no call has a size that is not
// constant.
static void lanes_add(uint64_t lanes[4], const uint8_t *at)
{
    uint64_t words[4];
    memcpy(words, at, sizeof(words));
    lanes[0] = lane_add(lanes[0], words[0]);
    lanes[1] = lane_add(lanes[1], words[1]);
    lanes[2] = lane_add(lanes[2], words[2]);
    lanes[3] = lane_add(lanes[3], words[3]);
}

// Four lanes of 64 bits, which a processor works on at once, folded into two words.
struct world_hash world_hash(const struct world_snapshot *snapshot)
{
    uint64_t lanes[4] = {1, 2, 3, 4};
    uint8_t last[32] = {0};
    struct world_hash hash;
    struct head head;
    memcpy(&head, snapshot->bytes, sizeof(head));
    const uint8_t *at =
        snapshot->bytes + sizeof(head) + (head.count[0] + head.count[1]) * sizeof(struct span);
    const uint8_t *const end = at + head.hashed / sizeof(last) * sizeof(last);
    for (; at < end; at += sizeof(last))
        lanes_add(lanes, at);
    memcpy(last, at, head.hashed % sizeof(last));
    if (head.hashed % sizeof(last) != 0)
        lanes_add(lanes, last);
    hash.words[0] = head.hashed;
    hash.words[1] = head.count[0];
    for (uint32_t lane = 0; lane < 4; lane++) {
        hash.words[0] = mix(hash.words[0] ^ lanes[lane]);
        hash.words[1] = mix(hash.words[1] + rotate(lanes[3 - lane], 17));
    }
    return hash;
}
