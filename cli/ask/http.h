// SPDX-License-Identifier: Apache-2.0
//
// One GET over HTTP/1.1, plain or with TLS, to a coordinator's page. It follows no redirects, and
// an answer has at most HTTP_MAX_BYTES. An answer that breaks off is an error. All addresses of a
// name are tried. Blocks until the deadline at the latest, except for asking for the addresses of a
// name. Main thread.

#ifndef LOCKSTEP_CLI_ASK_HTTP_H
#define LOCKSTEP_CLI_ASK_HTTP_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_MAX_BYTES (16 * 1024 * 1024)

#define HTTP_TOKEN_BYTES 512
#define HTTP_FILE_BYTES 1024

struct http_peer {
    char address[LOCKSTEP_ADDRESS_BYTES]; // HOST:PORT
    bool tls;
    // With tls: a file with the trusted authorities; "": those of the machine.
    char cacert[HTTP_FILE_BYTES];
    char token[HTTP_TOKEN_BYTES]; // The bearer token; "": none.
};

// Parses an address as people write it: "http://127.0.0.1:8080/", "https://..." or
// "127.0.0.1:8080". Takes the token of "http://127.0.0.1:8080/?token=0123..." unless peer has a
// token already. Returns false if the address has none of these forms, or is too long.
bool http_read_address(const char *value, struct http_peer *peer);

// Overwrites the token in an argument of the command line, which every user of the machine can read
// in the list of processes.
void http_hide_token(char *value);

// Returns the HTTP status, or -1 with a sentence in error. The body, NUL-terminated, is given in
// *body (free it).
int http_get(const struct http_peer *peer, const char *path, uint64_t timeout_ms, char **body,
             char *error, size_t error_bytes);

#endif
