// SPDX-License-Identifier: Apache-2.0
//
// A rank that lies in a wave or in a header, in real sessions with a real coordinator. The test
// changes the data between the liar's order core and its data plane. Each rank gets an E_PEER_LOST
// that names the liar, its host and the lie. No rank crashes, hangs or blames another rank.

#include "tests/support/trainer.h"
#include "worker/order/payloads.h"
#include "worker/session/session.h"

#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 3
#define STEPS 20 // Maximum; the lie is detected long before.

static const uint64_t sizes[COUNT] = {300, 5, 7};

struct lie {
    const char *text;
    enum order_action_kind when;
    void (*tell)(struct lockstep_session *session, void *said);
};

// ---- Lies --------------------------------------------------------------------------------------

static void many_calls(struct lockstep_session *session, void *said)
{
    struct close_wave *wave = said;
    (void)session;
    wave->extra_total = UINT32_MAX;
}

static void call_of_no_module(struct lockstep_session *session, void *said)
{
    struct close_wave *wave = said;
    (void)session;
    wave->extra_total = 1;
    wave->extras[0] = (struct call_id){.module = 63, .call = 0};
}

static void call_far_away(struct lockstep_session *session, void *said)
{
    struct close_wave *wave = said;
    (void)session;
    wave->extra_total = 1;
    wave->extras[0] = (struct call_id){.module = 0, .call = 4000000000u};
}

static void many_counters(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    (void)session;
    wave->counter_count = 4000;
}

static void counters_in_disorder(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    (void)session;
    wave->counter_count = 2;
    wave->counters[0].name = 7;
    wave->counters[1].name = 7;
}

static void many_metrics(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    (void)session;
    wave->metrics.count = 4000;
}

static void metrics_without_names(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    (void)session;
    wave->metrics.count = 1;
    memset(wave->metrics.parts[0].name, 'x', sizeof(wave->metrics.parts[0].name));
}

static void one_unused(struct lockstep_session *session, struct commit_wave *wave)
{
    wave->unused_total = wave->unused_errors = wave->unused_named = 1;
    wave->unused[0] = (struct unused_parameter){.rank = session->engine.order->rank};
}

static void unused_of_no_module(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    one_unused(session, wave);
    wave->unused[0].module = 1;
}

static void unused_of_no_parameter(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    one_unused(session, wave);
    wave->unused[0].parameter = COUNT;
}

static void unused_of_another_rank(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    one_unused(session, wave);
    wave->unused[0].rank = 0;
}

static void many_unused(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    one_unused(session, wave);
    wave->unused_named = 1 << 20;
    wave->unused_total = 1 << 20;
}

static void aborted_of_no_module(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    wave->aborted_total = wave->aborted_errors = wave->aborted_named = 1;
    wave->aborted[0] = (struct aborted_call){.module = 5000, .rank = session->engine.order->rank};
}

static void many_aborted(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    (void)session;
    wave->aborted_total = wave->aborted_named = 1 << 30;
}

static void call_of_a_module_there_is_not(struct lockstep_session *session, void *said)
{
    struct commit_wave *wave = said;
    (void)session;
    wave->called |= UINT64_C(1) << 40;
    wave->weighted |= UINT64_C(1) << 40;
}

static void header_of_a_late_step(struct lockstep_session *session, void *said)
{
    struct step_header *header = said;
    (void)session;
    header->starts += 9;
}

static const struct lie lies[] = {
    {"(close): it counts more calls", ORDER_CLOSE, many_calls},
    {"(close): it names a module that is not registered", ORDER_CLOSE, call_of_no_module},
    {"(close): it names a call that its module cannot have", ORDER_CLOSE, call_far_away},
    {"(commit): it has more counters", ORDER_COMMIT, many_counters},
    {"(commit): its counters are not in order", ORDER_COMMIT, counters_in_disorder},
    {"(commit): it has more metrics", ORDER_COMMIT, many_metrics},
    {"(commit): a metric has no name", ORDER_COMMIT, metrics_without_names},
    {"(commit): it names a module that is not registered", ORDER_COMMIT, unused_of_no_module},
    {"(commit): it names a parameter that its module", ORDER_COMMIT, unused_of_no_parameter},
    {"(commit): it names a rank that it does not speak for", ORDER_COMMIT, unused_of_another_rank},
    {"(commit): it names more unused parameters", ORDER_COMMIT, many_unused},
    {"(commit): it names a module that is not registered", ORDER_COMMIT, aborted_of_no_module},
    {"(commit): it names more calls that were given up", ORDER_COMMIT, many_aborted},
    {"(commit): it says that a module was called", ORDER_COMMIT, call_of_a_module_there_is_not},
    {"sent an impossible header: no rank can be in that step", ORDER_HEADER, header_of_a_late_step},
};

// ---- The liar ----------------------------------------------------------------------------------

// The current lie. The liar sends the lie and keeps the true data.
static struct {
    const struct lie *lie;
    struct order_sink honest;
    _Alignas(8) uint8_t truth[LOCKSTEP_WAVE_BYTES];
} liar;

static void close_merge(void *into, const void *from)
{
    memcpy(into, liar.truth, sizeof(struct close_wave));
    order_close_merge(into, from);
}

static void commit_merge(void *into, const void *from)
{
    memcpy(into, liar.truth, sizeof(struct commit_wave));
    order_commit_merge(into, from);
}

static void lying_join(struct lockstep_session *session, struct wave *wave, uint64_t step,
                       const void *truth, size_t size)
{
    memcpy(liar.truth, truth, size);
    memcpy(wave->payload, truth, size);
    liar.lie->tell(session, wave->payload);
    wave->step = step;
    wave->size = (uint32_t)size;
    wave->check = NULL;
    transport_wave(session->transport, wave);
}

static void lying_action(void *context, const struct order_action *action)
{
    struct lockstep_session *session = context;
    struct order_action told = *action;
    if (action->kind == ORDER_HEADER && liar.lie->when == ORDER_HEADER) {
        struct step_header header = *action->header;
        liar.lie->tell(session, &header);
        told.header = &header;
        liar.honest.action(liar.honest.context, &told);
    } else if (action->kind == ORDER_CLOSE && liar.lie->when == ORDER_CLOSE) {
        session->engine.close_wave.kind = WAVE_CLOSE;
        session->engine.close_wave.merge = close_merge;
        lying_join(session, &session->engine.close_wave, action->step, action->close,
                   sizeof(struct close_wave));
    } else if (action->kind == ORDER_COMMIT && liar.lie->when == ORDER_COMMIT) {
        session->engine.commit_wave.kind = WAVE_COMMIT;
        session->engine.commit_wave.merge = commit_merge;
        lying_join(session, &session->engine.commit_wave, action->step, &session->step.contribution,
                   sizeof(struct commit_wave));
    } else {
        liar.honest.action(liar.honest.context, action);
    }
}

// ---- The world ---------------------------------------------------------------------------------

static int step(struct rank *rank, struct trained_module *module)
{
    int status = lockstep_step_begin(rank->session, NULL, NULL);
    lockstep_call *call;
    if (status < 0)
        return status;
    trainer_fill_known(module, rank->rank, 1);
    status = lockstep_call_begin(module->module, &call);
    for (uint32_t p = 0; p < COUNT && status == 0; p++)
        status = lockstep_grad_ready(module->module, call, p, NULL, NULL);
    if (status == 0)
        status = lockstep_call_end(call);
    return status < 0 ? status : lockstep_step_end(rank->session, NULL);
}

static void body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net", .count = COUNT, .elements = sizes};
    const uint32_t lies_here = rank->world_size - 1;
    struct trained_module module;
    char named[64];
    int status = 0;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, step(rank, &module));
    rank_meet(rank);
    if (rank->rank == lies_here) {
        liar.honest = rank->session->engine.order->sink;
        rank->session->engine.order->sink.action = lying_action;
    }
    for (int i = 0; i < STEPS && status == 0; i++)
        status = step(rank, &module);
    RANK_EQUAL(rank, status, LOCKSTEP_E_PEER_LOST);
    snprintf(named, sizeof(named), "rank %u on host ", lies_here);
    RANK_SAYS(rank, named);
    RANK_SAYS(rank, liar.lie->text);
    trainer_free(&module);
}

static void run_lies(const char *transport, uint32_t world_size)
{
    struct setting setting = setting_named(transport);
    setting.world_size = world_size;
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        liar.lie = &lies[i];
        print_message("%s\n", lies[i].text);
        ranks_run(&setting, body, NULL);
    }
}

// In a world of two the other rank exchanges waves with the liar and is its successor in the ring.
static void a_lie_in_a_world_of_two(void **state)
{
    (void)state;
    run_lies("tcp", 2);
}

// The liar is an extra: it sends its wave to one rank only. That rank reports the lie, and the
// third rank gets the report.
static void a_lie_of_an_extra(void **state)
{
    (void)state;
    run_lies("loopback", 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lie_in_a_world_of_two),
        cmocka_unit_test(a_lie_of_an_extra),
    };
    return cmocka_run_group_tests_name("wave liars", tests, NULL, NULL);
}
