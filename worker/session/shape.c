// SPDX-License-Identifier: Apache-2.0
//
// The shape of a collective: shape.h has the words. A table says for each kind what input and
// output are on the root and on other members, and who sends to whom; the rest follows from it.

#include "worker/session/shape.h"

#include "base/hash64.h"
#include "worker/session/group.h"
#include "worker/support/error.h"
#include "worker/transport/flow/collective.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct shape_kind {
    const char *name;
    bool rooted;
    bool reduces;
    // On the root, and on each member of a kind without a root.
    enum shape_form input;
    enum shape_form output;
    // On the other members.
    enum shape_form other_input;
    enum shape_form other_output;
};

static const struct shape_kind shape_kinds[] = {
    [LOCKSTEP_ALLREDUCE] = {"allreduce", .reduces = true, .input = SHAPE_WHOLE,
                            .output = SHAPE_WHOLE},
    [LOCKSTEP_BROADCAST] = {"broadcast", .rooted = true, .input = SHAPE_WHOLE,
                            .output = SHAPE_WHOLE, .other_output = SHAPE_WHOLE},
    [LOCKSTEP_BARRIER] = {.name = "barrier"},
    [LOCKSTEP_REDUCE] = {"reduce", .rooted = true, .reduces = true, .input = SHAPE_WHOLE,
                         .output = SHAPE_WHOLE, .other_input = SHAPE_WHOLE},
    [LOCKSTEP_REDUCE_SCATTER] = {"reduce_scatter", .reduces = true, .input = SHAPE_PARTS,
                                 .output = SHAPE_OWN},
    [LOCKSTEP_GATHER] = {"gather", .rooted = true, .input = SHAPE_OWN, .output = SHAPE_PARTS,
                         .other_input = SHAPE_OWN},
    [LOCKSTEP_SCATTER] = {"scatter", .rooted = true, .input = SHAPE_PARTS, .output = SHAPE_OWN,
                          .other_output = SHAPE_OWN},
    [LOCKSTEP_ALL_GATHER] = {"all_gather", .input = SHAPE_OWN, .output = SHAPE_PARTS},
    [LOCKSTEP_ALL_TO_ALL] = {"all_to_all", .input = SHAPE_PARTS, .output = SHAPE_PARTS},
    [LOCKSTEP_SEND] = {"send", .input = SHAPE_WHOLE},
    [LOCKSTEP_RECEIVE] = {"receive", .output = SHAPE_WHOLE},
};
#define SHAPE_KINDS (sizeof(shape_kinds) / sizeof(shape_kinds[0]))

bool shape_is_rooted(lockstep_collective_kind kind)
{
    return shape_kinds[kind].rooted;
}

bool shape_reduces(lockstep_collective_kind kind)
{
    return shape_kinds[kind].reduces;
}

const char *shape_name(lockstep_collective_kind kind)
{
    return (unsigned)kind < SHAPE_KINDS ? shape_kinds[kind].name : NULL;
}

// ---- Sides -------------------------------------------------------------------------------------

static uint64_t side_count(const struct shape_side *side, uint32_t i)
{
    return side->counts ? side->counts[i] : side->count;
}

// Reads the bounds of a side with parts. False: there are more elements than fit in memory.
static bool side_bounds(struct shape_side *side, uint32_t rank, uint32_t size, uint64_t most)
{
    uint64_t at = 0;
    side->first = UINT64_MAX;
    for (uint32_t i = 0; i < size; i++) {
        const uint64_t count = side_count(side, i);
        if (side->offsets)
            at = side->offsets[i];
        if (count > most || at > most - count)
            return false;
        if (i == rank)
            side->own = at;
        if (i == rank)
            side->own_count = count;
        if (count > 0 && at < side->first)
            side->first = at;
        if (count > 0 && at + count > side->end)
            side->end = at + count;
        at += count;
    }
    if (side->end == 0)
        side->first = 0;
    return true;
}

// Reads one side. False: there are more elements than fit in memory.
static bool side_read(struct shape_side *side, const struct shape *shape, uint64_t most)
{
    const uint32_t rank = shape->rank;
    if (side->form == SHAPE_NONE) {
        *side = (struct shape_side){.form = SHAPE_NONE};
        return true;
    }
    if (side->form == SHAPE_PARTS)
        return side_bounds(side, rank, shape->size, most);
    side->own_count = side->form == SHAPE_OWN ? side_count(side, rank) : side->count;
    side->end = side->own_count;
    return side->own_count <= most;
}

static int side_compare(const void *a, const void *b)
{
    const uint64_t *p = a;
    const uint64_t *q = b;
    return p[0] < q[0] ? -1 : p[0] > q[0];
}

// ---- In place ----------------------------------------------------------------------------------

static bool shape_is(const struct shape *shape, lockstep_collective_kind kind)
{
    return shape->what->kind == kind;
}

static uint8_t *side_place(const struct shape *shape, const struct shape_side *side)
{
    return !side->memory ? NULL : side->memory + side->own * shape->element;
}

// An all_to_all without input that has counts of it sends nothing.
static bool shape_exchanges_in_place(const struct lockstep_collective *what)
{
    return what->kind == LOCKSTEP_ALL_TO_ALL && !what->input && !what->input_counts;
}

// Puts in the memory that the caller left out, because one side is a part of the other.
static void shape_complete(struct shape *shape)
{
    struct shape_side *input = &shape->input;
    struct shape_side *output = &shape->output;
    if (shape_is(shape, LOCKSTEP_SCATTER) && shape->is_root && !output->memory)
        output->memory = side_place(shape, input);
    if (shape_is(shape, LOCKSTEP_BROADCAST) && shape->is_root && !output->memory)
        output->memory = input->memory;
    if (input->memory || input->form == SHAPE_NONE || !shape->what->output)
        return;
    shape->copies = shape_exchanges_in_place(shape->what);
    if (shape_is(shape, LOCKSTEP_ALL_TO_ALL)) {
        input->memory = NULL; // In place, the caller copies the output.
    } else if (shape_is(shape, LOCKSTEP_REDUCE_SCATTER)) {
        input->memory = output->memory;
        output->memory = side_place(shape, input);
    } else if (shape_is(shape, LOCKSTEP_GATHER) && !shape->is_root) {
        input->memory = NULL; // A member that is not the root has no output.
    } else if (!shape_is(shape, LOCKSTEP_SEND) && !shape_is(shape, LOCKSTEP_SCATTER)) {
        input->memory =
            output->form == SHAPE_PARTS ? side_place(shape, output) : shape->what->output;
    }
}

static bool shape_meet(const struct shape *shape)
{
    const struct shape_side *input = &shape->input;
    const struct shape_side *output = &shape->output;
    const uintptr_t in = (uintptr_t)input->memory;
    const uintptr_t out = (uintptr_t)output->memory;
    return input->first < input->end && output->first < output->end &&
           in + input->first * shape->element < out + output->end * shape->element &&
           out + output->first * shape->element < in + input->end * shape->element;
}

// True if the memory that both sides have in common is the place that "in place" means.
static bool shape_may_meet(const struct shape *shape)
{
    if (shape_is(shape, LOCKSTEP_ALL_TO_ALL))
        return shape->copies;
    return side_place(shape, &shape->input) == side_place(shape, &shape->output);
}

// ---- Reading -----------------------------------------------------------------------------------

static int shape_fails(const struct shape *shape, const char *text)
{
    return error_set(LOCKSTEP_E_INVALID, "%s '%s': %s", shape_name(shape->what->kind),
                     shape->what->name, text);
}

static bool shape_lacks(const struct shape_side *side)
{
    return !side->memory && side->end > 0;
}

// A failure if two parts of the output overlap.
static int shape_check_parts(const struct shape *shape)
{
    const struct shape_side *side = &shape->output;
    uint64_t(*parts)[2] = calloc(shape->size, sizeof(*parts));
    uint32_t count = 0;
    bool overlaps = false;
    if (!parts)
        return error_set(LOCKSTEP_E_SYSTEM, "%s '%s': no memory", shape_name(shape->what->kind),
                         shape->what->name);
    for (uint32_t i = 0; i < shape->size; i++) {
        parts[count][0] = side->offsets[i];
        parts[count][1] = side_count(side, i);
        count += parts[count][1] > 0;
    }
    qsort(parts, count, sizeof(*parts), side_compare);
    for (uint32_t i = 1; i < count; i++)
        overlaps = overlaps || parts[i][0] - parts[i - 1][0] < parts[i - 1][1];
    free(parts);
    return overlaps ? shape_fails(shape, "parts of output overlap") : 0;
}

static int shape_check(struct shape *shape)
{
    if (shape_lacks(&shape->output))
        return shape_fails(shape, "output is NULL, and elements go there");
    if (shape_lacks(&shape->input) && !shape->copies)
        return shape_fails(shape, "input is NULL, and elements come from there");
    if (shape_is(shape, LOCKSTEP_ALL_TO_ALL) && shape->input.own_count != shape->output.own_count)
        return shape_fails(shape, "input_counts and output_counts differ in this rank's own part");
    if (shape->output.form == SHAPE_PARTS && shape->output.offsets) {
        const int status = shape_check_parts(shape);
        if (status < 0)
            return status;
    }
    shape->in_place = !shape->copies && shape_meet(shape);
    if (shape->in_place && !shape_may_meet(shape))
        return shape_fails(
            shape, "input and output overlap, gaps between parts included, and not as the kind "
                   "allows in place");
    shape->reads = shape->in_place &&
                   (shape_is(shape, LOCKSTEP_BROADCAST) || shape_is(shape, LOCKSTEP_SCATTER));
    return 0;
}

static void shape_sides(struct shape *shape)
{
    const struct lockstep_collective *what = shape->what;
    const struct shape_kind *kind = &shape_kinds[what->kind];
    struct shape_side *input = &shape->input;
    struct shape_side *output = &shape->output;
    const bool other = kind->rooted && !shape->is_root;
    *input = (struct shape_side){.form = other ? kind->other_input : kind->input,
                                 .memory = (uint8_t *)(uintptr_t)what->input,
                                 .count = what->count,
                                 .counts = what->input_counts,
                                 .offsets = what->input_offsets};
    *output = (struct shape_side){.form = other ? kind->other_output : kind->output,
                                  .memory = what->output,
                                  .count = what->count,
                                  .counts = what->output_counts,
                                  .offsets = what->output_offsets};
    // This rank's part alone has the count that the other side, which has parts, names.
    if (input->form == SHAPE_OWN)
        input->counts = what->output_counts;
    if (output->form == SHAPE_OWN)
        output->counts = what->input_counts;
}

int shape_read(const struct lockstep_collective *what, uint32_t rank, uint32_t size,
               uint64_t element, uint64_t most, struct shape *shape)
{
    *shape = (struct shape){.what = what,
                            .rank = rank,
                            .size = size,
                            .element = element,
                            .is_root = shape_is_rooted(what->kind) && what->root == rank};
    shape_sides(shape);
    const bool in_place = shape_exchanges_in_place(what);
    if (shape_is(shape, LOCKSTEP_ALL_TO_ALL) && !in_place &&
        !what->input_counts != !what->output_counts)
        return shape_fails(shape, "input_counts and output_counts go together");
    bool fits = side_read(&shape->output, shape, most);
    if (in_place) {
        shape->input.counts = what->output_counts;
        shape->input.offsets = what->output_offsets;
    }
    fits = side_read(&shape->input, shape, most) && fits;
    if (!fits)
        return shape_fails(shape, "its elements do not fit in memory");
    shape_complete(shape);
    return shape_check(shape);
}

bool shape_needs_confirmation(const struct shape *shape)
{
    if (!shape_is(shape, LOCKSTEP_REDUCE_SCATTER))
        return shape_is_rooted(shape->what->kind);
    // A member that gets no elements needs nothing of the others.
    for (uint32_t i = 0; i < shape->size; i++)
        if (side_count(&shape->input, i) == 0)
            return true;
    return false;
}

void shape_copy_own(const struct shape *shape)
{
    const struct shape_side *output = &shape->output;
    const bool counts = shape->what->op != LOCKSTEP_MEAN || shape->what->weight > 0 ||
                        !shape_reduces(shape->what->kind);
    if (output->form != SHAPE_NONE && output->own_count > 0 && counts && !shape->copies)
        memmove(side_place(shape, output), side_place(shape, &shape->input),
                output->own_count * shape->element);
}

uint64_t shape_part_elements(const struct shape *shape)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < shape->size; i++)
        elements += side_count(&shape->output, i);
    return elements;
}

// Gaps between the parts are not read: they may be no memory at all.
void shape_copy_parts(const struct shape *shape, uint8_t *copy)
{
    const struct shape_side *output = &shape->output;
    uint64_t at = 0;
    for (uint32_t i = 0; i < shape->size; i++) {
        const uint64_t count = side_count(output, i);
        const size_t bytes = count * shape->element;
        if (output->offsets)
            at = output->offsets[i];
        if (count > 0)
            memcpy(copy, output->memory + at * shape->element, bytes);
        copy += bytes;
        at += count;
    }
}

// ---- The signature -----------------------------------------------------------------------------

// The counts that all members know, if any; else NULL.
static const uint64_t *shape_known_counts(const struct lockstep_collective *what)
{
    if (what->kind == LOCKSTEP_REDUCE_SCATTER)
        return what->input_counts;
    return what->kind == LOCKSTEP_ALL_GATHER ? what->output_counts : NULL;
}

static bool shape_has_counts(const struct shape *shape)
{
    const struct lockstep_collective *what = shape->what;
    switch (what->kind) {
    case LOCKSTEP_REDUCE_SCATTER:
    case LOCKSTEP_SCATTER:
        return what->input_counts;
    case LOCKSTEP_GATHER:
    case LOCKSTEP_ALL_GATHER:
    case LOCKSTEP_ALL_TO_ALL:
        return what->output_counts;
    case LOCKSTEP_ALLREDUCE:
    case LOCKSTEP_BROADCAST:
    case LOCKSTEP_BARRIER:
    case LOCKSTEP_REDUCE:
    case LOCKSTEP_SEND:
    case LOCKSTEP_RECEIVE:
        break;
    }
    return false;
}

uint64_t shape_signature(const struct shape *shape, uint64_t space)
{
    const struct lockstep_collective *what = shape->what;
    const bool has_counts = shape_has_counts(shape);
    const uint64_t *counts = shape_known_counts(what);
    const bool receives = what->kind == LOCKSTEP_RECEIVE; // It meets a send.
    const uint64_t identity[] = {
        space,
        (uint64_t)(receives ? LOCKSTEP_SEND : what->kind),
        (uint64_t)what->dtype,
        shape_reduces(what->kind) ? (uint64_t)what->op : 0,
        shape_is_rooted(what->kind) ? what->root : 0,
        has_counts ? 0 : what->count,
        has_counts,
        counts ? hash64(counts, shape->size * sizeof(*counts)) : 0,
    };
    return hash64(identity, sizeof(identity));
}

// ---- Rows --------------------------------------------------------------------------------------

uint64_t shape_row(const struct shape *shape)
{
    const struct lockstep_collective *what = shape->what;
    const uint64_t *counts = shape_known_counts(what);
    const bool parts = shape_kinds[what->kind].input == SHAPE_PARTS;
    uint64_t row = 0;
    if ((shape_has_counts(shape) && !counts) || shape_is(shape, LOCKSTEP_SEND) ||
        shape_is(shape, LOCKSTEP_RECEIVE))
        return SHAPE_NO_ROW;
    for (uint32_t i = 0; i < shape->size; i++) {
        const uint64_t count = counts ? counts[i] : what->count;
        if (count > COLLECTIVE_ROW_BYTES)
            return SHAPE_NO_ROW;
        row = parts ? row + count : count > row ? count : row;
    }
    return row;
}

// Returns where the part for this rank is in the row of another member.
static uint64_t shape_offset(const struct shape *shape)
{
    const struct lockstep_collective *what = shape->what;
    const uint64_t *counts = shape_known_counts(what);
    uint64_t offset = 0;
    for (uint32_t i = 0; shape_kinds[what->kind].input == SHAPE_PARTS && i < shape->rank; i++)
        offset += counts ? counts[i] : what->count;
    return offset;
}

// ---- Parts -------------------------------------------------------------------------------------

// A walk over the parts of a side. For a side without parts each part is the whole.
struct shape_walk {
    const struct shape_side *side;
    uint64_t at;
    uint64_t row; // Elements before the part, without gaps.
};

static struct collective_part walk_next(struct shape_walk *walk, const struct shape *shape,
                                        const struct lockstep_group *group, uint32_t place)
{
    const struct shape_side *side = walk->side;
    struct collective_part part = {.rank = group_rank(group, place)};
    if (side->form == SHAPE_PARTS) {
        const uint64_t at = side->offsets ? side->offsets[place] : walk->at;
        part.elements = side_count(side, place);
        part.offset = walk->row;
        walk->at = at + part.elements;
        walk->row += part.elements;
        part.memory = part.elements == 0 ? NULL : side->memory + at * shape->element;
    } else {
        part.elements = side->own_count;
        part.memory = part.elements == 0 ? NULL : side->memory;
    }
    return part;
}

// True if this rank sends a part to the member.
static bool shape_sends(const struct shape *shape, uint32_t place)
{
    const struct lockstep_collective *what = shape->what;
    switch (what->kind) {
    case LOCKSTEP_BROADCAST:
    case LOCKSTEP_SCATTER:
        return shape->is_root;
    case LOCKSTEP_GATHER:
        return place == what->root;
    case LOCKSTEP_SEND:
        return place == what->peer;
    case LOCKSTEP_ALL_GATHER:
    case LOCKSTEP_ALL_TO_ALL:
    case LOCKSTEP_REDUCE:
    case LOCKSTEP_REDUCE_SCATTER:
        return true;
    case LOCKSTEP_ALLREDUCE:
    case LOCKSTEP_BARRIER:
    case LOCKSTEP_RECEIVE:
        break;
    }
    return false;
}

// True if this rank receives a part of the member.
static bool shape_receives(const struct shape *shape, uint32_t place)
{
    const struct lockstep_collective *what = shape->what;
    switch (what->kind) {
    case LOCKSTEP_BROADCAST:
    case LOCKSTEP_SCATTER:
        return place == what->root;
    case LOCKSTEP_GATHER:
        return shape->is_root;
    case LOCKSTEP_RECEIVE:
        // This rank stands for a sender that is not known yet.
        return place == (what->peer == LOCKSTEP_ANY_SOURCE ? shape->rank : what->peer);
    case LOCKSTEP_ALL_GATHER:
    case LOCKSTEP_ALL_TO_ALL:
        return true;
    case LOCKSTEP_REDUCE:
    case LOCKSTEP_REDUCE_SCATTER:
        return place == shape->rank; // The result.
    case LOCKSTEP_ALLREDUCE:
    case LOCKSTEP_BARRIER:
    case LOCKSTEP_SEND:
        break;
    }
    return false;
}

void shape_parts(const struct shape *shape, const struct lockstep_group *group,
                 struct collective_part *sends, uint32_t *send_count,
                 struct collective_part *receives, uint32_t *receive_count)
{
    struct shape_walk input = {.side = &shape->input};
    struct shape_walk output = {.side = &shape->output};
    const uint64_t offset = shape_offset(shape);
    *send_count = 0;
    *receive_count = 0;
    for (uint32_t i = 0; i < shape->size; i++) {
        struct collective_part sent = walk_next(&input, shape, group, i);
        struct collective_part received = walk_next(&output, shape, group, i);
        received.offset = offset;
        // The root gets the whole sum, the other members nothing.
        if (shape_is(shape, LOCKSTEP_REDUCE) && i != shape->what->root)
            sent = (struct collective_part){.rank = sent.rank};
        if (shape_sends(shape, i))
            sends[(*send_count)++] = sent;
        if (shape_receives(shape, i))
            receives[(*receive_count)++] = received;
    }
}
