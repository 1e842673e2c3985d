// SPDX-License-Identifier: Apache-2.0
//
// The explorer; see explore.h. A *frame* is a state on the present way, with its possible events
// and the number of them that were tried.

#include "tests/sim/explore.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FRAMES = 512, // Events of the longest run.
};

struct frame {
    struct world_snapshot snapshot;
    struct world_event events[WORLD_EVENTS];
    uint32_t count;
    uint32_t next;
};

struct visit {
    struct world_hash hash; // All zero: free.
    uint32_t depth; // The depth at which the state was met first.
};

static struct {
    struct frame frames[FRAMES];
    struct world_event way[FRAMES];
    uint32_t depth;
    struct visit *visits;
    uint64_t room; // A power of two.
    uint64_t used;
} explorer;

// ---- The visited states ------------------------------------------------------------------------

static struct visit *visit_find(const struct world_hash *hash)
{
    uint64_t place = hash->words[0] & (explorer.room - 1);
    while ((explorer.visits[place].hash.words[0] | explorer.visits[place].hash.words[1]) != 0 &&
           memcmp(&explorer.visits[place].hash, hash, sizeof(*hash)) != 0)
        place = (place + 1) & (explorer.room - 1);
    return &explorer.visits[place];
}

static void visits_grow(void)
{
    struct visit *old = explorer.visits;
    const uint64_t room = explorer.room;
    explorer.room = room == 0 ? 1u << 14 : 4 * room;
    explorer.visits = calloc(explorer.room, sizeof(explorer.visits[0]));
    if (!explorer.visits)
        abort();
    for (uint64_t i = 0; i < room; i++)
        if ((old[i].hash.words[0] | old[i].hash.words[1]) != 0)
            *visit_find(&old[i].hash) = old[i];
    free(old);
}

static void visits_forget(void)
{
    free(explorer.visits);
    explorer.visits = NULL;
    explorer.room = explorer.used = 0;
    visits_grow();
}

// Marks a state as visited. Returns false if it was visited before at this depth or a smaller one.
static bool visit(const struct world_hash *hash, uint32_t depth, bool *first)
{
    if (2 * explorer.used >= explorer.room)
        visits_grow();
    struct visit *found = visit_find(hash);
    *first = (found->hash.words[0] | found->hash.words[1]) == 0;
    if (!*first && found->depth <= depth)
        return false;
    explorer.used += *first;
    *found = (struct visit){*hash, depth};
    return true;
}

// ---- Outcomes ----------------------------------------------------------------------------------

static bool outcome_known(const struct explore_found *found, const char *text)
{
    for (uint32_t i = 0; i < found->outcomes && i < EXPLORE_OUTCOMES; i++)
        if (strcmp(found->outcome[i], text) == 0)
            return true;
    return false;
}

// Length of the part of an outcome that must not depend on timing: "ok", or "error N".
static size_t outcome_kind(const char *text)
{
    const size_t head = strcspn(text, " ");
    return strncmp(text, "error", head) != 0 ? head : head + 1 + strcspn(text + head + 1, " ");
}

static void outcome_compare(struct world *world, enum explore_rule rule,
                            const struct explore_found *found, const char *text)
{
    const char *first = found->outcome[0];
    const size_t kind = outcome_kind(first);
    if (found->outcomes == 0 || rule == EXPLORE_ANY)
        return;
    if (outcome_kind(text) != kind || memcmp(first, text, kind) != 0)
        world_fault(world, "what comes of it depends on timing: %s, or %s", first, text);
    else if (rule == EXPLORE_SAME && strncmp(text, "ok", 2) == 0 && strcmp(first, text) != 0)
        world_fault(world, "results depend on timing: %s, or %s", first, text);
}

static void outcome_add(struct world *world, enum explore_rule rule, struct explore_found *found)
{
    char text[EXPLORE_OUTCOME_BYTES];
    found->ends++;
    if (!world_outcome(world, text, sizeof(text)) || outcome_known(found, text))
        return;
    outcome_compare(world, rule, found, text);
    if (found->outcomes < EXPLORE_OUTCOMES)
        memcpy(found->outcome[found->outcomes], text, sizeof(text));
    found->outcomes++;
}

// ---- Walking -----------------------------------------------------------------------------------

static struct frame *frame_push(struct world *world, struct explore_found *found)
{
    struct frame *frame = &explorer.frames[explorer.depth];
    frame->next = 0;
    frame->count = world_events(world, frame->events);
    if (frame->snapshot.size > found->bytes)
        found->bytes = (uint32_t)frame->snapshot.size;
    if (explorer.depth > found->depth)
        found->depth = explorer.depth;
    return frame;
}

// Lets the next event of the top frame happen. True: the new state is to be explored further.
static bool frame_step(struct world *world, enum explore_rule rule, uint32_t deepest,
                       struct explore_found *found)
{
    struct frame *frame = &explorer.frames[explorer.depth];
    bool first;
    if (frame->next > 0)
        world_restore(world, &frame->snapshot);
    explorer.way[explorer.depth] = frame->events[frame->next++];
    world_do(world, &explorer.way[explorer.depth]);
    found->events++;
    if (world->fault[0] != '\0')
        return true;
    world_save(world, &frame[1].snapshot);
    const struct world_hash hash = world_hash(&frame[1].snapshot);
    if (!visit(&hash, explorer.depth + 1, &first))
        return false;
    found->states += first;
    explorer.depth++;
    if (frame_push(world, found)->count == 0)
        outcome_add(world, rule, found);
    if (world->fault[0] == '\0' && explorer.depth == FRAMES - 1)
        world_fault(world, "a run does not end");
    if (world->fault[0] != '\0' || explorer.depth < deepest)
        return world->fault[0] != '\0';
    explorer.depth--;
    return false;
}

static bool walk(struct world *world, enum explore_rule rule, uint64_t limit, uint32_t deepest,
                 struct explore_found *found)
{
    explorer.depth = 0;
    world_save(world, &explorer.frames[0].snapshot);
    frame_push(world, found);
    found->states = 1;
    found->complete = true;
    for (;;) {
        const struct frame *frame = &explorer.frames[explorer.depth];
        if (frame->next < frame->count) {
            if (frame_step(world, rule, deepest, found))
                break;
        } else if (explorer.depth-- == 0) {
            return true;
        }
        if (found->states < limit)
            continue;
        found->complete = false;
        return true;
    }
    memcpy(found->fault, world->fault, sizeof(found->fault));
    found->way = explorer.way;
    // The last event of the way is in the frame below the top one, or in the top one when it was
    // the event itself that failed.
    found->steps = explorer.depth;
    if (explorer.frames[explorer.depth].next > 0)
        found->steps++;
    return false;
}

bool explore(struct world *world, const struct world_config *config, enum explore_rule rule,
             uint64_t limit, struct explore_found *found)
{
    memset(found, 0, sizeof(*found));
    if (!world_begin(world, config)) {
        memcpy(found->fault, world->fault, sizeof(found->fault));
        return false;
    }
    visits_forget();
    return walk(world, rule, limit, FRAMES, found);
}

void explore_shorten(struct world *world, const struct world_config *config, uint64_t limit,
                     struct explore_found *found)
{
    static struct world_event kept[FRAMES];
    static struct explore_found shorter;
    memcpy(kept, found->way, found->steps * sizeof(kept[0]));
    found->way = kept;
    for (uint32_t deepest = 1; deepest < found->steps; deepest++) {
        memset(&shorter, 0, sizeof(shorter));
        visits_forget();
        if (!world_begin(world, config))
            return;
        if (!walk(world, EXPLORE_ANY, limit, deepest, &shorter)) {
            memcpy(kept, shorter.way, shorter.steps * sizeof(kept[0]));
            found->steps = shorter.steps;
            memcpy(found->fault, shorter.fault, sizeof(found->fault));
            return;
        }
        if (!shorter.complete)
            return;
    }
}

void explore_free(void)
{
    for (uint32_t i = 0; i < FRAMES; i++)
        world_snapshot_free(&explorer.frames[i].snapshot);
    free(explorer.visits);
    explorer.visits = NULL;
    explorer.room = explorer.used = 0;
}

// ---- For people --------------------------------------------------------------------------------

static void print_line(void *context, const char *line)
{
    (void)context;
    puts(line);
}

void explore_describe(const struct world_config *config, char *text, size_t bytes)
{
    static const char *const unplanned[] = {"extend", "fail", "defer"};
    static const char *const disasters[] = {"", ", a death", ", a stream breaks",
                                            ", another coordinator"};
    int used = snprintf(text, bytes, "W %" PRIu32 ", strict %" PRIx32 ", %s/%s%s, plans",
                        config->window, config->strict, config->zero_defer ? "zero_defer" : "error",
                        unplanned[config->unplanned], disasters[config->disaster]);
    for (uint32_t i = 0; i < WORLD_PLANS && config->plans[i]; i++)
        used += snprintf(text + used, bytes - (size_t)used, " [%s]", config->plans[i]);
    if (config->publish)
        used += snprintf(text + used, bytes - (size_t)used, ", publishes [%s]", config->publish);
    for (uint32_t r = 0; r < config->ranks; r++)
        used += snprintf(text + used, bytes - (size_t)used, "%s%s", r == 0 ? ", programs: " : " | ",
                         config->programs[r]);
}

void explore_print(struct world *world, const struct world_config *config,
                   const struct explore_found *found)
{
    char text[4 * WORLD_TEXT];
    struct world_event events[WORLD_EVENTS];
    explore_describe(config, text, sizeof(text));
    printf("FAULT: %s\n%s\n", found->fault, text);
    if (!world_begin(world, config))
        return;
    world->say = print_line;
    for (uint32_t i = 0; i < found->steps; i++)
        world_do(world, &found->way[i]);
    world->say = NULL;
    if (world_events(world, events) == 0)
        world_outcome(world, text, sizeof(text));
    world_describe(world, text, sizeof(text));
    printf("then: %s\n", text);
}
