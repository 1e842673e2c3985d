// SPDX-License-Identifier: Apache-2.0
// logfmt formatting. Any thread; the state of one line is on the caller's stack.
//
// This file parses the format itself instead of passing all of it to vsnprintf. Only then does it
// know where a value begins and ends if arguments contain spaces and quotes.
#include "base/log.h"

#include "base/text.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// Bytes at the end of a line that are reserved for a closing quote and the mark of truncation.
static const char log_mark[] = " truncated=true";
#define LOG_RESERVE_BYTES (1 + sizeof(log_mark))

// A line that is being built. A token is a key, a value, or finished fields.
struct log_writer {
    char line[LOG_LINE_BYTES];
    size_t size;
    bool cut;
    bool in_value;
    bool space; // True if a space is needed before the next token.
    struct text token;
    char token_bytes[LOG_LINE_BYTES];
    va_list arguments;
};

static const char *const log_level_names[] = {
    [LOG_LEVEL_ERROR] = "error",
    [LOG_LEVEL_WARN] = "warn",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_DEBUG] = "debug",
};
#define LOG_LEVELS (sizeof(log_level_names) / sizeof(log_level_names[0]))

const char *log_level_name(enum log_level level)
{
    return (size_t)level < LOG_LEVELS ? log_level_names[level] : "unknown";
}

bool log_level_parse(const char *name, enum log_level *level)
{
    for (size_t i = 0; i < LOG_LEVELS; i++) {
        if (strcmp(name, log_level_names[i]) == 0) {
            *level = (enum log_level)i;
            return true;
        }
    }
    return false;
}

void log_init(struct log *log, enum log_level level, log_sink *sink, void *context)
{
    log->sink = sink;
    log->context = context;
    atomic_init(&log->level, (int)level);
}

void log_set_level(struct log *log, enum log_level level)
{
    atomic_store_explicit(&log->level, (int)level, memory_order_relaxed);
}

bool log_enabled(const struct log *log, enum log_level level)
{
    return log && log->sink &&
           (int)level <= atomic_load_explicit(&log->level, memory_order_relaxed);
}

// Adds all of the bytes. If they do not fit, the line is cut here: neither these bytes nor later
// ones are added.
static void log_put(struct log_writer *writer, const char *bytes, size_t size)
{
    if (writer->cut || writer->size + size > LOG_LINE_BYTES - LOG_RESERVE_BYTES) {
        writer->cut = true;
        return;
    }
    memcpy(writer->line + writer->size, bytes, size);
    writer->size += size;
}

// Adds the first character of bytes in an escaped form that is safe inside quotes, and outside
// quotes in finished fields. Returns how many bytes the character has.
static size_t log_put_character(struct log_writer *writer, const char *bytes, size_t size,
                                bool quoted)
{
    char escaped[8];
    size_t length = utf8_length(bytes, size);
    unsigned char byte = (unsigned char)bytes[0];
    if (length == 0) {
        log_put(writer, "\xef\xbf\xbd", 3); // U+FFFD stands for one malformed byte.
        return 1;
    }
    if (!utf8_harmless(bytes, length)) {
        const char *known = byte == '\n' ? "\\n" : byte == '\t' ? "\\t" : NULL;
        int n = known ? snprintf(escaped, sizeof(escaped), "%s", known)
                      : snprintf(escaped, sizeof(escaped), "\\u%04x",
                                 (unsigned)utf8_code(bytes, length));
        log_put(writer, escaped, (size_t)n);
    } else if (quoted && (byte == '"' || byte == '\\')) {
        log_put(writer, byte == '"' ? "\\\"" : "\\\\", 2);
    } else {
        log_put(writer, bytes, length);
    }
    return length;
}

static bool log_needs_quotes(const struct text *token)
{
    if (token->size == 0)
        return true;
    for (size_t at = 0; at < token->size;) {
        const char *bytes = token->bytes + at;
        const size_t length = utf8_length(bytes, token->size - at);
        if (strchr(" \"=\\", *bytes) || (length > 0 && !utf8_harmless(bytes, length)))
            return true; // strchr also matches a NUL byte.
        at += length > 0 ? length : 1;
    }
    return false;
}

// Ends the current token and adds it to the line. A value is quoted if it needs quotes.
static void log_flush(struct log_writer *writer)
{
    struct text *token = &writer->token;
    if (token->size == 0 && !writer->in_value)
        return; // The argument for finished fields was empty.
    bool quoted = writer->in_value && log_needs_quotes(token);
    if (writer->space)
        log_put(writer, " ", 1);
    writer->space = false;
    if (quoted)
        log_put(writer, "\"", 1);
    bool opened = quoted && !writer->cut;
    for (size_t at = 0; at < token->size && !writer->cut;)
        at += log_put_character(writer, token->bytes + at, token->size - at, quoted);
    if (opened)
        writer->line[writer->size++] = '"'; // Uses the reserved bytes.
    writer->cut = writer->cut || token->truncated;
    text_init(token, writer->token_bytes, sizeof(writer->token_bytes));
}

// Copies a conversion into spec, whose last character is then the conversion's letter. A precision
// of * is replaced by its value. Returns a pointer to the text behind the conversion.
static const char *log_read_spec(struct log_writer *writer, const char *format, struct text *spec)
{
    const char *at = format + 1;
    text_append_bytes(spec, "%", 1);
    for (;; at++) {
        if (*at == '*')
            text_append(spec, "%d", va_arg(writer->arguments, int));
        else
            text_append_bytes(spec, at, 1);
        if (!strchr("-+ #0123456789.*hlzjt", *at) || *at == '\0')
            break;
    }
    assert(*at != '\0' && !spec->truncated);
    return at + 1;
}

static void log_signed(struct log_writer *writer, const char *spec)
{
    va_list *from = &writer->arguments;
    if (strstr(spec, "ll"))
        text_append(&writer->token, spec, va_arg(*from, long long));
    else if (strpbrk(spec, "lzjt"))
        text_append(&writer->token, spec, va_arg(*from, long));
    else
        text_append(&writer->token, spec, va_arg(*from, int));
}

static void log_unsigned(struct log_writer *writer, const char *spec)
{
    va_list *from = &writer->arguments;
    if (strstr(spec, "ll"))
        text_append(&writer->token, spec, va_arg(*from, unsigned long long));
    else if (strpbrk(spec, "lzjt"))
        text_append(&writer->token, spec, va_arg(*from, unsigned long));
    else
        text_append(&writer->token, spec, va_arg(*from, unsigned));
}

// The functions above read arguments with the lengths z, j and t as a long.
_Static_assert(sizeof(size_t) == sizeof(long) && sizeof(intmax_t) == sizeof(long) &&
                   sizeof(ptrdiff_t) == sizeof(long),
               "lengths of integers");

// Formats one conversion into the token. Returns a pointer to the text behind the conversion.
static const char *log_convert(struct log_writer *writer, const char *format)
{
    char bytes[32];
    struct text spec;
    text_init(&spec, bytes, sizeof(bytes));
    const char *next = log_read_spec(writer, format, &spec);
    char letter = bytes[spec.size - 1];
    if (letter == '%') {
        text_append_bytes(&writer->token, "%", 1);
    } else if (letter == 's') {
        const char *string = va_arg(writer->arguments, const char *);
        text_append(&writer->token, bytes, string ? string : "(null)");
    } else if (letter == 'p') {
        text_append(&writer->token, bytes, va_arg(writer->arguments, void *));
    } else if (strchr("dic", letter)) {
        log_signed(writer, bytes);
    } else if (strchr("uxXo", letter)) {
        log_unsigned(writer, bytes);
    } else {
        assert(strchr("fFeEgGaA", letter));
        text_append(&writer->token, bytes, va_arg(writer->arguments, double));
    }
    return next;
}

static void log_fields(struct log_writer *writer, const char *format)
{
    while (*format) {
        if (*format == '%') {
            format = log_convert(writer, format);
            continue;
        }
        if (*format == ' ') {
            log_flush(writer);
            writer->space = true;
            writer->in_value = false;
        } else if (*format == '=' && !writer->in_value) {
            log_flush(writer);
            log_put(writer, "=", 1);
            writer->in_value = true;
        } else {
            text_append_bytes(&writer->token, format, 1);
        }
        format++;
    }
    log_flush(writer);
}

static void log_begin(struct log_writer *writer, enum log_level level, const char *event)
{
    const char *name = log_level_name(level);
    writer->size = 0;
    writer->cut = false;
    writer->in_value = false;
    writer->space = true;
    text_init(&writer->token, writer->token_bytes, sizeof(writer->token_bytes));
    log_put(writer, "level=", 6);
    log_put(writer, name, strlen(name));
    log_put(writer, " event=", 7);
    log_put(writer, event, strlen(event));
}

void log_event(struct log *log, enum log_level level, const char *event, const char *fields, ...)
{
    if (!log_enabled(log, level))
        return;
    int saved_errno = errno;
    struct log_writer writer;
    log_begin(&writer, level, event);
    va_start(writer.arguments, fields);
    log_fields(&writer, fields);
    va_end(writer.arguments);
    if (writer.cut) {
        memcpy(writer.line + writer.size, log_mark, sizeof(log_mark) - 1);
        writer.size += sizeof(log_mark) - 1;
    }
    writer.line[writer.size] = '\0';
    log->sink(log->context, level, writer.line, writer.size);
    errno = saved_errno;
}

// ---- The sink of programs -----------------------------------------------------------------------

// Held from poll to write, which do not block. So no other thread of this process uses the room
// that poll reported.
static pthread_mutex_t log_stderr_mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t log_stderr_dropped; // guarded by log_stderr_mutex

// Writes a line without blocking. stderr is not made non-blocking, because other processes may
// share the open file. A line is shorter than PIPE_BUF, so a pipe that poll reports as writable
// takes the whole line.
static bool log_stderr_write(const char *bytes, size_t size)
{
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct iovec line = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct stat file;
    // Without a reader (POLLERR) a write would be SIGPIPE, which may end the process.
    if (poll(&room, 1, 0) != 1 || (room.revents & (POLLOUT | POLLERR)) != POLLOUT)
        return false;
    if (fstat(STDERR_FILENO, &file) < 0)
        return false;
    if (S_ISSOCK(file.st_mode))
        return send(STDERR_FILENO, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
    // Another process may fill the pipe between poll and this write, so the write must not block.
    // Linux before 6.4 does not support RWF_NOWAIT for pipes.
    if (S_ISFIFO(file.st_mode)) {
        const ssize_t written = pwritev2(STDERR_FILENO, &line, 1, -1, RWF_NOWAIT);
        if (written > 0 || errno == EAGAIN)
            return written > 0;
    }
    return write(STDERR_FILENO, bytes, size) > 0;
}

static void log_stderr_line(const char *line, size_t size)
{
    char bytes[LOG_LINE_BYTES + 64];
    struct timespec now;
    struct tm utc;
    struct text text;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "ts=%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                now.tv_nsec / 1000000);
    text_append_bytes(&text, line, size);
    text_append_bytes(&text, "\n", 1);
    if (!log_stderr_write(bytes, text.size))
        log_stderr_dropped++;
}

// Writes how many lines were dropped, before the next line is written.
static void log_stderr_say_dropped(void)
{
    char bytes[LOG_LINE_BYTES];
    struct text text;
    const uint64_t dropped = log_stderr_dropped;
    if (dropped == 0)
        return;
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text,
                "level=warn event=log_dropped lines=%" PRIu64 " text=\"%" PRIu64
                " lines were dropped because stderr did not take them\"",
                dropped, dropped);
    log_stderr_dropped = 0;
    log_stderr_line(bytes, text.size);
    // If this line was dropped as well, the count stays as it was: it counts the dropped lines
    // without this one.
    if (log_stderr_dropped != 0)
        log_stderr_dropped = dropped;
}

void log_sink_stderr(void *context, enum log_level level, const char *line, size_t size)
{
    (void)context;
    (void)level;
    pthread_mutex_lock(&log_stderr_mutex);
    log_stderr_say_dropped();
    if (log_stderr_dropped == 0)
        log_stderr_line(line, size);
    else
        log_stderr_dropped++;
    pthread_mutex_unlock(&log_stderr_mutex);
}
