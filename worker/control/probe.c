// SPDX-License-Identifier: Apache-2.0
//
// Implements probe.h with OpenSSL. In TLS 1.3 the client's part of the handshake ends before the
// server has checked the client's certificate, so the client learns the server's verdict from a
// read. Control thread, whose signals are blocked, SIGPIPE included.

#include "worker/control/probe.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/tls_context.h"
#include "base/tls_names.h"
#include "protos/limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// Most milliseconds to wait for the server's verdict on this worker's certificate.
#define ANSWER_WAIT_MS 500

struct attempt {
    const struct control_probe *probe;
    uint64_t deadline_ms;
    SSL_CTX *context;
    SSL *ssl;
    int fd;
    bool plaintext; // True if the coordinator does not speak TLS.
    bool doubtful; // True if a certificate or its authority is refused, but not for its name.
};

// ---- the connection -----------------------------------------------------------------------------

// True if an event came before the deadline.
static bool wait_for(int fd, short events, uint64_t deadline_ms)
{
    const uint64_t now_ms = clock_now_ms();
    struct pollfd ready = {.fd = fd, .events = events};
    return now_ms < deadline_ms && poll(&ready, 1, (int)(deadline_ms - now_ms)) > 0;
}

static int connect_one(const struct addrinfo *candidate, uint64_t deadline_ms)
{
    int failure = 0;
    socklen_t size = sizeof(failure);
    const int fd = socket(candidate->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, candidate->ai_addr, candidate->ai_addrlen) == 0 ||
        (errno == EINPROGRESS && wait_for(fd, POLLOUT, deadline_ms) &&
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) == 0 && failure == 0))
        return fd;
    close(fd);
    return -1;
}

static int connect_to(const struct attempt *attempt)
{
    const char *host = attempt->probe->host;
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int fd = -1;
    snprintf(service, sizeof(service), "%u", attempt->probe->port);
    if (getaddrinfo(strcmp(host, "localhost") == 0 ? address_loopback() : host, service, &hints,
                    &found))
        return -1;
    for (const struct addrinfo *next = found; next && fd < 0; next = next->ai_next)
        fd = connect_one(next, attempt->deadline_ms);
    freeaddrinfo(found);
    return fd;
}

// ---- this worker's side -------------------------------------------------------------------------

static bool prepare(struct attempt *attempt)
{
    static const unsigned char protocols[] = {2, 'h', '2'};
    const char *host = attempt->probe->host;
    attempt->context = tls_context_new(false);
    if (!attempt->context || !tls_context_show(attempt->context, attempt->probe->files) ||
        !tls_context_trust(attempt->context, attempt->probe->files->authority))
        return false;
    attempt->ssl = SSL_new(attempt->context);
    if (!attempt->ssl)
        return false;
    X509_VERIFY_PARAM *parameters = SSL_get0_param(attempt->ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(parameters, host) != 1)
        X509_VERIFY_PARAM_set1_host(parameters, host, 0);
    SSL_set_verify(attempt->ssl, SSL_VERIFY_PEER, NULL);
    SSL_set_alpn_protos(attempt->ssl, protocols, sizeof(protocols));
    return SSL_set_fd(attempt->ssl, attempt->fd) == 1;
}

// Repeats a step of OpenSSL until it is done, has failed, or the deadline has passed. Returns
// SSL_ERROR_NONE if the step is done, else OpenSSL's error.
static int drive(struct attempt *attempt, int (*step)(SSL *ssl), uint64_t deadline_ms)
{
    for (;;) {
        ERR_clear_error();
        const int result = step(attempt->ssl);
        const int error = result > 0 ? SSL_ERROR_NONE : SSL_get_error(attempt->ssl, result);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            return error;
        if (!wait_for(attempt->fd, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline_ms))
            return error;
    }
}

// ---- the reason of a failure --------------------------------------------------------------------

static bool refused_by_us(struct attempt *attempt, struct text *text)
{
    const struct control_probe *probe = attempt->probe;
    const long code = SSL_get_verify_result(attempt->ssl);
    attempt->doubtful = code != X509_V_OK && code != X509_V_ERR_HOSTNAME_MISMATCH &&
                        code != X509_V_ERR_IP_ADDRESS_MISMATCH;
    switch (code) {
    case X509_V_OK:
        return false;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        text_append(text, "the coordinator's certificate, or one that signed it, has expired");
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        text_append(text, "the coordinator's certificate is not valid yet; are the clocks right?");
        break;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        text_append(text,
                    "the coordinator's certificate is not for '%s': issue one with --name %s, or "
                    "connect by a name that it has",
                    probe->host, probe->host);
        break;
    default:
        text_append(text,
                    "the coordinator's certificate is not signed by an authority in %s/%s (%s)",
                    probe->directory, TLS_AUTHORITY_FILE, X509_verify_cert_error_string(code));
        break;
    }
    return true;
}

static bool is_no_coordinator(const struct attempt *attempt, struct text *text)
{
    char *pem = NULL;
    X509 *leaf = SSL_get1_peer_certificate(attempt->ssl);
    BIO *bio = BIO_new(BIO_s_mem());
    bool stranger = false;
    if (leaf && bio && PEM_write_bio_X509(bio, leaf) == 1 && BIO_write(bio, "", 1) == 1 &&
        BIO_get_mem_data(bio, &pem) > 0)
        stranger = !tls_files_is_coordinator(pem);
    BIO_free(bio);
    X509_free(leaf);
    if (stranger)
        text_append(text,
                    "the certificate that answers there is not a coordinator's: its alternative "
                    "names have no URI %s",
                    TLS_NAME_COORDINATOR);
    return stranger;
}

// Appends the peer's reason, from OpenSSL's last error. Returns true if the error is a refusal.
static bool refused_by_peer(struct attempt *attempt, struct text *text)
{
    const unsigned long error = ERR_peek_last_error();
    const char *words = ERR_reason_error_string(error);
    const int reason = ERR_GET_REASON(error);
    if (ERR_GET_LIB(error) != ERR_LIB_SSL)
        return false;
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG) {
        attempt->plaintext = true;
        text_append(text,
                    "it does not speak TLS: is it started with --tls-dir? This worker has "
                    "LOCKSTEP_TLS_DIR=%s (config.tls_dir)",
                    attempt->probe->directory);
    } else if (reason == SSL_R_UNSUPPORTED_PROTOCOL || reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION)
        text_append(text, "it does not speak TLS 1.3");
    else if (reason > SSL_AD_REASON_OFFSET) {
        attempt->doubtful = true;
        text_append(text, "the coordinator refused the certificate %s/%s (%s)",
                    attempt->probe->directory, TLS_CERTIFICATE_FILE, words ? words : "no reason");
    } else
        return false;
    return true;
}

static int read_one(SSL *ssl)
{
    char byte;
    return SSL_read(ssl, &byte, 1);
}

// A coordinator that accepts this worker's certificate sends bytes at once. A coordinator that
// refuses the certificate closes the connection, and this worker may or may not get the reason,
// because gRPC closes before OpenSSL's alert is sent.
static bool refused_after(struct attempt *attempt, struct text *text)
{
    const struct control_probe *probe = attempt->probe;
    const uint64_t patience_ms = clock_now_ms() + ANSWER_WAIT_MS;
    const int error = drive(
        attempt, read_one, patience_ms < attempt->deadline_ms ? patience_ms : attempt->deadline_ms);
    if (error == SSL_ERROR_NONE || error == SSL_ERROR_WANT_READ || refused_by_peer(attempt, text))
        return error != SSL_ERROR_NONE && error != SSL_ERROR_WANT_READ;
    attempt->doubtful = true;
    text_append(text,
                "the coordinator hung up when it had seen the certificate %s/%s: is the authority "
                "that signed it in the coordinator's %s, and do the clocks agree? Its log has a "
                "line tls_handshake_failed",
                probe->directory, TLS_CERTIFICATE_FILE, TLS_AUTHORITY_FILE);
    return true;
}

// This worker's files could be used when they were loaded. If they cannot be used now, the sentence
// about the refusal would mislead: the coordinator hangs up without a reason, and OpenSSL's result
// does not say whether this worker's authority has expired or the coordinator's certificate.
// Replaces the sentence in bytes only if the files cannot be used.
static void blame_own_files(const struct control_probe *probe, char *bytes, size_t capacity)
{
    char fault[LOCKSTEP_TEXT_BYTES];
    struct tls_files files;
    if (tls_files_load(probe->directory, probe->job, &files, fault, sizeof(fault)) < 0)
        snprintf(bytes, capacity, TLS_FILES_OF_WORKER "%s", fault);
    tls_files_free(&files);
}

static bool explain(struct attempt *attempt, struct text *text)
{
    attempt->fd = connect_to(attempt);
    if (attempt->fd < 0 || !prepare(attempt))
        return false;
    if (drive(attempt, SSL_connect, attempt->deadline_ms) != SSL_ERROR_NONE)
        return refused_by_us(attempt, text) || refused_by_peer(attempt, text);
    if (is_no_coordinator(attempt, text))
        return true;
    return refused_after(attempt, text);
}

static void finish(struct attempt *attempt)
{
    SSL_free(attempt->ssl);
    SSL_CTX_free(attempt->context);
    if (attempt->fd >= 0)
        close(attempt->fd);
    ERR_clear_error();
}

bool control_probe(const struct control_probe *probe, bool *plaintext, char *bytes, size_t capacity)
{
    struct attempt attempt = {
        .probe = probe, .deadline_ms = clock_now_ms() + probe->timeout_ms, .fd = -1};
    struct text text;
    text_init(&text, bytes, capacity);
    const bool refused = explain(&attempt, &text);
    *plaintext = attempt.plaintext;
    finish(&attempt);
    if (refused && attempt.doubtful)
        blame_own_files(probe, bytes, capacity);
    return refused;
}

bool control_probe_speaks_tls(const char *host, uint16_t port, uint64_t timeout_ms)
{
    const struct control_probe probe = {.host = host, .port = port, .timeout_ms = timeout_ms};
    struct attempt attempt = {
        .probe = &probe, .deadline_ms = clock_now_ms() + timeout_ms, .fd = -1};
    bool speaks = false;
    attempt.fd = connect_to(&attempt);
    attempt.context = tls_context_new(false);
    attempt.ssl = attempt.fd >= 0 && attempt.context ? SSL_new(attempt.context) : NULL;
    if (attempt.ssl && SSL_set_fd(attempt.ssl, attempt.fd) == 1) {
        SSL_set_verify(attempt.ssl, SSL_VERIFY_NONE, NULL);
        speaks = drive(&attempt, SSL_connect, attempt.deadline_ms) == SSL_ERROR_NONE ||
                 ERR_GET_REASON(ERR_peek_last_error()) > SSL_AD_REASON_OFFSET;
    }
    finish(&attempt);
    return speaks;
}
