// SPDX-License-Identifier: Apache-2.0
//
// Relays the output of all workers; output.h has the contract.

#include "cli/run/output.h"

#include "cli/ask/colour.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
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

bool output_open(struct output *output, const struct run_options *options)
{
    const size_t streams = 2 * (size_t)options->workers + 1;
    output->options = options;
    output->relaying = options->world_size > 1;
    output->sink_count = !output->relaying ? 0 : same_terminal() ? 1 : 2;
    output->streams = calloc(streams, sizeof(*output->streams));
    output->polls = calloc(streams + OUTPUT_OTHER_FDS + 2, sizeof(*output->polls));
    output->polled = calloc(streams + OUTPUT_OTHER_FDS + 2, sizeof(struct stream *));
    return output->streams && output->polls && output->polled && open_sinks(output);
}

int output_start(struct output *output)
{
    for (unsigned i = 0; i < output->sink_count; i++) {
        if (sink_start(&output->sinks[i]) < 0)
            return -1;
    }
    return 0;
}

static void prefix_of(const struct output *output, uint32_t rank, bool terminal, char *prefix,
                      size_t capacity)
{
    static const int colors[] = {36, 33, 32, 35, 34, 31};
    if (!output->options->prefix)
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
    stream_open(&output->streams[output->stream_count++], sink, fd, prefix, rank == 0);
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
    free(output->streams);
    free(output->polls);
    free(output->polled);
}
