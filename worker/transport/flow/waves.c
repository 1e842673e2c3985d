// SPDX-License-Identifier: Apache-2.0
//
// Waves: payloads, merging, and payloads that arrive before the wave is joined or before their
// move. The schedule is in wave.c. Engine thread.
//
// A message is sent as a copy, because the next merge changes the value. A message that arrives is
// kept until its move. Few messages are kept: each link carries at most one message of a wave, and
// a peer can be ahead by few waves, because no wave completes without this rank. Each exchange
// costs one small frame in each direction.

#include "worker/transport/flow/waves.h"

#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/wave.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static struct wave_state *wave_find(struct flows *flows, uint64_t step, uint32_t kind)
{
    list_for_each (node, &flows->waves.joined) {
        struct wave_state *state = list_entry(node, struct wave_state, joined);
        if (state->wave->step == step && state->wave->kind == kind)
            return state;
    }
    return NULL;
}

static struct wave_block *wave_arrived(const struct flows *flows, uint64_t step, uint32_t kind,
                                       uint32_t round, uint32_t rank)
{
    list_for_each (node, &flows->waves.arrived) {
        struct wave_block *block = list_entry(node, struct wave_block, arrived);
        if (block->step == step && block->kind == kind && block->round == round &&
            block->rank == rank)
            return block;
    }
    return NULL;
}

// Number of payloads of one peer that wait. Each peer has its own limit, so a peer that sends too
// many does not affect others.
static uint32_t wave_arrived_from(const struct flows *flows, uint32_t rank)
{
    uint32_t count = 0;
    list_for_each (node, &flows->waves.arrived)
        count += list_entry(node, struct wave_block, arrived)->rank == rank;
    return count;
}

static void wave_drop(struct flows *flows, struct wave_block *block)
{
    list_remove(&block->arrived);
    scratch_put(&flows->pools.wave_blocks, block);
}

// Returns the bytes of the payload without the zeros at its end, in words of 8 bytes, but at least
// one word if there is one. Most of a payload is zero, so zeros are skipped in blocks first.
static uint32_t wave_used(const struct wave *wave)
{
    static const uint8_t zeros[128];
    uint32_t bytes = wave->size;
    uint64_t word = 0;
    if (bytes % sizeof(word) != 0)
        return bytes;
    while (bytes > sizeof(zeros) &&
           memcmp(wave->payload + bytes - sizeof(zeros), zeros, sizeof(zeros)) == 0)
        bytes -= (uint32_t)sizeof(zeros);
    for (; bytes > sizeof(word); bytes -= (uint32_t)sizeof(word)) {
        memcpy(&word, wave->payload + bytes - sizeof(word), sizeof(word));
        if (word != 0)
            break;
    }
    return bytes;
}

static void wave_send(struct flows *flows, const struct wave *wave, const struct wave_move *move,
                      struct peer_link *peer)
{
    const uint32_t bytes = wave_used(wave);
    const struct frame_header header = {
        .kind = FRAME_WAVE,
        .generation = flows->world.generation,
        .payload_bytes = bytes,
        .step = wave->step,
        .slot = wave->kind,
        .part = move->round,
        .chunk = flows->world.rank,
    };
    struct wave_block *block = scratch_get(&flows->pools.wave_blocks);
    struct out_frame *frame = block ? flows_frame(flows, &header) : NULL;
    if (!frame) {
        if (block)
            scratch_put(&flows->pools.wave_blocks, block);
        peer_lose(peer, peer_no_memory);
        return;
    }
    memcpy(block->payload, wave->payload, bytes);
    frame->block = block;
    frame->pool = &flows->pools.wave_blocks;
    frame->buffer = block->payload;
    frame->source = bytes > 0 ? SOURCE_BUFFER : SOURCE_NONE;
    stream_queue(&peer->stream, frame);
}

// Appends the zeros that did not travel. Returns what is impossible about a payload that has
// arrived; NULL: it is possible.
static const char *wave_impossible(const struct flows *flows, const struct wave *wave,
                                   const struct wave_move *move, struct wave_block *block)
{
    const struct wave_origin origin = wave_origin(flows->world.world_size, move);
    if (block->size > wave->size)
        return "it has another size";
    memset(block->payload + block->size, 0, wave->size - block->size);
    return wave->check ? wave->check(wave->context, &origin, block->payload, wave->payload) : NULL;
}

static void wave_lose(struct peer_link *peer, const struct wave *wave, const char *wrong)
{
    char text[TRANSPORT_TEXT_BYTES];
    snprintf(text, sizeof(text), "sent an impossible wave (%s): %s", wave->name ? wave->name : "?",
             wrong);
    peer_lose_impossible(peer, text);
}

// Merges the payload that a move receives. False: it has not arrived, or it is impossible and the
// peer is lost.
static bool wave_take(struct flows *flows, struct wave *wave, const struct wave_move *move,
                      struct peer_link *peer)
{
    struct wave_block *block = wave_arrived(flows, wave->step, wave->kind, move->round, move->peer);
    if (!block)
        return false;
    const char *wrong = wave_impossible(flows, wave, move, block);
    if (wrong)
        wave_lose(peer, wave, wrong);
    else if (move->replaces)
        memcpy(wave->payload, block->payload, wave->size);
    else
        wave->merge(wave->payload, block->payload);
    wave_drop(flows, block);
    return !wrong;
}

static void wave_advance(struct flows *flows, struct wave_state *state)
{
    const struct transport_world *world = &flows->world;
    const uint32_t moves = wave_moves(world->rank, world->world_size);
    while (state->move < moves) {
        const struct wave_move move = wave_move(world->rank, world->world_size, state->move);
        struct peer_link *peer = peer_of_rank(flows, move.peer);
        if (move.sends && !state->sent)
            wave_send(flows, state->wave, &move, peer);
        state->sent = true;
        if (move.receives && !wave_take(flows, state->wave, &move, peer))
            return;
        state->sent = false;
        state->move++;
    }
    list_remove(&state->joined);
    list_push_back(&flows->waves.done, &state->joined);
}

void wave_join(struct flows *flows, struct wave *wave)
{
    assert(wave->size <= LOCKSTEP_WAVE_BYTES);
    assert(!wave_find(flows, wave->step, wave->kind));
    struct wave_state *state = scratch_get(&flows->pools.wave_states);
    wave->state = state;
    if (!state) {
        peers_lack(flows);
        return;
    }
    *state = (struct wave_state){.wave = wave};
    list_init(&state->joined);
    list_push_back(&flows->waves.joined, &state->joined);
    wave_advance(flows, state);
}

const char *wave_begin(struct peer_link *peer, struct stream *stream)
{
    struct flows *flows = peer->flows;
    const struct transport_world *world = &flows->world;
    const struct frame_header *header = &stream->header;
    stream->block = NULL;
    if (header->chunk != peer->rank ||
        !wave_expects(world->rank, world->world_size, peer->rank, header->part))
        return "it is no round of a wave between these ranks";
    if (wave_arrived(flows, header->step, header->slot, header->part, peer->rank))
        return "it comes twice";
    if (wave_arrived_from(flows, peer->rank) == LOCKSTEP_EARLY_WAVES_OF_PEER)
        return "it is of a wave too far ahead";
    struct wave_block *block = scratch_get(&flows->pools.wave_blocks);
    if (!block)
        return peer_no_memory;
    block->step = header->step;
    block->kind = header->slot;
    block->round = header->part;
    block->rank = peer->rank;
    block->size = header->payload_bytes;
    stream->block = block;
    stream->target.kind = TARGET_BUFFER;
    stream->target.buffer = block->payload;
    return NULL;
}

const char *wave_end(struct peer_link *peer, struct stream *stream)
{
    struct flows *flows = peer->flows;
    struct wave_block *block = stream->block;
    stream->block = NULL;
    list_init(&block->arrived);
    list_push_back(&flows->waves.arrived, &block->arrived);
    struct wave_state *state = wave_find(flows, block->step, block->kind);
    if (state)
        wave_advance(flows, state);
    return NULL;
}

struct wave *wave_next_done(struct flows *flows)
{
    struct list *node = list_pop_front(&flows->waves.done);
    if (!node)
        return NULL;
    struct wave_state *state = list_entry(node, struct wave_state, joined);
    struct wave *wave = state->wave;
    wave->state = NULL;
    scratch_put(&flows->pools.wave_states, state);
    return wave;
}

static bool wave_state_needs(struct flows *flows, const struct wave_state *state,
                             const struct peer_link *peer)
{
    const struct transport_world *world = &flows->world;
    const uint32_t moves = wave_moves(world->rank, world->world_size);
    for (uint32_t i = state->move; i < moves; i++) {
        const struct wave_move move = wave_move(world->rank, world->world_size, i);
        const struct wave *wave = state->wave;
        if (move.peer != peer->rank)
            continue;
        if (!move.receives || !wave_arrived(flows, wave->step, wave->kind, move.round, move.peer))
            return true;
    }
    return false;
}

bool wave_needs(struct flows *flows, const struct peer_link *peer)
{
    list_for_each (node, &flows->waves.joined) {
        if (wave_state_needs(flows, list_entry(node, struct wave_state, joined), peer))
            return true;
    }
    return false;
}

void wave_forget(struct flows *flows)
{
    list_for_each (node, &flows->waves.joined)
        list_entry(node, struct wave_state, joined)->wave->state = NULL;
    list_for_each (node, &flows->waves.done)
        list_entry(node, struct wave_state, joined)->wave->state = NULL;
    list_init(&flows->waves.joined);
    list_init(&flows->waves.done);
    list_init(&flows->waves.arrived);
    scratch_reset(&flows->pools.wave_states);
    scratch_reset(&flows->pools.wave_blocks);
}
