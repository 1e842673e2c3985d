// SPDX-License-Identifier: Apache-2.0
//
// A small certificate authority, for a coordinator and its workers where no larger one is
// available. Keys are EC P-256 in PKCS#8. Every file has mode 0600, and no existing file is
// overwritten. There is no revocation; certificates have a short life instead. Main thread.

#ifndef LOCKSTEP_CLI_CERTS_MAKE_H
#define LOCKSTEP_CLI_CERTS_MAKE_H

#include <stdbool.h>
#include <stddef.h>

#define CERTS_NAMES 32
#define CERTS_KEY_FILE "ca.key"
#define CERTS_AUTHORITY_DAYS 3650
#define CERTS_DAYS 365
#define CERTS_MAX_DAYS 36500

enum certs_role {
    CERTS_NO_ROLE,
    CERTS_COORDINATOR,
    CERTS_WORKER,
    CERTS_OBSERVER,
};

// The contents of a certificate to make. Borrowed for the call.
struct certs_request {
    enum certs_role role;
    const char *job; // The job of a worker; NULL: any job.
    const char *names[CERTS_NAMES]; // DNS names and addresses: see certs_is_name.
    size_t name_count;
    unsigned days; // certs_issue lowers it if the authority ends earlier.
    bool cut; // Set by certs_issue: true if days was lowered.
};

// The role named "coordinator", "worker" or "observer". Returns CERTS_NO_ROLE for another word.
enum certs_role certs_role_of(const char *word);
const char *certs_role_name(enum certs_role role);

// Returns true for a DNS name or an address.
bool certs_is_name(const char *name);

// Writes the URI that says what the certificate is for.
void certs_uri(const struct certs_request *request, char *text, size_t text_bytes);

// Makes DIRECTORY/ca.crt and ca.key. Like certs_issue, returns 0, or -1 with a sentence in error;
// then no file was made.
int certs_make_authority(const char *directory, unsigned days, char *error, size_t error_bytes);

// Checks what certs_issue would refuse whatever the authority is: the names, and files that exist
// in OUT. Returns as certs_make_authority.
int certs_check(const struct certs_request *request, const char *out, char *error,
                size_t error_bytes);

// Makes OUT/tls.crt, tls.key and ca.crt, signed by the authority in directory. The certificate ends
// with its authority at the latest. An authority that does not hold now is an error.
int certs_issue(const char *directory, struct certs_request *request, const char *out, char *error,
                size_t error_bytes);

#endif
