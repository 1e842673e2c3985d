// SPDX-License-Identifier: Apache-2.0
//
// Conformance: random models on random worlds. A draw defines one job: its modules and their
// tensors, the placement of gradients, the caps of buckets, which rank calls and uses what in which
// order, the windows, and the weights. Every result on every rank is compared bit by bit with a
// reference that does not use buckets or rings. A gradient that no rank used must be unchanged.
//
// All gradients are small integers, so every sum is exact in every dtype, and a result is one
// quotient, rounded once. A draw is a function of its seed. LOCKSTEP_TEST_DRAWS is the number of
// draws (300), with the seeds from 1. LOCKSTEP_TEST_SEED replays one draw and prints it. A failure
// prints the seed.

#include "tests/support/trainer.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DRAWS 300
#define TENSORS_MAX 200
#define MODULES_MAX 4
#define STEPS_MAX 3
#define WORLD_MAX 4
#define CALLS_MAX 2
#define WINDOW_MAX 2
#define LARGEST ((uint64_t)4 << 20) // Elements of a tensor.
#define GAP_BYTES 24 // Bytes between scattered gradients.

#define KNOWN_MAX 20 // Largest absolute value of a known gradient.
#define PERIOD (2 * KNOWN_MAX + 1)
#define WEIGHT_MAX 3

// bfloat16 has 8 bits of precision, so integers are exact up to 256.
static_assert(WORLD_MAX * WEIGHT_MAX * KNOWN_MAX <= 256,
              "sums of known gradients are exact in every dtype");

// ---- The draw ----------------------------------------------------------------------------------

enum place {
    PLACE_TOGETHER, // Side by side, the last one first.
    PLACE_SCATTERED,
    PLACE_GIVEN, // Not registered: each report passes memory, which is new in every step.
    PLACE_COUNT,
};

struct draw_module {
    uint32_t first; // Index of the module's first tensor in the draw.
    uint32_t count; // Number of the module's tensors.
    enum place place;
    lockstep_gradient_kind kind;
    lockstep_unused_policy policy;
    uint32_t calls_per_step;
};

struct draw {
    uint64_t seed;
    struct setting setting;
    char name[160]; // The setting, and the command that replays the draw.
    size_t caps[3];
    uint32_t steps;
    uint32_t module_count;
    uint32_t tensor_count;
    struct draw_module modules[MODULES_MAX];
    uint64_t elements[TENSORS_MAX];
    lockstep_dtype dtypes[TENSORS_MAX];
};

// The kinds of draws; each has random numbers of its own.
enum what {
    WHAT_SHAPE,
    WHAT_SIZE,
    WHAT_KNOWN,
    WHAT_WEIGHT,
    WHAT_CALLS,
    WHAT_USES,
    WHAT_REPORTS,
    WHAT_DECLARES,
    WHAT_MOVES,
    WHAT_ORDER,
    WHAT_WINDOW,
};

// A random number that depends only on the draw and the arguments, so that all ranks agree on it.
static uint64_t dice(const struct draw *draw, enum what what, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = draw->seed;
    const uint64_t mixed[] = {(uint64_t)what, a, b, c};
    for (size_t i = 0; i < sizeof(mixed) / sizeof(mixed[0]); i++)
        state = trainer_random(&state) ^ mixed[i];
    return trainer_random(&state);
}

// True with probability 1 / `of`.
static bool chance(uint64_t number, uint64_t of)
{
    return number % of == 0;
}

// A random number from 1 to 2^bits; all powers of two are equally likely as its bound.
static uint64_t magnitude(uint64_t *state, uint32_t bits)
{
    const uint64_t bound = (uint64_t)1 << trainer_random(state) % (bits + 1);
    return 1 + trainer_random(state) % bound;
}

static void draw_setting(struct draw *draw, uint64_t *state)
{
    static const struct setting settings[] = {
        {.name = "tcp", .transport = LOCKSTEP_TRANSPORT_TCP},
        {.name = "tcp", .transport = LOCKSTEP_TRANSPORT_TCP},
        {.name = "torn_7", .transport = LOCKSTEP_TRANSPORT_LOOPBACK, .torn_bytes = 7},
        {.name = "torn_1000", .transport = LOCKSTEP_TRANSPORT_LOOPBACK, .torn_bytes = 1000},
    };
    const uint64_t choice = trainer_random(state) % 12;
    draw->setting = (struct setting){.name = "loopback", .transport = LOCKSTEP_TRANSPORT_LOOPBACK};
    if (choice < sizeof(settings) / sizeof(settings[0]))
        draw->setting = settings[choice];
    draw->setting.world_size = 2 + (uint32_t)(trainer_random(state) % (WORLD_MAX - 1));
    snprintf(draw->name, sizeof(draw->name),
             "%s (draw %" PRIu64 "; LOCKSTEP_TEST_SEED=%" PRIu64 " make test "
             "ONLY=test_reducer_random replays it)",
             draw->setting.name, draw->seed, draw->seed);
    draw->setting.name = draw->name;
}

// The size of a tensor. Most tensors are small, so that a draw takes little time; some are empty.
static uint64_t draw_elements(const struct draw *draw, uint64_t *state)
{
    const uint64_t choice = trainer_random(state) % 20;
    if (choice == 0)
        return 0;
    if (draw->setting.torn_bytes > 0)
        return magnitude(state, draw->setting.torn_bytes < 100 ? 5 : 10);
    return magnitude(state, choice == 1 ? 16 : choice < 8 ? 11 : 6);
}

static void draw_tensors(struct draw *draw, uint64_t *state)
{
    static const lockstep_dtype dtypes[] = {LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT16,
                                            LOCKSTEP_BFLOAT16};
    draw->tensor_count = (uint32_t)magnitude(state, 8) % TENSORS_MAX + 1;
    for (uint32_t t = 0; t < draw->tensor_count; t++) {
        draw->elements[t] = draw_elements(draw, state);
        draw->dtypes[t] = dtypes[trainer_random(state) % 4];
    }
    if (draw->setting.torn_bytes == 0 && chance(trainer_random(state), 50))
        draw->elements[draw->tensor_count / 2] = LARGEST - trainer_random(state) % 1000;
}

static void draw_modules(struct draw *draw, uint64_t *state)
{
    uint32_t first = 0;
    draw->module_count = 1 + (uint32_t)(trainer_random(state) % MODULES_MAX);
    for (uint32_t m = 0; m < draw->module_count; m++) {
        struct draw_module *module = &draw->modules[m];
        const uint32_t left = draw->tensor_count - first;
        module->first = first;
        module->count =
            m + 1 == draw->module_count ? left : (uint32_t)(trainer_random(state) % (left + 1));
        first += module->count;
        module->place = (enum place)(trainer_random(state) % PLACE_COUNT);
        module->kind =
            trainer_random(state) % 2 == 0 ? LOCKSTEP_GRADIENT_MEAN : LOCKSTEP_GRADIENT_SUM;
        module->policy =
            trainer_random(state) % 2 == 0 ? LOCKSTEP_UNUSED_ERROR : LOCKSTEP_UNUSED_ACCEPT;
        module->calls_per_step = 1 + (uint32_t)(trainer_random(state) % CALLS_MAX);
    }
}

static struct draw *draw_make(uint64_t seed)
{
    struct draw *draw = calloc(1, sizeof(*draw));
    uint64_t state;
    assert_non_null(draw);
    draw->seed = seed;
    state = dice(draw, WHAT_SHAPE, 0, 0, 0);
    draw_setting(draw, &state);
    draw_tensors(draw, &state);
    draw_modules(draw, &state);
    draw->steps = 2 + (uint32_t)(trainer_random(&state) % (STEPS_MAX - 1));
    for (uint32_t i = 0; i < 3; i++) // A cap of 0 means the default.
        draw->caps[i] = chance(trainer_random(&state), 4) ? 0 : magnitude(&state, 25);
    return draw;
}

static void draw_describe(const struct draw *draw)
{
    static const char *const places[PLACE_COUNT] = {"together", "scattered", "given"};
    uint64_t elements = 0;
    for (uint32_t t = 0; t < draw->tensor_count; t++)
        elements += draw->elements[t];
    print_message("%s: world %" PRIu32 ", %" PRIu32 " steps, %" PRIu32 " tensors, %" PRIu64
                  " elements, caps %zu %zu %zu\n",
                  draw->name, draw->setting.world_size, draw->steps, draw->tensor_count, elements,
                  draw->caps[0], draw->caps[1], draw->caps[2]);
    for (uint32_t m = 0; m < draw->module_count; m++) {
        const struct draw_module *module = &draw->modules[m];
        print_message(
            "  m%" PRIu32 ": %" PRIu32 " tensors %s, %s, unused: %s, %" PRIu32 " calls per step\n",
            m, module->count, places[module->place],
            module->kind == LOCKSTEP_GRADIENT_MEAN ? "mean" : "sum",
            module->policy == LOCKSTEP_UNUSED_ERROR ? "error" : "accept", module->calls_per_step);
    }
}

// ---- The actions of all ranks in a step, computed from the draw --------------------------------

static int64_t weight_of(const struct draw *draw, uint64_t step, uint32_t rank)
{
    return (int64_t)(dice(draw, WHAT_WEIGHT, step, rank, 0) % (WEIGHT_MAX + 1));
}

// True if the rank calls the module in the step. All ranks always call a module without registered
// memory, because a rank that does not call it has no memory for the mean. In step 1 at least one
// rank calls each module, because the plan would not have the module otherwise.
static bool calls(const struct draw *draw, uint64_t step, uint32_t rank, uint32_t module)
{
    const uint64_t always = dice(draw, WHAT_CALLS, module, 0, 0) % draw->setting.world_size;
    if (draw->modules[module].place == PLACE_GIVEN || (step == 1 && rank == always))
        return true;
    return !chance(dice(draw, WHAT_CALLS, step, rank, module), 5);
}

// True if some call of the rank in the step reports the tensor. In a step some tensors are used by
// all ranks, some by a few ranks, and some by no rank.
static bool uses(const struct draw *draw, uint64_t step, uint32_t rank, uint32_t module,
                 uint32_t tensor)
{
    if (!calls(draw, step, rank, module))
        return false;
    if (draw->modules[module].place == PLACE_GIVEN)
        return true;
    switch (dice(draw, WHAT_USES, step, tensor, 0) % 8) {
    case 0:
        return false;
    case 1:
        return chance(dice(draw, WHAT_USES, step, tensor, 1 + rank), 4);
    case 2:
        return chance(dice(draw, WHAT_USES, step, tensor, 1 + rank), 2);
    default:
        return true;
    }
}

static bool used_anywhere(const struct draw *draw, uint64_t step, uint32_t module, uint32_t tensor)
{
    for (uint32_t r = 0; r < draw->setting.world_size; r++) {
        if (uses(draw, step, r, module, tensor))
            return true;
    }
    return false;
}

// Number of the rank's steps in a window, which ends with the step; all but the last accumulate.
static uint32_t window_of(const struct draw *draw, uint64_t step, uint32_t rank)
{
    return chance(dice(draw, WHAT_WINDOW, step, rank, 0), 4) ? WINDOW_MAX : 1;
}

// True if a call reports the tensor. Each call of a window reports some of the tensors that the
// window uses; all calls together report all of them. `call` counts the calls of the window.
static bool reports(const struct draw *draw, uint64_t step, uint32_t rank, uint32_t module,
                    uint32_t tensor, uint32_t call)
{
    const uint32_t made = draw->modules[module].calls_per_step * window_of(draw, step, rank);
    const uint64_t set =
        1 + dice(draw, WHAT_REPORTS, step, rank, tensor) % (((uint64_t)1 << made) - 1);
    return uses(draw, step, rank, module, tensor) && (set >> call & 1) != 0;
}

static bool declares(const struct draw *draw, uint64_t step, uint32_t rank, uint32_t module,
                     uint32_t tensor, uint32_t call)
{
    if (reports(draw, step, rank, module, tensor, call))
        return false;
    return (draw->modules[module].policy == LOCKSTEP_UNUSED_ERROR &&
            !uses(draw, step, rank, module, tensor)) ||
           chance(dice(draw, WHAT_DECLARES, step, rank, tensor), 3);
}

// The divisor of a module's gradients: the total weight of the ranks that call the module.
static int64_t weight_total(const struct draw *draw, uint64_t step, uint32_t module)
{
    int64_t total = 0;
    for (uint32_t r = 0; r < draw->setting.world_size; r++) {
        if (calls(draw, step, r, module))
            total += weight_of(draw, step, r);
    }
    return total;
}

static bool called_without_weight(const struct draw *draw, uint64_t step)
{
    for (uint32_t m = 0; m < draw->module_count; m++) {
        bool called = false;
        for (uint32_t r = 0; r < draw->setting.world_size; r++)
            called = called || calls(draw, step, r, m);
        if (called && weight_total(draw, step, m) == 0)
            return true;
    }
    return false;
}

// ---- Numbers -----------------------------------------------------------------------------------

static size_t dtype_bytes(lockstep_dtype dtype)
{
    return dtype == LOCKSTEP_FLOAT64 ? 8 : dtype == LOCKSTEP_FLOAT32 ? 4 : 2;
}

// The bits of a 16-bit float with this precision, rounded to nearest even. For 0 and values in the
// normal range.
static uint64_t bits_16(long double value, int precision)
{
    const int bias = precision == 11 ? 15 : 127;
    const uint64_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    long double fraction = frexpl(fabsl(value), &exponent); // In [0.5, 1).
    uint64_t whole;
    if (!(fraction > 0))
        return sign;
    fraction = rintl(ldexpl(fraction, precision));
    whole = (uint64_t)fraction; // Its highest bit adds 1 to the exponent, hence the - 2 below.
    return sign + ((uint64_t)(exponent - 2 + bias) << (precision - 1)) + whole;
}

// The bits of a quotient in this dtype. A quotient of small integers is never near the middle of
// two numbers, so a division in a wider type does not change the rounding.
static uint64_t bits_of(lockstep_dtype dtype, long double value)
{
    const float narrow = (float)value;
    const double wide = (double)value;
    uint32_t bits32;
    uint64_t bits64;
    if (dtype == LOCKSTEP_FLOAT16 || dtype == LOCKSTEP_BFLOAT16)
        return bits_16(value, dtype == LOCKSTEP_FLOAT16 ? 11 : 8);
    memcpy(&bits32, &narrow, sizeof(bits32));
    memcpy(&bits64, &wide, sizeof(bits64));
    return dtype == LOCKSTEP_FLOAT32 ? bits32 : bits64;
}

static void bits_store(lockstep_dtype dtype, void *memory, uint64_t index, uint64_t bits)
{
    if (dtype == LOCKSTEP_FLOAT64)
        ((uint64_t *)memory)[index] = bits;
    else if (dtype == LOCKSTEP_FLOAT32)
        ((uint32_t *)memory)[index] = (uint32_t)bits;
    else
        ((uint16_t *)memory)[index] = (uint16_t)bits;
}

static uint64_t bits_load(lockstep_dtype dtype, const void *memory, uint64_t index)
{
    if (dtype == LOCKSTEP_FLOAT64)
        return ((const uint64_t *)memory)[index];
    return dtype == LOCKSTEP_FLOAT32 ? ((const uint32_t *)memory)[index]
                                     : ((const uint16_t *)memory)[index];
}

// The known gradients of a tensor on a rank: element e is known_at(start, e), where this function
// returns `start`. Known gradients repeat after PERIOD elements, and so do all results.
static uint64_t known_start(const struct draw *draw, uint64_t step, uint32_t rank, uint32_t tensor)
{
    return dice(draw, WHAT_KNOWN, step, rank, tensor) % PERIOD;
}

static int64_t known_at(uint64_t start, uint64_t element)
{
    return (int64_t)((start + element * 7) % PERIOD) - KNOWN_MAX;
}

static void known_pattern(const struct draw *draw, uint64_t step, uint32_t rank, uint32_t tensor,
                          uint64_t pattern[PERIOD])
{
    const uint64_t start = known_start(draw, step, rank, tensor);
    for (uint64_t e = 0; e < PERIOD; e++)
        pattern[e] = bits_of(draw->dtypes[tensor], known_at(start, e));
}

// ---- A rank ------------------------------------------------------------------------------------

// The memory of a rank. In a step that passes another address for a gradient, `moved` has it.
struct player {
    struct rank *rank;
    const struct draw *draw;
    uint64_t step;
    lockstep_module *modules[MODULES_MAX];
    char *blocks[MODULES_MAX];
    void *data[TENSORS_MAX];
    void *registered[TENSORS_MAX];
    void *moved[TENSORS_MAX]; // NULL: the gradient is not moved in this step.
};

static void *player_gradient(const struct player *player, uint32_t tensor)
{
    return player->moved[tensor] ? player->moved[tensor] : player->registered[tensor];
}

static size_t tensor_bytes(const struct draw *draw, uint32_t tensor)
{
    return draw->elements[tensor] * dtype_bytes(draw->dtypes[tensor]);
}

// Places the gradients of a module in one block. Returns the size of the block; block NULL: only
// computes the size.
static size_t player_place(struct player *player, uint32_t m, char *block)
{
    const struct draw *draw = player->draw;
    const struct draw_module *module = &draw->modules[m];
    size_t used = 0;
    for (uint32_t t = module->first + module->count; t-- > module->first;) {
        const size_t size = dtype_bytes(draw->dtypes[t]);
        used = (used + size - 1) / size * size;
        if (block)
            player->registered[t] = block + used;
        used += tensor_bytes(draw, t);
        if (module->place == PLACE_SCATTERED)
            used += GAP_BYTES;
    }
    return used;
}

static void player_describe(struct player *player, uint32_t tensor, char name[16], int64_t *shape,
                            struct lockstep_parameter *parameter)
{
    const struct draw *draw = player->draw;
    snprintf(name, 16, "t%" PRIu32, tensor);
    *shape = (int64_t)draw->elements[tensor];
    player->data[tensor] = calloc(1, tensor_bytes(draw, tensor) + 1);
    *parameter = (struct lockstep_parameter){.name = name,
                                             .dtype = draw->dtypes[tensor],
                                             .dims = 1,
                                             .shape = shape,
                                             .data = player->data[tensor],
                                             .gradient = player->registered[tensor]};
}

static void player_register(struct player *player, uint32_t m)
{
    const struct draw_module *module = &player->draw->modules[m];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[TENSORS_MAX];
    char names[TENSORS_MAX][16];
    int64_t shapes[TENSORS_MAX];
    char name[16];
    if (module->place != PLACE_GIVEN) {
        player->blocks[m] = malloc(player_place(player, m, NULL) + 1);
        player_place(player, m, player->blocks[m]);
    }
    for (uint32_t i = 0; i < module->count; i++)
        player_describe(player, module->first + i, names[i], &shapes[i], &parameters[i]);
    snprintf(name, sizeof(name), "m%" PRIu32, m);
    config.name = name;
    config.parameters = parameters;
    config.parameter_count = module->count;
    config.gradient_kind = module->kind;
    config.unused = module->policy;
    config.calls_per_step = module->calls_per_step;
    RANK_OK(player->rank,
            lockstep_module_register(player->rank->session, &config, &player->modules[m]));
}

// Fills every gradient with its known numbers, even if this rank does not use it.
static void player_fill(struct player *player)
{
    const struct draw *draw = player->draw;
    uint64_t pattern[PERIOD];
    for (uint32_t t = 0; t < draw->tensor_count; t++) {
        if (!player->registered[t] ||
            chance(dice(draw, WHAT_MOVES, player->step, player->rank->rank, t), 10))
            player->moved[t] = malloc(tensor_bytes(draw, t) + 1);
        known_pattern(draw, player->step, player->rank->rank, t, pattern);
        for (uint64_t e = 0, at = 0; e < draw->elements[t]; e++, at = at + 1 < PERIOD ? at + 1 : 0)
            bits_store(draw->dtypes[t], player_gradient(player, t), e, pattern[at]);
    }
}

// Moves gradients that this rank did not report back to their registered memory, where the result
// comes.
static void player_settle(struct player *player)
{
    const struct draw *draw = player->draw;
    for (uint32_t m = 0; m < draw->module_count; m++) {
        const struct draw_module *module = &draw->modules[m];
        for (uint32_t t = module->first; t < module->first + module->count; t++) {
            if (!player->moved[t] || uses(draw, player->step, player->rank->rank, m, t))
                continue;
            memcpy(player->registered[t], player->moved[t], tensor_bytes(draw, t));
            free(player->moved[t]);
            player->moved[t] = NULL;
        }
    }
}

static void player_forget(struct player *player)
{
    for (uint32_t t = 0; t < player->draw->tensor_count; t++) {
        free(player->moved[t]);
        player->moved[t] = NULL;
    }
}

static void player_declare(struct player *player, uint32_t m, uint32_t number, lockstep_call *call)
{
    const struct draw_module *module = &player->draw->modules[m];
    uint32_t list[TENSORS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < module->count; i++) {
        if (declares(player->draw, player->step, player->rank->rank, m, module->first + i, number))
            list[count++] = i;
    }
    RANK_OK(player->rank, lockstep_call_unused(call, list, count));
}

static void player_report(struct player *player, uint32_t m, uint32_t number, lockstep_call *call)
{
    const struct draw_module *module = &player->draw->modules[m];
    struct rank *rank = player->rank;
    uint32_t order[TENSORS_MAX];
    for (uint32_t i = 0; i < module->count; i++)
        order[i] = i;
    trainer_shuffle(order, module->count,
                    dice(player->draw, WHAT_ORDER, player->step, rank->rank, m));
    for (uint32_t i = 0; i < module->count; i++) {
        const uint32_t t = module->first + order[i];
        if (reports(player->draw, player->step, rank->rank, m, t, number))
            RANK_OK(rank, lockstep_grad_ready(player->modules[m], call, order[i], player->moved[t],
                                              NULL));
    }
}

static void player_call(struct player *player, uint32_t m, uint32_t number)
{
    const bool first = dice(player->draw, WHAT_DECLARES, player->step, m, number) % 2 == 0;
    lockstep_call *call;
    RANK_OK(player->rank, lockstep_call_begin(player->modules[m], &call));
    if (first)
        player_declare(player, m, number, call);
    player_report(player, m, number, call);
    if (!first)
        player_declare(player, m, number, call);
    RANK_OK(player->rank, lockstep_call_end(call));
}

// Runs the calls of one step of a window, with the modules in an order of this rank's own.
static void player_backward(struct player *player, uint32_t part)
{
    const struct draw *draw = player->draw;
    uint32_t order[MODULES_MAX] = {0, 1, 2, 3};
    trainer_shuffle(order, draw->module_count,
                    dice(draw, WHAT_ORDER, player->step, player->rank->rank, MODULES_MAX + part));
    for (uint32_t i = 0; i < draw->module_count; i++) {
        const uint32_t made = draw->modules[order[i]].calls_per_step;
        if (!calls(draw, player->step, player->rank->rank, order[i]))
            continue;
        for (uint32_t number = part * made; number < (part + 1) * made; number++)
            player_call(player, order[i], number);
    }
}

// Runs the accumulating steps of a window. Returns their number.
static uint32_t player_accumulate(struct player *player)
{
    const uint32_t window = window_of(player->draw, player->step, player->rank->rank);
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.accumulate = 1;
    for (uint32_t part = 0; part + 1 < window; part++) {
        trainer_begin(player->rank, &options);
        player_backward(player, part);
        trainer_end(player->rank);
    }
    return window - 1;
}

// ---- The reference -----------------------------------------------------------------------------

// True for 0 and -0. The algorithm decides the sign of a sum of zeros, because not every algorithm
// adds missing inputs.
static bool bits_are_zero(lockstep_dtype dtype, uint64_t bits)
{
    const uint64_t sign = (uint64_t)1 << (8 * dtype_bytes(dtype) - 1);
    return (bits & ~sign) == 0;
}

static void player_expect_pattern(struct player *player, uint32_t tensor,
                                  const uint64_t pattern[PERIOD])
{
    const struct draw *draw = player->draw;
    const lockstep_dtype dtype = draw->dtypes[tensor];
    const void *gradient = player_gradient(player, tensor);
    for (uint64_t e = 0, at = 0; e < draw->elements[tensor];
         e++, at = at + 1 < PERIOD ? at + 1 : 0) {
        const uint64_t found = bits_load(dtype, gradient, e);
        if (found != pattern[at] && bits_are_zero(dtype, found) &&
            bits_are_zero(dtype, pattern[at]))
            rank_digest(player->rank, &e, sizeof(e)); // The zero must have one sign on all ranks.
        else if (found != pattern[at])
            rank_fail(player->rank, __FILE__, __LINE__,
                      "step %" PRIu64 ": tensor %" PRIu32 " of %zu byte floats, element %" PRIu64
                      " of %" PRIu64 " is %#" PRIx64 ", not %#" PRIx64,
                      player->step, tensor, dtype_bytes(dtype), e, draw->elements[tensor], found,
                      pattern[at]);
    }
}

static void player_expect_untouched(struct player *player, uint32_t tensor)
{
    uint64_t pattern[PERIOD];
    known_pattern(player->draw, player->step, player->rank->rank, tensor, pattern);
    player_expect_pattern(player, tensor, pattern);
}

// Computes factors[r], the factor of rank r's gradient in the sum.
static void player_factors(const struct player *player, uint32_t module, uint32_t tensor,
                           int64_t factors[WORLD_MAX])
{
    const struct draw *draw = player->draw;
    for (uint32_t r = 0; r < draw->setting.world_size; r++) {
        const int64_t weight = weight_of(draw, player->step, r);
        factors[r] = draw->modules[module].kind == LOCKSTEP_GRADIENT_SUM ? weight > 0 : weight;
        if (!uses(draw, player->step, r, module, tensor))
            factors[r] = 0;
    }
}

static void player_expect_mean(struct player *player, uint32_t module, uint32_t tensor,
                               int64_t total)
{
    const struct draw *draw = player->draw;
    uint64_t pattern[PERIOD];
    int64_t factors[WORLD_MAX];
    player_factors(player, module, tensor, factors);
    for (uint64_t e = 0; e < PERIOD; e++) {
        int64_t sum = 0;
        for (uint32_t r = 0; r < draw->setting.world_size; r++)
            sum += factors[r] * known_at(known_start(draw, player->step, r, tensor), e);
        pattern[e] = bits_of(draw->dtypes[tensor], (long double)sum / (long double)total);
    }
    player_expect_pattern(player, tensor, pattern);
    rank_digest(player->rank, player_gradient(player, tensor), tensor_bytes(draw, tensor));
}

static void player_expect(struct player *player)
{
    const struct draw *draw = player->draw;
    for (uint32_t m = 0; m < draw->module_count; m++) {
        const struct draw_module *module = &draw->modules[m];
        const int64_t total = weight_total(draw, player->step, m);
        for (uint32_t t = module->first; t < module->first + module->count; t++) {
            if (total > 0 && used_anywhere(draw, player->step, m, t))
                player_expect_mean(player, m, t, total);
            else
                player_expect_untouched(player, t);
        }
    }
}

// ---- Playing -----------------------------------------------------------------------------------

static void player_step(struct player *player)
{
    struct rank *rank = player->rank;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    player->step++;
    options.weight = (uint64_t)weight_of(player->draw, player->step, rank->rank);
    player_fill(player);
    player_settle(player);
    const uint32_t last = player_accumulate(player);
    trainer_begin(rank, &options);
    player_backward(player, last);
    if (called_without_weight(player->draw, player->step))
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    else
        RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    player_expect(player);
    player_forget(player);
}

static void player_body(struct rank *rank)
{
    const struct draw *draw = rank->context;
    struct player *player = calloc(1, sizeof(*player));
    RANK_TRUE(rank, player != NULL);
    player->rank = rank;
    player->draw = draw;
    for (uint32_t m = 0; m < draw->module_count; m++)
        player_register(player, m);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < draw->steps; i++)
        player_step(player);
    for (uint32_t t = 0; t < draw->tensor_count; t++)
        free(player->data[t]);
    for (uint32_t m = 0; m < draw->module_count; m++)
        free(player->blocks[m]);
    free(player);
}

static void player_configure(struct rank *rank, struct lockstep_config *config)
{
    const struct draw *draw = rank->context;
    config->bucket_first_bytes = draw->caps[0];
    config->bucket_bytes = draw->caps[1];
    config->bucket_last_bytes = draw->caps[2];
}

// The name of the current draw, for the message after a crash.
static char playing[sizeof(((struct draw *)NULL)->name) + 16];

static void crash(int number)
{
    if (write(STDERR_FILENO, playing, strlen(playing)) < 0)
        _exit(1);
    signal(number, SIG_DFL);
    raise(number);
}

static void play(uint64_t seed, bool aloud)
{
    struct draw *draw = draw_make(seed);
    const struct cluster_test test = {.setting = &draw->setting,
                                      .configure = player_configure,
                                      .body = player_body,
                                      .context = draw};
    snprintf(playing, sizeof(playing), "it ended in %s\n", draw->name);
    if (aloud)
        draw_describe(draw);
    ranks_run_test(&test);
    free(draw);
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *value = getenv(variable);
    return value && value[0] != '\0' ? strtoull(value, NULL, 10) : otherwise;
}

static void random_models(void **state)
{
    const uint64_t draws = number_from("LOCKSTEP_TEST_DRAWS", DRAWS / test_slow());
    const uint64_t seed = number_from("LOCKSTEP_TEST_SEED", 0);
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
    (void)state;
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], crash);
    if (seed != 0)
        play(seed, true);
    for (uint64_t i = 1; i <= draws && seed == 0; i++)
        play(i, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_models)};
    return cmocka_run_group_tests_name("reducer: random models", tests, NULL, NULL);
}
