// SPDX-License-Identifier: Apache-2.0
//
// Implements credentials.h with the gRPC C core 1.51. gRPC verifies the certificate chain and the
// host's name. This file checks the URI in the coordinator's certificate, in a function that gRPC
// calls after all other checks. The credentials of a channel never change, so new certificate files
// need a new channel.

#include "worker/control/credentials.h"

#include "base/text.h"
#include "base/tls_files.h"
#include "base/tls_names.h"
#include "protos/limits.h"
#include "worker/control/probe.h"

#include <grpc/grpc_security.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct control_credentials {
    // set at open, then constant
    char directory[LOCKSTEP_TEXT_BYTES];
    char job[LOCKSTEP_JOB_NAME_BYTES];
    // control thread only
    char host[LOCKSTEP_ADDRESS_BYTES]; // The address that is tried now.
    uint16_t port;
    struct tls_files files; // The files in use.
    struct tls_stamp refused; // The stamp of the last files that could not be used.
    uint64_t look_s; // Unix time at which control_credentials_expired reads the files next.
    struct tls_stamp unusable; // The stamp of the last files that it could not use.
    bool told; // True if it has said so of these files.
};

// Pause between two looks at files that cannot be used. Files are reported at the second look at
// the same files, because at the first only some of them may have been replaced.
#define CREDENTIALS_LOOK_S 5

// gRPC 1.51 supports a lowest TLS version, but its C API has no function for it. This is the C++
// member function that gRPC's own tests call. If a later gRPC lacks it, the library does not link,
// so the setting cannot be lost silently.
void control_set_min_tls_version(
    grpc_channel_credentials *credentials,
    grpc_tls_version
        version) __asm__("_ZN20grpc_ssl_credentials19set_min_tls_versionE16grpc_tls_version");

// Returns 0 if the certificate is a coordinator's, else -1.
static int verify_peer(const char *target, const char *pem, void *context)
{
    (void)target;
    (void)context;
    return tls_files_is_coordinator(pem) ? 0 : -1;
}

grpc_channel_credentials *control_credentials_make(struct control_credentials *credentials)
{
    if (!credentials)
        return grpc_insecure_credentials_create();
    grpc_ssl_pem_key_cert_pair pair = {credentials->files.key, credentials->files.certificate};
    const grpc_ssl_verify_peer_options options = {.verify_peer_callback = verify_peer};
    grpc_channel_credentials *made =
        grpc_ssl_credentials_create_ex(credentials->files.authority, &pair, &options, NULL);
    control_set_min_tls_version(made, TLS1_3);
    return made;
}

bool control_credentials_renew(struct control_credentials *credentials)
{
    struct tls_stamp stamp;
    struct tls_files files;
    char text[LOCKSTEP_TEXT_BYTES];
    if (!credentials)
        return false;
    tls_files_look(credentials->directory, &stamp);
    if (tls_files_stamps_equal(&stamp, &credentials->files.stamp) ||
        tls_files_stamps_equal(&stamp, &credentials->refused))
        return false;
    if (tls_files_load(credentials->directory, credentials->job, &files, text, sizeof(text)) < 0) {
        // Perhaps only some of the files were replaced; the next change is noticed.
        credentials->refused = files.stamp;
        return false;
    }
    tls_files_free(&credentials->files);
    credentials->files = files;
    credentials->look_s = files.expires_s;
    return true;
}

bool control_credentials_expired(struct control_credentials *credentials, char *text,
                                 size_t text_bytes)
{
    struct tls_files files;
    char fault[LOCKSTEP_TEXT_BYTES];
    const uint64_t now = (uint64_t)time(NULL);
    if (!credentials || now < credentials->look_s)
        return false;
    if (tls_files_load(credentials->directory, credentials->job, &files, fault, sizeof(fault)) ==
        0) {
        credentials->look_s = files.expires_s;
        tls_files_free(&files);
        return false;
    }
    const bool again = tls_files_stamps_equal(&files.stamp, &credentials->unusable);
    const bool tells = again && !credentials->told;
    credentials->look_s = now + CREDENTIALS_LOOK_S;
    credentials->unusable = files.stamp;
    credentials->told = again;
    if (tells)
        snprintf(text, text_bytes,
                 TLS_FILES_OF_WORKER "%s. Training goes on, but this worker cannot go back to a "
                                     "coordinator that restarts",
                 fault);
    return tells;
}

bool control_credentials_explain(const struct control_credentials *credentials, bool *mismatch,
                                 char *text, size_t text_bytes)
{
    const struct control_probe probe = {
        .directory = credentials->directory,
        .job = credentials->job,
        .host = credentials->host,
        .port = credentials->port,
        .files = &credentials->files,
        .timeout_ms = CONTROL_PROBE_MS,
    };
    return control_probe(&probe, mismatch, text, text_bytes);
}

const char *control_credentials_host(const struct control_credentials *credentials)
{
    return credentials->host;
}

void control_credentials_aim(struct control_credentials *credentials, const char *host,
                             uint16_t port)
{
    if (!credentials)
        return;
    text_copy(credentials->host, sizeof(credentials->host), host);
    credentials->port = port;
}

int control_credentials_open(const char *directory, const char *job,
                             struct control_credentials **result, char *error, size_t error_bytes)
{
    char fault[LOCKSTEP_TEXT_BYTES];
    struct text text;
    struct control_credentials *credentials = calloc(1, sizeof(*credentials));
    if (!credentials) {
        text_copy(error, error_bytes, "no memory for certificates");
        return -1;
    }
    text_copy(credentials->directory, sizeof(credentials->directory), directory);
    text_copy(credentials->job, sizeof(credentials->job), job);
    if (tls_files_load(directory, job, &credentials->files, fault, sizeof(fault)) < 0) {
        text_init(&text, error, error_bytes);
        text_append(&text, TLS_FILES_OF_WORKER "%s", fault);
        free(credentials);
        return -1;
    }
    credentials->look_s = credentials->files.expires_s;
    *result = credentials;
    return 0;
}

void control_credentials_close(struct control_credentials *credentials)
{
    if (!credentials)
        return;
    tls_files_free(&credentials->files);
    free(credentials);
}
