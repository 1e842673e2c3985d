// SPDX-License-Identifier: Apache-2.0
//
// Ranks that count as sharing cores, and so let each other run while they wait. Cores that are
// full, so that a launch can wait, and requests that end no sleep. How long ranks look before they
// sleep.

#include "base/clock.h"
#include "worker/transport/state.h"
#include "worker/transport/wait.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

static const struct fullness {
    const char *what;
    uint64_t ranks;
    uint64_t processors;
    uint64_t used_us;
    uint64_t elapsed_us;
    bool full;
} fullnesses[] = {
    {"a rank computes on each core", 2, 2, 1000, 1000, true},
    {"something else takes a fifth of each core", 2, 2, 800, 1000, true},
    {"half of a core is free", 2, 2, 750, 1000, false},
    {"both ranks wait for something half of the time", 2, 2, 500, 1000, false},
    {"more ranks than cores", 4, 2, 500, 1000, true},
    {"each rank computes with eight threads", 2, 16, 8000, 1000, true},
    {"one of 16 cores is free", 2, 16, 7500, 1000, false},
    {"each rank has a core of its own", 1, 1, 900, 1000, true},
    {"it uses little of the core", 1, 1, 400, 1000, false},
    {"some rank may wait for this one", 0, 2, 1000, 1000, false},
    {"the step has just begun", 2, 2, 0, 0, false},
};

static void cores_are_full_if_less_than_half_of_one_is_free(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(fullnesses) / sizeof(fullnesses[0]); i++) {
        const struct fullness *known = &fullnesses[i];
        if (wait_cores_are_full(known->ranks, known->processors, known->used_us,
                                known->elapsed_us) != known->full)
            fail_msg("%s", known->what);
    }
}

// True if the descriptor was written to since the last call.
static bool rung(const struct attention *attention)
{
    uint64_t count = 0;
    return read(attention->descriptor, &count, sizeof(count)) == sizeof(count);
}

static void a_note_ends_no_sleep_and_is_found_after_it(void **state)
{
    struct attention attention = {.descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    (void)state;
    assert_true(attention.descriptor >= 0);
    atomic_init(&attention.word, ATTENTION_ASLEEP);
    attention_note(&attention);
    attention_note(&attention);
    assert_false(rung(&attention));
    assert_true(attention_take(&attention));
    assert_false(attention_take(&attention));
    attention_note(&attention); // The engine is awake.
    assert_int_equal(atomic_load(&attention.word), ATTENTION_ASKED);
    assert_true(attention_take(&attention));
    atomic_store(&attention.word, ATTENTION_ASLEEP);
    attention_note(&attention);
    attention_ask(&attention); // More urgent than the note.
    assert_true(rung(&attention));
    attention_note(&attention);
    assert_int_equal(atomic_load(&attention.word), ATTENTION_ASKED);
    assert_true(attention_take(&attention));
    close(attention.descriptor);
}

struct look {
    uint32_t world_size;
    uint64_t elements; // Of 4 bytes.
    uint64_t bytes_per_s;
    uint64_t us;
};

#define SWIFT UINT64_C(2000000000)
#define FAST UINT64_C(1000000000)
#define SLOW UINT64_C(125000000)

static const struct look looks[] = {
    {2, 1, SLOW, 120},
    {2, 16 * 1024 + 1, SLOW, 10},
    {4, 64 * 1024, FAST, 120},
    {2, 64 * 1024 + 1, FAST, 10},
    {2, 64 * 1024 + 1, SWIFT, 300},
    {2, 2 * 1024 * 1024, SWIFT, 300},
    {2, 2 * 1024 * 1024 + 1, SWIFT, 10},
    {4, 64 * 1024 + 1, SWIFT, 10},
};

static void how_long_a_rank_looks(void **state)
{
    (void)state;
    struct transport *transport = calloc(1, sizeof(*transport));
    assert_non_null(transport);
    struct collective collective = {0};
    struct flow flow = {.collective = &collective, .map.element_bytes = 4};
    list_init(&transport->flows.active);
    assert_int_equal(wait_socket_us(transport), 120); // Nothing is in flight.
    list_push_back(&transport->flows.active, &flow.turn);
    for (size_t i = 0; i < sizeof(looks) / sizeof(looks[0]); i++) {
        transport->flows.world.world_size = looks[i].world_size;
        transport->flows.agreed_bytes_per_s = looks[i].bytes_per_s;
        collective.elements = looks[i].elements;
        if (wait_socket_us(transport) != looks[i].us)
            fail_msg("row %zu: %llu us", i, (unsigned long long)wait_socket_us(transport));
    }
    transport->flows.crowded = true;
    assert_int_equal(wait_socket_us(transport), 50);
    free(transport);
}

// In memory, a rank with a core of its own looks longer than a wake-up takes.
static void a_rank_with_a_core_looks_for_long(void **state)
{
    (void)state;
    struct transport *transport = calloc(1, sizeof(*transport));
    struct list flow;
    assert_non_null(transport);
    list_init(&transport->flows.active);
    list_init(&transport->flows.waves.joined);
    list_push_back(&transport->flows.active, &flow);
    transport->flows.formed = true;
    transport->descriptors.epoll = -1; // So a sleep ends at once.
    transport->patience.credit = 1;
    const uint64_t begin_us = clock_now_us();
    wait_for_work(transport, 1);
    assert_true(clock_now_us() - begin_us >= 100);
    assert_int_equal(transport->patience.credit, 0);
    free(transport);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_without_a_core_each_are_crowded),
        cmocka_unit_test(how_long_a_rank_looks),
        cmocka_unit_test(a_rank_with_a_core_looks_for_long),
        cmocka_unit_test(cores_are_full_if_less_than_half_of_one_is_free),
        cmocka_unit_test(a_note_ends_no_sleep_and_is_found_after_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
