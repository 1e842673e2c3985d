// SPDX-License-Identifier: Apache-2.0
//
// A TLS handshake whose only purpose is to say why one with the coordinator fails: gRPC knows that
// it failed, and neither which side refused the other nor what for. Nothing is sent in it. Not on
// the way of a stream that stands. Control thread.

#ifndef WORKER_CONTROL_PROBE_H
#define WORKER_CONTROL_PROBE_H

#include "base/tls_files.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control_probe {
    const char *directory; // For the sentence. All of this is borrowed for the call.
    const char *host;
    uint16_t port;
    const struct tls_files *files;
    uint64_t timeout_ms;
};

// True: one side refuses the other, and text says which one and why. False: the handshake is good,
// or it did not come so far.
bool control_probe(const struct control_probe *probe, char *text, size_t text_bytes);

#endif
