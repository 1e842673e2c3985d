// SPDX-License-Identifier: Apache-2.0
//
// Collectives in flight: each is a flow from the first that is heard of it, of a peer or of this
// rank, until it is done here. How one is found, begins by its algorithm, ends, and how it is seen
// that ranks disagree about it. What its frames do is in the way of reducing that it
// was launched with: way.h. Engine thread.

#include "worker/transport/flow/flow.h"

#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/park.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/transport.h"

#include <assert.h>
#include <string.h>

// ---- finding ------------------------------------------------------------------------------------

static struct list *flow_bucket(struct transport *transport, const struct collective_tag *tag)
{
    uint64_t mixed = (tag->step * 0x9e3779b97f4a7c15u) ^ tag->space;
    mixed = (mixed ^ tag->slot) * 0xff51afd7ed558ccdu;
    return &transport->flows[(mixed >> 40) % TRANSPORT_FLOW_BUCKETS];
}

static struct flow *flow_find(struct transport *transport, const struct collective_tag *tag)
{
    list_for_each (node, flow_bucket(transport, tag)) {
        struct flow *flow = list_entry(node, struct flow, bucket);
        if (flow->tag.step == tag->step && flow->tag.space == tag->space &&
            flow->tag.slot == tag->slot)
            return flow;
    }
    return NULL;
}

static struct flow *flow_make(struct transport *transport, const struct collective_tag *tag)
{
    struct flow *flow = scratch_get(&transport->flow_pool);
    if (!flow)
        return NULL;
    memset(flow, 0, sizeof(*flow));
    flow->tag = *tag;
    list_init(&flow->turn);
    list_init(&flow->feed);
    list_init(&flow->held);
    list_init(&flow->bucket);
    list_push_back(flow_bucket(transport, tag), &flow->bucket);
    return flow;
}

static struct collective_tag flow_tag_of(const struct frame_header *header)
{
    return (struct collective_tag){header->step, header->space, header->slot};
}

struct flow *flow_of(struct peer_link *peer, const struct frame_header *header, const char **text)
{
    struct transport *transport = peer->transport;
    const struct collective_tag tag = flow_tag_of(header);
    struct flow *flow = flow_find(transport, &tag);
    if (flow)
        return flow;
    if (peer->flows_early == LOCKSTEP_EARLY_FLOWS_OF_PEER) {
        *text = "it is of a collective too far ahead";
        return NULL;
    }
    flow = flow_make(transport, &tag);
    if (!flow) {
        *text = transport_no_memory;
        return NULL;
    }
    flow->opener = peer;
    peer->flows_early++;
    return flow;
}

// ---- frames -------------------------------------------------------------------------------------

void flow_give(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block)
{
    flow->way->take(peer, flow, header, block);
}

const char *flow_end(struct peer_link *peer, struct stream *stream)
{
    struct flow *flow = stream->flow;
    if (!flow)
        return NULL; // Dropped.
    stream->flow = NULL;
    if (stream->parked)
        return park_end(peer, flow, stream);
    if (!flow->mismatched)
        flow_give(peer, flow, &stream->header, stream->block);
    else if (stream->block)
        scratch_put(&peer->transport->chunks, stream->block);
    return NULL;
}

const char *flow_credit(struct peer_link *peer, const struct frame_header *header)
{
    const struct way *const *of_frame = peer->transport->ways->of_frame;
    const bool pairs = header->part == FRAME_CREDIT_PAIR;
    return of_frame[pairs ? FRAME_PAIR : FRAME_REDUCE]->credit(peer, header);
}

// Ways are fed one behind the other; collectives of one way in the order of their launch.
bool flow_feed(struct transport *transport)
{
    bool any = false;
    for (const struct way *const *way = transport->ways->all; *way; way++) {
        if ((*way)->feed && (*way)->feed(transport))
            any = true;
    }
    return any;
}

// ---- disagreement -------------------------------------------------------------------------------

void flow_mismatch(struct transport *transport, struct flow *flow, uint32_t rank, const char *text)
{
    if (flow->mismatched || flow->receives_left + flow->sends_left == 0)
        return;
    flow->mismatched = true;
    flow->mismatch_rank = rank;
    text_copy(flow->mismatch_text, sizeof(flow->mismatch_text), text);
    list_remove(&flow->turn);
    list_push_back(&transport->mismatched, &flow->turn);
}

// ---- launching and ending -----------------------------------------------------------------------

static void flow_formats(struct flow *flow)
{
    const struct collective *collective = flow->collective;
    flow->partial = flow_partial(collective);
    flow->final = flow_final_dtype(collective);
    assert((flow->partial == collective->dtype && flow->final == collective->dtype &&
            collective->exponent == 0) ||
           (collective->kind == COLLECTIVE_ALLREDUCE && dtype_is_float(collective->dtype) &&
            (collective->op == REDUCE_SUM || collective->op == REDUCE_MEAN)));
}

void flow_meet_others(struct transport *transport, struct flow *flow)
{
    if (flow->paired != 0)
        flow_mismatch(transport, flow, flow->paired_rank, flow_algorithm_text);
    else if (flow->granted > 0)
        flow_mismatch(transport, flow, flow->behind->rank, flow_algorithm_text);
    park_catch_up(transport, flow);
}

// On a ring of the world or, as a part of another collective, between hosts.
static void flow_launch_on(struct transport *transport, struct collective *collective,
                           const struct ring_group *group)
{
    struct flow *flow = flow_find(transport, &collective->tag);
    assert(!flow || !flow->collective);
    if (flow)
        flow->opener->flows_early--;
    else
        flow = flow_make(transport, &collective->tag);
    collective->weight_total = 0;
    collective->first_sent_us = 0;
    collective->last_received_us = 0;
    collective->state = flow;
    if (!flow) {
        if (transport->ring.successor)
            transport_lose(transport->ring.successor, transport_no_memory);
        return;
    }
    flow->collective = collective;
    flow->algorithm = collective->algorithm;
    // Weights and used bits travel between hosts beside elements: without these the ring has them.
    if (flow->algorithm == ALGORITHM_TWO_LEVEL && collective->elements == 0)
        flow->algorithm = ALGORITHM_RING;
    flow->way = transport->ways->of_algorithm[flow->algorithm];
    flow->group = group;
    flow_formats(flow);
    const uint64_t sum = extent_map_init(&flow->map, collective->extents, collective->extent_count,
                                         (uint32_t)dtype_size(collective->dtype));
    assert(sum == collective->elements);
    (void)sum;
    if (transport->world.world_size == 1) {
        list_push_back(&transport->local, &flow->turn);
        return;
    }
    list_push_back(&transport->active, &flow->turn);
    flow->way->launch(transport, flow);
}

void flow_launch(struct transport *transport, struct collective *collective)
{
    flow_launch_on(transport, collective, &transport->ring);
}

void flow_launch_between_hosts(struct transport *transport, struct collective *collective)
{
    flow_launch_on(transport, collective, &transport->hosts);
}

bool flow_follows(const struct transport *transport, const struct collective *collective)
{
    if (transport->world.world_size == 1 || collective->elements == 0)
        return false;
    const struct way *way = transport->ways->of_algorithm[collective->algorithm];
    return way->follows && way->follows(transport, collective);
}

void flow_landed(struct transport *transport, const struct collective *collective)
{
    struct flow *flow = collective->state;
    if (flow && flow->way->landed && !flow->mismatched)
        flow->way->landed(transport, flow);
}

uint64_t flow_final_elements(const struct collective *collective)
{
    const struct flow *flow = collective->state;
    return flow ? flow->final_elements : 0;
}

static void flow_free(struct transport *transport, struct flow *flow)
{
    assert(!flow->parking && list_empty(&flow->held));
    list_remove(&flow->bucket);
    list_remove(&flow->turn);
    list_remove(&flow->feed);
    scratch_put(&transport->flow_pool, flow);
}

// The root of a broadcast expects nothing. When another rank takes itself for the root, a frame of
// that rank may still be arriving into the parking: the flow lasts until it is whole.
static struct list *flow_first_done(struct transport *transport)
{
    list_for_each (node, &transport->done) {
        if (!list_entry(node, struct flow, turn)->parking)
            return node;
    }
    return NULL;
}

struct collective *flow_next_done(struct transport *transport)
{
    struct list *node = list_first(&transport->local);
    const bool local = node != NULL;
    if (!node)
        node = flow_first_done(transport);
    if (!node)
        return NULL;
    struct flow *flow = list_entry(node, struct flow, turn);
    struct collective *collective = flow->collective;
    if (local ||
        (collective->kind == COLLECTIVE_BROADCAST && collective->root == transport->world.rank))
        reduce_local(collective, flow->map.element_bytes);
    collective->state = NULL;
    flow_free(transport, flow);
    return collective;
}

struct flow *flow_next_mismatch(struct transport *transport)
{
    list_for_each (node, &transport->mismatched) {
        struct flow *flow = list_entry(node, struct flow, turn);
        if (flow->mismatch_reported)
            continue;
        flow->mismatch_reported = true;
        return flow;
    }
    return NULL;
}

bool flow_needs(struct transport *transport, const struct peer_link *peer)
{
    for (const struct way *const *way = transport->ways->all; *way; way++) {
        if ((*way)->needs(transport, peer))
            return true;
    }
    return !list_empty(&transport->mismatched) &&
           (peer == transport->ring.predecessor || peer == transport->ring.successor);
}

void flow_forget(struct transport *transport)
{
    for (uint32_t i = 0; i < TRANSPORT_FLOW_BUCKETS; i++) {
        list_for_each_safe (node, &transport->flows[i]) {
            struct flow *flow = list_entry(node, struct flow, bucket);
            if (flow->collective)
                flow->collective->state = NULL;
        }
        list_init(&transport->flows[i]);
    }
    for (const struct way *const *way = transport->ways->all; *way; way++) {
        if ((*way)->forget)
            (*way)->forget(transport);
    }
    list_init(&transport->active);
    list_init(&transport->feed);
    list_init(&transport->local);
    list_init(&transport->done);
    list_init(&transport->mismatched);
    for (uint32_t i = 0; i < transport->peer_count; i++)
        transport->peers[i].flows_early = transport->peers[i].parkings = 0;
    transport->frames_parked = 0;
    scratch_reset(&transport->flow_pool);
    scratch_reset(&transport->parkings);
    scratch_reset(&transport->chunks);
    scratch_reset(&transport->frames);
    scratch_reset(&transport->heads);
}
