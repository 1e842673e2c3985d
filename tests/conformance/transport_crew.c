// SPDX-License-Identifier: Apache-2.0
//
// A world of ranks on one thread; see transport_crew.h.

#include "tests/conformance/transport_crew.h"

#include "base/clock.h"
#include "coordinator/redo.h"
#include "protos/topology.h"
#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_tear.h"
#include "worker/kernels/dtype.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/regions.h"
#include "worker/memory/units.h"
#include "worker/transport/freeze.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/redo.h"
#include "worker/transport/transport.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Every second unit has no elements.
#define CREW_UNIT_COUNT 10
#define CREW_EMPTY UINT64_C(0x2aa) // The set of these units.
#define CREW_ROWS 512
#define CREW_BOUND_MS 20000
#define CREW_EARLY_TURNS 6 // Turns after which the last rank has launched.
#define CREW_LATE_TURNS 12 // Turns of the survivors between a death and the freeze, at most.
#define CREW_FENCE_MS 5
#define CREW_ASIDE 1000 // Bytes of a region before a slot: blocks do not end where pages do.
#define CREW_UNTOUCHED (-7) // Less the rank: it differs between ranks.

struct hand;

// One slot of one rank.
struct task {
    struct collective collective;
    struct extent extents[CREW_UNIT_COUNT];
    uint64_t ends[CREW_UNIT_COUNT];
    uint64_t used;
    uint8_t *memory;
    uint8_t *region; // NULL: the memory is private.
    bool launched;
    bool done;
    bool settled; // True if it was done in an earlier generation.
};

// One rank.
struct hand {
    struct crew *crew;
    uint32_t first_rank; // In the first generation.
    uint32_t rank; // In the present one.
    struct transport *transport;
    struct regions *regions; // NULL: none.
    bool dead;
    bool asleep; // True while it is stopped inside of a turn.
    bool formed;
    bool frozen;
    uint32_t turns; // In this generation, from formed on.
    uint32_t launches_at;
    uint32_t lost;
    char lost_text[128];
    // The group's members that are left, the highest first.
    struct collective_parts everyone;
    struct collective_part ranks[CREW_MAX];
    struct task tasks[CREW_SLOTS];
};

struct crew {
    const struct crew_plan *plan;
    struct crew_tally *tally;
    uint64_t random;
    uint32_t generation;
    uint32_t count; // Ranks of the present generation.
    bool private; // True if the ranks have made their memory private.
    bool refused; // True if it is not known what is final.
    struct hand *members[CREW_MAX]; // By rank in the present generation.
    uint32_t sets; // Generations so far; members_of[g]: bits by first rank.
    uint32_t members_of[CREW_DEATHS + 1];
    uint64_t reported[CREW_SLOTS]; // Used bits that some rank has ever reported.
    struct fleet fleet; // Only its options and addresses, for fleet_world.
    struct hand hands[CREW_MAX];
};

static void crew_fail(const struct crew *crew, int line, const char *text)
{
    const struct crew_plan *plan = crew->plan;
    fflush(stdout);
    fprintf(stderr,
            "%s:%d: %s\n  %s: algorithm %d, world %u, elements %u, units %d, end %d, seed %llu, "
            "victims %u %u %u, turns %u %u %u, generation %u\n",
            __FILE__, line, text, plan->name, (int)plan->algorithm, plan->world, plan->elements,
            (int)plan->units, (int)plan->end, (unsigned long long)plan->seed, plan->victims[0],
            plan->victims[1], plan->victims[2], plan->turns[0], plan->turns[1], plan->turns[2],
            crew->generation);
    for (uint32_t i = 0; i < plan->world; i++) {
        const struct hand *hand = &crew->hands[i];
        fprintf(stderr, "  rank %u (now %u): %s%s%s, %u lost (%s)", i, hand->rank,
                hand->dead ? "dead " : "", hand->formed ? "formed " : "",
                hand->frozen ? "frozen" : "", hand->lost, hand->lost_text);
        for (uint32_t s = 0; s < plan->slots; s++)
            fprintf(stderr, " %s",
                    hand->tasks[s].done       ? "done"
                    : hand->tasks[s].launched ? "launched"
                                              : "open");
        fprintf(stderr, "\n");
    }
    fflush(stderr);
    _exit(1);
}

#define CREW_CHECK(crew, condition) \
    do { \
        if (!(condition)) \
            crew_fail(crew, __LINE__, #condition); \
    } while (0)

static uint32_t crew_draw(struct crew *crew, uint32_t below)
{
    crew->random = crew->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(crew->random >> 33) % below;
}

// ---- inputs and the oracle ----------------------------------------------------------------------

// True if the rank has the slots.
static bool crew_has(const struct crew_plan *plan, uint32_t first_rank)
{
    return plan->group == 0 || (plan->group >> first_rank & 1) != 0;
}

static uint64_t crew_weight(const struct crew_plan *plan, uint32_t first_rank)
{
    if (plan->weightless)
        return first_rank == plan->victims[0] ? 3 : 0;
    return plan->exact ? 1 : first_rank + 1;
}

static void crew_put(enum dtype dtype, void *memory, uint64_t element, double value)
{
    const float narrow = (float)value;
    if (dtype == DTYPE_FLOAT64)
        ((double *)memory)[element] = value;
    else if (dtype == DTYPE_FLOAT32)
        ((float *)memory)[element] = narrow;
    else
        kernel_narrow(dtype, (uint16_t *)memory + element, &narrow, 1);
}

static double crew_get(enum dtype dtype, const void *memory, uint64_t element)
{
    float wide = 0;
    if (dtype == DTYPE_FLOAT64)
        return ((const double *)memory)[element];
    if (dtype == DTYPE_FLOAT32)
        return (double)((const float *)memory)[element];
    kernel_widen(dtype, &wide, (const uint16_t *)memory + element, 1);
    return (double)wide;
}

static double crew_rounded(enum dtype dtype, double value)
{
    double memory = 0;
    crew_put(dtype, &memory, 0, value);
    return crew_get(dtype, &memory, 0);
}

// Small whole numbers: their weighted sums are exact in every dtype that is used here. In an exact
// plan they are not, and the sum of two float16 is infinite.
static double crew_input(const struct crew_plan *plan, uint32_t first_rank, uint32_t slot,
                         uint64_t element)
{
    const uint64_t number = (first_rank * 5 + slot * 3 + element * 7) % 13;
    if (!plan->exact)
        return (double)number;
    const double least = plan->dtype == DTYPE_FLOAT16 ? 40000 : 0;
    return crew_rounded(plan->dtype, least + (double)(number << 3 * first_rank) / 3);
}

static bool crew_uses(const struct crew_plan *plan, uint32_t first_rank, uint32_t unit)
{
    if (plan->units != CREW_SPARSE)
        return true;
    if (unit % 2 == 1)
        return first_rank == unit / 2 % plan->world;
    switch (unit) {
    case 0:
        return true;
    case 2:
        return false; // Nobody.
    case 4:
        return first_rank == plan->victims[0]; // Whoever dies first.
    case 6:
        return first_rank != plan->victims[0];
    default:
        return first_rank % 2 == 0;
    }
}

static uint64_t crew_unit_end(const struct crew_plan *plan, uint32_t unit)
{
    const uint32_t count = CREW_UNIT_COUNT / 2;
    if (plan->units == CREW_PLAIN || unit / 2 == count - 1)
        return plan->elements;
    return (uint64_t)plan->elements * (unit / 2 + 1) / count + unit / 2;
}

static uint32_t crew_unit_of(const struct crew_plan *plan, uint64_t element)
{
    uint32_t unit = 0;
    while (plan->units != CREW_PLAIN && element >= crew_unit_end(plan, unit))
        unit++;
    return unit;
}

// The mean of an element over a set of ranks; false: no rank of it has a weight.
static bool crew_mean(const struct crew *crew, uint32_t members, uint32_t slot, uint64_t element,
                      double *mean)
{
    const uint32_t unit = crew_unit_of(crew->plan, element);
    double sum = 0;
    double weights = 0;
    float exact = 0;
    for (uint32_t r = 0; r < crew->plan->world; r++) {
        if (!(members >> r & 1) || !crew_has(crew->plan, r))
            continue;
        const double weight = (double)crew_weight(crew->plan, r);
        weights += weight;
        const double input = crew_input(crew->plan, r, slot, element);
        if (!crew_uses(crew->plan, r, unit))
            continue;
        sum += weight * input;
        exact += (float)input;
    }
    *mean = weights > 0 ? sum / weights : 0;
    if (crew->plan->exact)
        *mean = crew_rounded(crew->plan->dtype, (double)(exact / (float)weights));
    return weights > 0;
}

// How far a result may be from the exact mean.
static double crew_tolerance(const struct crew_plan *plan, double mean)
{
    if (plan->exact)
        return 0;
    const bool coarse = plan->dtype == DTYPE_BFLOAT16 || plan->final == DTYPE_BFLOAT16 ||
                        plan->partial == DTYPE_BFLOAT16;
    const double bits = coarse                         ? 1.0 / 32
                        : plan->dtype == DTYPE_FLOAT16 ? 1.0 / 256
                                                       : 1.0 / (1 << 20);
    return (mean < 0 ? -mean : mean) * bits + 1e-9;
}

// What memory holds where nothing was written.
static double crew_before(const struct hand *hand, uint32_t slot, uint64_t element)
{
    const struct crew_plan *plan = hand->crew->plan;
    const double times = plan->sums ? (double)crew_weight(plan, hand->first_rank) : 1;
    return crew_uses(plan, hand->first_rank, crew_unit_of(plan, element))
               ? times * crew_input(plan, hand->first_rank, slot, element)
               : CREW_UNTOUCHED - (double)hand->first_rank;
}

static void crew_check_element(const struct crew *crew, const struct hand *hand, uint32_t slot,
                               uint64_t element)
{
    const struct crew_plan *plan = crew->plan;
    const struct task *task = &hand->tasks[slot];
    const double is = crew_get(plan->dtype, task->memory, element);
    const uint32_t unit = crew_unit_of(plan, element);
    if ((plan->units != CREW_PLAIN && !(task->used >> unit & 1)) ||
        task->collective.weight_total == 0) {
        CREW_CHECK(crew, is == crew_before(hand, slot, element));
        return;
    }
    for (uint32_t g = 0; g < crew->sets; g++) {
        double mean = 0;
        if (!crew_mean(crew, crew->members_of[g], slot, element, &mean)) {
            // No rank of this set has a weight. The element is zero, because others were final.
            if (is == 0)
                return;
        } else if (fabs(is - mean) <= crew_tolerance(plan, mean)) {
            return;
        }
    }
    char text[160];
    snprintf(text, sizeof(text), "slot %u, element %llu of rank %u is %g, a mean over no set", slot,
             (unsigned long long)element, hand->first_rank, is);
    crew_fail(crew, __LINE__, text);
}

static uint64_t crew_uses_units(const struct crew_plan *plan, uint32_t first_rank)
{
    uint64_t used = 0;
    for (uint32_t u = 0; plan->units != CREW_PLAIN && u < CREW_UNIT_COUNT; u++)
        used |= (uint64_t)(crew_has(plan, first_rank) && crew_uses(plan, first_rank, u)) << u;
    return used;
}

// Checks the used bits that a survivor ends with. Used units with elements are those that a
// survivor uses, and those of which anything was ever final with the gradient of a rank that has
// died. Used units without elements are those that a survivor uses, and any that a dead rank uses.
static void crew_check_used(const struct crew *crew, uint32_t slot, uint64_t used)
{
    const struct crew_plan *plan = crew->plan;
    uint64_t least = 0;
    uint64_t most = 0;
    for (uint32_t i = 0; i < crew->count; i++)
        least |= crew_uses_units(plan, crew->members[i]->first_rank);
    for (uint32_t r = 0; r < plan->world; r++)
        most |= crew_uses_units(plan, r);
    CREW_CHECK(crew, (used & ~CREW_EMPTY) == ((crew->reported[slot] | least) & ~CREW_EMPTY));
    CREW_CHECK(crew, (least & ~used) == 0 && (used & ~most) == 0);
}

// All survivors have the same bits, except where nothing was written.
static void crew_check_same(const struct crew *crew, const struct hand *hand, uint32_t slot)
{
    const struct crew_plan *plan = crew->plan;
    uint32_t first = 0;
    while (!crew_has(plan, crew->members[first]->first_rank))
        first++;
    const struct task *one = &crew->members[first]->tasks[slot];
    const struct task *other = &hand->tasks[slot];
    const size_t size = dtype_size(plan->dtype);
    CREW_CHECK(crew, one->used == other->used);
    crew_check_used(crew, slot, other->used);
    CREW_CHECK(crew, one->collective.weight_total == other->collective.weight_total);
    for (uint64_t e = 0; e < plan->elements; e++) {
        const bool used = plan->units == CREW_PLAIN || (one->used >> crew_unit_of(plan, e) & 1);
        const bool touched = used && one->collective.weight_total > 0;
        CREW_CHECK(crew,
                   !touched || memcmp(one->memory + e * size, other->memory + e * size, size) == 0);
    }
}

static void crew_check(const struct crew *crew)
{
    for (uint32_t i = 0; i < crew->count; i++) {
        for (uint32_t s = 0; s < crew->plan->slots; s++) {
            if (!crew_has(crew->plan, crew->members[i]->first_rank))
                continue;
            crew_check_same(crew, crew->members[i], s);
            for (uint64_t e = 0; e < crew->plan->elements; e++)
                crew_check_element(crew, crew->members[i], s, e);
        }
    }
}

// ---- ranks --------------------------------------------------------------------------------------

static void on_formed(void *context)
{
    ((struct hand *)context)->formed = true;
}

static void on_done(void *context, struct collective *collective)
{
    (void)context;
    ((struct task *)collective->context)->done = true;
}

static void on_lost(void *context, uint32_t rank, enum peer_loss loss, const char *text)
{
    struct hand *hand = context;
    (void)rank;
    hand->lost++;
    snprintf(hand->lost_text, sizeof(hand->lost_text), "%s", text);
    if (loss == LOSS_IMPOSSIBLE || loss == LOSS_HERE)
        crew_fail(hand->crew, __LINE__, text);
}

static void on_mismatch(void *context, struct collective *collective, uint32_t rank,
                        const char *text)
{
    (void)collective;
    (void)rank;
    crew_fail(((struct hand *)context)->crew, __LINE__, text);
}

static void hand_open(struct crew *crew, struct hand *hand)
{
    const struct transport_config config = {
        .kind = crew->plan->kind,
        .host = "127.0.0.1",
        .shares = crew->plan->mates,
        .torn_bytes = crew->plan->torn_bytes,
        .regions = hand->regions,
        .recovers = true,
        .fence_ms = CREW_FENCE_MS,
        .latency_ns = 1000,
        .bytes_per_s = 1000000000,
        .events = {.formed = on_formed,
                   .done = on_done,
                   .peer_lost = on_lost,
                   .mismatch = on_mismatch,
                   .context = hand},
    };
    char error[256] = "";
    if (transport_open(&config, &hand->transport, error, sizeof(error)) < 0)
        crew_fail(crew, __LINE__, error);
}

static void task_take_memory(const struct crew_plan *plan, const struct hand *hand,
                             struct task *task)
{
    const size_t bytes = plan->elements * dtype_size(plan->dtype);
    void *region = NULL;
    if (!hand->regions) {
        task->memory = calloc(plan->elements, dtype_size(plan->dtype));
        return;
    }
    if (regions_make(hand->regions, CREW_ASIDE + bytes + LOCKSTEP_REGION_BYTES, &region) < 0)
        crew_fail(hand->crew, __LINE__, "no memory that mates can map");
    task->region = region;
    task->memory = task->region + CREW_ASIDE;
}

static void task_make(const struct crew_plan *plan, const struct hand *hand, uint32_t slot,
                      struct task *task)
{
    const uint32_t units = plan->units == CREW_PLAIN ? 1 : CREW_UNIT_COUNT;
    const size_t size = dtype_size(plan->dtype);
    uint64_t first = 0;
    task_take_memory(plan, hand, task);
    for (uint64_t e = 0; e < plan->elements; e++)
        crew_put(plan->dtype, task->memory, e, crew_before(hand, slot, e));
    for (uint32_t u = 0; u < units; u++) {
        const uint64_t end = crew_unit_end(plan, u);
        const bool uses = crew_uses(plan, hand->first_rank, u);
        task->ends[u] = end;
        task->extents[u] = (struct extent){.in = uses ? task->memory + first * size : NULL,
                                           .out = task->memory + first * size,
                                           .elements = end - first};
        task->used |= (uint64_t)uses << u;
        first = end;
    }
    if (plan->units == CREW_PLAIN)
        task->used = 0;
    task->collective = (struct collective){
        .dtype = plan->dtype,
        .partial = plan->partial,
        .final = plan->final,
        .op = REDUCE_MEAN,
        .algorithm = plan->algorithm,
        .tag = {.step = 4, .space = 5, .slot = slot},
        .signature = 6,
        .extents = task->extents,
        .extent_count = units,
        .elements = plan->elements,
        .weight = crew_weight(plan, hand->first_rank),
        .input_is_sum = plan->sums,
        .unit_ends = plan->units == CREW_PLAIN ? NULL : task->ends,
        .unit_count = plan->units == CREW_PLAIN ? 0 : units,
        .used = &task->used,
        .parts = plan->group == 0 ? NULL : &hand->everyone,
        .context = task,
    };
}

static void hand_launch(const struct crew *crew, struct hand *hand)
{
    for (uint32_t s = 0; s < crew->plan->slots; s++) {
        struct task *task = &hand->tasks[s];
        if (task->launched || !crew_has(crew->plan, hand->first_rank))
            continue;
        task->launched = true;
        transport_launch(hand->transport, &task->collective);
    }
}

static void hand_turn(const struct crew *crew, struct hand *hand)
{
    if (hand->turns == hand->launches_at)
        hand_launch(crew, hand);
    hand->turns++;
    transport_progress(hand->transport, 0);
}

// The page at which the rank stops. Most pages are of elements that it sums.
static uint8_t *hand_page(const struct crew *crew, const struct hand *hand)
{
    const struct crew_plan *plan = crew->plan;
    const uint64_t bytes = plan->elements * dtype_size(plan->dtype) / crew->count;
    const uint64_t pages = 1 + bytes / TEAR_PAGE_BYTES;
    const uint32_t slot = plan->tear_page % plan->slots;
    const uint64_t first = (CREW_ASIDE + hand->rank * bytes) / TEAR_PAGE_BYTES;
    const uint64_t at = (first + plan->tear_page / plan->slots % pages) * TEAR_PAGE_BYTES;
    const uint32_t other = 1 + plan->tear_mate % (crew->count - 1);
    const struct hand *mate = crew->members[(hand->rank + other) % crew->count];
    uint32_t number = 0;
    uint64_t offset = 0;
    if (plan->tear == CREW_TEARS_OWN)
        return hand->tasks[slot].region + at;
    CREW_CHECK(crew,
               regions_find(mate->regions, mate->tasks[slot].region + at, 1, &number, &offset));
    uint8_t *page = regions_of(hand->regions, mate->rank, number, offset, TEAR_PAGE_BYTES);
    CREW_CHECK(crew, page);
    return page;
}

// One turn, in which the rank may stop. True: it has stopped.
static bool hand_tear(const struct crew *crew, struct hand *hand)
{
    if (hand->turns == hand->launches_at)
        hand_launch(crew, hand);
    hand->turns++;
    hand->asleep = tear_turn(hand->transport, hand_page(crew, hand));
    crew->tally->torn += hand->asleep;
    return hand->asleep;
}

static void hand_die(const struct crew *crew, struct hand *hand)
{
    hand->dead = true;
    if (crew->plan->end == CREW_STOPS)
        return;
    if (hand->regions) {
        // The kernel, not the rank, ends the links: the rank says nothing to its mates.
        tear_links(hand->transport);
        return;
    }
    if (crew->plan->end == CREW_RESETS)
        transport_abandon(hand->transport);
    transport_close(hand->transport);
    hand->transport = NULL;
}

// ---- a generation -------------------------------------------------------------------------------

// Waits until all ranks have mapped the memory of all.
static void crew_map(const struct crew *crew)
{
    const uint64_t since_ms = clock_now_ms();
    uint32_t number = 0;
    uint64_t offset = 0;
    for (uint32_t i = 0; crew->count > 1 && i < crew->count; i++) {
        const struct hand *hand = crew->members[i];
        for (uint32_t s = 0; s < crew->plan->slots; s++) {
            while (!regions_find(hand->regions, hand->tasks[s].memory, 1, &number, &offset)) {
                for (uint32_t k = 0; k < crew->count; k++)
                    transport_progress(crew->members[k]->transport, 0);
                CREW_CHECK(crew, clock_now_ms() - since_ms < fleet_bound_ms(CREW_BOUND_MS));
            }
        }
    }
}

// Gives the ranks of a group their numbers in the present generation.
static void crew_number(struct crew *crew)
{
    for (uint32_t i = 0; i < crew->count; i++) {
        struct hand *hand = crew->members[i];
        uint32_t count = 0;
        for (uint32_t k = crew->count; k-- > 0;)
            if (crew_has(crew->plan, crew->members[k]->first_rank))
                hand->ranks[count++].rank = k;
        hand->everyone = (struct collective_parts){.sends = hand->ranks, .send_count = count};
    }
}

static void crew_form(struct crew *crew)
{
    struct transport_world world;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];
    const uint64_t since_ms = clock_now_ms();
    uint32_t formed = 0;
    uint32_t members = 0;
    crew->fleet.options.world = crew->count;
    crew->fleet.options.hosts = crew->plan->hosts > crew->count ? crew->count : crew->plan->hosts;
    for (uint32_t i = 0; i < crew->count; i++)
        snprintf(crew->fleet.addresses[i], LOCKSTEP_ADDRESS_BYTES, "%s",
                 transport_address(crew->members[i]->transport));
    for (uint32_t i = 0; i < crew->count; i++) {
        struct hand *hand = crew->members[i];
        fleet_world(&crew->fleet, i, &world, peers);
        world.generation.number = 7 + crew->generation;
        hand->rank = i;
        hand->formed = hand->frozen = false;
        hand->turns = 0;
        hand->launches_at = crew_draw(crew, CREW_EARLY_TURNS);
        members |= 1u << hand->first_rank;
        CREW_CHECK(crew, transport_form(hand->transport, &world) == 0);
    }
    crew->members_of[crew->sets++] = members;
    crew_number(crew);
    while (formed < crew->count) {
        formed = 0;
        for (uint32_t i = 0; i < crew->count; i++) {
            transport_progress(crew->members[i]->transport, 0);
            formed += crew->members[i]->formed;
        }
        CREW_CHECK(crew, clock_now_ms() - since_ms < fleet_bound_ms(CREW_BOUND_MS));
    }
    if (crew->plan->registered && !crew->private)
        crew_map(crew);
}

static bool hand_is_done(const struct crew *crew, const struct hand *hand)
{
    bool done = true;
    for (uint32_t s = 0; s < crew->plan->slots; s++)
        done = done && hand->tasks[s].done;
    return done || !crew_has(crew->plan, hand->first_rank);
}

// The rank that stops inside of a turn in this generation; NULL: none.
static struct hand *crew_torn(const struct crew *crew, uint32_t victim)
{
    if (crew->generation > 0 || crew->plan->tear == CREW_WHOLE)
        return NULL;
    return crew->members[(victim + crew->plan->sleeps) % crew->count];
}

// Drives all ranks until all are done or the victim has died. True: it has died.
static bool crew_drive(struct crew *crew)
{
    const struct crew_plan *plan = crew->plan;
    const bool may_die = crew->generation < CREW_DEATHS && crew->count > 1;
    const uint32_t number = may_die ? plan->victims[crew->generation] % crew->count : 0;
    const uint32_t dies = may_die ? plan->turns[crew->generation] : CREW_NEVER;
    const uint64_t since_ms = clock_now_ms();
    struct hand *victim = crew->members[number];
    const struct hand *torn = crew_torn(crew, number);
    for (;;) {
        bool done = true;
        for (uint32_t i = 0; i < crew->count; i++)
            done = done && hand_is_done(crew, crew->members[i]);
        if (crew->generation == 0)
            crew->tally->turns = victim->turns;
        if (victim->turns >= dies && (!torn || torn->asleep)) {
            hand_die(crew, victim);
            return true;
        }
        if (done)
            return false;
        CREW_CHECK(crew, clock_now_ms() - since_ms < fleet_bound_ms(CREW_BOUND_MS));
        struct hand *hand = crew->members[crew_draw(crew, crew->count)];
        if (hand == torn && hand->turns >= dies)
            (void)(hand->asleep || hand_tear(crew, hand));
        else
            hand_turn(crew, hand);
    }
}

// Freezes the survivors, one after the other, while the others may still go on.
static void crew_freeze(struct crew *crew)
{
    const struct generation_id ballot = {.number = 8 + crew->generation, .incarnation = 0xabcdef};
    uint32_t late = crew_draw(crew, CREW_LATE_TURNS * crew->count);
    uint32_t left = 0;
    for (uint32_t i = 0; i < crew->count; i++)
        left += !crew->members[i]->dead;
    while (left > 0) {
        struct hand *hand = crew->members[crew_draw(crew, crew->count)];
        if (hand->dead || hand->frozen || (hand->asleep && left > 1))
            continue;
        if (hand->asleep)
            tear_wake();
        hand->asleep = false;
        if (late > 0 || crew_draw(crew, 3) > 0) {
            late -= late > 0;
            hand_turn(crew, hand);
            continue;
        }
        CREW_CHECK(crew, transport_freeze(hand->transport, &ballot) == 0);
        hand->frozen = true;
        left--;
    }
}

static void crew_bury(struct crew *crew)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < crew->count; i++) {
        if (!crew->members[i]->dead)
            crew->members[count++] = crew->members[i];
    }
    crew->count = count;
}

// What a rank says of a slot.
struct word {
    struct redo_report report;
    struct redo_run run; // The whole slot.
    bool whole;
    uint64_t used;
};

static void hand_report(struct crew *crew, const struct hand *hand, uint32_t slot,
                        struct word *word)
{
    const struct task *task = &hand->tasks[slot];
    struct transport_finals finals = {.unknown = NULL};
    *word = (struct word){.report.contributed = task->launched};
    if (task->done && task->collective.weight_total > 0) {
        word->run = (struct redo_run){.first = 0, .end = crew->plan->elements};
        word->report.run_count = 1;
        word->report.runs = &word->run;
        word->whole = true;
        word->used = task->used;
        return;
    }
    if (!task->launched)
        return;
    transport_final(hand->transport, &task->collective, &finals);
    if (finals.unknown && !crew->plan->sums && crew->plan->world == 2 && crew->tally->torn > 0 &&
        crew->plan->end == CREW_STOPS)
        crew->refused = true;
    else if (finals.unknown)
        crew_fail(crew, __LINE__, finals.unknown);
    word->report.run_count = finals.run_count;
    word->report.runs = finals.runs;
    transport_final_used(hand->transport, &task->collective, &word->used);
}

// A rank's memory is its input or a final value, element by element: R1 and R4.
static void crew_check_report(const struct crew *crew, const struct hand *hand, uint32_t slot,
                              const struct word *word)
{
    const struct task *task = &hand->tasks[slot];
    const struct redo_report *report = &word->report;
    uint64_t units = 0; // With a final element.
    uint32_t at = 0;
    for (uint64_t e = 0; e < crew->plan->elements; e++) {
        while (at < report->run_count && report->runs[at].end <= e)
            at++;
        const bool final = at < report->run_count && report->runs[at].first <= e;
        units |= (uint64_t) final << crew_unit_of(crew->plan, e);
        if (!final)
            CREW_CHECK(crew,
                       crew_get(crew->plan->dtype, task->memory, e) == crew_before(hand, slot, e));
    }
    CREW_CHECK(crew, (word->used & ~units & ~CREW_EMPTY) == 0);
}

static void crew_redo(struct crew *crew, uint32_t slot)
{
    static struct redo_row rows[CREW_ROWS];
    struct redo_report reports[CREW_MAX];
    struct word words[CREW_MAX];
    uint64_t used = 0;
    uint32_t count = 0;
    uint32_t places[CREW_MAX]; // [having]: of the ranks that have the slot.
    uint32_t having = 0;
    for (uint32_t i = 0; i < crew->count; i++) {
        if (!crew_has(crew->plan, crew->members[i]->first_rank))
            continue;
        hand_report(crew, crew->members[i], slot, &words[i]);
        if (crew->refused)
            return;
        crew_check_report(crew, crew->members[i], slot, &words[i]);
        places[having] = i;
        reports[having++] = words[i].report;
        used |= words[i].used;
    }
    crew->reported[slot] |= used;
    const enum redo_status status =
        redo_decide(reports, having, crew->plan->elements, rows, CREW_ROWS, &count);
    CREW_CHECK(crew, status == REDO_ROWS || status == REDO_AGAIN);
    crew->tally->again += status == REDO_AGAIN;
    crew->tally->whole += status == REDO_ROWS && count == 0;
    for (uint32_t i = 0; i < count; i++) {
        rows[i].owner = places[rows[i].owner];
        crew->tally->have += rows[i].kind == REDO_HAVE;
        crew->tally->reduce += rows[i].kind == REDO_REDUCE;
    }
    for (uint32_t k = 0; k < having; k++) {
        const uint32_t i = places[k];
        struct task *task = &crew->members[i]->tasks[slot];
        const struct transport_redo redo = {
            .rows = rows, .count = count, .used = &used, .whole = words[i].whole};
        task->done = false;
        if (status == REDO_AGAIN) {
            task->launched = false; // It is launched after some turns.
            if (task->collective.algorithm == ALGORITHM_TWO_LEVEL &&
                crew->count <= crew->fleet.options.hosts)
                task->collective.algorithm = ALGORITHM_RING;
            continue;
        }
        const char *text = transport_redo(crew->members[i]->transport, &task->collective, &redo);
        if (text)
            crew_fail(crew, __LINE__, text);
    }
}

// Puts the survivors together again.
static void crew_recover(struct crew *crew)
{
    crew->private = crew->tally->torn > 0;
    crew_freeze(crew);
    crew_bury(crew);
    crew->generation++;
    crew_form(crew);
    for (uint32_t s = 0; s < crew->plan->slots && !crew->refused; s++)
        crew_redo(crew, s);
}

static void hand_give_memory(const struct crew_plan *plan, struct hand *hand)
{
    for (uint32_t s = 0; s < plan->slots; s++) {
        if (hand->regions)
            (void)regions_free(hand->regions, hand->tasks[s].region);
        else
            free(hand->tasks[s].memory);
    }
    regions_close(hand->regions);
}

void crew_run(const struct crew_plan *plan, struct crew_tally *tally)
{
    struct crew *crew = calloc(1, sizeof(*crew));
    crew->plan = plan;
    crew->tally = tally;
    crew->random = plan->seed * 2654435761u + 12345;
    crew->count = plan->world;
    crew->fleet.options = (struct fleet_options){.name = plan->name,
                                                 .kind = plan->kind,
                                                 .chunk_bytes = plan->chunk_bytes,
                                                 .mates = plan->mates,
                                                 .algorithm = plan->algorithm};
    for (uint32_t i = 0; i < plan->world; i++) {
        struct hand *hand = &crew->hands[i];
        *hand = (struct hand){.crew = crew, .first_rank = i};
        crew->members[i] = hand;
        if (plan->registered)
            hand->regions = regions_open();
        hand_open(crew, hand);
        for (uint32_t s = 0; s < plan->slots; s++)
            task_make(plan, hand, s, &hand->tasks[s]);
    }
    crew_form(crew);
    while (!crew->refused && crew_drive(crew))
        crew_recover(crew);
    tally->refused = crew->refused;
    if (!crew->refused)
        crew_check(crew);
    // A rank that was stopped inside of its stores goes on after its exclusion.
    tear_wake();
    if (!crew->refused && plan->end == CREW_STOPS)
        crew_check(crew);
    for (uint32_t i = 0; i < plan->world; i++) {
        if (crew->hands[i].transport)
            transport_close(crew->hands[i].transport);
    }
    for (uint32_t i = 0; i < plan->world; i++)
        hand_give_memory(plan, &crew->hands[i]);
    free(crew);
}
