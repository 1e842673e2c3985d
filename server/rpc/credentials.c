// SPDX-License-Identifier: Apache-2.0
//
// credentials.h over the core of gRPC 1.51. gRPC asks for the certificate at the beginning of every
// handshake (the "config fetcher"): if three calls of stat find no change, the answer is
// "unchanged".
//
// If files are replaced one after the other, a handshake may see some new and some old files. Files
// that cannot be used are logged once and ignored. They are read again at the next handshake after
// another change.

#include "server/rpc/credentials.h"

#include "base/mutex.h"
#include "base/text.h"
#include "base/tls_files.h"
#include "base/tls_names.h"
#include "protos/limits.h"
#include "server/http/tls_limits.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rpc_credentials {
    // set at open, then constant
    const char *directory;
    struct log *log;

    // guarded by mutex
    struct mutex mutex;
    struct tls_files files; // The files in use.
    struct tls_stamp refused; // The stamp of files that could not be used.
    // True while a listener is opened. It has no certificate yet, so "unchanged" would be a wrong
    // answer.
    bool binding;
    struct rpc_credentials_counts counts;
};

// ---- files ------------------------------------------------------------------------------------

static uint32_t certificates_in(const char *pem)
{
    uint32_t count = 0;
    while ((pem = strstr(pem, "-----BEGIN CERT"))) {
        count++;
        pem++;
    }
    return count;
}

// Same as tls_files_load. It also checks that the authorities' names fit into the server's part of
// a handshake.
static int load(const char *directory, struct tls_files *files, char *error, size_t error_bytes)
{
    if (tls_files_load(directory, NULL, files, error, error_bytes) < 0)
        return -1;
    const uint32_t count = certificates_in(files->authority);
    if (count <= TLS_AUTHORITIES)
        return 0;
    snprintf(error, error_bytes, "%s/%s: holds %u authorities; %d are the most", directory,
             TLS_AUTHORITY_FILE, count, TLS_AUTHORITIES);
    const struct tls_stamp stamp = files->stamp;
    tls_files_free(files);
    files->stamp = stamp;
    return -1;
}

// Returns true if new files are in use now.
static bool reload_locked(struct rpc_credentials *credentials)
{
    struct tls_stamp stamp;
    struct tls_files files;
    char text[LOCKSTEP_TEXT_BYTES];
    mutex_assert_held(&credentials->mutex);
    tls_files_look(credentials->directory, &stamp);
    if (tls_files_stamps_equal(&stamp, &credentials->files.stamp) ||
        tls_files_stamps_equal(&stamp, &credentials->refused))
        return false;
    if (load(credentials->directory, &files, text, sizeof(text)) < 0) {
        credentials->refused = files.stamp;
        credentials->counts.reload_failures++;
        log_event(credentials->log, LOG_LEVEL_WARN, "tls_reload_failed", "text=%s hint=%s", text,
                  "the certificate that was in use before stays in use");
        return false;
    }
    tls_files_free(&credentials->files);
    credentials->files = files;
    credentials->counts.reloads++;
    credentials->counts.expires_s = files.expires_s;
    log_event(credentials->log, LOG_LEVEL_INFO, "tls_reloaded",
              "directory=%s expires_unix=%" PRIu64, credentials->directory, files.expires_s);
    return true;
}

// gRPC calls this function while it holds its own locks.
static grpc_ssl_certificate_config_reload_status fetch(void *context,
                                                       grpc_ssl_server_certificate_config **config)
{
    struct rpc_credentials *credentials = context;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    mutex_lock(&credentials->mutex);
    if (reload_locked(credentials) || credentials->binding) {
        const grpc_ssl_pem_key_cert_pair pair = {credentials->files.key,
                                                 credentials->files.certificate};
        *config = grpc_ssl_server_certificate_config_create(credentials->files.authority, &pair, 1);
        status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    }
    mutex_unlock(&credentials->mutex);
    return status;
}

// ---- listening --------------------------------------------------------------------------------

static void set_binding(struct rpc_credentials *credentials, bool binding)
{
    mutex_lock(&credentials->mutex);
    credentials->binding = binding;
    mutex_unlock(&credentials->mutex);
}

int rpc_credentials_bind(struct rpc_credentials *credentials, grpc_server *server,
                         const char *address)
{
    grpc_server_credentials *made;
    if (credentials) {
        made = grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, fetch, credentials));
        set_binding(credentials, true);
    } else {
        made = grpc_insecure_server_credentials_create();
    }
    int port = grpc_server_add_http2_port(server, address, made);
    grpc_server_credentials_release(made);
    if (credentials)
        set_binding(credentials, false);
    return port;
}

// ---- rights of a peer -------------------------------------------------------------------------

bool rpc_credentials_allow(struct rpc_credentials *credentials, grpc_call *call, const char *job)
{
    if (!credentials)
        return true;
    grpc_auth_context *context = grpc_call_auth_context(call);
    grpc_auth_property_iterator list =
        grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
    const grpc_auth_property *name;
    bool allowed = false;
    while (!allowed && (name = grpc_auth_property_iterator_next(&list)))
        allowed = strlen(name->value) == name->value_length && tls_name_is_worker(name->value, job);
    grpc_auth_context_release(context);
    return allowed;
}

// ---- reasons in gRPC's log --------------------------------------------------------------------

// Maps the error texts of OpenSSL, of either side, to their meaning.
const char *rpc_credentials_failure(const char *line)
{
    static const char *const meanings[][2] = {
        {"peer did not return a certificate", "a client showed no certificate"},
        {"wrong version number", "a client does not speak TLS"},
        {"http request", "a client does not speak TLS"},
        {"packet length too long", "a client does not speak TLS"},
        {"unsupported protocol", "a client speaks no TLS 1.3"},
        {"no shared cipher", "a client speaks no TLS 1.3"},
        {"excessive message size", "a client's certificates are too large"},
        {"unknown ca", "a client refused our certificate: its ca.crt has not signed it"},
        {"certificate expired", "a client refused our certificate: it has expired for it"},
        {"bad certificate", "a client refused our certificate"},
        {"certificate unknown", "a client refused our certificate"},
    };
    if (!strstr(line, "Handshake failed"))
        return NULL;
    if (strstr(line, "certificate verify failed"))
        return tls_limits_refusal();
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (strstr(line, meanings[i][0]))
            return meanings[i][1];
    }
    return "a handshake failed";
}

// ---- open and close ---------------------------------------------------------------------------

// The C API of gRPC 1.51 cannot set the lowest TLS version. It can only set the ciphers of versions
// below 1.3. With a cipher that needs a key which nobody has, no handshake of such a version
// succeeds. gRPC reads the variable once, before the first handshake.
static void allow_only_tls_1_3(void)
{
    setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1);
}

int rpc_credentials_open(const char *directory, struct log *log, struct rpc_credentials **result,
                         char *error, size_t error_bytes)
{
    struct rpc_credentials *credentials = calloc(1, sizeof(*credentials));
    if (!credentials) {
        snprintf(error, error_bytes, "no memory for certificates");
        return -1;
    }
    allow_only_tls_1_3();
    credentials->directory = directory;
    credentials->log = log;
    if (load(directory, &credentials->files, error, error_bytes) < 0) {
        free(credentials);
        return -1;
    }
    credentials->counts.expires_s = credentials->files.expires_s;
    mutex_init(&credentials->mutex);
    *result = credentials;
    return 0;
}

struct rpc_credentials_counts rpc_credentials_counts(struct rpc_credentials *credentials)
{
    struct rpc_credentials_counts counts = {0};
    if (!credentials)
        return counts;
    mutex_lock(&credentials->mutex);
    counts = credentials->counts;
    mutex_unlock(&credentials->mutex);
    return counts;
}

void rpc_credentials_close(struct rpc_credentials *credentials)
{
    if (!credentials)
        return;
    tls_files_free(&credentials->files);
    mutex_fini(&credentials->mutex);
    free(credentials);
}
