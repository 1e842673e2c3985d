// SPDX-License-Identifier: Apache-2.0
//
// The sentences about the end of a control stream, for people. They know no gRPC. Control thread.

#ifndef WORKER_CONTROL_SENTENCES_H
#define WORKER_CONTROL_SENTENCES_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ending_status {
    ENDING_OK,
    ENDING_REFUSED, // gRPC: permission denied.
    ENDING_UNKNOWN_METHOD, // gRPC: unimplemented.
    ENDING_OTHER,
};

// Everything that the sentences are made from.
struct ending {
    const char *address;
    const char *reason; // "": none.
    const char *refusal; // Why a certificate was refused; "": none was.
    uint64_t connect_timeout_ms;
    bool plaintext; // True if this worker has no certificates.
    bool connecting; // True if the stream never stood.
    bool cancelled; // True if this worker ended the stream: the reason says why.
    bool from_peer; // True if the reason is the coordinator's own.
    enum ending_status status;
};

// The last part of what gRPC says, in lower case unless it begins with an acronym: of "failed to
// connect to all addresses; last error: UNKNOWN: ipv4:...: Failed to connect to remote host:
// Connection refused" the last two words.
void sentences_shorten(const char *details, char *text, size_t capacity);
// True if gRPC made this text up when the connection went away, false if the peer sent it. gRPC
// 1.51 tells the two apart by nothing but the words.
bool sentences_is_transport_error(const char *details);
void sentences_connect_failure(const struct ending *ending, struct text *text);
void sentences_end(const struct ending *ending, struct text *text);

#endif
