// SPDX-License-Identifier: Apache-2.0
// One logfmt line for each event, given to a sink:
//
//     log_event(log, LOG_LEVEL_WARN, "peer_lost", "rank=%u address=%s", rank, address);
//     level=warn event=peer_lost rank=5 address="10.0.0.7:4000 (eth0)"
//
// Without a sink nothing happens: the library is silent in other people's processes. The log has no
// queue and writes no file; a sink can do both. Any thread may log. No lock is held while the sink
// runs, so the sink may call any function. Several threads may call the sink at once.
#ifndef LOCKSTEP_BASE_LOG_H
#define LOCKSTEP_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

// Bytes of one line, with its NUL. A longer line is cut, and ends with truncated=true.
#define LOG_LINE_BYTES 1024

// The names begin with LOG_LEVEL_, because <syslog.h> defines LOG_INFO and similar names.
enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARN,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

// line is borrowed for the call. size excludes its NUL. The line has no newline and no date; the
// sink adds them if it wants them.
typedef void log_sink(void *context, enum log_level level, const char *line, size_t size);

struct log {
    // set at init, then constant
    log_sink *sink;
    void *context;
    // atomic
    atomic_int level;
};

// If sink is NULL, the log is silent. context is borrowed until the last event.
void log_init(struct log *log, enum log_level level, log_sink *sink, void *context);
void log_set_level(struct log *log, enum log_level level);

// Returns true if an event of this level would reach a sink. For callers whose arguments are
// expensive to compute.
bool log_enabled(const struct log *log, enum log_level level);

// If log is NULL, nothing happens. event is a fixed snake_case name. fields is a printf format of
// key=value pairs with single spaces between them, or "" for none. A value ends at the next space
// of the format. It is quoted and escaped as a whole after its conversions are formatted, so no
// argument can break the line. A conversion without a key= before it inserts finished logfmt
// fields. The supported conversions are d i u x X o c s p f e g with their flags, widths, lengths
// and precisions (also .*). A width of * and long double are not supported. errno is preserved.
void log_event(struct log *log, enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 4, 5)));

// The names are "error", "warn", "info" and "debug". log_level_parse returns false for any other
// name.
const char *log_level_name(enum log_level level);
bool log_level_parse(const char *name, enum log_level *level);

// The sink for programs. It puts ts=2025-01-31T23:59:59.123Z before the line, and writes each line
// to stderr with one system call, so that lines of several threads do not mix. context is not used.
// The sink does not block. If a pipe, socket or terminal has no room for a line, the line is
// dropped. Before the next line that can be written, the sink writes event=log_dropped with the
// number of dropped lines. A regular file always has room.
void log_sink_stderr(void *context, enum log_level level, const char *line, size_t size);

#endif
