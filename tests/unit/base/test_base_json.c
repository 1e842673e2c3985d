// SPDX-License-Identifier: Apache-2.0
// The JSON writer: structure, escapes, numbers, and the maximum.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static void test_structure(void **state)
{
    (void)state;
    struct json json;
    size_t size = 0;
    json_init(&json, 4096);
    json_object_begin(&json, NULL);
    json_u64(&json, "rank", UINT64_MAX);
    json_i64(&json, "offset", INT64_MIN);
    json_bool(&json, "ready", true);
    json_null(&json, "verdict");
    json_array_begin(&json, "modules");
    json_string(&json, NULL, "policy");
    json_string(&json, NULL, NULL);
    json_object_begin(&json, NULL);
    json_object_end(&json);
    json_array_begin(&json, NULL);
    json_array_end(&json);
    json_array_end(&json);
    json_bool(&json, "last", false);
    json_object_end(&json);
    assert_string_equal(json_text(&json, &size),
                        "{\"rank\":18446744073709551615,\"offset\":-9223372036854775808,"
                        "\"ready\":true,\"verdict\":null,\"modules\":[\"policy\",null,{},[]],"
                        "\"last\":false}");
    assert_int_equal(size, strlen(json_text(&json, NULL)));
    json_reset(&json);
    json_u64(&json, NULL, 7);
    assert_string_equal(json_text(&json, NULL), "7");
    json_fini(&json);
}

static void test_strings(void **state)
{
    (void)state;
    struct json json;
    json_init(&json, 4096);
    json_object_begin(&json, NULL);
    json_string(&json, "a\"b", "quote\" slash\\ \b\f\n\r\t \x01\x1f gr\xc3\xbcn");
    json_string(&json, "bad", "x\xff\xc3y\xe2\x82");
    json_string_bytes(&json, "nul", "a\0b", 3);
    json_string(&json, "empty", "");
    json_object_end(&json);
    assert_string_equal(json_text(&json, NULL),
                        "{\"a\\\"b\":\"quote\\\" slash\\\\ \\b\\f\\n\\r\\t "
                        "\\u0001\\u001f gr\xc3\xbcn\","
                        "\"bad\":\"x\xef\xbf\xbd\xef\xbf\xbdy\xef\xbf\xbd\xef\xbf\xbd\","
                        "\"nul\":\"a\\u0000b\",\"empty\":\"\"}");
    json_fini(&json);
}

static void assert_double(double value, const char *text)
{
    struct json json;
    json_init(&json, 64);
    json_double(&json, NULL, value);
    assert_string_equal(json_text(&json, NULL), text);
    json_fini(&json);
}

static void test_doubles(void **state)
{
    (void)state;
    assert_double(0.1, "0.1");
    assert_double(-2.0, "-2");
    assert_double(1e300, "1e+300");
    assert_double(0.1 + 0.2, "0.30000000000000004");
    assert_double((double)NAN, "null");
    assert_double((double)INFINITY, "null");
}

// Writes an array of 100 numbers and returns whether it fitted.
static bool fits(size_t maximum)
{
    struct json json;
    json_init(&json, maximum);
    json_array_begin(&json, NULL);
    for (uint64_t i = 100; i < 200; i++)
        json_u64(&json, NULL, i);
    json_array_end(&json);
    bool whole = json_text(&json, NULL) != NULL;
    assert_true(json.capacity <= maximum);
    json_fini(&json);
    return whole;
}

static void test_maximum(void **state)
{
    (void)state;
    const size_t needed = 2 + 100 * 3 + 99 + 1;
    for (size_t maximum = 0; maximum < needed; maximum++)
        assert_false(fits(maximum));
    assert_true(fits(needed));
    assert_true(fits(100000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_structure),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
