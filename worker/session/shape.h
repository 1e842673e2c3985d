// SPDX-License-Identifier: Apache-2.0
//
// The shape of a collective: which parts of its memory go to which member, and come from which.
// Here members are known by their places; a group translates them. No state. Any thread.

#ifndef WORKER_SESSION_SHAPE_H
#define WORKER_SESSION_SHAPE_H

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective_part;
struct lockstep_group;

#define SHAPE_NO_ROW UINT64_MAX

// What one side of a collective, its input or its output, has on this rank.
enum shape_form {
    SHAPE_NONE, // No memory.
    SHAPE_WHOLE, // `count` elements.
    SHAPE_OWN, // This rank's part alone.
    SHAPE_PARTS, // A part for each member.
};

struct shape_side {
    enum shape_form form;
    uint8_t *memory; // Never written through if the side is the input.
    uint64_t count; // Elements of the whole, or of each part if counts is NULL.
    const uint64_t *counts; // [size], or NULL.
    const uint64_t *offsets; // [size], or NULL.
    uint64_t own; // Offset and elements of this rank's part.
    uint64_t own_count;
    uint64_t first; // The elements from the first to the last, gaps included: [first, end).
    uint64_t end;
};

// A collective as one member sees it.
struct shape {
    const struct lockstep_collective *what;
    uint32_t rank; // This rank's place.
    uint32_t size;
    uint64_t element; // Bytes of an element.
    bool is_root;
    bool copies; // True if the input is a copy of the output, which the caller has to make.
    bool in_place; // True if input and output have memory in common.
    bool reads; // True if the collective writes nothing here that is not there already.
    struct shape_side input;
    struct shape_side output;
};

bool shape_is_rooted(lockstep_collective_kind kind);
bool shape_reduces(lockstep_collective_kind kind);
const char *shape_name(lockstep_collective_kind kind); // "all_gather"; NULL: no such kind.

// Reads the description, whose name, dtype, op and root were checked. most: the most elements that
// fit in memory. Returns 0, or a failure: parts overlap, or memory is missing.
int shape_read(const struct lockstep_collective *what, uint32_t rank, uint32_t size,
               uint64_t element, uint64_t most, struct shape *shape);
// True if a member may complete without hearing from all members: then the collective needs a
// confirmation.
bool shape_needs_confirmation(const struct shape *shape);
// Copies this rank's part from the input to the output: all that happens in a group of one.
void shape_copy_own(const struct shape *shape);
// Returns the elements of all parts of the output, without gaps.
uint64_t shape_part_elements(const struct shape *shape);
// Copies the parts of the output to `copy`, one after the other.
void shape_copy_parts(const struct shape *shape, uint8_t *copy);
// Hash of all that must be equal on all members. space: of the group, or 0.
uint64_t shape_signature(const struct shape *shape, uint64_t space);
// Returns the elements of the longest row of all members (struct collective_parts). SHAPE_NO_ROW:
// this member does not know the counts of others, or a row would be far too long.
uint64_t shape_row(const struct shape *shape);
// Fills in the parts that this rank sends and receives, at most `size` of each. group NULL: all
// ranks. Returns the number of them in *send_count and *receive_count.
void shape_parts(const struct shape *shape, const struct lockstep_group *group,
                 struct collective_part *sends, uint32_t *send_count,
                 struct collective_part *receives, uint32_t *receive_count);

#endif
