// SPDX-License-Identifier: Apache-2.0
//
// The messages of a small world: each is kept once and has a number, so a channel is a row of
// numbers, and channels with equal messages are equal. Messages are kept as the codec writes them:
// bytes that belong to no field cannot make two states of one.

#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/codec/up.h"
#include "tests/sim/world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world_message {
    uint8_t *bytes; // The encoded message.
    size_t size;
    struct up_message *up; // One of the two.
    struct down_message *down;
};

static uint32_t message_find(const struct world *world, const uint8_t *bytes, size_t size, bool up)
{
    uint32_t i = 0;
    for (; i < world->message_count; i++) {
        const struct world_message *message = &world->messages[i];
        if (message->size == size && (message->up != NULL) == up &&
            memcmp(message->bytes, bytes, size) == 0)
            break;
    }
    return i;
}

static struct world_message *message_add(struct world *world, const uint8_t *bytes, size_t size)
{
    struct world_message *message;
    if (world->message_count == world->message_room) {
        world->message_room = world->message_room == 0 ? 64 : 2 * world->message_room;
        world->messages =
            realloc(world->messages, world->message_room * sizeof(world->messages[0]));
        if (!world->messages)
            abort();
    }
    message = &world->messages[world->message_count++];
    memset(message, 0, sizeof(*message));
    message->bytes = malloc(size);
    if (!message->bytes)
        abort();
    memcpy(message->bytes, bytes, size);
    message->size = size;
    return message;
}

uint32_t world_keep_up(struct world *world, const struct up_message *message)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    size_t size = 0;
    if (codec_encode_up(message, bytes, sizeof(bytes), &size) != CODEC_OK)
        return UINT32_MAX;
    const uint32_t number = message_find(world, bytes, size, true);
    if (number < world->message_count)
        return number;
    struct world_message *kept = message_add(world, bytes, size);
    kept->up = calloc(1, sizeof(*kept->up));
    if (!kept->up || codec_decode_up(bytes, size, kept->up, NULL) != CODEC_OK)
        abort();
    return number;
}

uint32_t world_keep_down(struct world *world, const struct down_message *message)
{
    static uint8_t bytes[LOCKSTEP_MESSAGE_BYTES];
    size_t size = 0;
    if (codec_encode_down(message, bytes, sizeof(bytes), &size) != CODEC_OK)
        return UINT32_MAX;
    const uint32_t number = message_find(world, bytes, size, false);
    if (number < world->message_count)
        return number;
    struct world_message *kept = message_add(world, bytes, size);
    kept->down = calloc(1, sizeof(*kept->down));
    if (!kept->down || codec_decode_down(bytes, size, kept->down, NULL) != CODEC_OK)
        abort();
    return number;
}

const struct up_message *world_up(const struct world *world, uint32_t number)
{
    return world->messages[number].up;
}

const struct down_message *world_down(const struct world *world, uint32_t number)
{
    return world->messages[number].down;
}

void world_forget_messages(struct world *world)
{
    for (uint32_t i = 0; i < world->message_count; i++) {
        free(world->messages[i].bytes);
        free(world->messages[i].up);
        free(world->messages[i].down);
    }
    free(world->messages);
    world->messages = NULL;
    world->message_count = world->message_room = 0;
}

// ---- For people --------------------------------------------------------------------------------

static char module_letter(uint32_t module)
{
    return (char)('A' + module % 26);
}

static void text_slot(char text[32], const struct slot_id *id)
{
    snprintf(text, 32, "%c%" PRIu32 ".%" PRIu32, module_letter(id->module), id->call, id->bucket);
}

static void text_blocked(const struct up_blocked *blocked, char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "blocked:");
    for (uint32_t i = 0; i < blocked->wait_count && used > 0 && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used,
                         " waits for %c%" PRIu32 " (needs %" PRIx64 ")",
                         module_letter(blocked->waits[i].call.module), blocked->waits[i].call.call,
                         blocked->waits[i].needs.words[0]);
    if (used > 0 && (size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, " lacks %" PRIx64, blocked->lacks.words[0]);
}

void world_up_text(const struct up_message *message, char *text, size_t bytes)
{
    char slot[32];
    switch (message->kind) {
    case UP_READY:
        text_slot(slot, &message->u.ready.slot);
        snprintf(text, bytes, "%s %s%s", message->u.ready.granted > 0 ? "granted" : "ready", slot,
                 message->u.ready.unmade ? ", unmade" : "");
        return;
    case UP_WAIT:
        text_slot(slot, &message->u.wait.slot);
        snprintf(text, bytes, "wait %s and %" PRIu32 " more", slot, message->u.wait.also_count);
        return;
    case UP_END:
        snprintf(text, bytes, "end");
        return;
    case UP_BLOCKED:
        text_blocked(&message->u.blocked, text, bytes);
        return;
    case UP_FAIL:
        snprintf(text, bytes, "fail: %s", message->u.fail.text);
        return;
    case UP_LOST:
        snprintf(text, bytes, "lost rank %" PRIu32, message->u.lost.rank);
        return;
    case UP_REPLAN:
        snprintf(text, bytes, "the plan should have %" PRIu32 " calls in another order",
                 message->u.replan.call_count);
        return;
    case UP_LAYOUT_PART:
        snprintf(text, bytes, "layout of %c", module_letter(message->u.layout_part.module));
        return;
    case UP_NONE:
    case UP_HELLO:
    case UP_START:
    case UP_MANIFEST_PART:
    case UP_HEARTBEAT:
    case UP_LEAVE:
    case UP_LINKS:
    case UP_MODULES:
    case UP_ANSWER:
    case UP_RECORD_PART:
    case UP_REPORT:
    case UP_REFUSE:
    case UP_REACH:
        break;
    }
    snprintf(text, bytes, "message of kind %d", (int)message->kind);
}

static void text_plan(const struct down_plan_part *part, char *text, size_t bytes)
{
    int used =
        snprintf(text, bytes, "plan %" PRIu64 "%s%s:", part->number,
                 part->closes_step ? ", closes its step" : "", part->strict ? ", strict" : "");
    for (uint32_t i = 0; i < part->slot_count && used > 0 && (size_t)used < bytes; i++) {
        char slot[32];
        text_slot(slot, &part->slots[i].id);
        used += snprintf(text + used, bytes - (size_t)used, " %s", slot);
    }
}

void world_down_text(const struct down_message *message, char *text, size_t bytes)
{
    char slot[32];
    switch (message->kind) {
    case DOWN_GRANT:
        text_slot(slot, &message->u.grant.slot);
        snprintf(text, bytes, "grant %s%s", slot, message->u.grant.forced ? ", forced" : "");
        return;
    case DOWN_PLAN_PART:
        text_plan(&message->u.plan_part, text, bytes);
        return;
    case DOWN_HALT:
        snprintf(text, bytes, "halt %d: %s", (int)message->u.halt.kind, message->u.halt.text);
        return;
    case DOWN_QUERY:
        snprintf(text, bytes, "query");
        return;
    case DOWN_NONE:
    case DOWN_WELCOME:
    case DOWN_REFUSED:
    case DOWN_GENERATION:
    case DOWN_VERIFIED:
    case DOWN_MANIFEST_REQUEST:
    case DOWN_LAYOUT_PART:
    case DOWN_TUNING:
    case DOWN_INSPECT:
    case DOWN_PREPARE:
    case DOWN_RECORD_PART:
    case DOWN_DECISION:
    case DOWN_EXCLUDED:
    case DOWN_ADDRESSES:
        break;
    }
    snprintf(text, bytes, "message of kind %d", (int)message->kind);
}
