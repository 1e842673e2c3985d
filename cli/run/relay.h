// SPDX-License-Identifier: Apache-2.0
//
// The bytes between `lockstep run --hosts` and `lockstep run-host`, which it starts on each host.
// Pure.
//
// To the host (its stdin): the request (request.h), then single bytes, enum relay_control. A signal
// is the byte of its number. RELAY_FAILED has RELAY_TEXT_BYTES behind it. The end of the stream
// means that the launcher is gone.
//
// From the host (its stdout): one line, the greeting, then frames. Text before the greeting comes
// from the shell's own files and is skipped. A frame is a header and `size` bytes.

#ifndef LOCKSTEP_CLI_RUN_RELAY_H
#define LOCKSTEP_CLI_RUN_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The greeting is this word, RELAY_VERSION, and SSH_CONNECTION if there is one, in one line.
#define RELAY_GREETING "lockstep-run-host"
#define RELAY_VERSION 3
#define RELAY_GREETING_BYTES 512

#define RELAY_HEADER_BYTES 12
#define RELAY_PAYLOAD_BYTES (16 * 1024)
#define RELAY_ENDED_BYTES 21
#define RELAY_STARTED_BYTES 12
#define RELAY_TEXT_BYTES 512 // A sentence, and zeros behind it.

#define RELAY_COORDINATOR UINT32_MAX // The rank in frames about the coordinator's output.
#define RELAY_BEAT_MS 5000 // How often the launcher sends RELAY_ALIVE.
#define RELAY_SILENCE_MS 30000 // After this time without a byte, the launcher is gone.

enum relay_control {
    RELAY_ALIVE = 0, // Says only that the launcher is there.
    // 1 to 64: a signal.
    RELAY_BREAK_OUTPUT = 0xf0, // Nobody reads the workers' stdout any more.
    RELAY_BREAK_ERROR = 0xf1, // The same of their stderr.
    RELAY_FAILED = 0xfd, // To host 0: a rank of another host has failed; how follows.
    RELAY_DISMISS = 0xfe, // All ranks of all hosts have ended: stop the coordinator, and end.
    RELAY_STOP = 0xff, // A rank has failed: kill the workers.
};

enum relay_kind {
    RELAY_PLACE = 1, // Host 0: the coordinator's address, '\n', the page's address or nothing.
    RELAY_STARTED, // A rank runs: struct relay_started.
    RELAY_OUTPUT, // Bytes of a rank's stdout (stream 0) or stderr (1).
    RELAY_CLOSED, // The end of that stream.
    RELAY_ENDED, // A rank has ended: struct relay_ended.
};

struct relay_header {
    uint8_t kind;
    uint8_t stream;
    uint32_t rank;
    uint32_t size; // Bytes that follow, at most RELAY_PAYLOAD_BYTES.
};

struct relay_started {
    uint64_t at_ms; // Clock of that host.
    uint32_t pid;
};

struct relay_ended {
    uint64_t at_ms; // Clock of that host.
    int32_t status; // As from waitpid.
    int32_t exec_error; // errno when the program could not be started, else 0.
    bool stopped; // True if the host killed the rank because another one failed.
    // From host 0: the rank, of any host, because of which the coordinator has ended the job;
    // JOINS_NO_RANK: none.
    uint32_t cause;
};

void relay_put_header(unsigned char bytes[RELAY_HEADER_BYTES], const struct relay_header *header);
void relay_put_started(unsigned char bytes[RELAY_STARTED_BYTES],
                       const struct relay_started *started);
void relay_put_ended(unsigned char bytes[RELAY_ENDED_BYTES], const struct relay_ended *ended);

// Return false if no launcher of this version sends such bytes.
bool relay_get_header(const unsigned char bytes[RELAY_HEADER_BYTES], struct relay_header *header);
bool relay_get_started(const unsigned char *bytes, size_t size, struct relay_started *started);
bool relay_get_ended(const unsigned char *bytes, size_t size, struct relay_ended *ended);

#endif
