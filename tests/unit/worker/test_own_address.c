// SPDX-License-Identifier: Apache-2.0
//
// The address that LOCKSTEP_ADVERTISE means, on a host that is made up, and on this one.

#include "worker/link/own_address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <string.h>

static const struct {
    const char *interface;
    const char *address;
} made_up[] = {
    {"lo", "127.0.0.1"},   {"eth0", "192.168.1.7"},    {"eth1", "10.77.0.7"},
    {"eth1", "10.77.0.8"}, {"ib0", "fd00:1::7"},       {"lo", "::1"},
    {"eth0", "fe80::1"},   {"eth0", "2001:db8::7"},    {"eth1", "fd00:2::7"},
    {"far", "fe80::2"},    {"eth0.7", "172.16.5.129"},
};
#define ADDRESSES (sizeof(made_up) / sizeof(made_up[0]))

static void make_up(struct own_address addresses[ADDRESSES])
{
    memset(addresses, 0, ADDRESSES * sizeof(addresses[0]));
    for (size_t i = 0; i < ADDRESSES; i++) {
        struct own_address *address = &addresses[i];
        memcpy(address->interface, made_up[i].interface, strlen(made_up[i].interface));
        address->loopback = strcmp(made_up[i].interface, "lo") == 0;
        address->family = strchr(made_up[i].address, ':') ? AF_INET6 : AF_INET;
        assert_int_equal(inet_pton(address->family, made_up[i].address, address->bytes), 1);
    }
}

static void what_is_meant(void **state)
{
    static const struct {
        const char *wanted;
        const char *address; // NULL: no address; the error says why.
        const char *error;
    } cases[] = {
        {"10.9.9.9", "10.9.9.9", NULL}, // As it is, whether it is here or not.
        {"[fd00:9::9]", "fd00:9::9", NULL},
        {"fd00:0009:0::9", "fd00:9::9", NULL},
        {"0.0.0.0", NULL, "others can reach"},
        {"[::]", NULL, "others can reach"},
        {"fe80::1", NULL, "one link only"},
        {"eth0", "192.168.1.7", NULL}, // IPv4 first, link-local never.
        {"eth1", "10.77.0.7", NULL}, // The first one.
        {"ib0", "fd00:1::7", NULL},
        {"eth0.7", "172.16.5.129", NULL},
        {"lo", "127.0.0.1", NULL},
        {"far", NULL, "no address of an interface with that name"},
        {"eth", NULL, "eth1 10.77.0.7, eth1 10.77.0.8, ib0 fd00:1::7"},
        {"10.0.0.0/8", "10.77.0.7", NULL},
        {"10.77.0.8/32", "10.77.0.8", NULL},
        {"10.77.0.255/29", NULL, "in that network"}, // .248 to .255
        {"172.16.5.128/25", "172.16.5.129", NULL},
        {"172.16.5.0/25", NULL, "in that network"},
        {"0.0.0.0/0", "192.168.1.7", NULL}, // Not the loopback, which is first.
        {"127.0.0.0/8", "127.0.0.1", NULL},
        {"fd00::/8", "fd00:1::7", NULL},
        {"[fd00:2::]/32", "fd00:2::7", NULL},
        {"2001:db8::/33", "2001:db8::7", NULL},
        {"::/0", "fd00:1::7", NULL},
        {"::1/128", "::1", NULL},
        {"fe80::/10", NULL, "in that network"},
        {"10.0.0.0/33", NULL, "is no network"},
        {"10.0.0.0/", NULL, "is no network"},
        {"10.0.0/8", NULL, "is no network"},
        {"fd00::/129", NULL, "is no network"},
        {"eth0/8", NULL, "is no network"},
        {"/8", NULL, "is no network"},
        {"10.0.0.0/-1", NULL, "is no network"},
        {"", NULL, "of an interface"},
    };
    struct own_address addresses[ADDRESSES];
    (void)state;
    make_up(addresses);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char address[64] = "";
        char error[512] = "";
        const int status = own_address_choose(cases[i].wanted, addresses, ADDRESSES, address,
                                              sizeof(address), error, sizeof(error));
        if (status != (cases[i].address ? 0 : -1))
            print_message("%s: %s %s\n", cases[i].wanted, address, error);
        assert_int_equal(status, cases[i].address ? 0 : -1);
        if (cases[i].address)
            assert_string_equal(address, cases[i].address);
        else if (!strstr(error, cases[i].error))
            fail_msg("%s: %s", cases[i].wanted, error);
    }
}

static void this_host(void **state)
{
    char address[64] = "";
    char error[512] = "";
    (void)state;
    assert_int_equal(
        own_address_find("127.0.0.0/8", address, sizeof(address), error, sizeof(error)), 0);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(
        own_address_find("no-such-thing", address, sizeof(address), error, sizeof(error)), -1);
    assert_non_null(strstr(error, "lo 127.0.0.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_meant),
                                       cmocka_unit_test(this_host)};
    return cmocka_run_group_tests_name("own_address", tests, NULL, NULL);
}
