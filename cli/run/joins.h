// SPDX-License-Identifier: Apache-2.0
//
// The socket to the coordinator that this launcher started: which workers have joined the job,
// which will never do so, because of which rank the job ended, and that the user stops the job.
// server/launcher.h has the words. A launcher that joins another coordinator has no socket and
// knows nothing of sessions. Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_JOINS_H
#define LOCKSTEP_CLI_RUN_JOINS_H

#include "cli/run/relay.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct run_options;
struct verdict;

#define JOINS_NO_RANK UINT32_MAX

struct joins {
    int fd; // The launcher's end; negative: no socket.
    int coordinator_fd; // The coordinator's end until it is started, else negative.
    uint32_t count; // Workers of the job that have said hello, and were refused or not.
    bool unknown; // True if a worker has joined whose rank is not known.
    // True while the coordinator may know more than it could say, because the socket was full.
    bool behind;
    bool asked; // True while the coordinator's answer is awaited, after which it has said all.
    bool joined[LOCKSTEP_MAX_WORLD]; // By rank.
    // The rank because of which the job has ended with an error, as the coordinator says;
    // JOINS_NO_RANK: it has said none.
    uint32_t cause;
    // How a rank of another host has ended (RELAY_FAILED), and how many of these bytes are to come.
    char text[RELAY_TEXT_BYTES];
    uint32_t text_left;
};

// Makes the socket. Returns 0 or -1 with errno.
int joins_open(struct joins *joins);
void joins_close(struct joins *joins);

// Reads what has come, without blocking.
void joins_read(struct joins *joins);

// Reads what has come. If the socket may have been full, also waits for what did not fit, a second
// at most.
void joins_read_all(struct joins *joins);

// True if it is certain that this rank has not joined the job so far.
bool joins_lacks(const struct joins *joins, uint32_t rank);

// True if it is certain that one of the ranks from 0 to count - 1 has not joined the job so far.
bool joins_lacks_any(const struct joins *joins, uint32_t count);

// Tells the coordinator that the user stops the job by this signal, or that the launcher does (0),
// which may know of a failure that the coordinator does not, such as that a host is lost. Waits
// until the coordinator knows, a moment at most.
void joins_say_stopping(struct joins *joins, int signal_number);

// Notes whether a rank has ended before all ranks had joined, and tells the coordinator then,
// because no world can form without it. A child of a rank that ended well may still take part.
void joins_note_end(struct joins *joins, const struct run_options *options, struct verdict *verdict,
                    uint32_t index);

// RELAY_FAILED has come: takes the bytes behind it. joins_take_text returns false if none of them
// is left. After the last one the coordinator is told, unless all ranks have joined.
void joins_expect_text(struct joins *joins);
bool joins_take_text(struct joins *joins, const struct run_options *options, unsigned char byte);

#endif
