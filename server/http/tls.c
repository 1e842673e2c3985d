// SPDX-License-Identifier: Apache-2.0
//
// TLS of the HTTP side: the coordinator's own certificate, no certificate is asked of clients.
// Files that change are taken up by the next connection; those that cannot be used change nothing
// and are told in the log once. HTTP thread, but for open and close. See parts.h.

#include "server/http/tls.h"

#include "base/tls_context.h"
#include "server/http/parts.h"

#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>

struct http_tls {
    // set at open, then constant
    const char *directory;
    struct log *log;
    // HTTP thread only
    SSL_CTX *context;
    struct tls_stamp stamp; // The stamp of the files that were tried last.
};

// Tickets and sessions would be remembered for clients that hardly ever come back.
static SSL_CTX *make_context(const struct tls_files *files)
{
    SSL_CTX *context = tls_context_new(true);
    if (!context || !tls_context_show(context, files)) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    return context;
}

// Takes up what the files hold now. False: they cannot be used, and error says why.
static bool load(struct http_tls *tls, char *error, size_t error_bytes)
{
    struct tls_files files;
    const int status = tls_files_load(tls->directory, NULL, &files, error, error_bytes);
    SSL_CTX *context = status == 0 ? make_context(&files) : NULL;
    tls->stamp = files.stamp;
    tls_files_free(&files);
    if (status < 0)
        return false;
    if (!context) {
        snprintf(error, error_bytes, "OpenSSL does not take the certificates in %s",
                 tls->directory);
        return false;
    }
    SSL_CTX_free(tls->context); // Connections that stand hold it.
    tls->context = context;
    return true;
}

struct ssl_st *http_tls_accept(struct http_tls *tls)
{
    struct tls_stamp stamp;
    char text[LOCKSTEP_TEXT_BYTES];
    tls_files_look(tls->directory, &stamp);
    if (!tls_files_stamps_equal(&stamp, &tls->stamp) && !load(tls, text, sizeof(text)))
        log_event(tls->log, LOG_LEVEL_WARN, "tls_reload_failed", "text=%s hint=%s", text,
                  "HTTP goes on with the certificate that was in use before");
    return SSL_new(tls->context);
}

struct http_tls *http_tls_open(const char *directory, struct log *log, char *error,
                               size_t error_bytes)
{
    struct http_tls *tls = calloc(1, sizeof(*tls));
    if (!tls) {
        snprintf(error, error_bytes, "no memory for certificates");
        return NULL;
    }
    tls->directory = directory;
    tls->log = log;
    if (load(tls, error, error_bytes))
        return tls;
    free(tls);
    return NULL;
}

void http_tls_close(struct http_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}
