// SPDX-License-Identifier: Apache-2.0
// Bounded text, UTF-8, and the strict parsers.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/parse.h"
#include "base/text.h"
#include "base/utf8.h"

static void test_append(void **state)
{
    (void)state;
    char buffer[12];
    struct text text;
    text_init(&text, buffer, sizeof(buffer));
    assert_string_equal(buffer, "");
    assert_true(text_append(&text, "%d-%s", 12, "ab"));
    assert_true(text_append_bytes(&text, "cdefghX", 6));
    assert_string_equal(buffer, "12-abcdefgh");
    assert_int_equal(text.size, 11);
    assert_false(text.truncated);
    assert_false(text_append(&text, "i"));
    assert_true(text.truncated);
    assert_string_equal(buffer, "12-abcdefgh");
}

static void test_nothing_follows_a_cut(void **state)
{
    (void)state;
    char buffer[8];
    struct text text;
    text_init(&text, buffer, sizeof(buffer));
    assert_false(text_append(&text, "%s", "a longer text"));
    assert_string_equal(buffer, "a longe");
    assert_false(text_append(&text, "%s", ""));
    assert_false(text_append_bytes(&text, "x", 1));
    assert_string_equal(buffer, "a longe");
}

static void test_cut_between_characters(void **state)
{
    (void)state;
    const char *string = "a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80z";
    char buffer[16];
    const size_t kept[] = {0, 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    for (size_t capacity = 1; capacity < sizeof(kept) / sizeof(kept[0]); capacity++) {
        bool whole = text_copy(buffer, capacity, string);
        assert_int_equal(whole, capacity == 12);
        assert_int_equal(strlen(buffer), kept[capacity]);
        assert_true(utf8_valid(buffer, strlen(buffer)));
    }
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        bool valid;
    } table[] = {
        {"", true},
        {"plain", true},
        {"\x7f", true},
        {"\xc2\x80", true},
        {"\xdf\xbf", true},
        {"\xe0\xa0\x80", true},
        {"\xed\x9f\xbf", true},
        {"\xee\x80\x80", true},
        {"\xf0\x90\x80\x80", true},
        {"\xf4\x8f\xbf\xbf", true},
        {"\x80", false}, // continuation alone
        {"\xc3", false}, // incomplete
        {"\xe2\x82", false}, // incomplete
        {"\xc0\xaf", false}, // overlong
        {"\xe0\x9f\xbf", false}, // overlong
        {"\xf0\x8f\xbf\xbf", false}, // overlong
        {"\xed\xa0\x80", false}, // surrogate
        {"\xf4\x90\x80\x80", false}, // above U+10FFFF
        {"\xf5\x80\x80\x80", false},
        {"\xff", false},
        {"\xe2\x28\xa1", false},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        assert_int_equal(utf8_valid(table[i].bytes, strlen(table[i].bytes)), table[i].valid);
    assert_true(utf8_valid("a\0b", 3));
}

static void test_parse_numbers(void **state)
{
    (void)state;
    uint64_t u = 7;
    int64_t i = 7;
    assert_true(parse_u64("18446744073709551615", &u) && u == UINT64_MAX);
    assert_true(parse_u64("007", &u) && u == 7);
    const char *bad[] = {"", "-1", "+1", " 1", "1 ", "0x1", "18446744073709551616", "1.0", "a"};
    for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
        u = 42;
        assert_false(parse_u64(bad[k], &u));
        assert_int_equal(u, 42);
    }
    assert_true(parse_i64("-9223372036854775808", &i) && i == INT64_MIN);
    assert_true(parse_i64("9223372036854775807", &i) && i == INT64_MAX);
    assert_true(parse_i64("-0", &i) && i == 0);
    assert_false(parse_i64("9223372036854775808", &i));
    assert_false(parse_i64("-9223372036854775809", &i));
    assert_false(parse_i64("--1", &i));
    assert_false(parse_i64("-", &i));
}

static void test_parse_duration(void **state)
{
    (void)state;
    uint64_t ms = 7;
    assert_true(parse_duration_ms("500ms", &ms) && ms == 500);
    assert_true(parse_duration_ms("30s", &ms) && ms == 30000);
    assert_true(parse_duration_ms("5m", &ms) && ms == 300000);
    assert_true(parse_duration_ms("2h", &ms) && ms == 7200000);
    assert_true(parse_duration_ms("0", &ms) && ms == 0);
    assert_true(parse_duration_ms("30", &ms) && ms == 30000);
    assert_false(parse_duration_ms("s", &ms));
    assert_false(parse_duration_ms("1 s", &ms));
    assert_false(parse_duration_ms("1d", &ms));
    assert_false(parse_duration_ms("-1s", &ms));
    assert_false(parse_duration_ms("18446744073709551615s", &ms));
}

static void test_parse_address(void **state)
{
    (void)state;
    char host[16];
    uint16_t port = 1;
    assert_true(parse_address("node-7:4000", host, sizeof(host), &port));
    assert_string_equal(host, "node-7");
    assert_int_equal(port, 4000);
    assert_true(parse_address("[::1]:0", host, sizeof(host), &port));
    assert_string_equal(host, "::1");
    assert_int_equal(port, 0);
    assert_true(parse_address("255.255.255.255:65535", host, sizeof(host), &port));
    assert_int_equal(port, 65535);
    const char *bad[] = {
        "",      ":1",   "host",    "host:",   "host:65536", "::1:80",
        "[::1]", "[]:1", "[::1]80", "[::1:80", "host:1x",    "a-host-too-long-x:1"};
    for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++)
        assert_false(parse_address(bad[k], host, sizeof(host), &port));
    assert_int_equal(port, 65535);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_nothing_follows_a_cut),
        cmocka_unit_test(test_cut_between_characters),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_parse_numbers),
        cmocka_unit_test(test_parse_duration),
        cmocka_unit_test(test_parse_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
