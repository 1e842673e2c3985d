// SPDX-License-Identifier: Apache-2.0
//
// See tale.h.

#include "tale.h"

#include "worker/order/header.h"
#include "worker/order/plan.h"
#include "worker/order/waits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- The trace ---------------------------------------------------------------------------------

static void tale_add(struct tale *tale, const char *format, ...)
{
    const size_t used = strlen(tale->trace);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(tale->trace + used, sizeof(tale->trace) - used, format, arguments);
    va_end(arguments);
}

static void tale_add_call(struct tale *tale, const struct call_id *call)
{
    tale_add(tale, "%c%u", 'A' + (int)call->module, call->call);
}

static void tale_add_slot(struct tale *tale, const struct slot_id *slot)
{
    tale_add(tale, " %c%u.%u", 'A' + (int)slot->module, slot->call, slot->bucket);
}

static void tale_add_set(struct tale *tale, const struct slot_set *set)
{
    const char *comma = "";
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SLOTS; i++) {
        if ((set->words[i / 64] >> i % 64 & 1) == 0)
            continue;
        tale_add(tale, "%s%u", comma, i);
        comma = ",";
    }
}

static void tale_add_blocked(struct tale *tale, const struct up_blocked *blocked)
{
    struct slot_set named = {{0}};
    if (blocked->wait_count == 0) {
        tale_add(tale, "unblocked; ");
        return;
    }
    tale_add(tale, "blocked");
    for (uint32_t i = 0; i < blocked->wait_count; i++) {
        tale_add(tale, " ");
        tale_add_call(tale, &blocked->waits[i].call);
        tale_add(tale, " needs ");
        tale_add_set(tale, &blocked->waits[i].needs);
    }
    tale_add(tale, " lacks ");
    for (uint32_t i = 0; i < blocked->lack_count; i++) {
        const uint32_t at = blocked->lacking[i].position;
        tale_add(tale, "%s%u=", i == 0 ? "" : ",", at);
        tale_add_call(tale, &blocked->lacking[i].call);
        named.words[at / 64] |= UINT64_C(1) << at % 64;
    }
    if (memcmp(&named, &blocked->lacks, sizeof(named)) != 0) {
        tale_add(tale, " of ");
        tale_add_set(tale, &blocked->lacks);
    }
    tale_add(tale, "; ");
}

static void tale_add_up(struct tale *tale, const struct order_action *action)
{
    const struct up_message *up = action->up;
    switch ((int)up->kind) {
    case UP_READY:
        if (up->u.ready.granted > 0)
            tale_add(tale, "granted %u of %u%s: ", up->u.ready.granted, up->u.ready.grants,
                     up->u.ready.unmade ? ", unmade" : "");
        tale_add(tale, "ready %u.%u; ", up->u.ready.slot.module, up->u.ready.slot.bucket);
        break;
    case UP_END:
        tale_add(tale, "end %u; ", (unsigned)up->u.end.step);
        if (up->u.end.plan > 0)
            tale_add(tale, "plan %u; ", (unsigned)up->u.end.plan);
        break;
    case UP_WAIT:
        tale_add(tale, "wait");
        tale_add_slot(tale, &up->u.wait.slot);
        for (uint32_t i = 0; i < up->u.wait.also_count; i++)
            tale_add_slot(tale, &up->u.wait.also[i]);
        tale_add(tale, "; ");
        break;
    case UP_BLOCKED:
        assert_int_equal(up->u.blocked.step, tale->order.step);
        tale_add_blocked(tale, &up->u.blocked);
        break;
    case UP_FAIL:
        tale_add(tale, "fail kind %d step %u", (int)up->u.fail.kind, (unsigned)up->u.fail.step);
        if (up->u.fail.kind == HALT_UNPLANNED) {
            tale_add(tale, " for ");
            tale_add_call(tale, &action->call);
        }
        tale_add(tale, "; ");
        break;
    case UP_REPLAN:
        assert_int_equal(up->u.replan.step, tale->order.step);
        tale_add(tale, "replan %u:", (unsigned)up->u.replan.replaces);
        for (uint32_t i = 0; i < up->u.replan.call_count; i++) {
            tale_add(tale, " ");
            tale_add_call(tale, &up->u.replan.calls[i]);
        }
        tale_add(tale, "; ");
        break;
    default:
        tale_add(tale, "up %d; ", (int)up->kind);
    }
}

static void tale_add_launch(struct tale *tale, const struct order_action *action)
{
    const struct order_slot *slot = action->slot;
    tale_add(tale, "launch %u", action->index);
    if (slot->extension)
        tale_add_slot(tale, &slot->id);
    tale_add(tale, "%s%s; ", slot->zero ? " zero" : "", slot->forfeited ? " forfeited" : "");
}

static void tale_action(void *context, const struct order_action *action)
{
    static const char *const ends[] = {
        [RELEASE_FINAL] = "", [RELEASE_DEFERRED] = " deferred", [RELEASE_WITHDRAWN] = " withdrawn"};
    struct tale *tale = context;
    switch (action->kind) {
    case ORDER_SEND:
        tale_add_up(tale, action);
        break;
    case ORDER_OPEN:
        tale_add(tale, "open %u, exhausted %u; ", (unsigned)action->step,
                 action->opening->exhausted);
        break;
    case ORDER_HEADER:
        tale_add(tale, "%s %u; ", action->header->opening ? "opening" : "header",
                 (unsigned)action->header->step);
        break;
    case ORDER_LAUNCH:
        tale_add_launch(tale, action);
        break;
    case ORDER_REDO:
        tale_add(tale, "redo %" PRIu32 "; ", action->index);
        break;
    case ORDER_DEFER:
        tale_add(tale, "defer");
        tale_add_slot(tale, action->deferred);
        tale_add(tale, "; ");
        break;
    case ORDER_RELEASE:
        tale_add(tale, "release ");
        tale_add_call(tale, &action->call);
        tale_add(tale, "%s; ", ends[action->release]);
        break;
    case ORDER_CLOSE:
        tale_add(tale, "close extras %u%s; ", action->close->extra_total,
                 action->close->too_many != 0 ? " and more" : "");
        break;
    case ORDER_COMMIT:
        tale_add(tale, "commit; ");
        break;
    case ORDER_SETTLED:
        tale_add(tale, "settled %u; ", (unsigned)action->step);
        break;
    case ORDER_IMPOSSIBLE:
        tale_add(tale, "rank %" PRIu32 " %s; ", action->rank, action->text);
        break;
    case ORDER_FAILED:
        tale_add(tale, "failed kind %d; ", (int)action->halt);
        break;
    }
}

// ---- Beginning and looking ---------------------------------------------------------------------

struct tale *tale_begin_with(uint32_t world, const struct order_options *options)
{
    struct tale *tale = calloc(1, sizeof(*tale));
    assert_non_null(tale);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_MODULES; i++)
        tale->buckets[i] = 1;
    order_init(&tale->order, (struct generation_id){1, 9}, 0, world, options,
               (struct order_sink){tale_action, tale});
    return tale;
}

struct tale *tale_begin(uint32_t world)
{
    return tale_begin_with(world, &(struct order_options){.unplanned = UNPLANNED_FAIL});
}

void tale_expect(struct tale *tale, const char *expected)
{
    assert_string_equal(tale->trace, expected);
    tale_forget(tale);
}

void tale_forget(struct tale *tale)
{
    tale->trace[0] = '\0';
}

// ---- Words -------------------------------------------------------------------------------------

struct slot_id tale_slot(const char *word)
{
    struct slot_id slot = {.module = (uint32_t)(word[0] - 'A')};
    const char *dot = strchr(word, '.');
    slot.call = (uint32_t)strtoul(word + 1, NULL, 10);
    if (dot)
        slot.bucket = (uint32_t)strtoul(dot + 1, NULL, 10);
    return slot;
}

struct call_id tale_call(const char *word)
{
    const struct slot_id slot = tale_slot(word);
    return (struct call_id){.module = slot.module, .call = slot.call};
}

// Copies the next of the words behind `words` and returns the place behind it; NULL: there is none.
static const char *tale_word(const char *words, char word[16])
{
    size_t length;
    words += strspn(words, " ");
    length = strcspn(words, " ");
    if (length == 0)
        return NULL;
    assert_true(length < 16);
    memcpy(word, words, length);
    word[length] = '\0';
    return words + length;
}

// ---- Facts -------------------------------------------------------------------------------------

static void tale_send_plan(struct tale *tale, struct down_plan_part *part, const char *slots)
{
    char word[16];
    part->number = tale->order.plans.number + 1;
    part->hash = PLAN_HASH + part->number - 1;
    part->last = true;
    while ((slots = tale_word(slots, word)))
        part->slots[part->slot_count++].id = tale_slot(word);
    part->slot_total = part->slot_count;
    order_plan_received(&tale->order, part);
}

void tale_plan_of(struct tale *tale, uint64_t phase, const char *slots)
{
    struct down_plan_part part = {.phase = phase, .closes_step = true, .step = tale->order.step};
    tale_send_plan(tale, &part, slots);
}

void tale_plan(struct tale *tale, const char *slots)
{
    tale_plan_of(tale, PHASE, slots);
}

void tale_newer_plan(struct tale *tale, uint64_t replaces, const char *slots)
{
    struct down_plan_part part = {.phase = PHASE, .replaces = replaces};
    tale_send_plan(tale, &part, slots);
}

void tale_step(struct tale *tale, uint64_t step)
{
    order_step_begun(&tale->order, step, PHASE, tale->buckets);
}

void tale_header(struct tale *tale, uint64_t step, uint64_t phase)
{
    const struct order_plan *plan = order_plan_of(&tale->order, phase);
    order_header_received(&tale->order,
                          &(struct step_header){.step = step,
                                                .phase = phase,
                                                .plan_hash = !plan ? 0 : plan->hash,
                                                .starts = tale->order.headers.starts});
}

void tale_made(struct tale *tale, const char *slots)
{
    char word[16];
    while ((slots = tale_word(slots, word)))
        order_slot_ready(&tale->order, tale_slot(word), DTYPE_FLOAT32, 1);
}

void tale_wait(struct tale *tale, const char *call)
{
    order_wait_begun(&tale->order, tale_call(call));
}

void tale_final(struct tale *tale, uint32_t index)
{
    order_slot_final(&tale->order, index);
}

void tale_close(struct tale *tale, const char *extras)
{
    struct close_wave result = {.plan_number = tale->order.plans.number};
    char word[16];
    while ((extras = tale_word(extras, word)))
        result.extras[result.extra_total++] = tale_call(word);
    order_close_completed(&tale->order, &result);
}
