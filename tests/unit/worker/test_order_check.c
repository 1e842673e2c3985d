// SPDX-License-Identifier: Apache-2.0
//
// Checks of waves. Ranks that are honest are never refused, in worlds of every size and in every
// round; and one field that cannot be is refused, for each field.

#include "worker/order/check.h"
#include "worker/order/order.h"
#include "worker/order/payloads.h"
#include "worker/transport/flow/wave.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define WORLDS 40
#define DRAWS 20

static const struct wave_bounds bounds = {
    .module_count = 3, .parameters = {4, 1, 30}, .calls = {1, 3, 1}};

static uint32_t draw(uint64_t *state, uint32_t below)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)((z ^ (z >> 27)) % below);
}

// ---- Honest ranks ------------------------------------------------------------------------------

static void open_fill(struct open_wave *wave, uint32_t rank, uint64_t *random)
{
    memset(wave, 0, sizeof(*wave));
    wave->exhausted = draw(random, 2);
    wave->first = wave->exhausted != 0 ? OPEN_NOBODY : rank;
    if (wave->exhausted == 0)
        strcpy(wave->phase, "k\xc3\xbchl");
}

static void close_fill(struct close_wave *wave, uint32_t rank, uint64_t *random)
{
    memset(wave, 0, sizeof(*wave));
    wave->plan_number = 5 + rank % 3;
    if (draw(random, 3) == 0)
        wave->extras[wave->extra_total++] = (struct call_id){.module = draw(random, 3), .call = 0};
    if (draw(random, 3) == 0)
        wave->extras[wave->extra_total++] = (struct call_id){.module = 1, .call = 2};
    wave->too_many = draw(random, 20) == 0;
}

// As a trainer's step_end does: one severity after the other, and none that has no place.
static void commit_fill(struct commit_wave *wave, uint32_t rank, uint64_t *random)
{
    const uint32_t policies[] = {draw(random, 3), draw(random, 3), draw(random, 3)};
    memset(wave, 0, sizeof(*wave));
    for (uint32_t severity = 0; severity <= UNUSED_IS_ACCEPTED; severity++) {
        for (uint32_t m = 0; m < bounds.module_count; m++) {
            for (uint32_t i = 0; policies[m] == severity && i < bounds.calls[m]; i++) {
                for (uint32_t p = 0; p < bounds.parameters[m]; p++) {
                    if (draw(random, 3) != 0)
                        continue;
                    wave->unused_total++;
                    wave->unused_errors += severity == UNUSED_IS_ERROR;
                    wave->unused_warnings += severity == UNUSED_IS_WARNING;
                    if (wave->unused_named < ORDER_UNUSED_NAMED)
                        wave->unused[wave->unused_named++] =
                            (struct unused_parameter){m, p, rank, severity, i};
                }
            }
        }
    }
    for (uint32_t m = 0; m < bounds.module_count; m++) {
        const uint32_t accepted = draw(random, 2);
        const struct commit_wave one = {.aborted_total = 1,
                                        .aborted_errors = 1 - accepted,
                                        .aborted_named = 1,
                                        .aborted = {{m, rank, accepted}}};
        if (draw(random, 2) == 0)
            continue;
        wave->called |= UINT64_C(1) << m;
        wave->weighted |= (uint64_t)draw(random, 2) << m;
        if (draw(random, 2) == 0)
            order_commit_merge(wave, &one);
    }
    for (uint64_t name = 1; name < 20; name += 1 + draw(random, 9))
        wave->counters[wave->counter_count++] = (struct counter_delta){name, (int64_t)rank};
    for (char letter = 'a'; letter < 't'; letter = (char)(letter + 1 + (char)draw(random, 9)))
        wave->metrics.parts[wave->metrics.count++] = (struct metric_part){
            .name = {letter}, .value = rank, .kind = 1 + draw(random, 4), .count = 1};
}

struct kind {
    size_t size;
    void (*merge)(void *into, const void *from);
    const char *(*check)(const void *context, const struct wave_origin *origin, const void *payload,
                         const void *own);
};

static const struct kind kinds[WAVE_KINDS] = {
    [WAVE_CLOSE] = {sizeof(struct close_wave), order_close_merge, order_close_check},
    [WAVE_COMMIT] = {sizeof(struct commit_wave), order_commit_merge, order_commit_check},
    [WAVE_OPEN] = {sizeof(struct open_wave), order_open_merge, order_open_check},
};

struct holder {
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
    bool has[WORLDS + 1]; // The ranks whose contributions it holds.
};

static void holder_fill(struct holder *holder, uint32_t kind, uint32_t rank, uint64_t *random)
{
    memset(holder, 0, sizeof(*holder));
    holder->has[rank] = true;
    if (kind == WAVE_OPEN)
        open_fill((struct open_wave *)(void *)holder->payload, rank, random);
    else if (kind == WAVE_CLOSE)
        close_fill((struct close_wave *)(void *)holder->payload, rank, random);
    else
        commit_fill((struct commit_wave *)(void *)holder->payload, rank, random);
}

// A move of `to`, which receives what `from` held before it.
static void receive(uint32_t kind, uint32_t world, const struct wave_move *move, struct holder *to,
                    const struct holder *from)
{
    const struct wave_origin origin = wave_origin(world, move);
    uint32_t ranks = 0;
    for (uint32_t rank = 0; rank < world; rank++) {
        assert_int_equal(wave_origin_has(&origin, rank), from->has[rank]);
        ranks += from->has[rank];
        to->has[rank] = to->has[rank] || from->has[rank];
    }
    assert_int_equal(wave_origin_ranks(&origin), ranks);
    assert_false(wave_origin_has(&origin, world));
    assert_false(wave_origin_has(&origin, UINT32_MAX));
    const char *wrong = kinds[kind].check(&bounds, &origin, from->payload, to->payload);
    if (wrong)
        fail_msg("kind %u, a world of %u, round %u: %s", kind, world, move->round, wrong);
    if (move->replaces)
        memcpy(to->payload, from->payload, kinds[kind].size);
    else
        kinds[kind].merge(to->payload, from->payload);
}

static bool find_round(uint32_t rank, uint32_t world, uint32_t round, struct wave_move *move)
{
    for (uint32_t i = 0; i < wave_moves(rank, world); i++) {
        *move = wave_move(rank, world, i);
        if (move->round == round)
            return true;
    }
    return false;
}

static void run_world(uint32_t kind, uint32_t world, uint64_t *random)
{
    static struct holder holders[WORLDS + 1];
    static struct holder before[WORLDS + 1];
    for (uint32_t rank = 0; rank < world; rank++)
        holder_fill(&holders[rank], kind, rank, random);
    for (uint32_t round = 0; round < WAVE_MAX_MOVES; round++) {
        memcpy(before, holders, sizeof(before));
        for (uint32_t rank = 0; rank < world; rank++) {
            struct wave_move move;
            if (find_round(rank, world, round, &move) && move.receives)
                receive(kind, world, &move, &holders[rank], &before[move.peer]);
        }
    }
    for (uint32_t rank = 1; rank < world; rank++)
        assert_memory_equal(holders[rank].payload, holders[0].payload, kinds[kind].size);
}

static void test_honest_ranks_are_never_refused(void **state)
{
    uint64_t random = 15;
    (void)state;
    for (uint32_t kind = 0; kind < WAVE_KINDS; kind++) {
        for (uint32_t world = 1; world <= WORLDS; world++) {
            for (uint32_t i = 0; i < DRAWS; i++)
                run_world(kind, world, &random);
        }
    }
}

// ---- Lies --------------------------------------------------------------------------------------

// The origin of a wave from ranks 2 and 3 and their extra, rank 6, in a world of seven.
static const struct wave_origin some = {.world = 7, .core = 4, .first = 2, .count = 2};

static void open_begin(struct open_wave *wave)
{
    *wave = (struct open_wave){.exhausted = 1, .first = 3, .phase = "policy"};
}

static void close_begin(struct close_wave *wave)
{
    *wave =
        (struct close_wave){.plan_number = 9, .extra_total = 3, .extras = {{0, 0}, {2, 0}, {1, 2}}};
}

static void commit_begin(struct commit_wave *wave)
{
    *wave = (struct commit_wave){
        .unused_total = 4,
        .unused_errors = 1,
        .unused_warnings = 2,
        .unused_named = 4,
        .counter_count = 2,
        .aborted_total = 3,
        .aborted_errors = 1,
        .aborted_named = 3,
        .called = 7,
        .weighted = 5,
        .aborted = {{0, 2, 0}, {1, 3, 1}, {2, 6, 1}},
        .unused = {{0, 3, 2, 0, 0}, {1, 0, 6, 1, 2}, {2, 29, 2, 1, 0}, {2, 29, 3, 2, 0}},
        .counters = {{1, -5}, {UINT64_MAX, 5}},
        .metrics = {.count = 3,
                    .parts = {{"loss", 0.5, METRIC_SUM, 3},
                              {"loss", 0.5, METRIC_MEAN, 1},
                              {"lr", 0.1, METRIC_MAX, 2}}},
    };
}

struct lie {
    enum wave_kind kind;
    size_t at;
    size_t size;
    uint64_t value;
    const char *text;
};

#define LIE(wave, kind, field, value, text) \
    { \
        kind, offsetof(struct wave, field), sizeof(((struct wave *)NULL)->field), value, text \
    }
#define OPEN(field, value, text) LIE(open_wave, WAVE_OPEN, field, value, text)
#define CLOSE(field, value, text) LIE(close_wave, WAVE_CLOSE, field, value, text)
#define COMMIT(field, value, text) LIE(commit_wave, WAVE_COMMIT, field, value, text)

static const struct lie lies[] = {
    OPEN(exhausted, 4, "more ranks without data"),
    OPEN(exhausted, UINT32_MAX, "more ranks without data"),
    OPEN(exhausted, 3, "no rank with data"),
    OPEN(first, OPEN_NOBODY, "no rank with data"),
    OPEN(first, 0, "does not speak for"),
    OPEN(first, 7, "does not speak for"),
    OPEN(first, 1 << 20, "does not speak for"),
    OPEN(phase[0], 0xff, "phase is no text"),
    OPEN(phase[6], 0xc3, "phase is no text"),
    OPEN(phase[100], 'x', "phase is no text"),
    OPEN(phase[LOCKSTEP_NAME_BYTES - 1], 'x', "phase is no text"),
    CLOSE(extra_total, LOCKSTEP_MAX_EXTRA_CALLS + 2, "more calls than"),
    CLOSE(extra_total, UINT32_MAX, "more calls than"),
    CLOSE(too_many, 2, "more calls than"),
    CLOSE(extras[0].module, 3, "module that is not registered"),
    CLOSE(extras[1].module, UINT32_MAX, "module that is not registered"),
    CLOSE(extras[2].call, 3, "call that its module cannot have"),
    CLOSE(extras[0].call, UINT32_MAX, "call that its module cannot have"),
    CLOSE(extras[1].module, 0, "not in order"),
    CLOSE(extra_total, 4, "not in order"), // The fourth is the first again.
    COMMIT(unused_named, 5, "more unused parameters than it counts"),
    COMMIT(unused_named, UINT32_MAX, "more unused parameters than it counts"),
    COMMIT(unused_total, 3, "more unused parameters than it counts"),
    COMMIT(unused_total, 112, "more unused parameters than there are"), // 37 of each of three.
    COMMIT(unused_total, UINT64_MAX, "more unused parameters than there are"),
    COMMIT(unused_errors, 3, "more unused parameters than there are"),
    COMMIT(unused_errors, UINT64_MAX, "more unused parameters than there are"),
    COMMIT(unused_warnings, UINT64_MAX, "more unused parameters than there are"),
    COMMIT(unused_errors, 0, "more unused parameters than it counts"),
    COMMIT(unused_warnings, 1, "more unused parameters than it counts"),
    COMMIT(unused_warnings, 3, "more unused parameters than it counts"),
    COMMIT(unused[0].module, 3, "module that is not registered"),
    COMMIT(unused[3].module, UINT32_MAX, "module that is not registered"),
    COMMIT(unused[0].parameter, 4, "parameter that its module does not have"),
    COMMIT(unused[3].parameter, UINT32_MAX, "parameter that its module does not have"),
    COMMIT(unused[1].call, 3, "call that its module cannot have"),
    COMMIT(unused[0].call, 1, "call that its module cannot have"),
    COMMIT(unused[0].rank, 1, "rank that it does not speak for"),
    COMMIT(unused[0].rank, 4, "rank that it does not speak for"),
    COMMIT(unused[0].rank, 7, "rank that it does not speak for"),
    COMMIT(unused[0].rank, UINT32_MAX, "rank that it does not speak for"),
    COMMIT(unused[0].severity, 3, "without a policy"),
    COMMIT(unused[2].severity, 0, "parameters are not in order"),
    COMMIT(unused[2].module, 1, "parameter that its module does not have"),
    COMMIT(aborted_named, 4, "more calls that were given up than it counts"),
    COMMIT(aborted_named, ORDER_ABORTED_NAMED + 1, "more calls that were given up than it counts"),
    COMMIT(aborted_named, UINT32_MAX, "more calls that were given up than it counts"),
    COMMIT(aborted_total, 2, "more calls that were given up than it counts"),
    COMMIT(aborted_total, 10, "more calls that were given up than there are"),
    COMMIT(aborted_total, UINT32_MAX, "more calls that were given up than there are"),
    COMMIT(aborted_errors, 4, "more calls that were given up than there are"),
    COMMIT(aborted_errors, 0, "more calls that were given up than it counts"),
    COMMIT(aborted_errors, 2, "more calls that were given up than it counts"),
    COMMIT(aborted[1].module, 3, "module that is not registered"),
    COMMIT(aborted[1].rank, 5, "rank that it does not speak for"),
    COMMIT(aborted[2].accepted, 2, "given up without a policy"),
    COMMIT(aborted[2].module, 0, "given up are not in order"),
    COMMIT(counter_count, LOCKSTEP_MAX_COUNTERS + 1, "more counters than"),
    COMMIT(counter_count, UINT32_MAX, "more counters than"),
    COMMIT(counter_overflow, 2, "more counters than"),
    COMMIT(counters[0].name, 0, "counters are not in order"),
    COMMIT(counters[1].name, 1, "counters are not in order"),
    COMMIT(counter_count, 3, "counters are not in order"),
    COMMIT(counters[0].delta, (uint64_t)INT64_MIN, "more to a counter than its ranks can"),
    COMMIT(counters[1].delta, INT64_MAX, "more to a counter than its ranks can"),
    COMMIT(counters[1].delta, 3 * LOCKSTEP_MAX_COUNT + 1, "more to a counter than its ranks can"),
    COMMIT(metrics.count, LOCKSTEP_MAX_METRICS + 1, "more metrics than"),
    COMMIT(metrics.count, UINT32_MAX, "more metrics than"),
    COMMIT(metrics.overflow, 2, "more metrics than"),
    COMMIT(metrics.count, 4, "a metric has no name"), // The fourth is empty.
    COMMIT(metrics.parts[0].name[0], 0, "a metric has no name"),
    COMMIT(metrics.parts[0].name[2], ' ', "a metric has no name"),
    COMMIT(metrics.parts[1].name[2], 0, "a metric has no name"), // Letters behind its end.
    COMMIT(metrics.parts[2].name[LOCKSTEP_METRIC_NAME_BYTES - 1], 'x', "a metric has no name"),
    COMMIT(metrics.parts[0].kind, 0, "of no kind"),
    COMMIT(metrics.parts[1].kind, METRIC_MAX + 1, "of no kind"),
    COMMIT(metrics.parts[2].count, 0, "more values than its ranks can add, or none"),
    COMMIT(metrics.parts[2].count, 3 * LOCKSTEP_MAX_METRIC_VALUES + 1, "more values than"),
    COMMIT(metrics.parts[2].count, UINT32_MAX, "more values than"),
    COMMIT(metrics.parts[1].kind, METRIC_SUM, "metrics are not in order"),
    COMMIT(metrics.parts[1].name[0], 'z', "metrics are not in order"),
    COMMIT(called, 8, "called that is not registered"),
    COMMIT(called, UINT64_MAX, "called that is not registered"),
    COMMIT(called, 1, "weight to a module that no rank has called"),
};

static void begin(enum wave_kind kind, uint8_t *payload)
{
    memset(payload, 0, LOCKSTEP_WAVE_BYTES);
    if (kind == WAVE_OPEN)
        open_begin((struct open_wave *)(void *)payload);
    else if (kind == WAVE_CLOSE)
        close_begin((struct close_wave *)(void *)payload);
    else
        commit_begin((struct commit_wave *)(void *)payload);
}

static void test_what_cannot_be_is_refused(void **state)
{
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
    _Alignas(8) uint8_t own[LOCKSTEP_WAVE_BYTES] = {0};
    (void)state;
    for (uint32_t kind = 0; kind < WAVE_KINDS; kind++) {
        begin((enum wave_kind)kind, payload);
        assert_null(kinds[kind].check(&bounds, &some, payload, own));
    }
    for (size_t i = 0; i < COUNT(lies); i++) {
        const struct lie *lie = &lies[i];
        begin(lie->kind, payload);
        memcpy(payload + lie->at, &lie->value, lie->size);
        const char *wrong = kinds[lie->kind].check(&bounds, &some, payload, own);
        if (!wrong || !strstr(wrong, lie->text))
            fail_msg("lie %zu of '%s': '%s'", i, lie->text, wrong ? wrong : "taken");
    }
}

// The agreed plan is no later than the plan of any rank.
static void test_no_agreement_on_a_plan_that_is_not_held(void **state)
{
    const struct wave_origin all = {.world = 7, .core = 4, .first = 0, .count = 4};
    struct close_wave wave;
    struct close_wave own = {.plan_number = 9};
    (void)state;
    close_begin(&wave);
    assert_null(order_close_check(&bounds, &all, &wave, &own));
    own.plan_number = 8;
    assert_non_null(order_close_check(&bounds, &all, &wave, &own));
    assert_null(order_close_check(&bounds, &some, &wave, &own)); // The others hold a newer one.
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_honest_ranks_are_never_refused),
        cmocka_unit_test(test_what_cannot_be_is_refused),
        cmocka_unit_test(test_no_agreement_on_a_plan_that_is_not_held),
    };
    return cmocka_run_group_tests_name("checks of waves", tests, NULL, NULL);
}
