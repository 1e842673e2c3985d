// SPDX-License-Identifier: Apache-2.0
// One logfmt line for each event, given to a sink:
//
//     log_event(log, LOG_LEVEL_WARN, "peer_lost", "rank=%u address=%s", rank, address);
//     level=warn event=peer_lost rank=5 address="10.0.0.7:4000 (eth0)"
//
// Without a sink nothing happens: the library is silent in other people's processes. Not a queue
// and not a file writer; whoever wants those writes a sink. Any thread; no lock is held while the
// sink runs, which may therefore call anything, and is called by several threads at once.
#ifndef LOCKSTEP_BASE_LOG_H
#define LOCKSTEP_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

// A line with its NUL. What does not fit is cut, and the line ends with truncated=true.
#define LOG_LINE_BYTES 1024

// Prefixed twice because <syslog.h> owns LOG_INFO and its kin.
enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARN,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

// line is borrowed for the call; size excludes its NUL; it has no newline and no date, which the
// sink adds if it wants one.
typedef void log_sink(void *context, enum log_level level, const char *line, size_t size);

struct log {
    // set at init, then constant
    log_sink *sink;
    void *context;
    // atomic
    atomic_int level;
};

// sink NULL: silent. context is borrowed until the last event.
void log_init(struct log *log, enum log_level level, log_sink *sink, void *context);
void log_set_level(struct log *log, enum log_level level);

// Whether an event of this level would reach a sink; for arguments that are expensive to compute.
bool log_enabled(const struct log *log, enum log_level level);

// log NULL: silent. event is a fixed snake_case name. fields is a printf format of key=value pairs
// with single spaces between them; "" for none. A value reaches to the next space of the format,
// and is quoted and escaped as a whole after the conversions in it, so no argument can break the
// line. A conversion that follows no key= is taken as finished logfmt fields. Understood are d i u
// x X o c s p f e g and their flags, widths, lengths and precisions (.* too), but for a width of *
// and long double. errno is preserved.
void log_event(struct log *log, enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 4, 5)));

// "error", "warn", "info", "debug", and back; false for anything else.
const char *log_level_name(enum log_level level);
bool log_level_parse(const char *name, enum log_level *level);

// Sink for programs: ts=2025-01-31T23:59:59.123Z before the line, one write to stderr for each, so
// that lines of several threads do not mix. The context is not used. It does not wait: a line that
// a pipe, socket or terminal has no room for is dropped, and the next line that is taken comes
// after event=log_dropped with their number. A regular file always takes them.
void log_sink_stderr(void *context, enum log_level level, const char *line, size_t size);

#endif
