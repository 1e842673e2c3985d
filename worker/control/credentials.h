// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of TLS on the control stream: who it says it is, and which coordinator it
// believes. A coordinator is one whose certificate is signed by ca.crt, is for the host that was
// asked for, and names lockstep://coordinator. credentials.c knows gRPC; the names below
// are its own, so that this header need not.
//
// Threads: the control thread, but for open, and for what gRPC calls during handshakes.

#ifndef WORKER_CONTROL_CREDENTIALS_H
#define WORKER_CONTROL_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct grpc_channel_credentials;
struct control_credentials; // Opaque.

// Reads and checks the files for a worker of this job. host: as it was asked for, a name or an
// address; copied, like the others. Returns 0, or -1 with a sentence in error.
int control_credentials_open(const char *directory, const char *job, const char *host,
                             uint16_t port, struct control_credentials **credentials, char *error,
                             size_t error_bytes);

// Looks whether the files have changed, and takes them if they can be used. True: a new channel is
// needed. False with credentials NULL.
bool control_credentials_renew(struct control_credentials *credentials);

// For one channel; released by the caller, and `credentials` outlives the channel. NULL: plaintext.
struct grpc_channel_credentials *control_credentials_make(struct control_credentials *credentials);

// The name that the coordinator's certificate must have.
const char *control_credentials_host(const struct control_credentials *credentials);

// Finds out why the coordinator cannot be reached, by a handshake of its own, for gRPC does not
// tell. True: one of the two sides refuses the other, and the sentence says which one and why.
// Blocks for CONTROL_PROBE_MS at most. False with credentials NULL.
#define CONTROL_PROBE_MS 2000
bool control_credentials_explain(struct control_credentials *credentials, char *text,
                                 size_t text_bytes);

void control_credentials_close(struct control_credentials *credentials); // NULL is allowed.

#endif
