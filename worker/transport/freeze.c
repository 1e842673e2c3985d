// SPDX-License-Identifier: Apache-2.0
//
// Freezing a generation. The driver is never inside a receive or a sum here, so all user memory has
// whole elements, and each way of reducing can say which of them are final. The order matters:
// first the links end, because a link that takes a frame can let a way go on, and then the final
// elements are written down. Engine thread.
//
// An element that was not written is no final element, although the collective may be complete: if
// all weights of a mean are zero, or an output is missing, the input is intact. Elements of units
// that no rank has used are final, and nothing is written there, in a repetition either.

#include "worker/transport/freeze.h"

#include "base/bits.h"
#include "base/clock.h"
#include "worker/memory/units.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/teardown.h"
#include "worker/transport/farewell.h"
#include "worker/transport/flow/finals.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/host/fence.h"
#include "worker/transport/host/two_level.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/ports.h"
#include "worker/transport/redo.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#include <stdlib.h>
#include <string.h>

// ---- what is held -------------------------------------------------------------------------------

void freeze_init(struct freezer *freezer)
{
    list_init(&freezer->held);
}

void freeze_drop(struct held *held)
{
    if (!held)
        return;
    free(held->runs);
    free(held->used);
    free(held);
}

void freeze_fini(struct freezer *freezer)
{
    struct list *node = NULL;
    while ((node = list_pop_front(&freezer->held)))
        freeze_drop(list_entry(node, struct held, node));
}

static struct held *freeze_find(const struct freezer *freezer, const struct collective *collective)
{
    list_for_each (node, &freezer->held) {
        struct held *held = list_entry(node, struct held, node);
        if (held->collective == collective && held->step == collective->tag.step &&
            held->space == collective->tag.space && held->slot == collective->tag.slot)
            return held;
    }
    return NULL;
}

struct held *freeze_take(struct freezer *freezer, const struct collective *collective)
{
    struct held *held = freeze_find(freezer, collective);
    if (held)
        list_remove(&held->node);
    return held;
}

// Drops what is held of steps that no rank can repeat any more: at most two steps are open.
static void freeze_prune(struct freezer *freezer, const struct collective_tag *tag)
{
    list_for_each_safe (node, &freezer->held) {
        struct held *held = list_entry(node, struct held, node);
        if (held->space != tag->space || held->step + 2 > tag->step)
            continue;
        list_remove(node);
        freeze_drop(held);
    }
}

// ---- one collective -----------------------------------------------------------------------------

// Why a collective cannot be repeated. NULL: it can.
static const char *freeze_obstacle(const struct transport *transport,
                                   const struct collective *collective)
{
    if (collective->kind != COLLECTIVE_ALLREDUCE)
        return "it is no allreduce";
    if ((collective->on_devices || collective->device) && !transport->flows.recovers)
        return "its memory is on a device, and NCCL may have written it";
    return NULL;
}

// True if this rank has an input for the unit whose elements begin at `first`.
static bool freeze_gives(const struct extent_map *map, uint64_t first)
{
    struct extent_cursor cursor = extent_seek(map, first);
    uint8_t *in = NULL;
    (void)extent_run(&cursor, EXTENT_IN, map->element_bytes, &in);
    return in != NULL;
}

// Sets the used bits to those of this rank's inputs. A unit without elements keeps its bit.
static void freeze_reset_used(const struct collective *collective)
{
    struct extent_map map;
    uint64_t first = 0;
    (void)extent_map_init(&map, collective->extents, collective->extent_count,
                          (uint32_t)dtype_size(collective->dtype));
    for (uint32_t i = 0; i < collective->unit_count; i++) {
        const uint64_t end = collective->unit_ends[i];
        if (end > first && !freeze_gives(&map, first))
            bits_remove(collective->used, i);
        first = end;
    }
}

// The used bits of the units that have a final element. NULL: no memory.
static uint64_t *freeze_used(const struct collective *collective, const struct finals *finals)
{
    const uint32_t words = units_words(collective->unit_count);
    uint64_t *used = calloc(words == 0 ? 1 : words, sizeof(*used));
    uint32_t at = 0;
    uint64_t first = 0;
    for (uint32_t i = 0; used && i < collective->unit_count; i++) {
        const uint64_t end = collective->unit_ends[i];
        while (at < finals->count && finals->runs[at].end <= first)
            at++;
        if (end > first && at < finals->count && finals->runs[at].first < end &&
            units_is_used(collective->used, i))
            units_set_used(used, i);
        first = end;
    }
    return used;
}

// Keeps what is final of a collective, and takes the runs, which are tidy.
static void freeze_keep(struct freezer *freezer, const struct collective *collective,
                        struct finals *finals)
{
    struct held *held = calloc(1, sizeof(*held));
    uint64_t *used = freeze_used(collective, finals);
    freeze_drop(freeze_take(freezer, collective));
    if (!held || !used) {
        free(held);
        free(used);
        freezer->lacks = true;
        return;
    }
    *held = (struct held){.collective = collective,
                          .step = collective->tag.step,
                          .space = collective->tag.space,
                          .slot = collective->tag.slot,
                          .unknown = finals->unknown,
                          .weight = finals->weight,
                          .run_count = finals->count,
                          .runs = finals->runs,
                          .used = used,
                          .all = finals_are_all(finals, collective->elements)};
    finals->runs = NULL;
    list_push_back(&freezer->held, &held->node);
}

// Keeps what is final of a collective that the caller has launched.
static void freeze_collective(struct transport *transport, const struct collective *collective,
                              struct finals *finals)
{
    struct freezer *freezer = &transport->freezer;
    const char *obstacle = freeze_obstacle(transport, collective);
    if (obstacle)
        finals->unknown = obstacle;
    finals_tidy(finals, collective->elements);
    if (collective->op == REDUCE_MEAN && finals->weight == 0)
        finals->count = 0;
    finals_leave_out(finals, collective->extents, collective->extent_count);
    // The inputs of a tree are not in user memory: they are intact, and its sums cannot be cut.
    if (collective->tree && !finals_are_all(finals, collective->elements))
        finals->count = 0;
    freezer->lacks = freezer->lacks || finals->lacks;
    if (finals->count > 0 || finals->unknown)
        freeze_keep(freezer, collective, finals);
    freeze_prune(freezer, &collective->tag);
    if (!obstacle)
        freeze_reset_used(collective);
    finals_free(finals);
}

// ---- all collectives ----------------------------------------------------------------------------

static void freeze_flow(struct transport *transport, const struct flow *flow, bool done)
{
    const struct collective *collective = flow->collective;
    struct finals finals = {.weight = 0};
    if (!collective || two_level_outer(&transport->flows, flow->collective) ||
        redo_outer(&transport->redos, collective) ||
        devices_outer(&transport->flows, flow->collective))
        return;
    if (done) {
        finals_weigh(&finals, collective->weight_total);
        finals_add(&finals, (struct ring_span){0, collective->elements});
    } else if (freeze_obstacle(transport, collective)) {
        finals.unknown = freeze_obstacle(transport, collective);
    } else if (flow->mismatched) {
        finals.unknown = "ranks disagree about it";
    } else if (!flow->way->finals) {
        finals.unknown = "its way of reducing does not tell what is final";
    } else {
        flow->way->finals(&transport->flows, flow, &finals);
    }
    freeze_collective(transport, collective, &finals);
}

static void freeze_flows(struct transport *transport)
{
    const struct list *lists[] = {&transport->flows.active, &transport->flows.done,
                                  &transport->flows.mismatched};
    for (uint32_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        list_for_each (node, lists[i]) {
            freeze_flow(transport, list_entry(node, struct flow, turn),
                        lists[i] == &transport->flows.done);
        }
    }
    // In a world of one nothing is computed before the collective is done.
    list_for_each (node, &transport->flows.local) {
        const struct flow *flow = list_entry(node, struct flow, turn);
        struct finals finals = {.weight = 0};
        if (!redo_outer(&transport->redos, flow->collective))
            freeze_collective(transport, flow->collective, &finals);
    }
}

// A result is written to gradients on a device as a whole, and then it is done.
static void freeze_devices(struct transport *transport)
{
    struct collective *collective;
    for (uint32_t i = 0; (collective = devices_whole(&transport->flows, i)); i++) {
        struct finals finals = {.weight = 0};
        if (!redo_outer(&transport->redos, collective))
            freeze_collective(transport, collective, &finals);
    }
}

// A collective that was being repeated has what was final before, and what has become final since.
static void freeze_redos(struct transport *transport)
{
    for (uint32_t i = 0;; i++) {
        struct finals finals = {.weight = 0};
        const struct collective *collective = redo_finals(transport, i, &finals);
        if (!collective)
            return;
        freeze_collective(transport, collective, &finals);
    }
}

// ---- the end of the generation ------------------------------------------------------------------

// Some links may not take the goodbye: the end of a link is no proof of a death.
static void freeze_links(struct transport *transport, const struct generation_id *ballot)
{
    const struct farewell farewell = {.kind = FAREWELL_FROZEN,
                                      .rank = transport->flows.world.rank,
                                      .witness = transport->flows.world.rank,
                                      .step = ballot->number};
    transport_goodbye(transport, &farewell);
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct peer_link *peer = transport->flows.links.all[i];
        if (!peer->stream.link)
            continue;
        if (peer->state == PEER_PROVEN)
            farewell_part(peer);
        transport_close_stream(peer, false);
    }
}

int transport_freeze(struct transport *transport, const struct generation_id *ballot)
{
    thread_assert(&transport->flows.thread);
    if (!transport->forming.has_world)
        return 0;
    fence_freeze(&transport->flows);
    ports_doubt_all(transport);
    freeze_links(transport, ballot);
    teardown_deliver(&transport->flows);
    while (transport_report_devices(transport) || devices_report(&transport->flows))
        continue;
    freeze_redos(transport);
    freeze_flows(transport);
    freeze_devices(transport);
    teardown_freeze(&transport->flows);
    transport_forget(transport);
    return transport->freezer.lacks ? -1 : 0;
}

void transport_final(const struct transport *transport, const struct collective *collective,
                     struct transport_finals *finals)
{
    const struct held *held = freeze_find(&transport->freezer, collective);
    *finals = (struct transport_finals){.unknown = freeze_obstacle(transport, collective)};
    if (!held || finals->unknown)
        return;
    *finals = (struct transport_finals){.unknown = held->unknown,
                                        .run_count = held->run_count,
                                        .runs = held->runs,
                                        .all = held->all};
    if (held->unknown)
        finals->run_count = 0;
}

void transport_final_used(const struct transport *transport, const struct collective *collective,
                          uint64_t *used)
{
    const struct held *held = freeze_find(&transport->freezer, collective);
    uint64_t first = 0;
    memset(used, 0, units_words(collective->unit_count) * sizeof(*used));
    for (uint32_t i = 0; i < collective->unit_count; i++) {
        const uint64_t end = collective->unit_ends[i];
        const uint64_t *known = held ? held->used : NULL;
        if (end == first)
            known = collective->used;
        if (known && units_is_used(known, i))
            units_set_used(used, i);
        first = end;
    }
}
