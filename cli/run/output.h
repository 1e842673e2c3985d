// SPDX-License-Identifier: Apache-2.0
//
// Relays the output of all workers to our stdout and stderr, with a sink (sink.h) for each, and two
// streams (stream.h) for each worker. The output of a single worker is not relayed: the worker
// inherits both descriptors. With --json it is relayed, so that the object begins a line. With
// --log-dir all output is relayed, the coordinator's too, and each rank has a file (log_file.h).
//
// `lockstep run-host` (options->hosted) sends all output as frames in one sink. `lockstep run
// --hosts` has the same streams as on one host, and feeds them from those frames. Supervisor's
// thread.

#ifndef LOCKSTEP_CLI_RUN_OUTPUT_H
#define LOCKSTEP_CLI_RUN_OUTPUT_H

#include "cli/run/log_file.h"
#include "cli/run/run.h"
#include "cli/run/sink.h"
#include "cli/run/stream.h"

#include <stdbool.h>
#include <stdint.h>

#define OUTPUT_OTHER_FDS 4

struct output {
    const struct run_options *options;
    // True if the job has several workers or hosts, there are files, or an object is the last line.
    bool relaying;
    bool started; // True once the writer threads run.
    struct sink sinks[2];
    bool told[2]; // True for a sink whose loss was reported.
    unsigned sink_count; // 1 if stdout and stderr are the same terminal, or for frames; else 2.
    struct stream *streams; // owned; in the order of output_add
    uint32_t stream_count;
    struct log_file *logs; // owned; [workers + 1], the last one is the coordinator's; NULL: none
    struct pollfd *polls; // owned
    struct stream **polled; // owned; the stream of each entry of polls, or NULL
    unsigned poll_count; // Entries of polls in the last output_wait.
};

// Allocates the memory for the workers of this launcher, and opens the files. The struct must be
// zero before. Returns false after a sentence on stderr. output_free must be called in any case.
bool output_open(struct output *output, const struct run_options *options);

// Starts the writer threads. Call it after the last fork. Returns 0 or -1 with errno.
int output_start(struct output *output);

// Adds a pipe of a worker: number 0 is its stdout, 1 its stderr. fd is given; -1: output_feed gives
// the bytes.
void output_add(struct output *output, uint32_t rank, unsigned number, int fd);

// Returns true if the coordinator's output is relayed, too. It is inherited else.
bool output_takes_coordinator(const struct output *output);

// Adds the pipe that is the coordinator's stdout and stderr. fd is given, and may be -1.
void output_add_coordinator(struct output *output, int fd);

// Adds the streams of all ranks and of the coordinator without pipes, and one for what ssh says of
// each host. Several hosts only.
void output_add_fed(struct output *output);

// The stream of a rank (RELAY_COORDINATOR: the coordinator's), or of a host. Several hosts only.
struct stream *output_stream(struct output *output, uint32_t rank, unsigned number);
struct stream *output_host_stream(struct output *output, uint32_t host);

// Returns true if every sink has room for one more stream_feed.
bool output_has_room(struct output *output);

// Returns true if nobody reads stdout (0) or stderr (1) any more.
bool output_broken(struct output *output, unsigned number);

// Closes the streams of this number, so that workers get SIGPIPE. Frames only.
void output_break(struct output *output, unsigned number);

// Adds a frame that is not output. Frames only.
void output_put(struct output *output, enum relay_kind kind, uint32_t rank, const void *bytes,
                size_t size);

// Writes what has come so far, if the writer threads do not run yet. For a run that ends early.
void output_dump(struct output *output);

// Waits until one of fds, a stream or a sink is ready, or timeout_ms has passed; -1: no limit. fds:
// at most OUTPUT_OTHER_FDS, and 2 for each host of options; -1 is ignored.
void output_wait(struct output *output, const int *fds, unsigned count, int timeout_ms);

// Reads from the streams that the last output_wait found ready. Says why output is lost, once for
// each sink.
void output_relay(struct output *output);

// Returns true while a stream has not ended.
bool output_has_streams(const struct output *output);

// Ends all streams, although processes still have their pipes.
void output_end_streams(struct output *output);

// Tells the sinks that no more output follows. output_done then returns true once all was written.
void output_finish(struct output *output);
bool output_done(struct output *output);

// Ends the writer threads, and says how much output was lost. Call it after output_done has
// returned true.
void output_close(struct output *output);

void output_free(struct output *output);

#endif
