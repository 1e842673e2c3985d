// SPDX-License-Identifier: Apache-2.0
//
// Foreign text that is shown to people: control characters (C0 and C1), direction marks and unusual
// line ends are never shown as they are; all other characters are.

#include "base/json.h"
#include "base/log.h"
#include "base/utf8.h"
#include "cli/ask/json_read.h"
#include "coordinator/core.h"
#include "coordinator/sentence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t harmful[] = {0x01,   0x1b,   0x7f,   0x80,   0x85,   0x9b,   0x9f,   0x61c,
                                   0x200e, 0x200f, 0x2028, 0x2029, 0x202a, 0x202e, 0x2066, 0x2069};
static const uint32_t harmless[] = {' ',    '~',    0xa0,   0xe9,   0x61b,  0x61d,  0x200d,
                                    0x2010, 0x2027, 0x202f, 0x2065, 0x206a, 0x4e16, 0x1f600};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static size_t put(uint32_t code, char out[5])
{
    size_t size = 0;
    if (code < 0x80) {
        out[size++] = (char)code;
    } else if (code < 0x800) {
        out[size++] = (char)(0xc0 | code >> 6);
        out[size++] = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        out[size++] = (char)(0xe0 | code >> 12);
        out[size++] = (char)(0x80 | (code >> 6 & 0x3f));
        out[size++] = (char)(0x80 | (code & 0x3f));
    } else {
        out[size++] = (char)(0xf0 | code >> 18);
        out[size++] = (char)(0x80 | (code >> 12 & 0x3f));
        out[size++] = (char)(0x80 | (code >> 6 & 0x3f));
        out[size++] = (char)(0x80 | (code & 0x3f));
    }
    out[size] = '\0';
    return size;
}

// Gives each character, between two letters, to a way of showing it.
static void all_ways(void (*show)(const char *said, char *shown, size_t bytes))
{
    char character[5], said[8], shown[512];
    for (size_t i = 0; i < COUNT(harmful); i++) {
        put(harmful[i], character);
        snprintf(said, sizeof(said), "a%sb", character);
        show(said, shown, sizeof(shown));
        if (strstr(shown, character))
            fail_msg("U+%04X came through in '%s'", (unsigned)harmful[i], shown);
        assert_non_null(strchr(shown, 'a'));
        assert_non_null(strrchr(shown, 'b'));
    }
    for (size_t i = 0; i < COUNT(harmless); i++) {
        put(harmless[i], character);
        snprintf(said, sizeof(said), "a%sb", character);
        show(said, shown, sizeof(shown));
        if (!strstr(shown, said))
            fail_msg("U+%04X did not come through in '%s'", (unsigned)harmless[i], shown);
    }
}

static void characters_have_their_numbers(void **state)
{
    char character[5];
    (void)state;
    for (size_t i = 0; i < COUNT(harmful); i++) {
        const size_t size = put(harmful[i], character);
        assert_int_equal(utf8_code(character, size), harmful[i]);
        assert_false(utf8_harmless(character, size));
    }
    for (size_t i = 0; i < COUNT(harmless); i++) {
        const size_t size = put(harmless[i], character);
        assert_int_equal(utf8_code(character, size), harmless[i]);
        assert_true(utf8_harmless(character, size));
    }
}

static void keep_line(void *context, enum log_level level, const char *line, size_t size)
{
    (void)level;
    memcpy(context, line, size + 1);
}

static void in_a_log(const char *said, char *shown, size_t bytes)
{
    char line[LOG_LINE_BYTES];
    struct log log;
    log_init(&log, LOG_LEVEL_INFO, keep_line, line);
    log_event(&log, LOG_LEVEL_INFO, "e", "v=%s", said);
    snprintf(shown, bytes, "%s", strstr(line, "v="));
}

static void a_log_shows_no_harm(void **state)
{
    char shown[64];
    (void)state;
    all_ways(in_a_log);
    in_a_log("a\xc2\x9b"
             "31mb",
             shown, sizeof(shown));
    assert_string_equal(shown, "v=\"a\\u009b31mb\"");
}

static void in_json(const char *said, char *shown, size_t bytes)
{
    struct json json;
    json_init(&json, 4096);
    json_object_begin(&json, NULL);
    json_string(&json, "v", said);
    json_object_end(&json);
    snprintf(shown, bytes, "%s", json_text(&json, NULL));
    json_fini(&json);
}

// Nothing is lost there: a reader has the character again.
static void json_shows_no_harm(void **state)
{
    char shown[64];
    (void)state;
    all_ways(in_json);
    in_json("a\xe2\x80\xae"
            "b",
            shown, sizeof(shown));
    assert_string_equal(shown, "{\"v\":\"a\\u202eb\"}");
}

// Shows text of any server, also of one that escapes nothing.
static void in_the_tool(const char *said, char *shown, size_t bytes)
{
    char value[64];
    snprintf(value, sizeof(value), "\"%s\"", said);
    assert_true(json_read_string(value, shown, bytes));
}

static void the_tool_shows_no_harm(void **state)
{
    char shown[64];
    (void)state;
    all_ways(in_the_tool);
    in_the_tool("a\xc2\x9b\xff\\u009b\\nb", shown, sizeof(shown));
    assert_string_equal(shown, "a??? b");
    in_the_tool("ab\xe4\xb8\x96", shown, 5); // Room for a part of the last one.
    assert_string_equal(shown, "ab");
}

static void in_a_sentence(const char *said, char *shown, size_t bytes)
{
    sentence_clean_lines(shown, bytes, said, strlen(said));
}

static void a_sentence_shows_no_harm(void **state)
{
    char shown[160];
    char said[256];
    (void)state;
    all_ways(in_a_sentence);
    in_a_sentence("not produced:\n  module 'a'\r\n\tmodule 'b'\n\n", shown, sizeof(shown));
    assert_string_equal(shown, "not produced: module 'a'; module 'b'");
    in_a_sentence("\na\tb", shown, sizeof(shown));
    assert_string_equal(shown, "a?b");
    in_a_sentence("ab\nc", shown, 5); // No room for the break and what follows.
    assert_string_equal(shown, "ab; ");
    memset(said, 'x', sizeof(said));
    memcpy(said + 140, " parameter", 10);
    said[200] = '\0';
    in_a_sentence(said, shown, 145); // A long text is cut between words.
    assert_int_equal(strlen(shown), 140);
    memset(said + 100, 'x', 100);
    in_a_sentence(said, shown, 145);
    assert_int_equal(strlen(shown), 144);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_have_their_numbers),
        cmocka_unit_test(a_log_shows_no_harm),
        cmocka_unit_test(json_shows_no_harm),
        cmocka_unit_test(the_tool_shows_no_harm),
        cmocka_unit_test(a_sentence_shows_no_harm),
    };
    return cmocka_run_group_tests_name("harmless", tests, NULL, NULL);
}
