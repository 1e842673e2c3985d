// SPDX-License-Identifier: Apache-2.0
//
// TLS of the HTTP side. It shows the coordinator's certificate, and asks clients for none. When the
// files change, the next connection uses the new ones. Files that cannot be used are logged once
// and ignored. HTTP thread, except for open and close. See parts.h.

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

// Turns off tickets and sessions, because clients rarely come back to use them.
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

// Loads the current files. Returns false, with the reason in error, if they cannot be used.
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
    SSL_CTX_free(tls->context); // Open connections have references to it.
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
