// SPDX-License-Identifier: Apache-2.0
//
// Repeats a collective by the rows of a decision. The rows become *parts*, which are collectives of
// their own, most of them on the ring of the generation (part_algorithm):
//
//     REDUCE rows  one allreduce of all their elements, from the inputs, which are intact
//     HAVE rows    a broadcast for each owner, from its outputs; among the members of a group an
//                  allreduce of integers, to which the owner alone contributes
//     tally        after REDO_BATCH parts, and at the end: the largest weight of final elements
//
// If no rank that is left has a weight, and something is final, the sums run once more and write
// zeros: otherwise each rank would keep its own memory there.
//
// Every rank makes the same parts of the same rows. A rank that has the bytes already receives them
// again: they are the same bytes.
//
// Bound. A rank launches the parts up to the next tally, and goes on when that tally is done: then
// all ranks have launched as many parts. So a peer is at most one batch ahead, and the frames that
// wait for a launch here are bounded.
//
// Devices. The parts of a collective on this rank's device go by the hosts, as it went itself. The
// caller hears of none of their events (on_devices is not set), only that the whole is done.
//
// Used bits. A unit of which an element is final has its final bit in the decision. So all ranks
// leave the same units out of a broadcast: those that no rank has used. Units of which nothing is
// final get their bits from the allreduce. Units without elements are in no part, so all their bits
// are in the decision. Engine thread.

#include "worker/transport/redo.h"

#include "base/hash64.h"
#include "worker/memory/units.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/flow/finals.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/freeze.h"
#include "worker/transport/redo_part.h"
#include "worker/transport/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REDO_BATCH 32

static const char *const redo_no_memory = "this rank has no memory to repeat a collective";

struct redo {
    struct list node; // In redos.all.
    struct collective *outer;
    struct held *held; // What was final before. NULL: nothing, or all of it.
    bool whole;
    uint64_t space; // The tags of the parts.
    uint64_t signature;
    uint64_t weight; // The largest weight of final elements that some rank knows.
    uint32_t count;
    uint32_t settled;
    struct redo_part parts[];
};

void redo_init(struct redos *redos)
{
    list_init(&redos->all);
}

static void redo_free(struct redo *redo)
{
    for (uint32_t i = 0; i < redo->count; i++) {
        free(redo->parts[i].spans);
        free(redo->parts[i].extents);
        free(redo->parts[i].replicas);
        free(redo->parts[i].replica_extents);
        free(redo->parts[i].unit_ends);
        free(redo->parts[i].units);
        free(redo->parts[i].used);
    }
    freeze_drop(redo->held);
    free(redo);
}

void redo_forget(struct redos *redos)
{
    struct list *node = NULL;
    while ((node = list_pop_front(&redos->all)))
        redo_free(list_entry(node, struct redo, node));
}

static struct redo *redo_of(const struct redos *redos, const struct collective *part)
{
    list_for_each (node, &redos->all) {
        struct redo *redo = list_entry(node, struct redo, node);
        const char *begin = (const char *)redo->parts;
        const char *end = (const char *)(redo->parts + redo->count);
        if ((const char *)part >= begin && (const char *)part < end)
            return redo;
    }
    return NULL;
}

struct collective *redo_outer(const struct redos *redos, const struct collective *collective)
{
    const struct redo *redo = redo_of(redos, collective);
    return redo ? redo->outer : NULL;
}

// ---- checks -------------------------------------------------------------------------------------

// True if the elements from `first` to `end` are final here.
static bool redo_has(const struct redo *redo, uint64_t first, uint64_t end)
{
    if (redo->whole || first == end)
        return true;
    for (uint32_t i = 0; redo->held && i < redo->held->run_count; i++) {
        const struct redo_run *run = &redo->held->runs[i];
        if (run->first <= first && end <= run->end)
            return true;
    }
    return false;
}

static const char *redo_check(const struct transport *transport, const struct redo *redo,
                              const struct transport_redo *what)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < what->count; i++) {
        const struct redo_row *row = &what->rows[i];
        if (row->first < at || row->end <= row->first || row->end > redo->outer->elements ||
            row->owner >= transport->flows.world.world_size ||
            (row->kind != REDO_REDUCE && row->kind != REDO_HAVE))
            return "a row is not well formed";
        if (!redo_has(redo, at, row->first))
            return "elements without a row are not final on this rank";
        if (row->kind == REDO_HAVE && row->owner == transport->flows.world.rank &&
            !redo_has(redo, row->first, row->end))
            return "this rank does not have what it is to give";
        if (row->kind == REDO_REDUCE && redo->outer->tree)
            return "the sums of a tree of leaves cannot be cut";
        at = row->end;
    }
    return redo_has(redo, at, redo->outer->elements)
               ? NULL
               : "elements without a row are not final on this rank";
}

// ---- making parts -------------------------------------------------------------------------------

// Sums go round the ring, which needs no further links. They go by ALGORITHM_DIRECT where the ring
// would break what the way of the whole collective promises: the order of the ranks, and that
// 16-bit floats are rounded once in memory of one host. Round the ring partial sums of float16 may
// be infinite although the mean is not.
static enum plan_algorithm part_algorithm(const struct collective *outer, bool sums)
{
    const bool direct = outer->algorithm == ALGORITHM_DIRECT ||
                        (outer->algorithm == ALGORITHM_SHARED && dtype_is_small(outer->dtype));
    return outer->parts || (sums && direct) ? ALGORITHM_DIRECT : ALGORITHM_RING;
}

static void part_name(struct redo *redo, struct redo_part *part)
{
    const struct collective *outer = redo->outer;
    part->collective.on_devices = false;
    part->collective.device = outer->device;
    part->collective.ready = outer->ready;
    part->collective.ready_count = outer->ready_count;
    part->collective.behind = outer->behind;
    part->collective.parts = outer->parts;
    part->collective.algorithm = part_algorithm(outer, part->sums);
    part->collective.tag = (struct collective_tag){redo->outer->tag.step, redo->space, redo->count};
    part->collective.signature = redo->signature;
}

static bool redo_add_tally(struct redo *redo)
{
    struct redo_part *part = &redo->parts[redo->count];
    part->tally = true;
    part->weight = redo->weight;
    part->tally_extent = (struct extent){.in = &part->weight, .out = &part->weight, .elements = 1};
    part->collective = (struct collective){.dtype = DTYPE_UINT64,
                                           .op = REDUCE_MAX,
                                           .extents = &part->tally_extent,
                                           .extent_count = 1,
                                           .elements = 1};
    part_name(redo, part);
    part->collective.device = NULL;
    part->collective.ready_count = 0;
    part->collective.behind = NULL;
    redo->count++;
    return true;
}

// Counts the part that was made last, unless it has no elements. Every REDO_BATCH parts end with a
// tally.
static bool redo_count_part(struct redo *redo)
{
    if (redo->parts[redo->count].span_count == 0)
        return true;
    redo->count++;
    return redo->count % REDO_BATCH != REDO_BATCH - 1 || redo_add_tally(redo);
}

// Makes the part that sums up all REDUCE rows from row *at on, as many as fit: the units of a part
// are bounded. *at: the next row.
static bool redo_add_sum(struct redo *redo, const struct transport_redo *what, uint32_t *at)
{
    const struct collective *outer = redo->outer;
    struct redo_part *part = &redo->parts[redo->count];
    uint32_t units = 0;
    for (; *at < what->count; (*at)++) {
        const struct redo_row *row = &what->rows[*at];
        const struct ring_span span = {row->first, row->end - row->first};
        if (row->kind != REDO_REDUCE)
            continue;
        units += units_met(outer->unit_ends, outer->unit_count, span).count;
        if (units > LOCKSTEP_BUCKET_PARAMETERS && part->span_count > 0)
            break;
        if (!redo_part_add(part, row->first, row->end))
            return false;
    }
    if (part->span_count == 0)
        return true;
    part->collective = *outer;
    part->collective.elements = 0;
    part->collective.state = NULL;
    part->sums = true;
    part_name(redo, part);
    return redo_part_lay(part, outer, false, false) && redo_part_divide(part, outer) &&
           redo_count_part(redo);
}

// Makes the part in which one rank gives what it has.
static bool redo_add_gift(struct redo *redo, const struct transport_redo *what, uint32_t owner,
                          bool own)
{
    struct redo_part *part = &redo->parts[redo->count];
    for (uint32_t i = 0; i < what->count; i++) {
        const struct redo_row *row = &what->rows[i];
        if (row->kind == REDO_HAVE && row->owner == owner &&
            !redo_part_add_used(part, redo->outer, row->first, row->end))
            return false;
    }
    if (part->span_count == 0)
        return true;
    part->collective = (struct collective){
        .kind = COLLECTIVE_BROADCAST, .dtype = redo->outer->dtype, .root = owner};
    part_name(redo, part);
    return redo_part_lay(part, redo->outer, true, own) &&
           (!redo->outer->parts || redo_part_give(part, own)) && redo_count_part(redo);
}

static bool redo_make(struct transport *transport, struct redo *redo,
                      const struct transport_redo *what)
{
    const uint32_t world = transport->flows.world.world_size;
    for (uint32_t at = 0; at < what->count;) {
        if (!redo_add_sum(redo, what, &at))
            return false;
    }
    // In a world or group of one, this rank has what it would give.
    for (uint32_t owner = 0; world > 1 && owner < world; owner++) {
        bool gives = false;
        for (uint32_t i = 0; i < what->count && !gives; i++)
            gives = what->rows[i].kind == REDO_HAVE && what->rows[i].owner == owner;
        if (gives && !redo_add_gift(redo, what, owner, owner == transport->flows.world.rank))
            return false;
    }
    return redo_add_tally(redo);
}

// ---- running ------------------------------------------------------------------------------------

static void redo_launch(struct transport *transport, struct collective *collective)
{
    const enum device_way way = device_way_of(&transport->flows.world, collective);
    if (way == DEVICE_WAY_HOST)
        flow_launch(&transport->flows, collective);
    else
        devices_launch(&transport->flows, collective, way);
}

// Launches the parts up to the next tally.
static void redo_go_on(struct transport *transport, struct redo *redo)
{
    for (uint32_t i = 0; i < redo->count; i++) {
        struct redo_part *part = &redo->parts[i];
        if (part->launched)
            continue;
        part->launched = true;
        if (part->tally)
            part->weight = redo->weight;
        redo_launch(transport, &part->collective);
        if (part->tally)
            return;
    }
}

static void redo_identify(struct redo *redo, const struct transport_redo *what)
{
    const struct collective *outer = redo->outer;
    const uint64_t space[] = {outer->tag.space, outer->tag.slot, 3};
    uint64_t signature = outer->signature;
    for (uint32_t i = 0; i < what->count; i++) {
        const struct redo_row *row = &what->rows[i];
        const uint64_t words[] = {signature, row->first, row->end, row->owner, (uint64_t)row->kind};
        signature = hash64(words, sizeof(words));
    }
    redo->space = hash64(space, sizeof(space));
    redo->signature = signature;
}

// At most one part for each row, and a tally for REDO_BATCH - 1 parts and at the end.
static struct redo *redo_open(struct transport *transport, struct collective *collective,
                              const struct transport_redo *what)
{
    const size_t most = (size_t)what->count + what->count / (REDO_BATCH - 1) + 2;
    struct redo *redo = calloc(1, sizeof(*redo) + most * sizeof(redo->parts[0]));
    if (!redo)
        return NULL;
    redo->outer = collective;
    redo->whole = what->whole;
    redo->held = freeze_take(&transport->freezer, collective);
    redo->weight = redo->held ? redo->held->weight : 0;
    if (what->whole && collective->weight_total > redo->weight)
        redo->weight = collective->weight_total;
    redo_identify(redo, what);
    return redo;
}

// Gives back what is held, for another try.
static const char *redo_refuse(struct transport *transport, struct redo *redo, const char *text)
{
    if (redo->held)
        list_push_back(&transport->freezer.held, &redo->held->node);
    redo->held = NULL;
    // The part that was being made is not counted yet.
    redo->count++;
    redo_free(redo);
    return text;
}

const char *transport_redo(struct transport *transport, struct collective *collective,
                           const struct transport_redo *what)
{
    thread_assert(&transport->flows.thread);
    assert(transport->flows.formed && collective->kind == COLLECTIVE_ALLREDUCE);
    struct redo *redo = redo_open(transport, collective, what);
    if (!redo)
        return redo_no_memory;
    const char *text = redo_check(transport, redo, what);
    if (text)
        return redo_refuse(transport, redo, text);
    for (uint32_t i = 0; what->used && i < units_words(collective->unit_count); i++)
        collective->used[i] |= what->used[i];
    if (!redo_make(transport, redo, what))
        return redo_refuse(transport, redo, redo_no_memory);
    collective->state = NULL;
    collective->first_sent_us = collective->last_received_us = 0;
    list_push_back(&transport->redos.all, &redo->node);
    redo_go_on(transport, redo);
    return NULL;
}

// ---- what has become of it ----------------------------------------------------------------------

static void part_tell_used(const struct redo_part *part, const struct collective *outer)
{
    for (uint32_t i = 0; part->sums && i < part->collective.unit_count; i++) {
        if (units_is_used(part->used, i))
            units_set_used(outer->used, part->units[i]);
    }
}

static void redo_end(struct redo *redo)
{
    struct collective *outer = redo->outer;
    for (uint32_t i = 0; i < redo->count; i++) {
        const struct redo_part *part = &redo->parts[i];
        part_tell_used(part, outer);
        if (outer->first_sent_us == 0 || part->collective.first_sent_us < outer->first_sent_us)
            outer->first_sent_us = part->collective.first_sent_us;
        if (part->collective.last_received_us > outer->last_received_us)
            outer->last_received_us = part->collective.last_received_us;
        if (part->sums && part->collective.weight_total > 0)
            redo->weight = part->collective.weight_total;
    }
    outer->weight_total = outer->op == REDUCE_MEAN ? redo->weight : 0;
}

// Adds the elements of the whole collective that are final in a part.
static void part_finals(const struct transport *transport, const struct redo_part *part,
                        struct finals *finals)
{
    const struct collective *collective = &part->collective;
    const struct flow *flow = collective->state;
    struct finals own = {.weight = 0};
    uint64_t begin = 0;
    uint32_t at = 0;
    if (part->settled) {
        finals_weigh(&own, collective->weight_total);
        finals_add(&own, (struct ring_span){0, collective->elements});
    } else if (flow && !collective->device && transport->flows.world.world_size > 1) {
        flow->way->finals(&transport->flows, flow, &own);
    }
    finals_tidy(&own, collective->elements);
    if (!part->sums)
        finals_weigh(&own, 1); // The owner knows the weight; it is not 0.
    else if (collective->op == REDUCE_MEAN && own.weight == 0)
        own.count = 0;
    for (uint32_t i = 0; i < part->span_count; i++) {
        const struct redo_run *span = &part->spans[i];
        const uint64_t end = begin + span->end - span->first;
        while (at < own.count && own.runs[at].end <= begin)
            at++;
        for (uint32_t k = at; k < own.count && own.runs[k].first < end; k++) {
            const uint64_t first = own.runs[k].first > begin ? own.runs[k].first : begin;
            const uint64_t last = own.runs[k].end < end ? own.runs[k].end : end;
            finals_add(finals, (struct ring_span){span->first + first - begin, last - first});
        }
        begin = end;
    }
    if (own.count > 0)
        finals_weigh(finals, own.weight);
    finals->lacks = finals->lacks || own.lacks;
    finals->unknown = own.unknown ? own.unknown : finals->unknown;
    finals_free(&own);
}

static void redo_add_finals(const struct transport *transport, const struct redo *redo,
                            struct finals *finals)
{
    for (uint32_t i = 0; redo->held && i < redo->held->run_count; i++) {
        const struct redo_run *run = &redo->held->runs[i];
        finals_add(finals, (struct ring_span){run->first, run->end - run->first});
    }
    if (redo->whole)
        finals_add(finals, (struct ring_span){0, redo->outer->elements});
    finals_weigh(finals, redo->held ? redo->held->weight : 0);
    for (uint32_t i = 0; i < redo->count; i++) {
        part_tell_used(&redo->parts[i], redo->outer);
        if (!redo->parts[i].tally)
            part_finals(transport, &redo->parts[i], finals);
    }
}

struct collective *redo_finals(struct transport *transport, uint32_t index, struct finals *finals)
{
    list_for_each (node, &transport->redos.all) {
        const struct redo *redo = list_entry(node, struct redo, node);
        if (index-- > 0)
            continue;
        redo_add_finals(transport, redo, finals);
        finals_weigh(finals, redo->weight);
        return redo->outer;
    }
    return NULL;
}

// No rank that is left has a weight, and something is final: launches the sums again, as sums of
// nothing. Returns false if this is not so, or was done.
static bool redo_write_zeros(struct transport *transport, struct redo *redo)
{
    uint32_t sums = 0;
    for (uint32_t i = 0; i < redo->count && redo->weight > 0; i++) {
        const struct redo_part *part = &redo->parts[i];
        if (part->sums && (part->collective.op != REDUCE_MEAN || part->collective.weight_total > 0))
            return false;
        sums += part->sums;
    }
    for (uint32_t i = 0; i < redo->count && sums > 0; i++) {
        struct redo_part *part = &redo->parts[i];
        if (!part->sums)
            continue;
        redo_part_empty(part);
        part->collective.op = REDUCE_SUM;
        part->collective.tag.slot += redo->count;
        part->collective.state = NULL;
        part->settled = false;
        redo->settled--;
    }
    for (uint32_t i = 0; i < redo->count && sums > 0; i++) {
        if (redo->parts[i].sums)
            redo_launch(transport, &redo->parts[i].collective);
    }
    return sums > 0;
}

struct collective *redo_done(struct transport *transport, struct collective *collective)
{
    struct redo *redo = redo_of(&transport->redos, collective);
    struct redo_part *part = (struct redo_part *)(void *)collective;
    struct collective *outer = redo->outer;
    part->settled = true;
    redo->settled++;
    if (part->tally && part->weight > redo->weight)
        redo->weight = part->weight;
    if (redo->settled < redo->count) {
        if (part->tally)
            redo_go_on(transport, redo);
        return NULL;
    }
    if (redo_write_zeros(transport, redo))
        return NULL;
    redo_end(redo);
    list_remove(&redo->node);
    redo_free(redo);
    return outer;
}
