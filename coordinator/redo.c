// SPDX-License-Identifier: Apache-2.0
//
// How one slot is repeated after a death. The slot is cut into maximal pieces with one set of
// holders, the members on which the piece is final:
//
//     nobody    the piece is an input on every member: it is reduced again, a share by each member
//     everybody nothing is to be done
//     some      one holder gives its bytes to the others
//
// Rule R1 makes this complete: an element is an intact input on every survivor, or final on at
// least one. An element that is final on one member contains the gradients of every member, so all
// members have contributed to a slot of which any element is final.

#include "coordinator/redo.h"

#include "protos/limits.h"

#include <stddef.h>

struct redo {
    const struct redo_report *reports;
    uint32_t members;
    uint64_t elements;
    struct redo_row *rows;
    uint32_t room;
    uint32_t count;
    uint32_t cursors[LOCKSTEP_MAX_WORLD]; // By member: the first run that ends behind `at`.
};

// What all members have of the elements from `at` to `end`.
struct redo_piece {
    uint64_t at;
    uint64_t end;
    uint32_t holders;
    uint32_t owner; // A holder whose successor is none. Valid if some members are holders.
};

static bool redo_well_formed(const struct redo_report *report, uint64_t elements)
{
    uint64_t end = 0;
    if (elements == 0 && report->run_count == 1)
        return report->runs[0].first == 0 && report->runs[0].end == 0;
    for (uint32_t i = 0; i < report->run_count; i++) {
        const struct redo_run *run = &report->runs[i];
        if (run->end <= run->first || run->end > elements || (i > 0 && run->first <= end))
            return false;
        end = run->end;
    }
    return true;
}

// True if the member holds the element `at`. Shortens the piece to where this changes.
static bool redo_holds(struct redo *redo, uint32_t member, struct redo_piece *piece)
{
    const struct redo_report *report = &redo->reports[member];
    uint32_t *cursor = &redo->cursors[member];
    while (*cursor < report->run_count && report->runs[*cursor].end <= piece->at)
        (*cursor)++;
    if (*cursor == report->run_count)
        return false;
    const struct redo_run *run = &report->runs[*cursor];
    const bool holds = run->first <= piece->at;
    const uint64_t end = holds ? run->end : run->first;
    if (end < piece->end)
        piece->end = end;
    return holds;
}

static void redo_measure(struct redo *redo, struct redo_piece *piece)
{
    const bool last_holds = redo_holds(redo, redo->members - 1, piece);
    bool before = last_holds;
    piece->holders = 0;
    piece->owner = 0;
    for (uint32_t i = 0; i < redo->members; i++) {
        const bool holds = i + 1 == redo->members ? last_holds : redo_holds(redo, i, piece);
        piece->holders += holds;
        if (before && !holds)
            piece->owner = (i + redo->members - 1) % redo->members;
        before = holds;
    }
}

static bool redo_add(struct redo *redo, uint64_t first, uint64_t end, uint32_t owner,
                     enum redo_kind kind)
{
    struct redo_row *last = redo->count > 0 ? &redo->rows[redo->count - 1] : NULL;
    if (first == end)
        return true;
    if (last && last->end == first && last->owner == owner && last->kind == kind &&
        kind == REDO_HAVE) {
        last->end = end;
        return true;
    }
    if (redo->count == redo->room)
        return false;
    redo->rows[redo->count++] =
        (struct redo_row){.first = first, .end = end, .owner = owner, .kind = kind};
    return true;
}

// Shares out a piece that nobody holds. `share` is computed in this order so that it cannot
// overflow, and differs by at most one element between members.
static bool redo_share(struct redo *redo, const struct redo_piece *piece)
{
    const uint64_t length = piece->end - piece->at;
    const uint64_t share = length / redo->members;
    const uint64_t longer = length % redo->members;
    uint64_t first = piece->at;
    for (uint32_t i = 0; i < redo->members; i++) {
        const uint64_t end = first + share + (i < longer);
        if (!redo_add(redo, first, end, i, REDO_REDUCE))
            return false;
        first = end;
    }
    return true;
}

static enum redo_status redo_cut(struct redo *redo)
{
    // A piece that nobody holds ends where some member begins to hold. Neighbours of one kind do
    // not occur, because a piece ends only where the holders change.
    for (uint64_t at = 0; at < redo->elements;) {
        struct redo_piece piece = {.at = at, .end = redo->elements};
        bool fits = true;
        redo_measure(redo, &piece);
        if (piece.holders == 0)
            fits = redo_share(redo, &piece);
        else if (piece.holders < redo->members)
            fits = redo_add(redo, piece.at, piece.end, piece.owner, REDO_HAVE);
        if (!fits)
            return REDO_NO_ROOM;
        at = piece.end;
    }
    return REDO_ROWS;
}

enum redo_status redo_decide(const struct redo_report *reports, uint32_t members, uint64_t elements,
                             struct redo_row *rows, uint32_t room, uint32_t *count)
{
    struct redo redo = {
        .reports = reports, .members = members, .elements = elements, .rows = rows, .room = room};
    bool final = false;
    bool contributed = true;
    *count = 0;
    for (uint32_t i = 0; i < members; i++) {
        if (!redo_well_formed(&reports[i], elements))
            return REDO_IMPOSSIBLE;
        final = final || reports[i].run_count > 0;
        contributed = contributed && reports[i].contributed;
    }
    if (!final)
        return REDO_AGAIN;
    if (!contributed)
        return REDO_IMPOSSIBLE;
    const enum redo_status status = redo_cut(&redo);
    *count = status == REDO_ROWS ? redo.count : 0;
    return status;
}
