// SPDX-License-Identifier: Apache-2.0
//
// Collectives in flight. A collective has a flow from the first frame of a peer or the launch by
// this rank until it is done here. This file finds a flow by its tag, launches it by its algorithm,
// completes it, and records that ranks disagree about it. Its frames are handled by its way of
// reducing: way.h. Engine thread.

#include "worker/transport/flow/flow.h"

#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/park.h"
#include "worker/transport/flow/reduce.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

// ---- finding ------------------------------------------------------------------------------------

static struct list *flow_bucket(struct flows *flows, const struct collective_tag *tag)
{
    return &flows->buckets[tag_bucket(tag, FLOWS_BUCKETS)];
}

static struct flow *flow_find(struct flows *flows, const struct collective_tag *tag)
{
    list_for_each (node, flow_bucket(flows, tag)) {
        struct flow *flow = list_entry(node, struct flow, bucket);
        if (tag_equal(&flow->tag, tag))
            return flow;
    }
    return NULL;
}

struct frame_header flow_header(const struct flows *flows, const struct flow *flow,
                                enum frame_kind kind)
{
    return (struct frame_header){
        .kind = kind,
        .generation = flows->world.generation,
        .step = flow->tag.step,
        .space = flow->tag.space,
        .slot = flow->tag.slot,
        .signature = flow->collective->signature,
    };
}

static struct flow *flow_make(struct flows *flows, const struct collective_tag *tag)
{
    struct flow *flow = scratch_get(&flows->pools.flows);
    if (!flow)
        return NULL;
    memset(flow, 0, sizeof(*flow));
    flow->tag = *tag;
    list_init(&flow->turn);
    list_init(&flow->feed);
    list_init(&flow->held);
    list_init(&flow->bucket);
    list_push_back(flow_bucket(flows, tag), &flow->bucket);
    return flow;
}

static struct collective_tag flow_tag_of(const struct frame_header *header)
{
    return (struct collective_tag){header->step, header->space, header->slot};
}

struct flow *flow_known(struct flows *flows, const struct frame_header *header)
{
    const struct collective_tag tag = flow_tag_of(header);
    return flow_find(flows, &tag);
}

struct flow *flow_of(struct peer_link *peer, const struct frame_header *header, const char **text)
{
    struct flows *flows = peer->flows;
    const struct collective_tag tag = flow_tag_of(header);
    struct flow *flow = flow_find(flows, &tag);
    if (flow)
        return flow;
    if (peer->flows_early == LOCKSTEP_EARLY_FLOWS_OF_PEER) {
        *text = "it is of a collective too far ahead";
        return NULL;
    }
    flow = flow_make(flows, &tag);
    if (!flow) {
        *text = peer_no_memory;
        return NULL;
    }
    flow->opener = peer;
    peer->flows_early++;
    list_push_back(&flows->early.flows, &flow->turn);
    flows->early.changed = true;
    return flow;
}

bool flow_arrivals(struct flows *flows,
                   bool (*take)(void *context, uint32_t rank, const struct collective_tag *tag),
                   void *context)
{
    bool taken = false;
    flows->early.changed = false;
    list_for_each (node, &flows->early.flows) {
        const struct flow *flow = list_entry(node, struct flow, turn);
        if ((taken = take(context, flow->opener->rank, &flow->tag)))
            break;
    }
    flows->early.asked = !taken;
    return taken;
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
        return NULL; // The frame is dropped.
    stream->flow = NULL;
    if (stream->parked)
        return park_end(peer, flow, stream);
    if (!flow->mismatched)
        flow_give(peer, flow, &stream->header, stream->block);
    else if (stream->block)
        scratch_put(&peer->flows->pools.chunks, stream->block);
    return NULL;
}

const char *flow_credit(struct peer_link *peer, const struct frame_header *header)
{
    const struct way *const *of_frame = peer->flows->ways->of_frame;
    enum frame_kind kind = FRAME_REDUCE;
    if (header->part == FRAME_CREDIT_PAIR)
        kind = FRAME_PAIR;
    else if (header->part == FRAME_CREDIT_SENDS)
        kind = FRAME_DIRECT;
    return of_frame[kind]->credit(peer, header);
}

// Feeds the ways in the order of ways.all, and the collectives of a way in the order of their
// launch.
bool flow_feed(struct flows *flows)
{
    bool any = false;
    for (const struct way *const *way = flows->ways->all; *way; way++) {
        if ((*way)->feed && (*way)->feed(flows))
            any = true;
    }
    return any;
}

// ---- disagreement -------------------------------------------------------------------------------

void flow_mismatch(struct flows *flows, struct flow *flow, uint32_t rank, const char *text)
{
    if (flow->mismatched || flow->receives_left + flow->sends_left == 0)
        return;
    flow->mismatched = true;
    flow->mismatch_rank = rank;
    text_copy(flow->mismatch_text, sizeof(flow->mismatch_text), text);
    list_remove(&flow->turn);
    list_push_back(&flows->mismatched, &flow->turn);
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

void flow_meet_others(struct flows *flows, struct flow *flow)
{
    if (flow->paired != 0)
        flow_mismatch(flows, flow, flow->paired_rank, flow_algorithm_text);
    else if (flow->granted > 0)
        flow_mismatch(flows, flow, flow->behind->rank, flow_algorithm_text);
    park_catch_up(flows, flow);
}

// Launches on the ring of the world, or, as a part of another collective, on the ring between
// hosts.
static void flow_launch_on(struct flows *flows, struct collective *collective,
                           const struct ring_group *group)
{
    struct flow *flow = flow_find(flows, &collective->tag);
    assert(!flow || !flow->collective);
    if (flow) {
        flow->opener->flows_early--;
        list_remove(&flow->turn);
    } else {
        flow = flow_make(flows, &collective->tag);
    }
    collective->weight_total = 0;
    collective->first_sent_us = 0;
    collective->last_received_us = 0;
    atomic_store_explicit(&collective->held_ms, 0, memory_order_relaxed);
    collective->state = flow;
    if (!flow) {
        peers_lack(flows);
        return;
    }
    flow->collective = collective;
    flow->algorithm = collective->algorithm;
    // TWO_LEVEL sends weights and used bits along with elements; a collective without elements
    // sends them on the ring.
    if (flow->algorithm == ALGORITHM_TWO_LEVEL && collective->elements == 0)
        flow->algorithm = ALGORITHM_RING;
    flow->way = flows->ways->of_algorithm[flow->algorithm];
    flow->group = group;
    flow_formats(flow);
    const uint64_t sum = extent_map_init(&flow->map, collective->extents, collective->extent_count,
                                         (uint32_t)dtype_size(collective->dtype));
    assert(sum == collective->elements);
    (void)sum;
    if (flows->world.world_size == 1) {
        list_push_back(&flows->local, &flow->turn);
        return;
    }
    list_push_back(&flows->active, &flow->turn);
    flow->way->launch(flows, flow);
}

void flow_launch(struct flows *flows, struct collective *collective)
{
    flow_launch_on(flows, collective, &flows->ring);
}

void flow_launch_between_hosts(struct flows *flows, struct collective *collective)
{
    flow_launch_on(flows, collective, &flows->hosts);
}

bool flow_follows(const struct flows *flows, const struct collective *collective)
{
    if (flows->world.world_size == 1 || collective->elements == 0)
        return false;
    const struct way *way = flows->ways->of_algorithm[collective->algorithm];
    return way->follows && way->follows(flows, collective);
}

void flow_landed(struct flows *flows, const struct collective *collective)
{
    struct flow *flow = collective->state;
    if (flow && flow->way->landed && !flow->mismatched)
        flow->way->landed(flows, flow);
}

uint64_t flow_final_elements(const struct collective *collective)
{
    const struct flow *flow = collective->state;
    return flow ? flow->final_elements : 0;
}

static void flow_free(struct flows *flows, struct flow *flow)
{
    assert(!flow->parking && list_empty(&flow->held));
    list_remove(&flow->bucket);
    list_remove(&flow->turn);
    list_remove(&flow->feed);
    scratch_put(&flows->pools.flows, flow);
}

// Returns the first done flow without parked frames. The root of a broadcast receives nothing, but
// a rank that also believes to be the root may be sending it a frame, which arrives in a parking.
// So the flow lasts until that frame is whole.
static struct list *flow_first_done(struct flows *flows)
{
    list_for_each (node, &flows->done) {
        if (!list_entry(node, struct flow, turn)->parking)
            return node;
    }
    return NULL;
}

struct collective *flow_next_done(struct flows *flows)
{
    struct list *node = list_first(&flows->local);
    const bool local = node != NULL;
    if (!node)
        node = flow_first_done(flows);
    if (!node)
        return NULL;
    struct flow *flow = list_entry(node, struct flow, turn);
    struct collective *collective = flow->collective;
    if (local ||
        (collective->kind == COLLECTIVE_BROADCAST && collective->root == flows->world.rank))
        reduce_local(collective, flow->map.element_bytes);
    collective->state = NULL;
    flow_free(flows, flow);
    return collective;
}

struct flow *flow_next_mismatch(struct flows *flows)
{
    list_for_each (node, &flows->mismatched) {
        struct flow *flow = list_entry(node, struct flow, turn);
        if (flow->mismatch_reported)
            continue;
        flow->mismatch_reported = true;
        return flow;
    }
    return NULL;
}

bool flow_needs(struct flows *flows, const struct peer_link *peer)
{
    for (const struct way *const *way = flows->ways->all; *way; way++) {
        if ((*way)->needs(flows, peer))
            return true;
    }
    return !list_empty(&flows->mismatched) &&
           (peer == flows->ring.predecessor || peer == flows->ring.successor);
}

void flow_forget(struct flows *flows)
{
    for (uint32_t i = 0; i < FLOWS_BUCKETS; i++) {
        list_for_each_safe (node, &flows->buckets[i]) {
            struct flow *flow = list_entry(node, struct flow, bucket);
            if (flow->collective)
                flow->collective->state = NULL;
        }
        list_init(&flows->buckets[i]);
    }
    for (const struct way *const *way = flows->ways->all; *way; way++) {
        if ((*way)->forget)
            (*way)->forget(flows);
    }
    list_init(&flows->early.flows);
    flows->early.asked = false;
    list_init(&flows->active);
    list_init(&flows->feed);
    list_init(&flows->local);
    list_init(&flows->done);
    list_init(&flows->mismatched);
    for (uint32_t i = 0; i < flows->links.count; i++)
        flows->links.all[i]->flows_early = flows->links.all[i]->parkings = 0;
    flows->frames_parked = 0;
    scratch_reset(&flows->pools.flows);
    scratch_reset(&flows->pools.parts);
    scratch_reset(&flows->pools.parkings);
    scratch_reset(&flows->pools.chunks);
    scratch_reset(&flows->pools.frames);
    scratch_reset(&flows->pools.heads);
}
