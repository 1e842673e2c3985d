// SPDX-License-Identifier: Apache-2.0
//
// An address on which the daemon listens. Pure. Any thread.

#ifndef LOCKSTEP_SERVER_STATE_ENDPOINT_H
#define LOCKSTEP_SERVER_STATE_ENDPOINT_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENDPOINT_UNIX "unix:"

// host is a numeric address without brackets; or "unix:" and a path, and then port is not used.
struct endpoint {
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port; // 0: any free port.
    // True if other hosts can reach it. This is allowed only with TLS or insecure_plaintext.
    bool exposed;
};

bool endpoint_is_unix(const struct endpoint *endpoint);

// Writes a text such as "127.0.0.1:8080", "[::1]:8080" or "unix:/run/lockstep.sock".
void endpoint_text(const struct endpoint *endpoint, char *text, size_t text_bytes);

#endif
