// SPDX-License-Identifier: Apache-2.0
//
// A TLS handshake whose only purpose is to find out why a handshake with the coordinator fails.
// gRPC reports that it failed, but not which side refused the other, nor why. The probe sends no
// message. It is not used while a stream is established. Control thread.

#ifndef WORKER_CONTROL_PROBE_H
#define WORKER_CONTROL_PROBE_H

#include "base/tls_files.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Begins each sentence about this worker's own files.
#define TLS_FILES_OF_WORKER "certificates of this worker (LOCKSTEP_TLS_DIR, config.tls_dir): "

struct control_probe {
    const char *directory; // tls_files.h. All fields are borrowed for the call.
    const char *job; // The job of which this worker is.
    const char *host;
    uint16_t port;
    // The certificate that this worker shows. The files in its directory may be newer.
    const struct tls_files *files;
    uint64_t timeout_ms;
};

// Returns true if one side refuses the other; then text says which side and why, and *plaintext is
// true if the coordinator does not speak TLS. If the files in the directory cannot be used, for
// example because a certificate has expired, text says that. Returns false if the handshake
// succeeds, or if the connection fails before the handshake.
bool control_probe(const struct control_probe *probe, bool *plaintext, char *text,
                   size_t text_bytes);

// True if a server at this address answers a handshake of TLS.
bool control_probe_speaks_tls(const char *host, uint16_t port, uint64_t timeout_ms);

#endif
