// SPDX-License-Identifier: Apache-2.0
//
// Addresses that people paste: the tool reads the server's address and the token from them.

#include "cli/ask/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void an_address_may_hold_a_token(void **state)
{
    static const struct {
        const char *value;
        const char *address;
        const char *token;
        bool tls;
    } cases[] = {
        {"127.0.0.1:8080", "127.0.0.1:8080", "", false},
        {"http://127.0.0.1:8080/", "127.0.0.1:8080", "", false},
        {"http://127.0.0.1:8080/?token=abc", "127.0.0.1:8080", "abc", false},
        {"http://127.0.0.1:8080/?token=abc&x=1#mnist", "127.0.0.1:8080", "abc", false},
        {"https://[::1]:8080?token=abc", "[::1]:8080", "abc", true},
        {"127.0.0.1:8080?token=abc", "127.0.0.1:8080", "abc", false},
        {"http://127.0.0.1:8080/#mnist", "127.0.0.1:8080", "", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct http_peer peer = {0};
        if (!http_read_address(cases[i].value, &peer))
            fail_msg("%s was refused", cases[i].value);
        assert_string_equal(peer.address, cases[i].address);
        assert_string_equal(peer.token, cases[i].token);
        assert_int_equal(peer.tls, cases[i].tls);
    }
}

// The token becomes part of an HTTP header, so it must not be able to begin another header.
static void an_impossible_token_is_refused(void **state)
{
    char huge[HTTP_TOKEN_BYTES + 64] = "127.0.0.1:1/?token=";
    struct http_peer peer = {0};
    (void)state;
    assert_false(http_read_address("127.0.0.1:1/?token=", &peer));
    assert_false(http_read_address("127.0.0.1:1/?token=a\r\nX: y", &peer));
    assert_false(http_read_address("127.0.0.1:1/?token=a b", &peer));
    memset(huge + strlen(huge), 'x', sizeof(huge) - strlen(huge) - 1);
    assert_false(http_read_address(huge, &peer));
}

// --token-file wins, whichever comes first on the command line.
static void a_token_that_is_there_stays(void **state)
{
    struct http_peer peer = {.token = "from-a-file"};
    (void)state;
    assert_true(http_read_address("127.0.0.1:1/?token=abc", &peer));
    assert_string_equal(peer.token, "from-a-file");
}

static void an_argument_hides_its_token(void **state)
{
    char value[] = "http://127.0.0.1:8080/?token=abc&x=1";
    char other[] = "127.0.0.1:8080";
    (void)state;
    http_hide_token(value);
    assert_string_equal(value, "http://127.0.0.1:8080/?token=***&x=1");
    http_hide_token(other);
    assert_string_equal(other, "127.0.0.1:8080");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_may_hold_a_token),
        cmocka_unit_test(an_impossible_token_is_refused),
        cmocka_unit_test(a_token_that_is_there_stays),
        cmocka_unit_test(an_argument_hides_its_token),
    };
    return cmocka_run_group_tests_name("cli_http", tests, NULL, NULL);
}
