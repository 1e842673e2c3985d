// SPDX-License-Identifier: Apache-2.0
//
// Reads the certificates of a file. Main thread.

#ifndef LOCKSTEP_CLI_CERTS_SHOW_H
#define LOCKSTEP_CLI_CERTS_SHOW_H

#include <stdbool.h>
#include <stddef.h>

#define CERTS_WORD_BYTES 256
#define CERTS_LIST_BYTES 4096
#define CERTS_DATE_BYTES 32
#define CERTS_HASH_BYTES 72 // For a SHA-256 in hex.

struct certs_shown {
    char subject[CERTS_WORD_BYTES];
    char issuer[CERTS_WORD_BYTES];
    char names[CERTS_LIST_BYTES]; // "URI:lockstep://coordinator, DNS:localhost"
    char begins[CERTS_DATE_BYTES]; // "2026-11-21T00:05:58Z"
    char ends[CERTS_DATE_BYTES];
    char sha256[CERTS_HASH_BYTES];
    long days_left; // Days until the certificate expires; below 0: it has expired.
    bool holds; // True if the certificate is valid now.
    bool authority; // True if the certificate may sign others.
};

// Calls show for each certificate in the file. Returns how many there were, or -1 with a sentence
// in error.
int certs_show_file(const char *path, void (*show)(void *context, const struct certs_shown *shown),
                    void *context, char *error, size_t error_bytes);

#endif
