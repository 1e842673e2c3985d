// SPDX-License-Identifier: Apache-2.0
//
// Relays the output of all workers to our stdout and stderr, with a sink (sink.h) for each, and two
// streams (stream.h) for each worker. The output of a single worker is not relayed: the worker
// inherits both descriptors. Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_OUTPUT_H
#define LOCKSTEP_CLI_RUN_OUTPUT_H

#include "cli/run/run.h"
#include "cli/run/sink.h"
#include "cli/run/stream.h"

#include <stdbool.h>
#include <stdint.h>

#define OUTPUT_OTHER_FDS 2

struct output {
    const struct run_options *options;
    bool relaying; // True if this host has several workers, or the job has another host.
    struct sink sinks[2];
    unsigned sink_count; // 1 if stdout and stderr are the same terminal, else 2.
    struct stream *streams; // owned; 2r is rank r's stdout, 2r + 1 its stderr
    uint32_t stream_count;
    struct pollfd *polls; // owned
    struct stream **polled; // owned; the stream of each entry of polls, or NULL
    unsigned poll_count; // Entries of polls in the last output_wait.
};

// Allocates the memory for the workers of this launcher. The struct must be zero before. Returns
// false with errno. output_free must be called in any case.
bool output_open(struct output *output, const struct run_options *options);

// Starts the writer threads. Call it after the last fork. Returns 0 or -1 with errno.
int output_start(struct output *output);

// Adds a pipe of a worker: number 0 is its stdout, 1 its stderr. fd is given.
void output_add(struct output *output, uint32_t rank, unsigned number, int fd);

// Waits until one of fds, a stream or a sink is ready, or timeout_ms has passed; -1: no limit.
void output_wait(struct output *output, const int fds[OUTPUT_OTHER_FDS], int timeout_ms);

// Reads from the streams that the last output_wait found ready.
void output_relay(struct output *output);

// Returns true while a stream has not ended.
bool output_has_streams(const struct output *output);

// Tells the sinks that no more output follows. output_done then returns true once all was written.
void output_finish(struct output *output);
bool output_done(struct output *output);

// Ends the writer threads. Call it after output_done has returned true.
void output_close(struct output *output);

void output_free(struct output *output);

#endif
