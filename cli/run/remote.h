// SPDX-License-Identifier: Apache-2.0
//
// One host of `lockstep run --hosts`: the process ssh, its three pipes, and the bytes in them
// (relay.h). hosts.c has the job. Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_REMOTE_H
#define LOCKSTEP_CLI_RUN_REMOTE_H

#include "cli/run/relay.h"
#include "cli/run/run.h"
#include "protos/limits.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct verdict;

// The longest of a frame and of what a shell may print before the greeting in one read.
#define REMOTE_BYTES (RELAY_HEADER_BYTES + RELAY_PAYLOAD_BYTES)

enum remote_state {
    REMOTE_CONNECTS, // ssh runs, and there is no greeting yet.
    REMOTE_GREETED, // `lockstep run-host` waits for the request.
    REMOTE_ASKED, // The request was sent.
    REMOTE_RUNS, // All ranks of the host were started.
    REMOTE_ENDED, // ssh has ended, and all of its frames were taken.
};

enum remote_next {
    REMOTE_NOTHING, // More bytes are needed.
    REMOTE_FRAME,
    REMOTE_FOREIGN, // The bytes are none that this version understands.
};

struct remote {
    const struct run_host *host;
    pid_t pid; // The process of ssh; 0 once it was reaped.
    int status; // The wait status of ssh, once it was reaped.
    int control_fd; // stdin of ssh; -1: closed
    int frames_fd; // stdout of ssh; -1: it has ended
    int error_fd; // stderr of ssh; -1: it has ended
    enum remote_state state;
    uint32_t started; // Ranks that have started.
    uint32_t ended; // Ranks that have ended.
    bool placed; // True once the coordinator's address has come.
    bool failure_told; // True once a first failure is known, and host 0 knows of it, too.

    // Clock of this host minus clock of that one, in ms; the least that was seen, because frames
    // only ever come late.
    int64_t clock_offset_ms;
    bool clock_known;

    char connection[RELAY_GREETING_BYTES]; // SSH_CONNECTION there, or "".
    char said[LOCKSTEP_TEXT_BYTES]; // The last line of stderr that has text.
    char line[LOCKSTEP_TEXT_BYTES]; // The line of stderr that is not at its end.
    size_t line_size;

    char *pending; // owned; bytes that ssh has not taken yet
    size_t pending_size;

    size_t size; // Number of bytes.
    unsigned char bytes[REMOTE_BYTES];
};

// Adds the signals that the launcher passes on to the workers, and that ssh does not take.
// `lockstep run-host` unblocks them: a remote shell that runs on this machine may hand on its mask.
void remote_signals(sigset_t *set);

// Starts ssh. Returns 0, or an exit status after a sentence on stderr. remote_close must be called
// in any case.
int remote_start(struct remote *remote, const struct run_options *options,
                 const struct run_host *host);

// Sends bytes, or keeps them until remote_flush. After an error they are dropped: ssh has ended.
void remote_send(struct remote *remote, const void *bytes, size_t size);
void remote_flush(struct remote *remote);

// Tells host 0 once of the first rank that has failed, if it is one of another host: no world can
// form without it. Host 0 knows whether one has formed.
void remote_tell_failure(struct remote *first, const struct run_options *options,
                         const struct verdict *verdict);

// Reads stdout of ssh once, if there is room. Takes the greeting. At the end it closes frames_fd.
void remote_read(struct remote *remote);

// Returns the next frame, which lies in remote->bytes, or why there is none. remote_drop removes
// it.
enum remote_next remote_peek(const struct remote *remote, struct relay_header *header,
                             const unsigned char **payload);
void remote_drop(struct remote *remote, const struct relay_header *header);

// True if ssh was reaped, its stdout has ended, and no frame is left. ssh may have ended within a
// frame: such bytes are no frame.
bool remote_has_ended(const struct remote *remote);

// Reads stderr of ssh once. Returns the number of bytes. At the end it closes error_fd.
size_t remote_read_error(struct remote *remote, char *bytes, size_t capacity);

// Returns the time of an event there on the clock of this host.
uint64_t remote_time(struct remote *remote, uint64_t at_ms, uint64_t now_ms);

// Writes the last words of ssh or of the host, without "lockstep run: ", or else its status. ssh
// was reaped.
void remote_last_words(const struct remote *remote, char *words, size_t capacity);

// Closes the pipes. ssh then ends, and so does all that it has started.
void remote_close(struct remote *remote);

#endif
