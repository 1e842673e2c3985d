// SPDX-License-Identifier: Apache-2.0
//
// Relays the output of all workers; output.h has the contract.

#include "cli/run/output.h"

#include "cli/ask/colour.h"
#include "cli/common/cli.h"

#include <errno.h>
#include <fcntl.h>
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
        if (sink_open(&output->sinks[i], (int)i + 1) < 0)
            return false;
    }
    return true;
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
    const size_t streams = 2 * (size_t)options->workers + 1;
    output->options = options;
    output->relaying = options->world_size > 1 || options->log_dir;
    output->sink_count = !output->relaying ? 0 : same_terminal() ? 1 : 2;
    output->streams = calloc(streams, sizeof(*output->streams));
    output->polls = calloc(streams + OUTPUT_OTHER_FDS + 2, sizeof(*output->polls));
    output->polled = calloc(streams + OUTPUT_OTHER_FDS + 2, sizeof(struct stream *));
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

void output_add(struct output *output, uint32_t rank, unsigned number, int fd)
{
    char prefix[STREAM_PREFIX_BYTES];
    struct sink *sink = &output->sinks[number < output->sink_count ? number : 0];
    prefix_of(output, output->options->first_rank + rank, isatty((int)number + 1) == 1, prefix,
              sizeof(prefix));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    stream_open(&output->streams[output->stream_count++], sink, fd, prefix, rank == 0,
                output->logs ? &output->logs[rank] : NULL);
}

bool output_takes_coordinator(const struct output *output)
{
    return output->logs != NULL;
}

void output_add_coordinator(struct output *output, int fd)
{
    fcntl(fd, F_SETFL, O_NONBLOCK);
    stream_open(&output->streams[output->stream_count++], &output->sinks[output->sink_count - 1],
                fd, "", false, output->logs ? &output->logs[output->options->workers] : NULL);
}

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

void output_wait(struct output *output, const int fds[OUTPUT_OTHER_FDS], int timeout_ms)
{
    output->poll_count = 0;
    for (unsigned i = 0; i < OUTPUT_OTHER_FDS; i++)
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
        if (stream->fd >= 0 && sink_broken(stream->sink))
            stream_close(stream);
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
}

// ---- End ---------------------------------------------------------------------------------------

bool output_has_streams(const struct output *output)
{
    for (uint32_t i = 0; i < output->stream_count; i++) {
        if (output->streams[i].fd >= 0)
            return true;
    }
    return false;
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
    for (unsigned i = 0; i < output->sink_count; i++)
        sink_close(&output->sinks[i]);
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
