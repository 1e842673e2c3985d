// SPDX-License-Identifier: Apache-2.0
//
// The memory and the units of a part: redo_part.h.

#include "worker/transport/redo_part.h"

#include "worker/kernels/dtype.h"
#include "worker/memory/units.h"

#include <stdlib.h>

bool redo_part_add(struct redo_part *part, uint64_t first, uint64_t end)
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

bool redo_part_add_used(struct redo_part *part, const struct collective *outer, uint64_t first,
                        uint64_t end)
{
    const struct ring_span span = {first, end - first};
    const struct unit_range met = units_met(outer->unit_ends, outer->unit_count, span);
    if (outer->unit_count == 0)
        return redo_part_add(part, first, end);
    for (uint32_t unit = met.first; unit < met.first + met.count; unit++) {
        const uint64_t unit_end = outer->unit_ends[unit] < end ? outer->unit_ends[unit] : end;
        if (unit_end > first && units_is_used(outer->used, unit) &&
            !redo_part_add(part, first, unit_end))
            return false;
        first = unit_end > first ? unit_end : first;
    }
    return true;
}

// Writes the part of a collective's extents to `to`. Returns how many there are.
static uint32_t redo_part_cut(const struct redo_part *part, const struct extent *extents,
                              uint32_t extent_count, uint32_t size, struct extent *to)
{
    uint32_t count = 0;
    uint32_t at = 0;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < extent_count; i++) {
        const struct extent *from = &extents[i];
        const uint64_t end = begin + from->elements;
        while (at < part->span_count && part->spans[at].end <= begin)
            at++;
        for (uint32_t k = at; k < part->span_count && part->spans[k].first < end; k++) {
            const uint64_t first = part->spans[k].first > begin ? part->spans[k].first : begin;
            const uint64_t last = part->spans[k].end < end ? part->spans[k].end : end;
            const uint64_t offset = (first - begin) * size;
            const uint8_t *in = from->in;
            uint8_t *out = from->out;
            to[count++] = (struct extent){.in = in ? in + offset : NULL,
                                          .out = out ? out + offset : NULL,
                                          .elements = last - first};
        }
        begin = end;
    }
    return count;
}

static bool redo_part_copy(struct redo_part *part, const struct collective *outer, bool gives)
{
    const uint32_t size = (uint32_t)dtype_size(outer->dtype);
    uint32_t most = 0;
    for (uint32_t r = 0; r < outer->replica_count; r++)
        if (outer->replicas[r].extent_count + part->span_count > most)
            most = outer->replicas[r].extent_count + part->span_count;
    part->replicas = calloc(outer->replica_count, sizeof(*part->replicas));
    part->replica_extents =
        calloc((size_t)outer->replica_count * most, sizeof(*part->replica_extents));
    if (!part->replicas || !part->replica_extents)
        return false;
    for (uint32_t r = 0; r < outer->replica_count; r++) {
        struct collective_replica *replica = &part->replicas[r];
        struct extent *extents = part->replica_extents + (size_t)r * most;
        *replica = outer->replicas[r];
        replica->extent_count =
            redo_part_cut(part, replica->extents, replica->extent_count, size, extents);
        replica->extents = extents;
        for (uint32_t i = 0; gives && i < replica->extent_count; i++)
            extents[i].in = NULL;
    }
    part->collective.replicas = part->replicas;
    part->collective.replica_count = outer->replica_count;
    part->collective.replica_divisor = outer->replica_divisor;
    return true;
}

bool redo_part_lay(struct redo_part *part, const struct collective *outer, bool gives, bool own)
{
    const uint32_t size = (uint32_t)dtype_size(outer->dtype);
    part->extents = calloc(outer->extent_count + part->span_count, sizeof(*part->extents));
    if (!part->extents)
        return false;
    const uint32_t count =
        redo_part_cut(part, outer->extents, outer->extent_count, size, part->extents);
    for (uint32_t i = 0; i < count; i++) {
        if (gives)
            part->extents[i].in = part->extents[i].out;
        part->collective.elements += part->extents[i].elements;
    }
    part->collective.extents = part->extents;
    part->collective.extent_count = count;
    part->collective.replica_count = 0;
    return outer->replica_count == 0 || own || redo_part_copy(part, outer, gives);
}

void redo_part_empty(struct redo_part *part)
{
    for (uint32_t i = 0; i < part->collective.extent_count; i++)
        part->extents[i].in = NULL;
    for (uint32_t r = 0; r < part->collective.replica_count; r++) {
        const struct collective_replica *replica = &part->replicas[r];
        struct extent *extents = part->replica_extents + (replica->extents - part->replica_extents);
        for (uint32_t i = 0; i < replica->extent_count; i++)
            extents[i].in = NULL;
    }
}

bool redo_part_divide(struct redo_part *part, const struct collective *outer)
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

bool redo_part_give(struct redo_part *part, bool gives)
{
    static const enum dtype integers[] = {
        [1] = DTYPE_UINT8, [2] = DTYPE_UINT16, [4] = DTYPE_UINT32, [8] = DTYPE_UINT64};
    struct collective *collective = &part->collective;
    part->unit_ends = calloc(1, sizeof(*part->unit_ends));
    part->used = calloc(units_words(1), sizeof(*part->used));
    if (!part->unit_ends || !part->used)
        return false;
    part->unit_ends[0] = collective->elements;
    if (gives)
        units_set_used(part->used, 0);
    for (uint32_t i = 0; i < collective->extent_count && !gives; i++)
        part->extents[i].in = NULL;
    collective->kind = COLLECTIVE_ALLREDUCE;
    collective->dtype = integers[dtype_size(collective->dtype)];
    collective->op = REDUCE_SUM;
    collective->unit_ends = part->unit_ends;
    collective->unit_count = 1;
    collective->used = part->used;
    return true;
}
