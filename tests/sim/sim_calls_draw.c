// SPDX-License-Identifier: Apache-2.0
//
// Draws programs of calls; see sim_calls.h. A phase has a list of calls that most ranks make in
// most steps; some ranks make them in another order, leave one out or add one, wait for some of
// them at once or later, and have several open at a time. Some programs have habits: from the
// second step on each rank does the same in all of them, so that another plan suits them better.

#include "tests/sim/sim_calls.h"

#include "tests/support/choice.h"

#include <string.h>

enum {
    DRAW_CALLS = 5 // Calls of one phase.
};

struct drawn_call {
    uint32_t module;
    bool waits; // The trainer waits for the call as soon as it has ended.
    bool waits_later; // The trainer waits for the call after all calls of its thread.
    bool inside; // Stays open while the next one of its thread is made.
};

struct drawn_list {
    uint32_t count;
    struct drawn_call calls[DRAW_CALLS + 1];
};

struct draw {
    uint64_t random;
    uint32_t wait_percent;
    uint32_t deviate_percent;
    bool opens; // Calls may be open while others are made.
    bool has_habits;
    struct drawn_list habits[CALLS_WORLD];
};

static uint32_t draw_below(struct draw *draw, uint32_t bound)
{
    return (uint32_t)(choice_random(&draw->random) % bound);
}

static bool draw_chance(struct draw *draw, uint32_t percent)
{
    return draw_below(draw, 100) < percent;
}

// ---- Lists of calls --------------------------------------------------------------------------

static uint32_t calls_of(const struct drawn_list *list, uint32_t module)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++)
        count += list->calls[i].module == module;
    return count;
}

static void insert_call(struct drawn_list *list, uint32_t at, uint32_t module)
{
    if (list->count > DRAW_CALLS || calls_of(list, module) == CALLS_NUMBERS)
        return;
    memmove(&list->calls[at + 1], &list->calls[at], (list->count - at) * sizeof(list->calls[0]));
    list->calls[at] = (struct drawn_call){.module = module};
    list->count++;
}

static void draw_base(struct draw *draw, const struct calls *calls, struct drawn_list *list)
{
    const uint32_t count = 1 + draw_below(draw, DRAW_CALLS);
    list->count = 0;
    for (uint32_t i = 0; i < count; i++)
        insert_call(list, list->count, draw_below(draw, calls->modules));
}

static void deviate(struct draw *draw, const struct calls *calls, struct drawn_list *list)
{
    for (uint32_t i = list->count; i > 1 && draw_chance(draw, 80); i--) {
        const uint32_t other = draw_below(draw, i);
        const struct drawn_call kept = list->calls[i - 1];
        list->calls[i - 1] = list->calls[other];
        list->calls[other] = kept;
    }
    if (list->count > 0 && draw_chance(draw, 25)) {
        const uint32_t at = draw_below(draw, list->count--);
        memmove(&list->calls[at], &list->calls[at + 1],
                (list->count - at) * sizeof(list->calls[0]));
    }
    if (draw_chance(draw, 20))
        insert_call(list, draw_below(draw, list->count + 1), draw_below(draw, calls->modules));
}

static void draw_waits(struct draw *draw, struct drawn_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        list->calls[i].waits = draw_chance(draw, draw->wait_percent);
        list->calls[i].waits_later = draw_chance(draw, draw->wait_percent / 3);
        list->calls[i].inside = draw->opens && draw_chance(draw, 20);
    }
}

// ---- Operations ------------------------------------------------------------------------------

static void add_op(struct calls_thread *thread, enum calls_kind kind, struct slot_id slot)
{
    thread->ops[thread->count++] = (struct calls_op){kind, slot};
}

// Buckets [first, last), as far as the module has them.
static void add_buckets(const struct calls *calls, struct calls_thread *thread, struct slot_id slot,
                        uint32_t first, uint32_t last)
{
    for (slot.bucket = first; slot.bucket < last && slot.bucket < calls->buckets[slot.module];
         slot.bucket++)
        add_op(thread, CALLS_READY, slot);
}

// Adds the rest of a call whose first bucket is there.
static void add_end(const struct calls *calls, struct calls_thread *thread, struct slot_id slot,
                    bool waits)
{
    add_buckets(calls, thread, slot, 1, CALLS_BUCKETS);
    add_op(thread, CALLS_END, slot);
    if (waits)
        add_op(thread, CALLS_WAIT, slot);
}

// Modules are divided between the threads, so that the numbers of their calls are, too.
static void add_thread(const struct calls *calls, const struct drawn_list *list, uint32_t index,
                       struct calls_thread *thread)
{
    uint32_t numbers[CALLS_MODULES] = {0};
    struct slot_id open = {0};
    bool has_open = false;
    bool open_waits = false;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct drawn_call *call = &list->calls[i];
        const struct slot_id slot = {call->module, numbers[call->module], 0};
        if (call->module % calls->threads != index)
            continue;
        numbers[call->module]++;
        add_op(thread, CALLS_BEGIN, slot);
        add_buckets(calls, thread, slot, 0, 1);
        if (call->inside && !has_open) {
            open = slot;
            has_open = true;
            open_waits = call->waits;
            continue;
        }
        add_end(calls, thread, slot, call->waits);
        if (has_open)
            add_end(calls, thread, open, open_waits);
        has_open = false;
    }
    if (has_open)
        add_end(calls, thread, open, open_waits);
}

static void add_later_waits(const struct calls *calls, const struct drawn_list *list,
                            uint32_t index, struct calls_thread *thread)
{
    uint32_t numbers[CALLS_MODULES] = {0};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct drawn_call *call = &list->calls[i];
        const struct slot_id slot = {call->module, numbers[call->module]++, 0};
        if (call->module % calls->threads == index && call->waits_later && !call->waits)
            add_op(thread, CALLS_WAIT, slot);
    }
}

// A rank's version of the list of a step.
static struct drawn_list draw_list(struct draw *draw, const struct calls *calls,
                                   const struct drawn_list *usual, bool conforms)
{
    struct drawn_list list = *usual;
    if (!conforms && draw_chance(draw, 60)) {
        deviate(draw, calls, &list);
        draw_waits(draw, &list);
    }
    return list;
}

static void draw_step(struct draw *draw, struct calls *calls, uint32_t step,
                      const struct drawn_list *bases)
{
    const bool usual_phase = draw->has_habits || draw_chance(draw, 75);
    const uint32_t phase = usual_phase ? 0 : draw_below(draw, CALLS_PHASES);
    const bool habits = draw->has_habits && step > 1;
    const bool conforms = draw->has_habits || draw_chance(draw, 100 - draw->deviate_percent);
    const bool parts = draw_chance(draw, 2);
    struct drawn_list usual = bases[phase];
    draw_waits(draw, &usual);
    for (uint32_t rank = 0; rank < calls->world; rank++) {
        struct calls_step *at = &calls->at[rank][step];
        const struct drawn_list list =
            habits ? draw->habits[rank] : draw_list(draw, calls, &usual, conforms);
        at->phase = parts && draw_chance(draw, 50) ? draw_below(draw, CALLS_PHASES) : phase;
        for (uint32_t thread = 0; thread < calls->threads; thread++) {
            add_thread(calls, &list, thread, &at->threads[thread]);
            add_later_waits(calls, &list, thread, &at->threads[thread]);
        }
    }
}

// ---- Programs --------------------------------------------------------------------------------

static void draw_options(struct draw *draw, struct calls *calls)
{
    static const uint32_t windows[] = {1, 2, 3, LOCKSTEP_WINDOW};
    struct order_options *options = &calls->options;
    const uint32_t kind = draw_below(draw, 4);
    options->window = windows[draw_below(draw, 4)];
    options->zero_defer = draw_chance(draw, 40);
    options->unplanned = (enum order_unplanned)draw_below(draw, 3);
    // The calls that a wait gives up must not depend on what another thread does at that time.
    calls->threads = !options->zero_defer && draw_chance(draw, 25) ? CALLS_THREADS : 1;
    options->threads = calls->threads;
    for (uint32_t rank = 0; rank < calls->world; rank++)
        if (kind == 0 || (kind == 1 && draw_chance(draw, 50)))
            calls->strict |= 1u << rank;
}

void calls_draw(struct calls *calls, uint64_t seed)
{
    static const uint32_t wait_percents[] = {0, 15, 40, 100};
    struct draw draw = {.random = seed};
    struct drawn_list bases[CALLS_PHASES];
    memset(calls, 0, sizeof(*calls));
    calls->world = 1 + draw_below(&draw, CALLS_WORLD);
    draw.has_habits = draw_chance(&draw, 30);
    calls->steps = draw.has_habits ? CALLS_STEPS : 2 + draw_below(&draw, CALLS_STEPS - 1);
    calls->modules = 1 + draw_below(&draw, CALLS_MODULES);
    draw_options(&draw, calls);
    draw.wait_percent = wait_percents[draw_below(&draw, 4)];
    draw.deviate_percent = 20 + draw_below(&draw, 60);
    draw.opens = !calls->options.zero_defer && draw_chance(&draw, 30);
    for (uint32_t m = 0; m < calls->modules; m++)
        calls->buckets[m] = 1 + draw_below(&draw, CALLS_BUCKETS);
    for (uint32_t phase = 0; phase < CALLS_PHASES; phase++)
        draw_base(&draw, calls, &bases[phase]);
    for (uint32_t rank = 0; draw.has_habits && rank < calls->world; rank++)
        draw.habits[rank] = draw_list(&draw, calls, &bases[0], false);
    for (uint32_t step = 1; step <= calls->steps; step++)
        draw_step(&draw, calls, step, bases);
}
