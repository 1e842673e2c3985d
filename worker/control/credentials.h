// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of TLS on the control stream: the certificate that the worker shows, and the
// check of the coordinator's certificate. The coordinator's certificate must be signed by ca.crt,
// be valid for the host of the coordinator's address, and name lockstep://coordinator. Only
// credentials.c includes gRPC; the types below are declared without gRPC's headers.
//
// Threads: the control thread, and before it runs the thread that opens the control; gRPC's threads
// call some functions during handshakes.

#ifndef WORKER_CONTROL_CREDENTIALS_H
#define WORKER_CONTROL_CREDENTIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct grpc_channel_credentials;
struct control_credentials; // Opaque.

// Reads and checks the files for a worker of this job. All texts are copied. Returns 0, or -1 with
// a sentence in error. The caller then names the coordinator's address.
int control_credentials_open(const char *directory, const char *job,
                             struct control_credentials **credentials, char *error,
                             size_t error_bytes);

// Names the coordinator's address for channels that are made from now on, and for explanations.
// host: a name or an address. Does nothing if credentials is NULL.
void control_credentials_aim(struct control_credentials *credentials, const char *host,
                             uint16_t port);

// Loads the files again if they have changed and can be used. Returns true if a new channel is
// needed. Returns false if credentials is NULL.
bool control_credentials_renew(struct control_credentials *credentials);

// Returns true if the certificate has expired and the directory has no files that can be used; text
// says so. Returns true once, and once more for each change of the files to others that cannot be
// used, 5 s after it has seen them. Reads the files, but only after the certificate that it knows
// has expired, and then every 5 s. Returns false if credentials is NULL.
bool control_credentials_expired(struct control_credentials *credentials, char *text,
                                 size_t text_bytes);

// Makes the credentials of one channel. The caller releases them; `credentials` must outlive the
// channel. NULL: plaintext.
struct grpc_channel_credentials *control_credentials_make(struct control_credentials *credentials);

// Returns the name that the coordinator's certificate must have.
const char *control_credentials_host(const struct control_credentials *credentials);

// Finds out why the coordinator cannot be reached, with a separate TLS handshake, because gRPC does
// not report the reason. Returns true if one side refuses the other; then text says which side and
// why, and *mismatch is true if the coordinator does not speak TLS. Blocks for at most
// CONTROL_PROBE_MS.
#define CONTROL_PROBE_MS 2000
bool control_credentials_explain(const struct control_credentials *credentials, bool *mismatch,
                                 char *text, size_t text_bytes);

// Does nothing if credentials is NULL.
void control_credentials_close(struct control_credentials *credentials);

#endif
