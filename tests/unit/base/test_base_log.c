// SPDX-License-Identifier: Apache-2.0
// Log lines: what is quoted, escaped, cut and filtered.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/utf8.h"

struct capture {
    struct log log;
    char line[LOG_LINE_BYTES];
    size_t size;
    unsigned count;
};

static void capture_sink(void *context, enum log_level level, const char *line, size_t size)
{
    struct capture *capture = context;
    (void)level;
    assert_true(size < sizeof(capture->line));
    assert_int_equal(strlen(line), size);
    memcpy(capture->line, line, size + 1);
    capture->size = size;
    capture->count++;
    errno = EIO;
}

static void capture_init(struct capture *capture)
{
    memset(capture, 0, sizeof(*capture));
    log_init(&capture->log, LOG_LEVEL_INFO, capture_sink, capture);
}

#define assert_line(fields, ...) \
    do { \
        struct capture capture; \
        capture_init(&capture); \
        log_event(&capture.log, LOG_LEVEL_INFO, "e", __VA_ARGS__); \
        assert_string_equal(capture.line, "level=info event=e" fields); \
    } while (0)

static void test_plain_values(void **state)
{
    (void)state;
    assert_line("", "%s", "");
    assert_line(" done=true", "done=true");
    assert_line(" rank=5 host=node-7", "rank=%u host=%s", 5u, "node-7");
    assert_line(" to=10.0.0.7:4000 pct=50%", "to=%s:%d pct=%d%%", "10.0.0.7", 4000, 50);
    assert_line(" a=-1 b=18446744073709551615 c=7", "a=%ld b=%" PRIu64 " c=%zu", -1L, UINT64_MAX,
                (size_t)7);
    assert_line(" x=00ff f=0.50 c=z", "x=%04x f=%.2f c=%c", 255u, 0.5, 'z');
    assert_line(" s=abc", "s=%.*s", 3, "abcdef");
}

static void test_quoting(void **state)
{
    (void)state;
    assert_line(" s=\"\" t=1", "s=%s t=%d", "", 1);
    assert_line(" s=\"two words\" t=1", "s=%s t=%d", "two words", 1);
    assert_line(" s=\"a=b\"", "s=%s", "a=b");
    assert_line(" s=\"say \\\"no\\\"\"", "s=%s", "say \"no\"");
    assert_line(" s=\"c:\\\\d\"", "s=%s", "c:\\d");
    assert_line(" s=\"a\\nevent=forged\\t\\u0001\"", "s=%s", "a\nevent=forged\t\x01");
    assert_line(" s=gr\xc3\xbc\xc3\x9f"
                "e",
                "s=%s",
                "gr\xc3\xbc\xc3\x9f"
                "e");
    assert_line(" s=a\xef\xbf\xbdz", "s=%s", "a\xffz");
}

static void test_finished_fields_pass_but_cannot_break_the_line(void **state)
{
    (void)state;
    assert_line(" rank=3 why=\"lost it\"", "%s", "rank=3 why=\"lost it\"");
    assert_line(" rank=3\\nevent=forged", "%s", "rank=3\nevent=forged");
    assert_line(" job=a end=1", "job=%s %s end=%d", "a", "", 1);
    assert_line(" job=a rank=3 end=1", "job=%s %s end=%d", "a", "rank=3", 1);
}

static void test_long_lines_are_cut_visibly(void **state)
{
    (void)state;
    char value[2 * LOG_LINE_BYTES];
    struct capture capture;
    // Every length near the bound, so that each kind of piece meets it: plain, quoted, wide.
    for (int size = LOG_LINE_BYTES - 80; size < LOG_LINE_BYTES + 20; size++) {
        for (const char *filler = "a \n\xc3"; *filler; filler++) {
            capture_init(&capture);
            for (int i = 0; i < size; i++)
                value[i] = *filler == '\xc3' && i % 2 ? '\xbc' : *filler;
            value[size] = '\0';
            log_event(&capture.log, LOG_LEVEL_INFO, "e", "s=%s t=%s", value, "two words");
            assert_true(utf8_valid(capture.line, capture.size));
            const char *end = capture.line + capture.size;
            bool cut = memcmp(end - 15, " truncated=true", 15) == 0;
            bool whole = memcmp(end - 14, " t=\"two words\"", 14) == 0;
            assert_true(cut != whole);
            unsigned quotes = 0;
            for (const char *at = capture.line; at < end; at++)
                quotes += *at == '"';
            assert_int_equal(quotes % 2, 0);
        }
    }
    assert_true(capture.size > LOG_LINE_BYTES - 40);
}

static void test_levels_and_silence(void **state)
{
    (void)state;
    struct capture capture;
    struct log silent;
    enum log_level level = LOG_LEVEL_ERROR;
    capture_init(&capture);
    log_event(&capture.log, LOG_LEVEL_DEBUG, "quiet", "a=%d", 1);
    assert_int_equal(capture.count, 0);
    log_set_level(&capture.log, LOG_LEVEL_DEBUG);
    log_event(&capture.log, LOG_LEVEL_DEBUG, "heard", "a=%d", 1);
    assert_string_equal(capture.line, "level=debug event=heard a=1");
    log_init(&silent, LOG_LEVEL_DEBUG, NULL, NULL);
    log_event(&silent, LOG_LEVEL_ERROR, "nobody", "a=%d", 1);
    log_event(NULL, LOG_LEVEL_ERROR, "nobody", "a=%d", 1);
    assert_true(log_level_parse("warn", &level));
    assert_int_equal(level, LOG_LEVEL_WARN);
    assert_false(log_level_parse("loud", &level));
    assert_string_equal(log_level_name(LOG_LEVEL_ERROR), "error");
}

static void test_errno_is_preserved(void **state)
{
    (void)state;
    struct capture capture;
    capture_init(&capture);
    errno = EAGAIN;
    log_event(&capture.log, LOG_LEVEL_INFO, "e", "a=%d", 1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(capture.count, 1);
}

// ---- The sink of programs -----------------------------------------------------------------------

static int stderr_put_aside(int with)
{
    const int kept = dup(STDERR_FILENO);
    assert_true(kept >= 0);
    assert_int_equal(dup2(with, STDERR_FILENO), STDERR_FILENO);
    return kept;
}

static size_t drain(int fd, char *bytes, size_t capacity)
{
    size_t size = 0;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (size < capacity - 1 && poll(&ready, 1, 0) == 1) {
        const ssize_t got = read(fd, bytes + size, capacity - 1 - size);
        assert_true(got > 0);
        size += (size_t)got;
    }
    bytes[size] = '\0';
    return size;
}

// Condition: nobody reads what stderr is, until it is full and beyond. Decision: no line waits (the
// alarm would end the test); when there is room again the number of those that were dropped comes
// first, and the numbers add up.
static void stderr_without_reader(int reader, int writer)
{
    enum {
        LINES = 20000,
        BYTES = 4 << 20
    };
    static char bytes[BYTES];
    struct log log;
    unsigned long kept_lines = 0;
    unsigned long dropped = 0;
    const char *said;
    const int kept = stderr_put_aside(writer);
    log_init(&log, LOG_LEVEL_INFO, log_sink_stderr, NULL);
    alarm(60);
    for (int i = 0; i < LINES; i++)
        log_event(&log, LOG_LEVEL_INFO, "line", "number=%d", i);
    alarm(0);
    drain(reader, bytes, BYTES);
    for (const char *at = bytes; (at = strstr(at, "event=line")); at++)
        kept_lines++;
    assert_null(strstr(bytes, "event=log_dropped"));
    log_event(&log, LOG_LEVEL_INFO, "after", "number=%d", 1);
    log_event(&log, LOG_LEVEL_INFO, "after_that", "number=%d", 2);
    drain(reader, bytes, BYTES);
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    close(kept);
    said = strstr(bytes, "level=warn event=log_dropped lines=");
    assert_non_null(said);
    dropped = strtoul(said + strlen("level=warn event=log_dropped lines="), NULL, 10);
    assert_int_equal(dropped + kept_lines, LINES);
    assert_non_null(strstr(said, " lines were dropped because stderr did not take them\"\n"));
    assert_non_null(strstr(said, "event=after number=1\n"));
    assert_non_null(strstr(said, "event=after_that number=2\n"));
    assert_null(strstr(said + strlen("level=warn event=log_dropped"), "event=log_dropped"));
}

static void test_a_pipe_without_reader(void **state)
{
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    stderr_without_reader(ends[0], ends[1]);
    close(ends[0]);
    close(ends[1]);
}

static void test_a_socket_without_reader(void **state)
{
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    stderr_without_reader(ends[0], ends[1]);
    close(ends[0]);
    close(ends[1]);
}

// Condition: stderr is a file, and the last system call of the thread has failed with EAGAIN.
// Decision: the line is written.
static void test_a_file_takes_every_line(void **state)
{
    char bytes[512] = {0};
    struct log log;
    FILE *file = tmpfile();
    int kept;
    (void)state;
    assert_non_null(file);
    kept = stderr_put_aside(fileno(file));
    log_init(&log, LOG_LEVEL_INFO, log_sink_stderr, NULL);
    errno = EAGAIN;
    log_event(&log, LOG_LEVEL_INFO, "line", "number=%d", 1);
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    close(kept);
    rewind(file);
    assert_true(fread(bytes, 1, sizeof(bytes) - 1, file) > 0);
    assert_non_null(strstr(bytes, "event=line number=1\n"));
    fclose(file);
}

// Condition: the process that read stderr has ended. Decision: the line is dropped, without the
// SIGPIPE that would end this program.
static void test_a_closed_pipe_ends_nothing(void **state)
{
    struct log log;
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    const int kept = stderr_put_aside(ends[1]);
    close(ends[0]);
    log_init(&log, LOG_LEVEL_INFO, log_sink_stderr, NULL);
    log_event(&log, LOG_LEVEL_INFO, "line", "number=%d", 1);
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    close(kept);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_values),
        cmocka_unit_test(test_quoting),
        cmocka_unit_test(test_finished_fields_pass_but_cannot_break_the_line),
        cmocka_unit_test(test_long_lines_are_cut_visibly),
        cmocka_unit_test(test_levels_and_silence),
        cmocka_unit_test(test_errno_is_preserved),
        cmocka_unit_test(test_a_pipe_without_reader),
        cmocka_unit_test(test_a_socket_without_reader),
        cmocka_unit_test(test_a_file_takes_every_line),
        cmocka_unit_test(test_a_closed_pipe_ends_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
