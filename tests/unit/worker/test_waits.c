// SPDX-License-Identifier: Apache-2.0
//
// Unit: which of the threads that wait for one call gets an answer of the engine
// (worker/engine/waits.h).

#include "worker/engine/waits.h"

#include "worker/session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

struct rig {
    struct lockstep_session *session;
    struct lockstep_module module;
    struct contribution contribution;
};

// A session with one module, of whose call the only bucket is not ready.
static struct rig *rig_make(void)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    rig->session = calloc(1, sizeof(*rig->session));
    assert_non_null(rig->session);
    mutex_init(&rig->session->mutex);
    list_init(&rig->session->call_waiters);
    list_init(&rig->session->drive.waiters);
    rig->module.layout.bucket_count = 1;
    rig->module.contributions = &rig->contribution;
    rig->contribution.module = &rig->module;
    rig->session->modules[0] = &rig->module;
    return rig;
}

static void rig_free(struct rig *rig)
{
    mutex_fini(&rig->session->mutex);
    free(rig->session);
    free(rig);
}

static void rig_send(struct rig *rig, enum command_kind kind)
{
    engine_wait(rig->session, &(struct command){.kind = kind});
}

// Condition: one thread leaves its wait, and another one asks whether the results are there.
// Decision: the answer to the question does not let the first thread go, which has to wait for the
// coordinator; and the first thread's answer is not the other's.
static void a_question_and_a_wait(void **state)
{
    (void)state;
    struct rig *rig = rig_make();
    struct call_waiter leaver = {.contribution = &rig->contribution, .leaves = true};
    struct call_waiter asker = {.contribution = &rig->contribution, .asks = true, .leaves = true};
    struct call_waiter later = asker;
    list_push_back(&rig->session->call_waiters, &leaver.waiters);
    list_push_back(&rig->session->call_waiters, &asker.waiters);
    rig_send(rig, COMMAND_WAIT_ASK);
    assert_true(asker.answered && asker.answer == RELEASE_WITHDRAWN);
    assert_false(leaver.answered);
    list_remove(&leaver.waiters);
    list_push_back(&rig->session->call_waiters, &later.waiters);
    list_push_back(&rig->session->call_waiters, &leaver.waiters);
    rig_send(rig, COMMAND_WAIT_END);
    assert_true(leaver.answered && leaver.answer == RELEASE_WITHDRAWN);
    assert_false(later.answered);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_question_and_a_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
