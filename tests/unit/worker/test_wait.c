// SPDX-License-Identifier: Apache-2.0
//
// Ranks that count as sharing cores, and so let each other run while they wait.

#include "worker/transport/state.h"
#include "worker/transport/wait.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define PEERS 3

struct crowd {
    const char *what;
    enum transport_kind kind;
    uint32_t world_size;
    uint32_t core_ranks;
    uint32_t mates;
    const char *peers; // All of them.
    uint32_t processors;
    bool crowded;
};

static const struct crowd crowds[] = {
    {"pods of one node that has too few", TRANSPORT_TCP, 4, 4, 1, "tcp:10.0.0.9:7", 2, true},
    {"pods of one node that has enough", TRANSPORT_TCP, 4, 4, 1, "tcp:10.0.0.9:7", 4, false},
    {"ranks of one host, each on cores of its own", TRANSPORT_TCP, 4, 1, 4, "tcp:10.0.0.1:8", 1,
     false},
    {"nothing is said: neighbours of one address", TRANSPORT_TCP, 4, 0, 0, "tcp:10.0.0.1:8", 3,
     true},
    {"nothing is said: they have enough", TRANSPORT_TCP, 4, 0, 0, "tcp:10.0.0.1:8", 4, false},
    {"nothing is said: neighbours elsewhere", TRANSPORT_TCP, 4, 0, 0, "tcp:10.0.0.11:8", 1, false},
    {"nothing is said: mates", TRANSPORT_TCP, 8, 0, 8, "tcp:10.0.0.9:7", 4, true},
    {"threads of one process", TRANSPORT_LOOPBACK, 3, 0, 0, "loopback:1", 2, true},
    {"alone", TRANSPORT_TCP, 1, 1, 1, "", 1, false},
};

static void ranks_without_a_core_each_are_crowded(void **state)
{
    (void)state;
    struct transport *transport = calloc(1, sizeof(*transport));
    assert_non_null(transport);
    for (size_t i = 0; i < sizeof(crowds) / sizeof(crowds[0]); i++) {
        const struct crowd *crowd = &crowds[i];
        transport->kind = crowd->kind;
        transport->flows.processors = crowd->processors;
        transport->flows.world.world_size = crowd->world_size;
        transport->flows.world.core_ranks = crowd->core_ranks;
        transport->flows.world.locality.mate_count = crowd->mates;
        strcpy(transport->doors.address, "tcp:10.0.0.1:7");
        transport->flows.peer_count = crowd->world_size > 1 ? PEERS : 0;
        for (uint32_t p = 0; p < PEERS; p++)
            strcpy(transport->flows.peers[p].address, crowd->peers);
        wait_prepare(transport);
        if (transport->flows.crowded != crowd->crowded)
            fail_msg("%s", crowd->what);
    }
    free(transport);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_without_a_core_each_are_crowded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
