// SPDX-License-Identifier: Apache-2.0
// The directory that holds the certificates of a coordinator or of a worker, laid out like a secret
// of Kubernetes: tls.crt (the certificate, then those between it and the authority), tls.key (its
// private key, PEM without a passphrase), ca.crt (the authorities that the other side is believed
// for). Everything is checked when it is read, because who speaks TLS later (gRPC) can tell little
// about what was wrong. Not a TLS library: no connection is made here.
//
// Any thread; each struct by one at a time. Reads files, so it may block on a disk.
#ifndef LOCKSTEP_BASE_TLS_FILES_H
#define LOCKSTEP_BASE_TLS_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TLS_CERTIFICATE_FILE "tls.crt"
#define TLS_KEY_FILE "tls.key"
#define TLS_AUTHORITY_FILE "ca.crt"
#define TLS_FILE_BYTES (256 * 1024) // Bound of each file.

// The state of the three files. Equal stamps: no file has changed.
struct tls_stamp {
    struct {
        uint64_t device;
        uint64_t inode;
        uint64_t size;
        uint64_t modified_ns;
        uint64_t changed_ns;
    } file[3];
};

// PEM, each with a NUL; owned.
struct tls_files {
    char *certificate;
    char *key;
    char *authority;
    struct tls_stamp stamp;
    uint64_t expires_s; // Unix time at which tls.crt ends.
};

// Reads the files and checks that they can be read, belong together, hold now, are signed by
// ca.crt, and say what they are for: with job a worker of that job, with NULL a coordinator.
// Returns 0, or -1 with a sentence in error that names the file and the reason; then nothing is
// owned.
int tls_files_load(const char *directory, const char *job, struct tls_files *files, char *error,
                   size_t error_bytes);

// Three calls of stat. A file that is not there is a stamp of zeros.
void tls_files_look(const char *directory, struct tls_stamp *stamp);
bool tls_files_stamps_equal(const struct tls_stamp *a, const struct tls_stamp *b);

// The key is overwritten before it is freed. Nothing happens to what was never loaded.
void tls_files_free(struct tls_files *files);

// Whether the first certificate of this PEM is a coordinator's, by its names.
bool tls_files_is_coordinator(const char *pem);

#endif
