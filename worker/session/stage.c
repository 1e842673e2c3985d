// SPDX-License-Identifier: Apache-2.0
//
// Staging: stage.h has the contract.
//
// A side that is on the device gets a range of one pinned block, from its first element to its last
// one. If the collective is in place, both sides share one range. The parts of an output may have
// gaps between them, which nobody may write, so each part is copied back by itself.

#include "worker/session/stage.h"

#include "worker/device/device.h"
#include "worker/device/memory.h"
#include "worker/session/gate.h"
#include "worker/session/session.h"
#include "worker/session/shape.h"
#include "worker/support/error.h"

#include <stdio.h>
#include <stdlib.h>

#define STAGE_ALIGNMENT 64

struct stage_copy {
    uint8_t *device;
    const uint8_t *host;
    size_t bytes;
};

struct stage {
    struct device *device;
    struct device_block *block;
    uint32_t count;
    struct stage_copy copies[]; // [count]: the output.
};

// Memory of the user, from the first element of a side to the last one.
struct stage_range {
    uint8_t *begin;
    size_t bytes; // 0: the side is not staged.
    size_t place; // In the block.
};

// ---- Where the sides are -----------------------------------------------------------------------

// Finds the range of a side if that is on the device. A failure if it is on another device.
static int range_find(const struct lockstep_session *session, const struct shape *shape,
                      const struct shape_side *side, struct stage_range *range)
{
    struct device *device = session->devices.first;
    *range = (struct stage_range){.bytes = 0};
    if (!side->memory || side->first >= side->end)
        return 0;
    uint8_t *begin = side->memory + side->first * shape->element;
    const enum memory_place place = device_place(device, begin);
    if (place == MEMORY_ELSEWHERE)
        return error_set(LOCKSTEP_E_INVALID,
                         "%s '%s': its memory is on another device than cuda:%d, which is this "
                         "session's (config.device)",
                         shape_name(shape->what->kind), shape->what->name,
                         device_facts(device)->ordinal);
    if (place == MEMORY_ON_DEVICE)
        *range = (struct stage_range){.begin = begin,
                                      .bytes = (side->end - side->first) * shape->element};
    return 0;
}

// Both sides get the range that covers both.
static void ranges_unite(struct stage_range *one, struct stage_range *other)
{
    uint8_t *begin = one->begin < other->begin ? one->begin : other->begin;
    uint8_t *one_end = one->begin + one->bytes;
    uint8_t *other_end = other->begin + other->bytes;
    one->bytes = (size_t)((one_end > other_end ? one_end : other_end) - begin);
    one->begin = begin;
    *other = *one;
}

static void side_move(const struct shape *shape, struct shape_side *side,
                      const struct stage_range *range, const struct stage *stage)
{
    if (range->bytes == 0)
        return;
    const size_t inside = (size_t)(side->memory + side->first * shape->element - range->begin);
    uint8_t *first = stage->block->host + range->place + inside;
    side->memory = (uint8_t *)((uintptr_t)first - side->first * shape->element);
}

// ---- Copies ------------------------------------------------------------------------------------

static int range_read(const struct stage *stage, const struct stage_range *range)
{
    return device_copy(stage->device, stage->block->host + range->place, range->begin,
                       range->bytes);
}

static void copy_add(struct stage *stage, const struct shape *shape, uint8_t *to, uint64_t at,
                     uint64_t count)
{
    if (count > 0)
        stage->copies[stage->count++] =
            (struct stage_copy){.device = to + at * shape->element,
                                .host = shape->output.memory + at * shape->element,
                                .bytes = count * shape->element};
}

// Notes what is copied back to the output, which began at `to`.
static void copies_note(struct stage *stage, const struct shape *shape, uint8_t *to)
{
    const struct shape_side *output = &shape->output;
    if (shape->reads)
        return;
    if (!output->offsets || output->form != SHAPE_PARTS) {
        copy_add(stage, shape, to, output->first, output->end - output->first);
        return;
    }
    for (uint32_t i = 0; i < shape->size; i++)
        copy_add(stage, shape, to, output->offsets[i],
                 output->counts ? output->counts[i] : output->count);
}

// ---- A stage -----------------------------------------------------------------------------------

static int stage_fails(const struct shape *shape, const char *text)
{
    return error_set(LOCKSTEP_E_SYSTEM, "%s '%s': %s", shape_name(shape->what->kind),
                     shape->what->name, text ? text : "no memory");
}

static struct stage *stage_make(struct device *device, const struct shape *shape, size_t bytes)
{
    struct stage *stage = calloc(1, sizeof(*stage) + shape->size * sizeof(stage->copies[0]));
    if (!stage)
        return NULL;
    stage->device = device;
    stage->block = device_pin(device, bytes);
    if (stage->block)
        return stage;
    free(stage);
    return NULL;
}

int stage_begin(const struct lockstep_session *session, struct shape *shape, bool keeps,
                struct stage **made)
{
    struct device *device = session->devices.first;
    struct stage_range in;
    struct stage_range out;
    *made = NULL;
    if (!device)
        return 0;
    int status = range_find(session, shape, &shape->input, &in);
    if (status == 0)
        status = range_find(session, shape, &shape->output, &out);
    if (status < 0 || in.bytes + out.bytes == 0)
        return status;
    if (shape->in_place && in.bytes > 0 && out.bytes > 0)
        ranges_unite(&in, &out);
    else
        out.place = (in.bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    struct stage *stage = stage_make(device, shape, out.place + out.bytes);
    if (!stage)
        return stage_fails(shape, device_failed(device));
    uint8_t *to = shape->output.memory;
    side_move(shape, &shape->input, &in, stage);
    side_move(shape, &shape->output, &out, stage);
    if (out.bytes > 0)
        copies_note(stage, shape, to);
    if ((in.bytes > 0 && range_read(stage, &in) < 0) ||
        (out.bytes > 0 && !shape->in_place && (keeps || shape->copies) &&
         range_read(stage, &out) < 0)) {
        stage_free(stage);
        return stage_fails(shape, device_failed(device));
    }
    *made = stage;
    return 0;
}

static void stage_abort(struct lockstep_session *session, const struct device *device)
{
    char text[DEVICE_TEXT_BYTES + 64];
    snprintf(text, sizeof(text), "its device failed, cuda:%d: %s", device_facts(device)->ordinal,
             device_failed(device));
    (void)session_abort(session, LOCKSTEP_E_PEER_LOST, text);
}

int stage_deliver(struct lockstep_session *session, const struct stage *stage)
{
    for (uint32_t i = 0; i < stage->count; i++) {
        const struct stage_copy *copy = &stage->copies[i];
        if (device_copy(stage->device, copy->device, copy->host, copy->bytes) < 0) {
            stage_abort(session, stage->device);
            return -1;
        }
    }
    return 0;
}

void stage_free(struct stage *stage)
{
    if (!stage)
        return;
    device_unpin(stage->device, stage->block);
    free(stage);
}
