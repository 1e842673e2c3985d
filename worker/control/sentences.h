// SPDX-License-Identifier: Apache-2.0
//
// Writes the sentences about the end of a control stream, for people. Uses no gRPC. Control thread.

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

// The facts from which the sentences are made.
struct ending {
    const char *address;
    const char *reason; // The reason of the end; "": none.
    const char *refusal; // The reason why a certificate was refused; "": none was refused.
    const char *tried; // All addresses, each with the reason why it failed; "": there is only one.
    uint64_t connect_timeout_ms;
    bool plaintext; // True if this worker has no certificates.
    bool connecting; // True if the stream was never established.
    bool kept; // True if an earlier stream was established, so that the address is right.
    bool cancelled; // True if this worker ended the stream; then `reason` says why.
    bool from_peer; // True if the coordinator wrote `reason`.
    enum ending_status status;
};

// Writes the last part of gRPC's text, in lower case unless it begins with an acronym. Example:
// "failed to connect to all addresses; last error: UNKNOWN: ipv4:...: Failed to connect to remote
// host: Connection refused" becomes "connection refused".
void sentences_shorten(const char *details, char *text, size_t capacity);
// True if gRPC wrote this text when the connection broke, false if the peer sent it. gRPC 1.51
// gives no other way to distinguish the two than the words.
bool sentences_is_transport_error(const char *details);
void sentences_connect_failure(const struct ending *ending, struct text *text);
// Writes that the coordinator is not reached yet, why, and how long it is tried.
void sentences_unreached(const struct ending *ending, struct text *text);
void sentences_end(const struct ending *ending, struct text *text);

#endif
