// SPDX-License-Identifier: Apache-2.0
//
// Conformance: sessions whose collectives want links to ranks that are no neighbours. The
// coordinator answers with their addresses. In a world of eight hosts, ranks 0 and 5 are no
// neighbours.

#include "protos/topology.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define WORLD 8
#define COUNT 1000
#define HIGH 5u

static void reduce(struct rank *rank, const char *name)
{
    float data[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        data[i] = (float)(rank->rank + i % 7);
    RANK_OK(rank, lockstep_allreduce(rank->session, name, data, COUNT, LOCKSTEP_FLOAT32,
                                     LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    for (uint32_t i = 0; i < COUNT; i++)
        RANK_TRUE(rank, data[i] == (float)(WORLD * (WORLD - 1) / 2 + WORLD * (i % 7)));
}

static uint64_t control_messages(const struct rank *rank)
{
    return atomic_load(&rank->session->tallies.control_messages);
}

// True if a lower rank is no neighbour of this rank: then this rank has to ask for its address.
static bool asks(const struct rank *rank)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    const uint32_t count = topology_neighbours(rank->rank, WORLD, ranks);
    uint32_t lower = 0;
    while (lower < count && ranks[lower] < rank->rank)
        lower++;
    return lower < rank->rank;
}

// One question and one answer make all links of a rank, for good.
static void linked_body(struct rank *rank)
{
    rank_meet(rank);
    const uint64_t opened = control_messages(rank);
    reduce(rank, "first");
    RANK_EQUAL(rank, control_messages(rank) - opened, asks(rank) ? 2 : 0);
    reduce(rank, "second");
    RANK_EQUAL(rank, control_messages(rank) - opened, asks(rank) ? 2 : 0);
    rank_meet(rank);
}

static struct setting setting_of(const char *name, uint32_t hosts)
{
    struct setting setting = setting_named(name);
    setting.world_size = WORLD;
    setting.hosts = hosts;
    setting.algorithm = "direct";
    return setting;
}

static void links_are_made_on_demand(void **state)
{
    (void)state;
    const struct setting tcp = setting_of("tcp", WORLD);
    const struct setting loopback = setting_of("loopback", WORLD);
    ranks_run(&tcp, linked_body, NULL);
    ranks_run(&loopback, linked_body, NULL);
}

// ---- the coordinator is gone for too long ------------------------------------------------------

// The ranks wait for it 0.2 s.
static void run_alone(void (*body)(struct rank *rank))
{
    const struct setting tcp = setting_of("tcp", WORLD);
    setenv("LOCKSTEP_AWAY_TIMEOUT_MS", "200", 1);
    ranks_run(&tcp, body, NULL);
    unsetenv("LOCKSTEP_AWAY_TIMEOUT_MS");
}

// The session handles the end of its control stream, as if the coordinator had ended.
static void lose_coordinator(struct rank *rank)
{
    char *text = strdup("the stream ended");
    RANK_TRUE(rank, text != NULL);
    session_post(rank->session, (struct command){.kind = COMMAND_CONTROL_ENDED, .text = text});
}

static void expect_unreached(struct rank *rank, int status)
{
    if (rank->rank == HIGH) {
        RANK_EQUAL(rank, status, LOCKSTEP_E_UNREACHABLE);
        RANK_SAYS(rank, "a link to rank 0 is needed, whose address the coordinator knows; the "
                        "coordinator is needed to go on, and has not come back within 0.2 s "
                        "(LOCKSTEP_AWAY_TIMEOUT_MS): the stream ended");
    } else {
        RANK_TRUE(rank, status < 0);
        RANK_SAYS(rank, "rank 5");
    }
}

static void alone_body(struct rank *rank)
{
    float data[COUNT] = {0};
    rank_meet(rank);
    if (rank->rank == HIGH)
        lose_coordinator(rank);
    rank_meet(rank);
    expect_unreached(rank, lockstep_allreduce(rank->session, "first", data, COUNT, LOCKSTEP_FLOAT32,
                                              LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    rank_meet(rank);
}

// The coordinator stops, so it does not answer; then one rank loses it.
static void unanswered_body(struct rank *rank)
{
    float data[COUNT] = {0};
    lockstep_work *work = NULL;
    rank_meet(rank);
    if (rank->rank == 0)
        cluster_signal_coordinator(SIGSTOP);
    rank_meet(rank);
    const uint64_t opened = control_messages(rank);
    RANK_OK(rank, lockstep_allreduce_async(rank->session, "first", data, COUNT, LOCKSTEP_FLOAT32,
                                           LOCKSTEP_SUM, &work));
    while (asks(rank) && control_messages(rank) == opened)
        usleep(1000);
    rank_meet(rank);
    if (rank->rank == HIGH)
        lose_coordinator(rank);
    expect_unreached(rank, lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER));
    rank_meet(rank);
    if (rank->rank == 0)
        cluster_signal_coordinator(SIGCONT);
}

static void without_a_coordinator_the_session_says_so(void **state)
{
    (void)state;
    run_alone(alone_body);
}

static void without_an_answer_the_session_says_so(void **state)
{
    (void)state;
    run_alone(unanswered_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_made_on_demand),
        cmocka_unit_test(without_a_coordinator_the_session_says_so),
        cmocka_unit_test(without_an_answer_the_session_says_so),
    };
    return cmocka_run_group_tests_name("further links", tests, NULL, NULL);
}
