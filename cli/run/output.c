// SPDX-License-Identifier: Apache-2.0
//
// Relays the output of all workers; output.h has the contract.

#include "cli/run/output.h"

#include "cli/ask/colour.h"
#include "cli/common/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Beginning ---------------------------------------------------------------------------------

static bool same_terminal(void)
{
    struct stat first;
    struct stat second;
    return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) && fstat(STDOUT_FILENO, &first) == 0 &&
           fstat(STDERR_FILENO, &second) == 0 && first.st_rdev == second.st_rdev;
}

static bool open_sinks(struct output *output)
{
    for (unsigned i = 0; i < output->sink_count; i++) {
        const bool hosted = output->options->hosted;
        const int fd = hosted ? output->options->frames_fd : (int)i + 1;
        if (sink_open(&output->sinks[i], fd, hosted) < 0)
            return false;
    }
    return true;
}

static unsigned count_sinks(const struct output *output)
{
    if (!output->relaying)
        return 0;
    return output->options->hosted || same_terminal() ? 1 : 2;
}

static bool open_logs(struct output *output)
{
    const struct run_options *options = output->options;
    for (uint32_t i = 0; i <= options->workers; i++)
        output->logs[i].fd = -1;
    for (uint32_t i = 0; i < options->workers; i++) {
        char name[RUN_CODE_BYTES + 8];
        snprintf(name, sizeof(name), "rank-%u", options->first_rank + i);
        if (!log_file_open(&output->logs[i], options, name))
            return false;
    }
    const bool has_coordinator = !options->coordinator || options->serves;
    return !has_coordinator ||
           log_file_open(&output->logs[options->workers], options, "coordinator");
}

bool output_open(struct output *output, const struct run_options *options)
{
    const size_t streams = 2 * (size_t)options->workers + 1 + options->host_count;
    const size_t polls = streams + OUTPUT_OTHER_FDS + 2 * (size_t)options->host_count + 2;
    output->options = options;
    output->relaying = options->world_size > 1 || options->log_dir || options->json ||
                       options->hosted || options->host_count > 0;
    output->sink_count = count_sinks(output);
    output->streams = calloc(streams, sizeof(*output->streams));
    output->polls = calloc(polls, sizeof(*output->polls));
    output->polled = calloc(polls, sizeof(struct stream *));
    if (options->log_dir)
        output->logs = calloc((size_t)options->workers + 1, sizeof(*output->logs));
    if (!output->streams || !output->polls || !output->polled ||
        (options->log_dir && !output->logs) || !open_sinks(output)) {
        cli_say(options->command, "cannot prepare the output: %s", strerror(errno));
        return false;
    }
    return !output->logs || open_logs(output);
}

int output_start(struct output *output)
{
    for (unsigned i = 0; i < output->sink_count; i++) {
        if (sink_start(&output->sinks[i]) < 0)
            return -1;
    }
    output->started = true;
    return 0;
}

static void prefix_of(const struct output *output, uint32_t rank, bool terminal, char *prefix,
                      size_t capacity)
{
    static const int colors[] = {36, 33, 32, 35, 34, 31};
    if (!output->options->prefix || output->options->world_size == 1)
        prefix[0] = '\0';
    else if (colour_wanted(terminal))
        snprintf(prefix, capacity, "\x1b[%dm[%u]\x1b[0m ",
                 colors[rank % (sizeof(colors) / sizeof(colors[0]))], rank);
    else
        snprintf(prefix, capacity, "[%u] ", rank);
}

static void set_nonblocking(int fd)
{
    if (fd >= 0)
        fcntl(fd, F_SETFL, O_NONBLOCK);
}

void output_add(struct output *output, uint32_t rank, unsigned number, int fd)
{
    char prefix[STREAM_PREFIX_BYTES];
    const uint32_t world_rank = output->options->first_rank + rank;
    struct stream *stream = &output->streams[output->stream_count++];
    set_nonblocking(fd);
    if (output->options->hosted) {
        stream_open_framed(stream, &output->sinks[0], fd, world_rank, (uint8_t)number);
        return;
    }
    prefix_of(output, world_rank, isatty((int)number + 1) == 1, prefix, sizeof(prefix));
    stream_open(stream, &output->sinks[number < output->sink_count ? number : 0], fd, prefix,
                rank == 0, output->logs ? &output->logs[rank] : NULL);
}

bool output_takes_coordinator(const struct output *output)
{
    return output->logs || output->options->hosted;
}

void output_add_coordinator(struct output *output, int fd)
{
    struct stream *stream = &output->streams[output->stream_count++];
    set_nonblocking(fd);
    if (output->options->hosted)
        stream_open_framed(stream, &output->sinks[0], fd, RELAY_COORDINATOR, 1);
    else
        stream_open(stream, &output->sinks[output->sink_count - 1], fd, "", false,
                    output->logs ? &output->logs[output->options->workers] : NULL);
}

// ---- Several hosts -----------------------------------------------------------------------------

void output_add_fed(struct output *output)
{
    const struct run_options *options = output->options;
    for (uint32_t rank = 0; rank < options->workers; rank++) {
        output_add(output, rank, 0, -1);
        output_add(output, rank, 1, -1);
    }
    output_add_coordinator(output, -1);
    for (uint32_t i = 0; i < options->host_count; i++) {
        char prefix[STREAM_PREFIX_BYTES];
        snprintf(prefix, sizeof(prefix), "[%.*s] ", STREAM_PREFIX_BYTES - 4,
                 options->hosts[i].name);
        stream_open(&output->streams[output->stream_count++],
                    &output->sinks[output->sink_count - 1], -1, prefix, false, NULL);
    }
}

struct stream *output_stream(struct output *output, uint32_t rank, unsigned number)
{
    const uint32_t workers = output->options->workers;
    return &output->streams[rank == RELAY_COORDINATOR ? 2 * workers : 2 * rank + number];
}

struct stream *output_host_stream(struct output *output, uint32_t host)
{
    return &output->streams[2 * output->options->workers + 1 + host];
}

bool output_has_room(struct output *output)
{
    for (unsigned i = 0; i < output->sink_count; i++) {
        if (!sink_has_room(&output->sinks[i]))
            return false;
    }
    return true;
}

bool output_broken(struct output *output, unsigned number)
{
    return sink_broken(&output->sinks[number < output->sink_count ? number : 0]);
}

void output_break(struct output *output, unsigned number)
{
    for (uint32_t i = 0; i < output->stream_count; i++) {
        struct stream *stream = &output->streams[i];
        if (stream->open && stream->rank != RELAY_COORDINATOR && stream->number == number)
            stream_end(stream);
    }
}

void output_put(struct output *output, enum relay_kind kind, uint32_t rank, const void *bytes,
                size_t size)
{
    const struct relay_header header = {
        .kind = (uint8_t)kind, .rank = rank, .size = (uint32_t)size};
    sink_put_frame(&output->sinks[0], &header, bytes);
}

// ---- A run that ends early ---------------------------------------------------------------------

// Returns true if a read does not block: there are bytes, or the end.
static bool has_bytes(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, 0) > 0;
}

void output_dump(struct output *output)
{
    if (output->started)
        return;
    for (uint32_t i = 0; i < output->stream_count; i++) {
        struct stream *stream = &output->streams[i];
        while (stream->fd >= 0 && has_bytes(stream->fd)) {
            stream_read(stream);
            sink_dump(stream->sink);
        }
    }
    for (unsigned i = 0; i < output->sink_count; i++)
        sink_dump(&output->sinks[i]);
}

// ---- The loop ----------------------------------------------------------------------------------

static void poll_add(struct output *output, int fd, struct stream *stream)
{
    output->polls[output->poll_count] = (struct pollfd){.fd = fd, .events = POLLIN};
    output->polled[output->poll_count] = stream;
    output->poll_count++;
}

// Adds the streams to the poll. A stream whose sink is full is not read, so its worker blocks.
static void poll_streams(struct output *output)
{
    for (uint32_t i = 0; i < output->stream_count; i++) {
        struct stream *stream = &output->streams[i];
        if (stream->fd >= 0 && sink_has_room(stream->sink))
            poll_add(output, stream->fd, stream);
    }
}

void output_wait(struct output *output, const int *fds, unsigned count, int timeout_ms)
{
    output->poll_count = 0;
    for (unsigned i = 0; i < count; i++)
        poll_add(output, fds[i], NULL);
    for (unsigned i = 0; i < output->sink_count; i++)
        poll_add(output, output->sinks[i].event_fd, NULL);
    poll_streams(output);
    poll(output->polls, output->poll_count, timeout_ms);
}

static void drain_events(struct output *output)
{
    uint64_t value;
    for (unsigned i = 0; i < output->sink_count; i++) {
        ssize_t ignored = read(output->sinks[i].event_fd, &value, sizeof(value));
        (void)ignored;
    }
}

// Closes the streams of a sink that nobody reads. Their workers get SIGPIPE, as they would without
// `lockstep run`.
static void close_broken(struct output *output)
{
    for (uint32_t i = 0; i < output->stream_count; i++) {
        struct stream *stream = &output->streams[i];
        if (stream->open && sink_broken(stream->sink))
            stream_close(stream);
    }
}

static const char *const sink_names[] = {"standard output", "standard error"};

// Output that cannot be written, as on a full disk, does not end the job.
static void report_loss(struct output *output)
{
    uint64_t lost;
    for (unsigned i = 0; i < output->sink_count; i++) {
        const int error = sink_error(&output->sinks[i], &lost);
        if (error && !output->told[i])
            cli_say(output->options->command,
                    "cannot write to %s: %s; the job goes on, and output is lost", sink_names[i],
                    strerror(error));
        output->told[i] |= error != 0;
    }
}

void output_relay(struct output *output)
{
    drain_events(output);
    for (unsigned i = 0; i < output->poll_count; i++) {
        struct stream *stream = output->polled[i];
        if (stream && output->polls[i].revents && sink_has_room(stream->sink))
            stream_read(stream);
    }
    close_broken(output);
    report_loss(output);
}

// ---- End ---------------------------------------------------------------------------------------

bool output_has_streams(const struct output *output)
{
    for (uint32_t i = 0; i < output->stream_count; i++) {
        if (output->streams[i].open)
            return true;
    }
    return false;
}

void output_end_streams(struct output *output)
{
    for (uint32_t i = 0; i < output->stream_count; i++) {
        if (output->streams[i].open)
            stream_end(&output->streams[i]);
    }
}

void output_finish(struct output *output)
{
    for (unsigned i = 0; i < output->sink_count; i++)
        sink_finish(&output->sinks[i]);
}

bool output_done(struct output *output)
{
    for (unsigned i = 0; i < output->sink_count; i++) {
        if (!sink_done(&output->sinks[i]))
            return false;
    }
    return true;
}

void output_close(struct output *output)
{
    uint64_t lost;
    report_loss(output);
    for (unsigned i = 0; i < output->sink_count; i++) {
        const int error = sink_error(&output->sinks[i], &lost);
        if (error)
            cli_say(output->options->command, "%" PRIu64 " bytes of %s were lost: %s", lost,
                    sink_names[i], strerror(error));
        if (error && i == 0 && output->options->needs_output)
            *output->options->unwritten = true;
        sink_close(&output->sinks[i]);
    }
}

void output_free(struct output *output)
{
    for (uint32_t i = 0; i < output->stream_count; i++)
        stream_close(&output->streams[i]);
    for (uint32_t i = 0; output->logs && i <= output->options->workers; i++)
        log_file_close(&output->logs[i]);
    free(output->logs);
    free(output->streams);
    free(output->polls);
    free(output->polled);
}
