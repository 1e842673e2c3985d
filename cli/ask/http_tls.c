// SPDX-License-Identifier: Apache-2.0
//
// http_tls.h over OpenSSL 3. Main thread.

#include "cli/ask/http_tls.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/tls_context.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct http_tls {
    int fd; // borrowed
    SSL_CTX *context;
    SSL *ssl;
};

// ---- one step of OpenSSL ------------------------------------------------------------------------

struct step {
    int (*run)(struct http_tls *tls, struct step *step);
    void *bytes;
    int size;
};

static int run_connect(struct http_tls *tls, struct step *step)
{
    (void)step;
    return SSL_connect(tls->ssl);
}

static int run_write(struct http_tls *tls, struct step *step)
{
    return SSL_write(tls->ssl, step->bytes, step->size);
}

static int run_read(struct http_tls *tls, struct step *step)
{
    return SSL_read(tls->ssl, step->bytes, step->size);
}

// Blocks SIGPIPE during one step. OpenSSL writes without MSG_NOSIGNAL, and the signal cannot be
// ignored in general, because the program may print to a pipe.
static int run_without_sigpipe(struct http_tls *tls, struct step *step)
{
    static const struct timespec at_once = {0};
    sigset_t pipe_only, before, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    sigprocmask(SIG_BLOCK, &pipe_only, &before);
    const int result = step->run(tls, step);
    const int saved = errno;
    if (!sigismember(&pending, SIGPIPE))
        (void)sigtimedwait(&pipe_only, NULL, &at_once);
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = saved;
    return result;
}

// Returns 1 if the socket is ready, 0 if the deadline has passed.
static int wait_for(const struct http_tls *tls, int error, uint64_t deadline_ms)
{
    const uint64_t now_ms = clock_now_ms();
    struct pollfd ready = {.fd = tls->fd,
                           .events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT};
    return now_ms < deadline_ms && poll(&ready, 1, (int)(deadline_ms - now_ms)) > 0;
}

// Repeats the step until it is done, has failed, or the deadline has passed. Returns the result of
// the step, or below 0 with errno. A connection that closes without a TLS alert counts as ended.
static int drive(struct http_tls *tls, struct step *step, uint64_t deadline_ms)
{
    for (;;) {
        ERR_clear_error();
        errno = 0;
        const int result = run_without_sigpipe(tls, step);
        const int saved = errno;
        const int error = SSL_get_error(tls->ssl, result);
        if (result > 0 || error == SSL_ERROR_ZERO_RETURN)
            return result > 0 ? result : 0;
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
            errno = saved != 0 ? saved : EPROTO;
            return -1;
        }
        if (!wait_for(tls, error, deadline_ms)) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
}

// ---- trusted authorities ------------------------------------------------------------------------

static bool trust_file(SSL_CTX *context, const char *path, char *error, size_t error_bytes)
{
    if (access(path, R_OK) < 0)
        snprintf(error, error_bytes, "--cacert %s cannot be read: %s", path, strerror(errno));
    else if (SSL_CTX_load_verify_file(context, path) == 1)
        return true;
    else
        snprintf(error, error_bytes, "--cacert %s holds no certificate in PEM", path);
    return false;
}

static bool prepare(struct http_tls *tls, const char *host, const char *cacert, char *error,
                    size_t error_bytes)
{
    text_copy(error, error_bytes, "no memory for TLS");
    tls->context = tls_context_new(false);
    if (!tls->context)
        return false;
    if (cacert[0] && !trust_file(tls->context, cacert, error, error_bytes))
        return false;
    if (!cacert[0])
        SSL_CTX_set_default_verify_paths(tls->context);
    tls->ssl = SSL_new(tls->context);
    if (!tls->ssl)
        return false;
    X509_VERIFY_PARAM *parameters = SSL_get0_param(tls->ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(parameters, host) != 1) {
        X509_VERIFY_PARAM_set1_host(parameters, host, 0);
        SSL_set_tlsext_host_name(tls->ssl, host);
    }
    SSL_set_verify(tls->ssl, SSL_VERIFY_PEER, NULL);
    // HTTP itself says where the answer ends.
    SSL_set_options(tls->ssl, SSL_OP_IGNORE_UNEXPECTED_EOF);
    return SSL_set_fd(tls->ssl, tls->fd) == 1;
}

static void explain(const struct http_tls *tls, const char *host, const char *cacert, char *error,
                    size_t error_bytes)
{
    const long code = SSL_get_verify_result(tls->ssl);
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    if (code == X509_V_ERR_HOSTNAME_MISMATCH || code == X509_V_ERR_IP_ADDRESS_MISMATCH)
        snprintf(error, error_bytes, "its certificate is not for '%s'", host);
    else if (code != X509_V_OK)
        snprintf(error, error_bytes, "its certificate is not believed (%s)%s",
                 X509_verify_cert_error_string(code),
                 cacert[0] ? "" : "; --cacert names the authority that signed it");
    else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG)
        snprintf(error, error_bytes, "it does not speak TLS: is it started with --http-tls?");
    else
        snprintf(error, error_bytes, "the TLS handshake failed: %s",
                 errno == ETIMEDOUT ? strerror(errno) : "the other side ended it");
}

// ---- open, use, close ---------------------------------------------------------------------------

struct http_tls *http_tls_open(int fd, const char *host, const char *cacert, uint64_t deadline_ms,
                               char *error, size_t error_bytes)
{
    struct http_tls *tls = calloc(1, sizeof(*tls));
    struct step step = {.run = run_connect};
    if (!tls) {
        text_copy(error, error_bytes, "no memory for TLS");
        return NULL;
    }
    tls->fd = fd;
    if (prepare(tls, host, cacert, error, error_bytes)) {
        if (drive(tls, &step, deadline_ms) > 0)
            return tls;
        explain(tls, host, cacert, error, error_bytes);
    }
    http_tls_close(tls);
    return NULL;
}

int http_tls_send(struct http_tls *tls, const char *bytes, size_t size, uint64_t deadline_ms)
{
    if (size > INT_MAX) {
        errno = EMSGSIZE;
        return -1;
    }
    // OpenSSL writes all bytes or waits.
    struct step step = {run_write, (void *)(uintptr_t)bytes, (int)size};
    return drive(tls, &step, deadline_ms) > 0 ? 0 : -1;
}

ssize_t http_tls_receive(struct http_tls *tls, char *bytes, size_t size, uint64_t deadline_ms)
{
    struct step step = {run_read, bytes, size > INT_MAX ? INT_MAX : (int)size};
    return drive(tls, &step, deadline_ms);
}

void http_tls_close(struct http_tls *tls)
{
    if (!tls)
        return;
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    ERR_clear_error();
    free(tls);
}
