// SPDX-License-Identifier: Apache-2.0
//
// The memory of collectives in flight: pools, which are sized when a generation forms, and the
// totals. The collectives themselves are in flow.c. Engine thread, except flows_init and
// flows_fini: any thread while no thread drives.

#include "worker/transport/flow/flows.h"

#include "worker/transport/flow/park.h"
#include "worker/transport/flow/waves.h"
#include "worker/transport/flow/window.h"

#include <string.h>

#define FLOWS_RESERVE_BYTES (64 * 1024 * 1024) // Upper bound of the chunks reserved in advance.

// Bytes behind a struct flow: the most that any way keeps there.
static size_t flows_room(const struct ways *ways)
{
    size_t most = 0;
    for (const struct way *const *way = ways->all; *way; way++)
        most = (*way)->room_bytes > most ? (*way)->room_bytes : most;
    return most;
}

static size_t flows_part(const struct ways *ways, size_t members)
{
    size_t most = 1;
    for (const struct way *const *way = ways->all; *way; way++) {
        const size_t bytes = (*way)->part_bytes + members * (*way)->member_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

// Resizes the blocks of pools.parts to the world. Nothing may be in flight.
static void flows_size_parts(struct flows *flows)
{
    struct scratch *parts = &flows->pools.parts;
    const size_t bytes = flows_part(flows->ways, flows->world.world_size);
    if (parts->block_bytes == (bytes + 63) / 64 * 64)
        return;
    scratch_fini(parts);
    scratch_init(parts, bytes);
}

void flows_init(struct flows *flows, const struct ways *ways)
{
    struct flow_pools *pools = &flows->pools;
    struct list *const lists[] = {&flows->active,     &flows->feed,          &flows->local,
                                  &flows->done,       &flows->mismatched,    &flows->waves.joined,
                                  &flows->waves.done, &flows->waves.arrived, &flows->early.flows};
    flows->ways = ways;
    for (size_t i = 0; i < FLOWS_BUCKETS; i++)
        list_init(&flows->buckets[i]);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        list_init(lists[i]);
    scratch_init(&pools->chunks, LOCKSTEP_FRAME_BYTES);
    scratch_init(&pools->frames, sizeof(struct out_frame));
    scratch_init(&pools->heads, LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_USED_BYTES);
    scratch_init(&pools->flows, sizeof(struct flow) + flows_room(ways));
    scratch_init(&pools->parts, flows_part(ways, 0));
    scratch_init(&pools->parkings, sizeof(struct parking));
    scratch_init(&pools->wave_blocks, sizeof(struct wave_block));
    scratch_init(&pools->wave_states, sizeof(struct wave_state));
    scratch_init(&pools->notes, LOCKSTEP_NOTE_BYTES);
}

void flows_fini(struct flows *flows)
{
    struct flow_pools *pools = &flows->pools;
    struct scratch *const all[] = {&pools->chunks,      &pools->frames,      &pools->heads,
                                   &pools->flows,       &pools->parts,       &pools->parkings,
                                   &pools->wave_blocks, &pools->wave_states, &pools->notes};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        scratch_fini(all[i]);
}

// Chunks are reserved up to FLOWS_RESERVE_BYTES, which only very large worlds reach.
void flows_reserve(struct flows *flows)
{
    struct flow_pools *pools = &flows->pools;
    const uint64_t n = flows->world.world_size;
    const uint32_t collectives = flows->reserved;
    const uint64_t chunks = n * flow_window(flows->world.world_size, flows->world.chunk_bytes);
    const uint64_t most = FLOWS_RESERVE_BYTES / pools->chunks.block_bytes;
    const uint64_t wanted = collectives * chunks;
    const uint64_t places = 4 * (uint64_t)collectives;
    if (collectives == 0)
        return;
    scratch_reserve(&pools->chunks, wanted < most ? wanted : most);
    scratch_reserve(&pools->frames, wanted < most ? 2 * wanted : 2 * most);
    // Each unit is in two frames of a step; only units at the edges of chunks are in more.
    scratch_reserve(&pools->heads, 2 * LOCKSTEP_BUCKET_PARAMETERS / (8 * STREAM_USED_BYTES));
    scratch_reserve(&pools->flows, places);
    scratch_reserve(&pools->parkings, (n <= 4 ? n - 1 : 4) * collectives); // One for each peer.
    scratch_reserve(&pools->parts, collectives);
    scratch_reserve(&pools->wave_blocks, LOCKSTEP_EARLY_WAVES / 4);
    scratch_reserve(&pools->wave_states, LOCKSTEP_WINDOW);
    scratch_reserve(&pools->notes, LOCKSTEP_EARLY_HEADERS);
}

void flows_size_pools(struct flows *flows)
{
    struct scratch *chunks = &flows->pools.chunks;
    flows_size_parts(flows);
    if (chunks->block_bytes == (flows->world.chunk_bytes + 63) / 64 * 64)
        return;
    scratch_fini(chunks);
    scratch_init(chunks, flows->world.chunk_bytes);
}

struct out_frame *flows_frame(struct flows *flows, const struct frame_header *header)
{
    struct out_frame *frame = scratch_get(&flows->pools.frames);
    if (!frame)
        return NULL;
    memset(frame, 0, sizeof(*frame));
    list_init(&frame->queue);
    frame->urgent = true;
    frame->payload_bytes = header->payload_bytes;
    frame->head_bytes = LOCKSTEP_FRAME_HEADER_BYTES + header->used_bytes;
    frame->head =
        frame->head_bytes <= sizeof(frame->bytes) ? frame->bytes : scratch_get(&flows->pools.heads);
    if (!frame->head) {
        scratch_put(&flows->pools.frames, frame);
        return NULL;
    }
    frame_encode(header, frame->head);
    return frame;
}

void flows_statistics(const struct flows *flows, struct transport_statistics *out)
{
    const struct flow_pools *pools = &flows->pools;
    *out = flows->totals;
    for (uint32_t i = 0; i < flows->links.count; i++) {
        const struct stream *stream = &flows->links.all[i]->stream;
        if (!stream->link)
            continue;
        out->bytes_sent += stream->bytes_sent;
        out->bytes_received += stream->bytes_received;
        out->frames_sent += stream->frames_sent;
        out->memory_links += stream->link->ops->pending != NULL;
    }
    out->scratch_bytes = pools->chunks.blocks * pools->chunks.block_bytes;
    out->allocations = pools->chunks.slab_count + pools->frames.slab_count +
                       pools->heads.slab_count + pools->flows.slab_count + pools->parts.slab_count +
                       pools->parkings.slab_count + pools->wave_blocks.slab_count +
                       pools->wave_states.slab_count + pools->notes.slab_count;
}
