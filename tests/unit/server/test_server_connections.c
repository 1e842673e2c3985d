// SPDX-License-Identifier: Apache-2.0
//
// Calls counted by connection: each has its own bound, and is forgotten with its last call.

#include "server/rpc/connections.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#define MOST 3
#define MANY 10000 // More than there are buckets.

static struct connections connections;

static bool all_forgotten(void)
{
    for (uint32_t i = 0; i < CONNECTIONS_BUCKETS; i++) {
        if (!list_empty(&connections.buckets[i]))
            return false;
    }
    return true;
}

static void each_connection_has_a_bound(void **state)
{
    (void)state;
    struct connection *one = NULL;
    connections_init(&connections);
    for (uint32_t i = 0; i < MOST; i++) {
        struct connection *again = connections_enter(&connections, "ipv4:10.0.0.7:4711", MOST);
        assert_non_null(again);
        assert_true(i == 0 || again == one);
        one = again;
    }
    assert_null(connections_enter(&connections, "ipv4:10.0.0.7:4711", MOST));
    struct connection *other = connections_enter(&connections, "ipv4:10.0.0.7:4712", MOST);
    assert_non_null(other);
    assert_ptr_not_equal(other, one);

    connections_leave(one);
    assert_ptr_equal(connections_enter(&connections, "ipv4:10.0.0.7:4711", MOST), one);
    connections_leave(other);
    for (uint32_t i = 0; i < MOST; i++)
        connections_leave(one);
    connections_leave(NULL);
    assert_true(all_forgotten());
}

static void many_are_told_apart(void **state)
{
    (void)state;
    static struct connection *entered[MANY];
    char name[32];
    connections_init(&connections);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++) {
            snprintf(name, sizeof(name), "ipv4:10.0.0.7:%d", i);
            struct connection *connection = connections_enter(&connections, name, MOST);
            assert_non_null(connection);
            assert_int_equal(connection->calls, round + 1);
            entered[i] = connection;
        }
    }
    for (int i = 0; i < MANY; i++) {
        connections_leave(entered[i]);
        connections_leave(entered[i]);
    }
    assert_true(all_forgotten());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_connection_has_a_bound),
        cmocka_unit_test(many_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
