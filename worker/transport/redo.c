// SPDX-License-Identifier: Apache-2.0
//
// Repeats a collective by the rows of a decision. The rows become *parts*, which are collectives of
// their own on the ring of the generation:
//
//     REDUCE rows  one allreduce of all their elements, from the inputs, which are intact
//     HAVE rows    a broadcast for each owner, from its outputs
//     tally        after REDO_BATCH parts, and at the end: the largest weight of final elements
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
// final get their bits from the allreduce. Engine thread.

#include "worker/transport/redo.h"

#include "base/hash64.h"
#include "worker/memory/units.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/flow/finals.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/freeze.h"
#include "worker/transport/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REDO_BATCH 32

static const char *const redo_no_memory = "this rank has no memory to repeat a collective";

struct redo_part {
    struct collective collective;
    bool tally;
    bool sums; // True if it sums up elements of the whole collective.
    bool launched;
    bool settled; // True once it is done.
    // The elements of the whole collective that it consists of, ascending.
    uint32_t span_count;
    struct redo_run *spans;
    struct extent *extents;
    uint64_t *unit_ends;
    uint32_t *units; // By unit of the part: the unit of the whole collective.
    uint64_t *used;
    struct extent tally_extent;
    uint64_t weight; // The memory of a tally.
};

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

static bool part_add_span(struct redo_part *part, uint64_t first, uint64_t end)
{
    struct redo_run *last = part->span_count > 0 ? &part->spans[part->span_count - 1] : NULL;
    if (last && last->end == first) {
        last->end = end;
        return true;
    }
    struct redo_run *spans = realloc(part->spans, (part->span_count + 1) * sizeof(*spans));
    if (!spans)
        return false;
    part->spans = spans;
    part->spans[part->span_count++] = (struct redo_run){.first = first, .end = end};
    return true;
}

// Adds the elements of used units.
static bool part_add_used(struct redo_part *part, const struct collective *outer, uint64_t first,
                          uint64_t end)
{
    const struct ring_span span = {first, end - first};
    const struct unit_range met = units_met(outer->unit_ends, outer->unit_count, span);
    if (outer->unit_count == 0)
        return part_add_span(part, first, end);
    for (uint32_t unit = met.first; unit < met.first + met.count; unit++) {
        const uint64_t unit_end = outer->unit_ends[unit] < end ? outer->unit_ends[unit] : end;
        if (unit_end > first && units_is_used(outer->used, unit) &&
            !part_add_span(part, first, unit_end))
            return false;
        first = unit_end > first ? unit_end : first;
    }
    return true;
}

// Sets the extents of a part. gives: its input are the outputs of the whole collective.
static bool part_lay(struct redo_part *part, const struct collective *outer, bool gives)
{
    const uint32_t size = (uint32_t)dtype_size(outer->dtype);
    uint32_t count = 0;
    uint32_t at = 0;
    uint64_t begin = 0;
    part->extents = calloc(outer->extent_count + part->span_count, sizeof(*part->extents));
    if (!part->extents)
        return false;
    for (uint32_t i = 0; i < outer->extent_count; i++) {
        const struct extent *from = &outer->extents[i];
        const uint64_t end = begin + from->elements;
        while (at < part->span_count && part->spans[at].end <= begin)
            at++;
        for (uint32_t k = at; k < part->span_count && part->spans[k].first < end; k++) {
            const uint64_t first = part->spans[k].first > begin ? part->spans[k].first : begin;
            const uint64_t last = part->spans[k].end < end ? part->spans[k].end : end;
            const uint64_t offset = (first - begin) * size;
            const uint8_t *in = gives ? from->out : from->in;
            uint8_t *out = from->out;
            part->extents[count++] = (struct extent){.in = in ? in + offset : NULL,
                                                     .out = out ? out + offset : NULL,
                                                     .elements = last - first};
            part->collective.elements += last - first;
        }
        begin = end;
    }
    part->collective.extents = part->extents;
    part->collective.extent_count = count;
    return true;
}

// Sets the units of a part that sums up.
static bool part_divide(struct redo_part *part, const struct collective *outer)
{
    const uint32_t most = outer->unit_count + part->span_count;
    uint32_t count = 0;
    uint64_t end = 0;
    if (outer->unit_count == 0)
        return true;
    part->unit_ends = calloc(most, sizeof(*part->unit_ends));
    part->units = calloc(most, sizeof(*part->units));
    part->used = calloc(units_words(most), sizeof(*part->used));
    if (!part->unit_ends || !part->units || !part->used)
        return false;
    for (uint32_t i = 0; i < part->span_count; i++) {
        uint64_t first = part->spans[i].first;
        const struct ring_span span = {first, part->spans[i].end - first};
        const struct unit_range met = units_met(outer->unit_ends, outer->unit_count, span);
        for (uint32_t unit = met.first; unit < met.first + met.count; unit++) {
            const uint64_t unit_end = outer->unit_ends[unit] < part->spans[i].end
                                          ? outer->unit_ends[unit]
                                          : part->spans[i].end;
            if (unit_end <= first)
                continue;
            end += unit_end - first;
            first = unit_end;
            part->unit_ends[count] = end;
            part->units[count] = unit;
            if (units_is_used(outer->used, unit))
                units_set_used(part->used, count);
            count++;
        }
    }
    part->collective.unit_ends = part->unit_ends;
    part->collective.unit_count = count;
    part->collective.used = part->used;
    return true;
}

static void part_name(struct redo *redo, struct redo_part *part)
{
    const struct collective *outer = redo->outer;
    part->collective.on_devices = false;
    part->collective.device = outer->device;
    part->collective.ready = outer->ready;
    part->collective.ready_count = outer->ready_count;
    part->collective.behind = outer->behind;
    part->collective.algorithm = ALGORITHM_RING;
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
        if (!part_add_span(part, row->first, row->end))
            return false;
    }
    if (part->span_count == 0)
        return true;
    part->collective = *outer;
    part->collective.elements = 0;
    part->collective.state = NULL;
    part->sums = true;
    part_name(redo, part);
    return part_lay(part, outer, false) && part_divide(part, outer) && redo_count_part(redo);
}

// Makes the part in which one rank gives what it has.
static bool redo_add_gift(struct redo *redo, const struct transport_redo *what, uint32_t owner)
{
    struct redo_part *part = &redo->parts[redo->count];
    for (uint32_t i = 0; i < what->count; i++) {
        const struct redo_row *row = &what->rows[i];
        if (row->kind == REDO_HAVE && row->owner == owner &&
            !part_add_used(part, redo->outer, row->first, row->end))
            return false;
    }
    if (part->span_count == 0)
        return true;
    part->collective = (struct collective){
        .kind = COLLECTIVE_BROADCAST, .dtype = redo->outer->dtype, .root = owner};
    part_name(redo, part);
    return part_lay(part, redo->outer, true) && redo_count_part(redo);
}

static bool redo_make(struct transport *transport, struct redo *redo,
                      const struct transport_redo *what)
{
    const uint32_t world = transport->flows.world.world_size;
    for (uint32_t at = 0; at < what->count;) {
        if (!redo_add_sum(redo, what, &at))
            return false;
    }
    // In a world of one, this rank has what it would give.
    for (uint32_t owner = 0; world > 1 && owner < world; owner++) {
        bool gives = false;
        for (uint32_t i = 0; i < what->count && !gives; i++)
            gives = what->rows[i].kind == REDO_HAVE && what->rows[i].owner == owner;
        if (gives && !redo_add_gift(redo, what, owner))
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
    for (uint32_t i = 0; i < part->collective.unit_count; i++) {
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
        if (part->sums)
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

// A mean that is done with a total weight of 0 may have elements that were final before.
static void redo_keep(struct transport *transport, const struct redo *redo)
{
    struct finals finals = {.weight = 0};
    if (redo->outer->op != REDUCE_MEAN || redo->outer->weight_total > 0)
        return;
    redo_add_finals(transport, redo, &finals);
    finals_tidy(&finals, redo->outer->elements);
    finals_leave_out(&finals, redo->outer->extents, redo->outer->extent_count);
    transport->freezer.lacks = transport->freezer.lacks || finals.lacks;
    if (finals.count > 0)
        freeze_keep(&transport->freezer, redo->outer, &finals);
    finals_free(&finals);
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
    redo_end(redo);
    redo_keep(transport, redo);
    list_remove(&redo->node);
    redo_free(redo);
    return outer;
}
