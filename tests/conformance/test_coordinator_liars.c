// SPDX-License-Identifier: Apache-2.0
//
// A faulty coordinator whose messages pass the codec but are impossible in this world or step. The
// session of the rank fails with a sentence, and the process goes on. The test puts the messages
// into the inbox of a real session, behind those of the real coordinator.

#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t sizes[] = {10, 20};

struct lie {
    const char *text; // Part of the session's error text.
    bool in_step; // True if the message comes in step 1, the learning step.
    bool planned; // True if the message comes in step 2, which has a plan.
    bool forming; // True if the session handles the message as if its world had not formed yet.
    struct down_message message;
};

static const struct lie lies[] = {
    {.text = "a plan with an algorithm that this world cannot run",
     .message = {.kind = DOWN_PLAN_PART,
                 .u.plan_part = {.number = 9,
                                 .slot_total = 1,
                                 .slot_count = 1,
                                 .last = true,
                                 .slots = {{.algorithm = ALGORITHM_SHARED}}}}},
    {.text = "a plan with an algorithm that this world cannot run",
     .message = {.kind = DOWN_PLAN_PART,
                 .u.plan_part = {.number = 9,
                                 .slot_total = 1,
                                 .slot_count = 1,
                                 .last = true,
                                 .slots = {{.algorithm = ALGORITHM_TWO_LEVEL}}}}},
    {.text = "a plan that has a slot twice",
     .message = {.kind = DOWN_PLAN_PART,
                 .u.plan_part = {.number = 9, .slot_total = 2, .slot_count = 2, .last = true}}},
    {.text = "gave up a call of this rank, which gives up none",
     .in_step = true,
     .message = {.kind = DOWN_GRANT, .u.grant = {.step = 1, .forced = true}}},
    {.text = "an impossible layout",
     .planned = true,
     .message = {.kind = DOWN_LAYOUT_PART,
                 .u.layout_part = {.total = 4, .count = 4, .words = {1, 2, 1, 0}}}},
    {.text = "an address that nobody has asked for",
     .message = {.kind = DOWN_ADDRESSES,
                 .u.addresses = {.count = 1, .peers = {{.rank = 1, .address = "loopback:1"}}}}},
    {.text = "a tuning that this world cannot run",
     .forming = true,
     .message = {.kind = DOWN_TUNING, .u.tuning = {.wish = ALGORITHM_SHARED}}},
};

static void tell(struct rank *rank, const struct lie *lie)
{
    struct lockstep_session *session = rank->session;
    struct down_message *message = malloc(sizeof(*message));
    RANK_TRUE(rank, message != NULL);
    *message = lie->message;
    message->generation = session->world.generation;
    if (lie->forming)
        session->world.formed = false;
    session_post(session, (struct command){.kind = COMMAND_MESSAGE, .message = message});
}

static void body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net", .count = 2, .elements = sizes};
    const struct lie *lie = rank->context;
    struct trained_module module;
    int status = 0;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    if (lie->planned)
        trainer_step_known(rank, &module, 1);
    if (lie->in_step || lie->planned)
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    rank_meet(rank);
    if (rank->rank == 0) {
        tell(rank, lie);
        while (status == 0) {
            status = lockstep_mark(rank->session, "waits for the lie");
            usleep(1000);
        }
        RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
        RANK_SAYS(rank, lie->text);
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void a_lie_fails_the_session(void **state)
{
    struct setting setting = setting_named("loopback");
    (void)state;
    setting.world_size = 2;
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct lie lie = lies[i];
        print_message("%s\n", lie.text);
        ranks_run(&setting, body, &lie);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_lie_fails_the_session)};
    return cmocka_run_group_tests_name("coordinator liars", tests, NULL, NULL);
}
