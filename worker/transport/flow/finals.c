// SPDX-License-Identifier: Apache-2.0
//
// The final elements of a collective; see finals.h. This runs only when a generation is frozen, so
// it may allocate. Engine thread.

#include "worker/transport/flow/finals.h"

#include "worker/transport/flow/flows.h"

#include <stdlib.h>
#include <string.h>

#define FINALS_ROOM 16

static void finals_push(struct finals *finals, uint64_t first, uint64_t end)
{
    if (finals->count == finals->room) {
        const uint32_t room = finals->room == 0 ? FINALS_ROOM : 2 * finals->room;
        struct redo_run *runs = realloc(finals->runs, room * sizeof(*runs));
        if (!runs) {
            finals->lacks = true;
            return;
        }
        finals->runs = runs;
        finals->room = room;
    }
    finals->runs[finals->count++] = (struct redo_run){.first = first, .end = end};
}

void finals_add(struct finals *finals, struct ring_span span)
{
    struct redo_run *last = finals->count > 0 ? &finals->runs[finals->count - 1] : NULL;
    if (span.count == 0)
        return;
    if (last && last->end == span.first)
        last->end += span.count;
    else
        finals_push(finals, span.first, span.first + span.count);
}

void finals_weigh(struct finals *finals, uint64_t weight)
{
    if (weight > finals->weight)
        finals->weight = weight;
}

bool finals_arrives(const struct peer_link *peer, const struct flow *flow)
{
    return peer && peer->stream.in_payload && peer->stream.flow == flow && !peer->stream.parked;
}

void finals_add_arriving(struct finals *finals, const struct peer_link *peer, struct ring_span span)
{
    const struct stream *stream = &peer->stream;
    if (stream->target.kind != TARGET_OUT)
        return;
    // A fraction of an element is still in the staging buffer and counts as left.
    const uint64_t written = stream->header.payload_bytes - stream->payload_left;
    span.count = written / stream->target.cursor.element_bytes;
    if (written % stream->target.cursor.element_bytes != 0)
        finals->unknown = "a receive ended inside an element of it";
    finals_add(finals, span);
    finals_weigh(finals, stream->header.weight);
}

static int finals_compare(const void *one, const void *other)
{
    const struct redo_run *left = one;
    const struct redo_run *right = other;
    return left->first < right->first ? -1 : left->first > right->first;
}

void finals_tidy(struct finals *finals, uint64_t elements)
{
    uint32_t count = 0;
    if (finals->count == 0)
        return;
    qsort(finals->runs, finals->count, sizeof(finals->runs[0]), finals_compare);
    for (uint32_t i = 0; i < finals->count; i++) {
        struct redo_run run = finals->runs[i];
        struct redo_run *last = count > 0 ? &finals->runs[count - 1] : NULL;
        if (run.end > elements)
            run.end = elements;
        if (run.first >= run.end)
            continue;
        if (last && run.first <= last->end)
            last->end = run.end > last->end ? run.end : last->end;
        else
            finals->runs[count++] = run;
    }
    finals->count = count;
}

void finals_leave_out(struct finals *finals, const struct extent *extents, uint32_t count)
{
    struct finals kept = {.weight = finals->weight};
    uint32_t at = 0;
    uint64_t begin = 0;
    bool missing = false;
    for (uint32_t i = 0; i < count; i++)
        missing = missing || (!extents[i].out && extents[i].elements > 0);
    if (!missing)
        return;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t end = begin + extents[i].elements;
        while (at < finals->count && finals->runs[at].end <= begin)
            at++;
        for (uint32_t k = at; extents[i].out && k < finals->count; k++) {
            const struct redo_run *run = &finals->runs[k];
            const uint64_t first = run->first > begin ? run->first : begin;
            const uint64_t last = run->end < end ? run->end : end;
            if (first >= end)
                break;
            finals_add(&kept, (struct ring_span){first, last - first});
        }
        begin = end;
    }
    kept.lacks = kept.lacks || finals->lacks;
    kept.unknown = finals->unknown;
    free(finals->runs);
    *finals = kept;
}

bool finals_are_all(const struct finals *finals, uint64_t elements)
{
    return finals->count == 1 && finals->runs[0].first == 0 && finals->runs[0].end == elements;
}

void finals_free(struct finals *finals)
{
    free(finals->runs);
    memset(finals, 0, sizeof(*finals));
}
