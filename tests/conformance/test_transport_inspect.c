// SPDX-License-Identifier: Apache-2.0
//
// Conformance: a rank reports the links on which it waits without progress. It does not report
// links with progress, or links on which it does not wait.

#include "tests/conformance/transport_fleet.h"
#include "worker/transport/inspect.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#define ELEMENTS 1000
#define LATE 1u // The rank that launches last.
#define STILL_MS 1000 // After this time without progress a collective stands still.

struct asked {
    struct link_state links[LOCKSTEP_MAX_NEIGHBOURS];
    uint32_t count;
};

static void inspect(struct member *member, struct asked *asked)
{
    asked->count =
        transport_inspect(member->transport, clock_now_ms(), asked->links, LOCKSTEP_MAX_NEIGHBOURS);
}

static const struct link_state *link_to(const struct asked *asked, uint32_t rank)
{
    for (uint32_t i = 0; i < asked->count; i++) {
        if (asked->links[i].rank == rank)
            return &asked->links[i];
    }
    return NULL;
}

static void expect_links_to_late_rank(struct member *member)
{
    struct asked asked;
    inspect(member, &asked);
    const struct link_state *link = link_to(&asked, LATE);
    MEMBER_CHECK(member, link != NULL);
    MEMBER_CHECK(member, link->awaited);
    MEMBER_CHECK(member, link->still_ms >= STILL_MS);
    MEMBER_CHECK(member, link->unsent > 0 || !link->reached);
    // The function fills only as many entries as there is room for.
    MEMBER_CHECK(member, transport_inspect(member->transport, clock_now_ms(), asked.links, 1) == 1);
    MEMBER_CHECK(member, transport_inspect(member->transport, clock_now_ms(), asked.links, 0) == 0);
}

static void late_script(struct member *member)
{
    float values[ELEMENTS];
    struct asked asked;
    const struct extent extent = {.in = values, .out = values, .elements = ELEMENTS};
    struct collective collective = {.kind = COLLECTIVE_ALLREDUCE,
                                    .dtype = DTYPE_FLOAT32,
                                    .op = REDUCE_SUM,
                                    .algorithm = ALGORITHM_RING,
                                    .tag = {.step = 1, .space = 7},
                                    .signature = 9,
                                    .extents = &extent,
                                    .extent_count = 1,
                                    .elements = ELEMENTS,
                                    .weight = 1};
    for (uint32_t i = 0; i < ELEMENTS; i++)
        values[i] = 1;
    // Nothing is in flight, so no link is reported, after any time.
    inspect(member, &asked);
    member_idle(member, STILL_MS + 200);
    inspect(member, &asked);
    MEMBER_CHECK(member, asked.count == 0);
    member_barrier(member);
    if (member->rank != LATE)
        transport_launch(member->transport, &collective);
    member_idle(member, 200);
    inspect(member, &asked);
    MEMBER_CHECK(member, asked.count == 0); // The link has not stood still for long enough.
    member_idle(member, STILL_MS + 200);
    if (member->rank != LATE)
        expect_links_to_late_rank(member);
    member_barrier(member);
    if (member->rank == LATE)
        transport_launch(member->transport, &collective);
    member_until(member, &member->done_count, 1, "the collective");
    inspect(member, &asked);
    MEMBER_CHECK(member, asked.count == 0);
    MEMBER_CHECK(member, values[0] == 3 && values[ELEMENTS - 1] == 3);
}

static void run(const char *name, enum transport_kind kind, bool mates)
{
    const struct fleet_options options = {
        .name = name, .kind = kind, .world = 3, .chunk_bytes = 4096, .mates = mates};
    fleet_run(&options, late_script, NULL);
}

static void over_loopback(void **state)
{
    (void)state;
    run("loopback", TRANSPORT_LOOPBACK, false);
}

static void over_tcp(void **state)
{
    (void)state;
    run("tcp", TRANSPORT_TCP, false);
}

static void over_memory(void **state)
{
    (void)state;
    run("memory", TRANSPORT_TCP, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(over_loopback),
        cmocka_unit_test(over_tcp),
        cmocka_unit_test(over_memory),
    };
    return cmocka_run_group_tests_name("transport_inspect", tests, NULL, NULL);
}
