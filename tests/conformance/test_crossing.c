// SPDX-License-Identifier: Apache-2.0
//
// Conformance: ranks that wait in different functions. None of them can ever go on. Within about a
// second all ranks get the same error, which says which rank waits in which function; the limits of
// stalls are not involved. A job that only looks similar, because a rank is late or calls
// asynchronous collectives in another order, goes on.

#include "base/clock.h"
#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define WITHIN_MS 1500
#define LATE_MS 1300 // Longer than the coordinator needs for a verdict.

static const uint64_t sizes[2] = {40, 3};

// The modules of a rank: 'net' is trained; 'old' only exists to be closed.
struct program {
    struct trained_module net;
    struct trained_module old;
};

// A function that blocks until all ranks have called it.
struct waiting {
    const char *where; // The function as the error text prints it.
    const char *undone; // What the error text says of ranks that have not called it ("called").
    int (*call)(struct rank *rank, struct program *program);
};

static float value;

static int in_step_end(struct rank *rank, struct program *program)
{
    trainer_begin(rank, NULL);
    trainer_call(rank, &program->net);
    return lockstep_step_end(rank->session, NULL);
}

static int in_call_wait(struct rank *rank, struct program *program)
{
    lockstep_call *call;
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(program->net.module, &call));
    for (uint32_t i = 0; i < 2; i++)
        RANK_OK(rank, lockstep_grad_ready(program->net.module, call, i, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    return lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER);
}

static int in_barrier(struct rank *rank, struct program *program)
{
    (void)program;
    return lockstep_barrier(rank->session, "epoch", LOCKSTEP_WAIT_FOREVER);
}

// A timeout of a blocking call fails the session, so this wait gets a verdict like one without a
// timeout.
static int in_other_barrier(struct rank *rank, struct program *program)
{
    (void)program;
    return lockstep_barrier(rank->session, "other", 60000);
}

static int in_allreduce(struct rank *rank, struct program *program)
{
    float loss = value;
    (void)program;
    return lockstep_allreduce(rank->session, "loss", &loss, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                              LOCKSTEP_WAIT_FOREVER);
}

static int in_broadcast(struct rank *rank, struct program *program)
{
    float rate = value;
    (void)program;
    return lockstep_broadcast(rank->session, "rate", &rate, 1, LOCKSTEP_FLOAT32, 0,
                              LOCKSTEP_WAIT_FOREVER);
}

static int in_work_wait(struct rank *rank, struct program *program)
{
    lockstep_work *work;
    (void)program;
    RANK_OK(rank, lockstep_barrier_async(rank->session, "async", &work));
    return lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER);
}

static int in_state_check(struct rank *rank, struct program *program)
{
    (void)program;
    return lockstep_state_check(rank->session);
}

static int in_state_sync(struct rank *rank, struct program *program)
{
    (void)program;
    return lockstep_state_sync(rank->session);
}

static int in_usage(struct rank *rank, struct program *program)
{
    uint32_t ranks[2];
    (void)rank;
    return lockstep_module_usage(program->net.module, ranks, 2);
}

static int in_start(struct rank *rank, struct program *program)
{
    RANK_OK(rank, lockstep_module_close(program->old.module));
    return lockstep_start(rank->session);
}

static const struct waiting functions[] = {
    {"lockstep_step_end of step 3", "begun", in_step_end},
    {"lockstep_call_wait of 'net' (call 1) in step 3", "made", in_call_wait},
    {"lockstep_barrier 'epoch' (use 1) after step 2", "called", in_barrier},
    {"lockstep_barrier 'other' (use 1) after step 2", "called", in_other_barrier},
    {"lockstep_allreduce 'loss' (use 1) after step 2", "called", in_allreduce},
    {"lockstep_broadcast 'rate' (use 1) after step 2", "called", in_broadcast},
    {"lockstep_work_wait 'async' (use 1) after step 2", "called", in_work_wait},
    {"lockstep_state_check after step 2", "called", in_state_check},
    {"lockstep_state_sync after step 2", "called", in_state_sync},
    {"lockstep_module_usage of 'net' after step 2", "called", in_usage},
    {"lockstep_start after step 2", "called", in_start},
};
#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

struct pair {
    const struct waiting *last; // The call of the last rank.
    const struct waiting *others; // The calls of the other ranks.
};

static bool is_last(const struct rank *rank)
{
    return rank->rank == rank->world_size - 1;
}

static void begin(struct rank *rank, struct program *program)
{
    const struct module_shape net = {.name = "net", .count = 2, .elements = sizes};
    const struct module_shape old = {.name = "old", .count = 2, .elements = sizes};
    memset(program, 0, sizeof(*program));
    trainer_make(rank, &net, 0, &program->net);
    trainer_make(rank, &old, 0, &program->old);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &program->net, 1);
    trainer_step_known(rank, &program->net, 1);
    rank_meet(rank);
}

static void end(struct program *program)
{
    trainer_free(&program->net);
    trainer_free(&program->old);
}

// The expected error text. The smaller group of ranks comes first; of equal groups the one with the
// lower ranks.
static void sentence(const struct rank *rank, const struct pair *pair, char *text, size_t bytes)
{
    if (rank->world_size == 2)
        snprintf(text, bytes,
                 "rank 0 waits in %s; rank 1 waits in %s, which rank 0 has not %s; call these "
                 "functions in the same order on every rank",
                 pair->others->where, pair->last->where, pair->last->undone);
    else
        snprintf(text, bytes,
                 "rank 2 waits in %s; ranks 0, 1 wait in %s, which rank 2 has not %s; call these "
                 "functions in the same order on every rank",
                 pair->last->where, pair->others->where, pair->others->undone);
}

static void expect(struct rank *rank, const char *wanted, int status, uint64_t began_ms)
{
    if (status != LOCKSTEP_E_MISMATCH || strcmp(lockstep_error_text(), wanted) != 0)
        rank_fail(rank, __FILE__, __LINE__, "status %d\n  \"%s\"\nis not\n  \"%s\"", status,
                  lockstep_error_text(), wanted);
    RANK_TRUE(rank, clock_now_ms() - began_ms < test_bound_ms(WITHIN_MS));
}

static void pair_body(struct rank *rank)
{
    const struct pair *pair = rank->context;
    const struct waiting *mine = is_last(rank) ? pair->last : pair->others;
    struct program program;
    char wanted[LOCKSTEP_TEXT_BYTES];
    begin(rank, &program);
    const uint64_t began_ms = clock_now_ms();
    const int status = RANK_CALL(rank, mine->call(rank, &program));
    sentence(rank, pair, wanted, sizeof(wanted));
    expect(rank, wanted, status, began_ms);
    end(&program);
}

// True if the pair crosses in the sense of this test. A step against a second lockstep_start is
// detected at once from the headers of steps. lockstep_step_end against lockstep_call_wait does not
// cross, because the ending step has made its calls.
static bool is_of_this_test(const struct pair *pair)
{
    const bool step = pair->last->call == in_step_end || pair->others->call == in_step_end ||
                      pair->last->call == in_call_wait || pair->others->call == in_call_wait;
    const bool start = pair->last->call == in_start || pair->others->call == in_start;
    const bool both_step =
        (pair->last->call == in_step_end && pair->others->call == in_call_wait) ||
        (pair->last->call == in_call_wait && pair->others->call == in_step_end);
    return pair->last != pair->others && !(step && start) && !both_step;
}

// Selects the pairs of a normal run, because each pair takes a second. Each function meets two or
// three other functions in each role, and runs in both worlds.
static bool is_tried(size_t last, size_t other)
{
    const size_t ahead = (other + FUNCTIONS - last) % FUNCTIONS;
    return test_everything() || ahead == 2 || ahead == 5 || ahead == 8;
}

// Runs pairs of functions: each pair in a world of two ranks, and with exchanged roles in a world
// of three.
static void pairs_of(uint32_t world_size)
{
    struct setting setting = setting_named("loopback");
    setting.world_size = world_size;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        for (size_t j = 0; j < FUNCTIONS; j++) {
            if ((i < j) != (world_size == 2) || !is_tried(i, j))
                continue;
            struct pair pair = {.last = &functions[i], .others = &functions[j]};
            if (is_of_this_test(&pair))
                ranks_run(&setting, pair_body, &pair);
        }
    }
}

// The end of a step against a barrier, a broadcast and a check of the state, on every transport.
static void beside_a_step(const struct setting *setting)
{
    for (size_t i = 2; i < FUNCTIONS - 1; i++) {
        if (i != 2 && functions[i].call != in_broadcast && functions[i].call != in_state_check)
            continue;
        struct pair pair = {.last = &functions[i], .others = &functions[0]};
        ranks_run(setting, pair_body, &pair);
    }
}

// ---- Waits that end ----------------------------------------------------------------------------

// Ranks 0 and 1 are each late once in every function that waits.
static void late_body(struct rank *rank)
{
    struct program program;
    begin(rank, &program);
    for (uint32_t late = 0; late < 2; late++) {
        for (size_t i = 0; i < FUNCTIONS - 1; i++) {
            if (rank->rank == late)
                usleep(600 * 1000);
            RANK_OK(rank, functions[i].call(rank, &program));
            if (functions[i].call == in_call_wait)
                RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        }
    }
    RANK_OK(rank, in_start(rank, &program));
    trainer_step_known(rank, &program.net, 1);
    end(&program);
}

static void ranks_that_are_late(const struct setting *setting)
{
    ranks_run(setting, late_body, NULL);
}

// Ranks may begin asynchronous collectives in any order, and may wait for them in any order.
static void async_body(struct rank *rank)
{
    struct program program;
    lockstep_work *works[2];
    const uint32_t first = is_last(rank) ? 1 : 0;
    begin(rank, &program);
    RANK_OK(rank, lockstep_barrier_async(rank->session, first == 0 ? "a" : "b", &works[first]));
    RANK_OK(rank, lockstep_barrier_async(rank->session, first == 0 ? "b" : "a", &works[1 - first]));
    if (!is_last(rank))
        usleep(LATE_MS * 1000);
    RANK_OK(rank, lockstep_work_wait(works[first], LOCKSTEP_WAIT_FOREVER));
    RANK_OK(rank, lockstep_work_wait(works[1 - first], LOCKSTEP_WAIT_FOREVER));
    // The last rank waits for the barrier before the step; the other ranks wait after the step.
    RANK_OK(rank, lockstep_barrier_async(rank->session, "c", &works[0]));
    if (is_last(rank))
        RANK_OK(rank, lockstep_work_wait(works[0], LOCKSTEP_WAIT_FOREVER));
    trainer_step_known(rank, &program.net, 1);
    if (!is_last(rank))
        RANK_OK(rank, lockstep_work_wait(works[0], LOCKSTEP_WAIT_FOREVER));
    end(&program);
}

static void asynchronous_orders(const struct setting *setting)
{
    ranks_run(setting, async_body, NULL);
}

// The last rank waits with a timeout, and after it calls the function that the other ranks wait in.
static void timeout_body(struct rank *rank)
{
    struct program program;
    lockstep_work *work;
    begin(rank, &program);
    if (is_last(rank)) {
        RANK_OK(rank, lockstep_barrier_async(rank->session, "late", &work));
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(work, LATE_MS));
        trainer_step_known(rank, &program.net, 1);
        RANK_OK(rank, lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER));
    } else {
        trainer_step_known(rank, &program.net, 1);
        RANK_OK(rank, lockstep_barrier(rank->session, "late", LOCKSTEP_WAIT_FOREVER));
    }
    end(&program);
}

static void a_wait_with_a_timeout(const struct setting *setting)
{
    ranks_run(setting, timeout_body, NULL);
}

// ---- Waits that give up ------------------------------------------------------------------------

static void call_and_wait(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < 2; i++)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, i, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    RANK_TRUE(rank, RANK_CALL(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER)) >= 0);
}

// Ranks 0 and 1 wait for two calls in opposite orders, while the last rank is late. Their waits
// give up calls, so a learning step and a planned one complete.
static void gives_up_body(struct rank *rank)
{
    const struct module_shape shapes[2] = {{.name = "net", .count = 2, .elements = sizes},
                                           {.name = "old", .count = 2, .elements = sizes}};
    struct trained_module modules[2];
    for (uint32_t i = 0; i < 2; i++)
        trainer_make(rank, &shapes[i], i, &modules[i]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t step = 0; step < 2; step++) {
        trainer_begin(rank, NULL);
        if (is_last(rank))
            usleep((LATE_MS + 500) * 1000);
        call_and_wait(rank, &modules[rank->rank % 2]);
        call_and_wait(rank, &modules[1 - rank->rank % 2]);
        trainer_end(rank);
    }
    for (uint32_t i = 0; i < 2; i++)
        trainer_free(&modules[i]);
}

static void gives_up_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->order = LOCKSTEP_ORDER_ZERO_DEFER;
}

static void run_giving_up(void (*body)(struct rank *rank), void *context)
{
    struct setting setting = setting_named("loopback");
    setting.world_size = 3;
    const struct cluster_test test = {
        .setting = &setting, .configure = gives_up_configure, .body = body, .context = context};
    ranks_run_test(&test);
}

static void waits_that_give_up(void **state)
{
    (void)state;
    run_giving_up(gives_up_body, NULL);
}

// The last rank waits in a barrier, and a barrier gives up no call. So no rank goes on.
static void a_barrier_gives_up_nothing(void **state)
{
    struct pair pair = {.last = &functions[2], .others = &functions[1]};
    (void)state;
    run_giving_up(pair_body, &pair);
}

static void pairs_of_two(void **state)
{
    (void)state;
    pairs_of(2);
}

static void pairs_of_three(void **state)
{
    (void)state;
    pairs_of(3);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"beside_a_step", beside_a_step, NULL},
        {"ranks_that_are_late", ranks_that_are_late, NULL},
        {"asynchronous_orders", asynchronous_orders, NULL},
        {"a_wait_with_a_timeout", a_wait_with_a_timeout, NULL},
    };
    const struct CMUnitTest pairs[] = {
        cmocka_unit_test(pairs_of_two), cmocka_unit_test(pairs_of_three),
        cmocka_unit_test(waits_that_give_up), cmocka_unit_test(a_barrier_gives_up_nothing)};
    const int failed = cmocka_run_group_tests_name("crossing pairs", pairs, NULL, NULL);
    return failed + stamp_run_whole("crossing", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
