// SPDX-License-Identifier: Apache-2.0
//
// The bounds of the coordinator's messages; check_down.h has the contract. No state. Any thread.

#include "protos/codec/check_down.h"

#include "base/bits.h"
#include "protos/codec/await.h"
#include "protos/codec/check.h"
#include "protos/codec/codec.h"
#include "protos/codec/internal.h"
#include "protos/codec/recovery.h"
#include "protos/topology.h"

#include <string.h>

static void check_query(const struct down_query *query, struct codec_fault *fault)
{
    codec_check_await_keys(query->keys, query->key_count, fault);
    if (query->form && (query->key_count != 1 || query->keys[0].kind != AWAIT_COLLECTIVE))
        codec_fault_set(fault, CODEC_INVALID, "a query about a collective does not say which");
}

static void check_refused(const struct down_refused *refused, struct codec_fault *fault)
{
    if (refused->refusal == REFUSAL_NONE || (uint32_t)refused->refusal > REFUSAL_DRAINING)
        codec_fault_set(fault, CODEC_INVALID, "a refusal is missing or unknown");
    codec_check_text(refused->text, sizeof(refused->text), fault);
}

// Peers are sorted by rank, below the world size and without the receiver.
static void check_peers(const struct down_generation *generation, struct codec_fault *fault)
{
    uint64_t lowest = 0;
    for (uint32_t i = 0; i < generation->peer_count && fault->status == CODEC_OK; i++) {
        const struct peer *peer = &generation->peers[i];
        if (peer->rank < lowest || peer->rank >= generation->world_size ||
            peer->rank == generation->rank)
            codec_fault_set(fault, CODEC_INVALID,
                            "peers are not sorted, not in the world or the receiver itself");
        lowest = (uint64_t)peer->rank + 1;
        codec_check_text(peer->address, sizeof(peer->address), fault);
        codec_check_text(peer->host, sizeof(peer->host), fault);
    }
}

static void check_further(const struct down_generation *generation, struct codec_fault *fault)
{
    for (uint32_t i = 0; i < generation->further_count && fault->status == CODEC_OK; i++) {
        const struct data_port *port = &generation->further[i];
        if (port->rank >= generation->world_size || port->rank == generation->rank)
            codec_fault_set(fault, CODEC_INVALID,
                            "a data port is not of the world or of the receiver itself");
        codec_check_text(port->address, sizeof(port->address), fault);
    }
}

static bool check_is_peer(const struct down_generation *generation, uint32_t rank)
{
    for (uint32_t i = 0; i < generation->peer_count; i++)
        if (generation->peers[i].rank == rank)
            return true;
    return false;
}

// The peers must include all neighbours of topology.h: waves, rings and pairs need a link to each.
static void check_neighbours(const struct down_generation *generation, struct codec_fault *fault)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    const uint32_t count = topology_neighbours(generation->rank, generation->world_size, ranks);
    for (uint32_t i = 0; i < count; i++)
        if (!check_is_peer(generation, ranks[i]))
            codec_fault_set(fault, CODEC_INVALID, "a neighbour of the receiver is no peer");
}

// A chunk must be a multiple of the largest element (8 bytes): frames carry whole elements.
static void check_chunk_bytes(uint32_t chunk_bytes, struct codec_fault *fault)
{
    codec_check_number(chunk_bytes, LOCKSTEP_FRAME_BYTES,
                       "chunk_bytes is above LOCKSTEP_FRAME_BYTES", fault);
    if (chunk_bytes < LOCKSTEP_CHUNK_LEAST_BYTES || chunk_bytes % LOCKSTEP_CHUNK_LEAST_BYTES != 0)
        codec_fault_set(fault, CODEC_INVALID, "chunk_bytes is no multiple of the largest element");
}

// Mates must be ascending, mates[local] must be the receiver, and all others must be peers.
static bool check_mates(const struct down_generation *generation)
{
    const struct locality *locality = &generation->locality;
    for (uint32_t i = 0; i < locality->mate_count; i++) {
        const uint32_t mate = locality->mates[i];
        if (i > 0 && mate <= locality->mates[i - 1])
            return false;
        if (i == locality->local ? mate != generation->rank : !check_is_peer(generation, mate))
            return false;
    }
    return true;
}

// There must be 1 to mate_count rings. The world must be large enough for the mates and at least
// one worker on every other host.
static bool check_host_sizes(const struct down_generation *generation)
{
    const struct locality *locality = &generation->locality;
    if (locality->rings == 0 || locality->rings > locality->mate_count)
        return false;
    if (locality->hosts == 1)
        return locality->mate_count == generation->world_size;
    return locality->mate_count + locality->hosts - 1 <= generation->world_size;
}

static bool check_hosts(const struct down_generation *generation)
{
    static const struct locality none;
    const struct locality *locality = &generation->locality;
    if (locality->hosts == 0)
        return memcmp(locality, &none, sizeof(none)) == 0;
    if (locality->hosts > generation->world_size || locality->host >= locality->hosts ||
        locality->local >= locality->mate_count || !check_host_sizes(generation) ||
        !check_mates(generation))
        return false;
    if (locality->hosts == 1 || locality->local >= locality->rings)
        return locality->successor == 0 && locality->predecessor == 0;
    return check_is_peer(generation, locality->successor) &&
           check_is_peer(generation, locality->predecessor);
}

static void check_locality(const struct down_generation *generation, struct codec_fault *fault)
{
    codec_check_count(generation->locality.mate_count, LOCKSTEP_MAX_MATES, "too many mates", fault);
    if (fault->status == CODEC_OK && !check_hosts(generation))
        codec_fault_set(fault, CODEC_INVALID, "the hosts are not those of such a world");
}

// The set of ranks with a GPU must contain only ranks of the world.
static void check_gpus(const struct down_generation *generation, struct codec_fault *fault)
{
    for (uint32_t rank = generation->world_size; rank < LOCKSTEP_MAX_WORLD; rank++)
        if (bits_has(generation->gpus, rank))
            codec_fault_set(fault, CODEC_INVALID, "a rank with a GPU is not in the world");
}

static void check_generation(const struct down_generation *generation, struct codec_fault *fault)
{
    codec_check_number(generation->world_size, LOCKSTEP_MAX_WORLD,
                       "a world is above LOCKSTEP_MAX_WORLD", fault);
    if (generation->rank >= generation->world_size)
        codec_fault_set(fault, CODEC_INVALID, "the rank is not below the world size");
    if (generation->local_rank >= generation->local_size ||
        generation->local_size > generation->world_size)
        codec_fault_set(fault, CODEC_INVALID, "the local rank or size is not in the world");
    if (generation->core_ranks > generation->world_size)
        codec_fault_set(fault, CODEC_INVALID, "more ranks share cores than are in the world");
    check_chunk_bytes(generation->chunk_bytes, fault);
    codec_check_count(generation->peer_count, LOCKSTEP_MAX_NEIGHBOURS, "too many peers", fault);
    codec_check_count(generation->further_count, LOCKSTEP_MAX_FURTHER_PORTS, "too many data ports",
                      fault);
    if (fault->status == CODEC_OK)
        check_peers(generation, fault);
    if (fault->status == CODEC_OK)
        check_further(generation, fault);
    if (fault->status == CODEC_OK)
        check_neighbours(generation, fault);
    if (fault->status == CODEC_OK)
        check_locality(generation, fault);
    if (fault->status == CODEC_OK)
        check_gpus(generation, fault);
}

static void check_manifest_request(const struct down_manifest_request *request,
                                   struct codec_fault *fault)
{
    codec_check_number(request->count, LOCKSTEP_MANIFEST_PART,
                       "a request for too many manifest items", fault);
    codec_check_part(request->first, request->count, LOCKSTEP_MAX_ITEMS,
                     "a request for manifest items that cannot be", fault);
}

static void check_plan_part(const struct down_plan_part *part, struct codec_fault *fault)
{
    codec_check_count(part->slot_count, LOCKSTEP_PLAN_PART, "too many slots in a part of a plan",
                      fault);
    codec_check_number(part->slot_total, LOCKSTEP_MAX_SLOTS, "a plan is above LOCKSTEP_MAX_SLOTS",
                       fault);
    codec_check_part(part->slot_first, part->slot_count, part->slot_total,
                     "a part lies outside its plan", fault);
    if (part->last != (part->slot_first + part->slot_count == part->slot_total))
        codec_fault_set(fault, CODEC_INVALID,
                        "a part that ends its plan is not the last, or another one is");
    for (uint32_t i = 0; i < part->slot_count && fault->status == CODEC_OK; i++) {
        codec_check_slot(&part->slots[i].id, fault);
        codec_check_algorithm(part->slots[i].algorithm, fault);
    }
}

static void check_halt(const struct down_halt *halt, struct codec_fault *fault)
{
    codec_check_halt_kind(halt->kind, fault);
    if (halt->has_rank)
        codec_check_rank(halt->rank, fault);
    codec_check_text(halt->text, sizeof(halt->text), fault);
    codec_check_text(halt->cause, sizeof(halt->cause), fault);
}

static void check_inspect(const struct down_inspect *inspect, struct codec_fault *fault)
{
    if (inspect->what == 0 || inspect->what > INSPECT_ALL)
        codec_fault_set(fault, CODEC_INVALID, "an inspection asks for nothing that is known");
}

static void check_addresses(const struct down_addresses *addresses, struct codec_fault *fault)
{
    codec_check_count(addresses->count, LOCKSTEP_REACH_RANKS, "too many addresses", fault);
    if (addresses->count == 0)
        codec_fault_set(fault, CODEC_INVALID, "an answer has no address");
    for (uint32_t i = 0; i < addresses->count && fault->status == CODEC_OK; i++) {
        const struct peer *peer = &addresses->peers[i];
        codec_check_rank(peer->rank, fault);
        codec_check_text(peer->address, sizeof(peer->address), fault);
        codec_check_text(peer->host, sizeof(peer->host), fault);
    }
}

void codec_check_down(const struct down_message *message, struct codec_fault *fault)
{
    switch (message->kind) {
    case DOWN_WELCOME:
    case DOWN_VERIFIED:
        return;
    case DOWN_REFUSED:
        check_refused(&message->u.refused, fault);
        return;
    case DOWN_GENERATION:
        check_generation(&message->u.generation_start, fault);
        return;
    case DOWN_MANIFEST_REQUEST:
        check_manifest_request(&message->u.manifest_request, fault);
        return;
    case DOWN_GRANT:
        codec_check_slot(&message->u.grant.slot, fault);
        return;
    case DOWN_LAYOUT_PART:
        codec_check_layout_part(&message->u.layout_part, fault);
        return;
    case DOWN_PLAN_PART:
        check_plan_part(&message->u.plan_part, fault);
        return;
    case DOWN_HALT:
        check_halt(&message->u.halt, fault);
        return;
    case DOWN_TUNING:
        codec_check_algorithm(message->u.tuning.wish, fault);
        return;
    case DOWN_QUERY:
        check_query(&message->u.query, fault);
        return;
    case DOWN_INSPECT:
        check_inspect(&message->u.inspect, fault);
        return;
    case DOWN_ADDRESSES:
        check_addresses(&message->u.addresses, fault);
        return;
    case DOWN_PREPARE:
        codec_check_prepare(&message->u.prepare, fault);
        return;
    case DOWN_RECORD_PART:
        codec_check_record(&message->u.record_part, false, fault);
        return;
    case DOWN_DECISION:
        codec_check_decision(&message->u.decision, fault);
        return;
    case DOWN_EXCLUDED:
        codec_check_excluded(&message->u.excluded, fault);
        return;
    case DOWN_NONE:
        break;
    }
    codec_fault_set(fault, CODEC_INVALID, "the kind of the message is missing or unknown");
}
