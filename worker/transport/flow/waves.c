// SPDX-License-Identifier: Apache-2.0
//
// Waves: who sends what to whom is wave_schedule.c's; here are the payloads, their merge, and what
// arrives before its wave is joined or its move has come. Engine thread.
//
// A message is sent as a copy, because the value changes with the next merge. What arrives is kept
// until its move: at most one message of a wave on each link, and a peer can be ahead by few waves,
// because none completes without this rank. Each exchange costs one small frame in each direction.

#include "worker/transport/flow/waves.h"

#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/wave_schedule.h"
#include "worker/transport/form.h"
#include "worker/transport/transport.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static struct wave_state *wave_find(struct transport *transport, uint64_t step, uint32_t kind)
{
    list_for_each (node, &transport->waves) {
        struct wave_state *state = list_entry(node, struct wave_state, joined);
        if (state->wave->step == step && state->wave->kind == kind)
            return state;
    }
    return NULL;
}

static struct wave_block *wave_arrived(const struct transport *transport, uint64_t step,
                                       uint32_t kind, uint32_t round, uint32_t rank)
{
    list_for_each (node, &transport->wave_arrived) {
        struct wave_block *block = list_entry(node, struct wave_block, arrived);
        if (block->step == step && block->kind == kind && block->round == round &&
            block->rank == rank)
            return block;
    }
    return NULL;
}

// Each peer has its own bound: one that sends too many is in no other's way.
static uint32_t wave_arrived_from(const struct transport *transport, uint32_t rank)
{
    uint32_t count = 0;
    list_for_each (node, &transport->wave_arrived)
        count += list_entry(node, struct wave_block, arrived)->rank == rank;
    return count;
}

static void wave_drop(struct transport *transport, struct wave_block *block)
{
    list_remove(&block->arrived);
    scratch_put(&transport->wave_blocks, block);
}

static void wave_send(struct transport *transport, const struct wave *wave,
                      const struct wave_move *move, struct peer_link *peer)
{
    const struct frame_header header = {
        .kind = FRAME_WAVE,
        .generation = transport->world.generation,
        .payload_bytes = wave->size,
        .step = wave->step,
        .slot = wave->kind,
        .part = move->round,
        .chunk = transport->world.rank,
    };
    struct wave_block *block = scratch_get(&transport->wave_blocks);
    struct out_frame *frame = block ? transport_frame(transport, &header) : NULL;
    if (!frame) {
        if (block)
            scratch_put(&transport->wave_blocks, block);
        transport_lose(peer, transport_no_memory);
        return;
    }
    memcpy(block->payload, wave->payload, wave->size);
    frame->block = block;
    frame->pool = &transport->wave_blocks;
    frame->buffer = block->payload;
    frame->source = wave->size > 0 ? SOURCE_BUFFER : SOURCE_NONE;
    stream_queue(&peer->stream, frame);
}

// What is impossible about what has come; NULL: nothing.
static const char *wave_impossible(const struct transport *transport, const struct wave *wave,
                                   const struct wave_move *move, const struct wave_block *block)
{
    const struct wave_origin origin = wave_origin(transport->world.world_size, move);
    if (block->size != wave->size)
        return "it has another size";
    return wave->check ? wave->check(wave->context, &origin, block->payload, wave->payload) : NULL;
}

static void wave_lose(struct peer_link *peer, const struct wave *wave, const char *wrong)
{
    char text[TRANSPORT_TEXT_BYTES];
    snprintf(text, sizeof(text), "sent an impossible wave (%s): %s", wave->name ? wave->name : "?",
             wrong);
    transport_lose_impossible(peer, text);
}

// What a move receives. False: it has not come, or it is impossible and the peer is lost.
static bool wave_take(struct transport *transport, struct wave *wave, const struct wave_move *move,
                      struct peer_link *peer)
{
    struct wave_block *block =
        wave_arrived(transport, wave->step, wave->kind, move->round, move->peer);
    if (!block)
        return false;
    const char *wrong = wave_impossible(transport, wave, move, block);
    if (wrong)
        wave_lose(peer, wave, wrong);
    else if (move->replaces)
        memcpy(wave->payload, block->payload, wave->size);
    else
        wave->merge(wave->payload, block->payload);
    wave_drop(transport, block);
    return !wrong;
}

static void wave_advance(struct transport *transport, struct wave_state *state)
{
    const struct transport_world *world = &transport->world;
    const uint32_t moves = wave_moves(world->rank, world->world_size);
    while (state->move < moves) {
        const struct wave_move move = wave_move(world->rank, world->world_size, state->move);
        struct peer_link *peer = transport_peer(transport, move.peer);
        if (move.sends && !state->sent)
            wave_send(transport, state->wave, &move, peer);
        state->sent = true;
        if (move.receives && !wave_take(transport, state->wave, &move, peer))
            return;
        state->sent = false;
        state->move++;
    }
    list_remove(&state->joined);
    list_push_back(&transport->waves_done, &state->joined);
}

void wave_join(struct transport *transport, struct wave *wave)
{
    assert(wave->size <= LOCKSTEP_WAVE_BYTES);
    assert(!wave_find(transport, wave->step, wave->kind));
    struct wave_state *state = scratch_get(&transport->wave_states);
    wave->state = state;
    if (!state) {
        if (transport->ring.successor)
            transport_lose(transport->ring.successor, transport_no_memory);
        return;
    }
    *state = (struct wave_state){.wave = wave};
    list_init(&state->joined);
    list_push_back(&transport->waves, &state->joined);
    wave_advance(transport, state);
}

const char *wave_begin(struct peer_link *peer, struct stream *stream)
{
    struct transport *transport = peer->transport;
    const struct transport_world *world = &transport->world;
    const struct frame_header *header = &stream->header;
    stream->block = NULL;
    if (header->chunk != peer->rank ||
        !wave_expects(world->rank, world->world_size, peer->rank, header->part))
        return "it is no round of a wave between these ranks";
    if (wave_arrived(transport, header->step, header->slot, header->part, peer->rank))
        return "it comes twice";
    if (wave_arrived_from(transport, peer->rank) == LOCKSTEP_EARLY_WAVES_OF_PEER)
        return "it is of a wave too far ahead";
    struct wave_block *block = scratch_get(&transport->wave_blocks);
    if (!block)
        return transport_no_memory;
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
    struct transport *transport = peer->transport;
    struct wave_block *block = stream->block;
    stream->block = NULL;
    list_init(&block->arrived);
    list_push_back(&transport->wave_arrived, &block->arrived);
    struct wave_state *state = wave_find(transport, block->step, block->kind);
    if (state)
        wave_advance(transport, state);
    return NULL;
}

struct wave *wave_next_done(struct transport *transport)
{
    struct list *node = list_pop_front(&transport->waves_done);
    if (!node)
        return NULL;
    struct wave_state *state = list_entry(node, struct wave_state, joined);
    struct wave *wave = state->wave;
    wave->state = NULL;
    scratch_put(&transport->wave_states, state);
    return wave;
}

static bool wave_state_needs(struct transport *transport, const struct wave_state *state,
                             const struct peer_link *peer)
{
    const struct transport_world *world = &transport->world;
    const uint32_t moves = wave_moves(world->rank, world->world_size);
    for (uint32_t i = state->move; i < moves; i++) {
        const struct wave_move move = wave_move(world->rank, world->world_size, i);
        const struct wave *wave = state->wave;
        if (move.peer != peer->rank)
            continue;
        if (!move.receives ||
            !wave_arrived(transport, wave->step, wave->kind, move.round, move.peer))
            return true;
    }
    return false;
}

bool wave_needs(struct transport *transport, const struct peer_link *peer)
{
    list_for_each (node, &transport->waves) {
        if (wave_state_needs(transport, list_entry(node, struct wave_state, joined), peer))
            return true;
    }
    return false;
}

bool transport_wave_needs(struct transport *transport, uint32_t rank)
{
    thread_assert(&transport->thread);
    const struct peer_link *peer = transport_peer(transport, rank);
    return peer && wave_needs(transport, peer);
}

void wave_forget(struct transport *transport)
{
    list_for_each (node, &transport->waves)
        list_entry(node, struct wave_state, joined)->wave->state = NULL;
    list_for_each (node, &transport->waves_done)
        list_entry(node, struct wave_state, joined)->wave->state = NULL;
    list_init(&transport->waves);
    list_init(&transport->waves_done);
    list_init(&transport->wave_arrived);
    scratch_reset(&transport->wave_states);
    scratch_reset(&transport->wave_blocks);
}
