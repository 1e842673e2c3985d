// SPDX-License-Identifier: Apache-2.0
// The directory that holds the certificates of a coordinator or of a worker, laid out like a secret
// of Kubernetes: tls.crt (the certificate, then the intermediate certificates), tls.key (its
// private key, PEM without a passphrase), ca.crt (the authorities by which the other side is
// verified). The files are checked when they are read, because gRPC, which uses them later, reports
// little about what was wrong. This file makes no connections.
//
// Any thread; one thread at a time for each struct. Reads files, so it may block on a disk.
#ifndef LOCKSTEP_BASE_TLS_FILES_H
#define LOCKSTEP_BASE_TLS_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TLS_CERTIFICATE_FILE "tls.crt"
#define TLS_KEY_FILE "tls.key"
#define TLS_AUTHORITY_FILE "ca.crt"
#define TLS_FILE_BYTES (256 * 1024) // Largest size of each file.

// The identity of the three files. If two stamps are equal, no file has changed between them.
struct tls_stamp {
    struct {
        uint64_t device;
        uint64_t inode;
        uint64_t size;
        uint64_t modified_ns;
        uint64_t changed_ns;
    } file[3];
};

// The contents of the files: PEM, each with a NUL, owned.
struct tls_files {
    char *certificate;
    char *key;
    char *authority;
    struct tls_stamp stamp;
    uint64_t expires_s; // Unix time in seconds at which tls.crt expires.
};

// Reads the files and checks that they belong together, are valid now, are signed by an authority
// of ca.crt, and name the right role: a worker of job, or a coordinator if job is NULL. Returns 0,
// or -1 with a sentence in error that names the file and the reason; then *files owns nothing.
int tls_files_load(const char *directory, const char *job, struct tls_files *files, char *error,
                   size_t error_bytes);

// Fills the stamp with three calls of stat. A file that does not exist is all zeros in the stamp.
void tls_files_look(const char *directory, struct tls_stamp *stamp);
bool tls_files_stamps_equal(const struct tls_stamp *a, const struct tls_stamp *b);

// Overwrites the key before it frees it. Does nothing for files that were never loaded.
void tls_files_free(struct tls_files *files);

// Returns true if the first certificate in pem names a coordinator.
bool tls_files_is_coordinator(const char *pem);

#endif
