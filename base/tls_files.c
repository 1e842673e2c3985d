// SPDX-License-Identifier: Apache-2.0
// Reads the files, then checks them; tls_files.h has the contract. Every check has its own error
// sentence. The order of the checks is that in which a person would look: can the files be read, do
// key and certificate belong together, are they valid now, who signed the certificate, and what is
// it for. Any thread.

#include "base/tls_files.h"

#include "base/text.h"
#include "base/tls_names.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {TLS_CERTIFICATE_FILE, TLS_KEY_FILE, TLS_AUTHORITY_FILE};

// The certificates that are being checked.
struct check {
    const char *directory;
    const char *job; // NULL: the certificate must be a coordinator's.
    X509 *leaf;
    STACK_OF(X509) * chain; // The certificates that follow the first one in tls.crt.
    STACK_OF(X509) * authorities;
    EVP_PKEY *key;
    char *error;
    size_t error_bytes;
};

// Writes "DIRECTORY/FILE: sentence" to the error. Returns -1.
static int fault(struct check *check, const char *file, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int fault(struct check *check, const char *file, const char *format, ...)
{
    struct text text;
    va_list arguments;
    text_init(&text, check->error, check->error_bytes);
    text_append(&text, "%s/%s: ", check->directory, file);
    va_start(arguments, format);
    text_append_v(&text, format, arguments);
    va_end(arguments);
    ERR_clear_error();
    return -1;
}

// ---- files --------------------------------------------------------------------------------------

static int open_regular(struct check *check, const char *file, size_t *size)
{
    char path[PATH_MAX];
    struct stat status;
    if (snprintf(path, sizeof(path), "%s/%s", check->directory, file) >= (int)sizeof(path))
        return fault(check, file, "the path is too long");
    // Opening a FIFO would block without O_NONBLOCK.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &status) < 0) {
        fault(check, file, "cannot be read: %s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        fault(check, file, "is not a file");
    } else if (status.st_size > TLS_FILE_BYTES) {
        fault(check, file, "is larger than %d KiB", TLS_FILE_BYTES / 1024);
    } else {
        *size = (size_t)status.st_size;
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

// *text is given to the caller.
static int read_file(struct check *check, const char *file, char **text)
{
    size_t size = 0;
    size_t got = 0;
    ssize_t part = 1;
    int fd = open_regular(check, file, &size);
    if (fd < 0)
        return -1;
    *text = calloc(1, size + 1);
    while (*text && got < size && (part = read(fd, *text + got, size - got)) > 0)
        got += (size_t)part;
    close(fd);
    if (!*text)
        return fault(check, file, "no memory to read it");
    if (part < 0)
        return fault(check, file, "cannot be read: %s", strerror(errno));
    return 0;
}

static uint64_t nanoseconds(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

void tls_files_look(const char *directory, struct tls_stamp *stamp)
{
    memset(stamp, 0, sizeof(*stamp));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[PATH_MAX];
        struct stat status;
        if (snprintf(path, sizeof(path), "%s/%s", directory, names[i]) >= (int)sizeof(path) ||
            stat(path, &status) < 0)
            continue;
        stamp->file[i].device = (uint64_t)status.st_dev;
        stamp->file[i].inode = (uint64_t)status.st_ino;
        stamp->file[i].size = (uint64_t)status.st_size;
        stamp->file[i].modified_ns = nanoseconds(&status.st_mtim);
        stamp->file[i].changed_ns = nanoseconds(&status.st_ctim);
    }
}

bool tls_files_stamps_equal(const struct tls_stamp *a, const struct tls_stamp *b)
{
    return memcmp(a, b, sizeof(*a)) == 0; // The struct has only 64-bit words, so it has no padding.
}

// ---- PEM ----------------------------------------------------------------------------------------

// Returns all certificates of a text in their order, or NULL if there are none or one is malformed.
static STACK_OF(X509) * parse_certificates(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    STACK_OF(X509) *list = sk_X509_new_null();
    X509 *next;
    while (bio && list && (next = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        if (sk_X509_push(list, next) == 0)
            X509_free(next);
    }
    // OpenSSL reports the end of the text as an error, too.
    const bool whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    BIO_free(bio);
    if (list && whole && sk_X509_num(list) > 0)
        return list;
    sk_X509_pop_free(list, X509_free);
    return NULL;
}

// Refuses a passphrase, because there is nobody to type one.
static int no_passphrase(char *text, int size, int writing, void *context)
{
    (void)text;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

static EVP_PKEY *parse_key(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
    BIO_free(bio);
    return key;
}

static int parse(struct check *check, const struct tls_files *files)
{
    check->chain = parse_certificates(files->certificate);
    if (!check->chain)
        return fault(check, TLS_CERTIFICATE_FILE, "holds no certificate in PEM, or a damaged one");
    check->leaf = sk_X509_shift(check->chain);
    check->authorities = parse_certificates(files->authority);
    if (!check->authorities)
        return fault(check, TLS_AUTHORITY_FILE, "holds no certificate in PEM, or a damaged one");
    check->key = parse_key(files->key);
    if (!check->key && strstr(files->key, "ENCRYPTED"))
        return fault(check, TLS_KEY_FILE, "is protected by a passphrase; store it without one");
    if (!check->key)
        return fault(check, TLS_KEY_FILE, "holds no private key in PEM, or a damaged one");
    return 0;
}

// ---- checks -------------------------------------------------------------------------------------

static int check_key(struct check *check)
{
    if (X509_check_private_key(check->leaf, check->key) == 1)
        return 0;
    return fault(check, TLS_KEY_FILE,
                 "does not belong to %s: one of the two was replaced without the other",
                 TLS_CERTIFICATE_FILE);
}

static const char *date(const ASN1_TIME *time, char *text, size_t bytes)
{
    struct tm tm = {0};
    if (ASN1_TIME_to_tm(time, &tm) != 1 || strftime(text, bytes, "%Y-%m-%d %H:%M UTC", &tm) == 0)
        text_copy(text, bytes, "an unreadable date");
    return text;
}

static int check_dates(struct check *check, const char *file, const X509 *certificate)
{
    char text[32];
    const ASN1_TIME *begin = X509_get0_notBefore(certificate);
    const ASN1_TIME *end = X509_get0_notAfter(certificate);
    if (X509_cmp_current_time(begin) >= 0)
        return fault(check, file, "is not valid before %s; is the clock of this host right?",
                     date(begin, text, sizeof(text)));
    if (X509_cmp_current_time(end) <= 0)
        return fault(check, file, "expired on %s; issue a new one", date(end, text, sizeof(text)));
    return 0;
}

static int verify_fault(struct check *check, int code)
{
    switch (code) {
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        return fault(check, TLS_CERTIFICATE_FILE, "is not signed by an authority in %s (%s)",
                     TLS_AUTHORITY_FILE, X509_verify_cert_error_string(code));
    case X509_V_ERR_INVALID_PURPOSE:
        return fault(check, TLS_CERTIFICATE_FILE,
                     "must not be used by a %s of TLS (its extended key usage)",
                     check->job ? "client" : "server");
    default:
        return fault(check, TLS_CERTIFICATE_FILE, "is not valid with %s: %s", TLS_AUTHORITY_FILE,
                     X509_verify_cert_error_string(code));
    }
}

// Verifies the certificate as the other side will, if it has the same authorities.
static int check_signatures(struct check *check)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    int code = X509_V_ERR_OUT_OF_MEM;
    int status = 0;
    for (int i = 0; store && i < sk_X509_num(check->authorities); i++)
        X509_STORE_add_cert(store, sk_X509_value(check->authorities, i));
    if (store && context && X509_STORE_CTX_init(context, store, check->leaf, check->chain) == 1 &&
        X509_STORE_CTX_set_purpose(context, check->job ? X509_PURPOSE_SSL_CLIENT
                                                       : X509_PURPOSE_SSL_SERVER) == 1)
        code = X509_verify_cert(context) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(context);
    // The dates of the certificates in tls.crt hold, so this is about an authority.
    if (code == X509_V_ERR_CERT_HAS_EXPIRED || code == X509_V_ERR_CERT_NOT_YET_VALID)
        status = check_dates(check, TLS_AUTHORITY_FILE, X509_STORE_CTX_get_current_cert(context));
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    return code == X509_V_OK || status < 0 ? status : verify_fault(check, code);
}

// ---- names --------------------------------------------------------------------------------------

// Calls accept for each URI of the certificate until a call returns true. Returns whether one did.
// A URI that contains a NUL is skipped.
static bool some_uri(const X509 *certificate, bool (*accept)(const char *uri, const char *context),
                     const char *context)
{
    bool found = false;
    GENERAL_NAMES *list = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; !found && i < sk_GENERAL_NAME_num(list); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(list, i);
        if (name->type != GEN_URI)
            continue;
        const char *uri = (const char *)ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
        const int size = ASN1_STRING_length(name->d.uniformResourceIdentifier);
        found = strlen(uri) == (size_t)size && accept(uri, context);
    }
    GENERAL_NAMES_free(list);
    ERR_clear_error();
    return found;
}

static bool names_coordinator(const char *uri, const char *context)
{
    (void)context;
    return tls_name_is_coordinator(uri);
}

static int check_names(struct check *check)
{
    if (!check->job) {
        if (some_uri(check->leaf, names_coordinator, NULL))
            return 0;
        return fault(check, TLS_CERTIFICATE_FILE,
                     "is not a coordinator's: its alternative names have no URI %s",
                     TLS_NAME_COORDINATOR);
    }
    if (some_uri(check->leaf, tls_name_is_worker, check->job))
        return 0;
    const bool other = some_uri(check->leaf, tls_name_is_worker, NULL);
    return fault(check, TLS_CERTIFICATE_FILE,
                 "is not a worker's of job %s%s: its alternative names have no URI %s%s%s",
                 check->job, other ? ", but of another job" : "", TLS_NAME_WORKER_BEGIN, check->job,
                 TLS_NAME_WORKER_END);
}

bool tls_files_is_coordinator(const char *pem)
{
    STACK_OF(X509) *list = parse_certificates(pem);
    const bool is = list && some_uri(sk_X509_value(list, 0), names_coordinator, NULL);
    sk_X509_pop_free(list, X509_free);
    return is;
}

// ---- load and free ------------------------------------------------------------------------------

static int check_all(struct check *check)
{
    int status = check_key(check);
    if (status == 0)
        status = check_dates(check, TLS_CERTIFICATE_FILE, check->leaf);
    for (int i = 0; status == 0 && i < sk_X509_num(check->chain); i++)
        status = check_dates(check, TLS_CERTIFICATE_FILE, sk_X509_value(check->chain, i));
    // If ca.crt has several authorities, for instance while one replaces another, one valid
    // authority is enough. So dates are checked here only for a single one.
    if (status == 0 && sk_X509_num(check->authorities) == 1)
        status = check_dates(check, TLS_AUTHORITY_FILE, sk_X509_value(check->authorities, 0));
    if (status == 0)
        status = check_signatures(check);
    if (status == 0)
        status = check_names(check);
    return status;
}

static uint64_t unix_seconds(const ASN1_TIME *time)
{
    struct tm tm = {0};
    const time_t seconds = ASN1_TIME_to_tm(time, &tm) == 1 ? timegm(&tm) : 0;
    return seconds > 0 ? (uint64_t)seconds : 0;
}

int tls_files_load(const char *directory, const char *job, struct tls_files *files, char *error,
                   size_t error_bytes)
{
    struct check check = {
        .directory = directory, .job = job, .error = error, .error_bytes = error_bytes};
    *files = (struct tls_files){0};
    // Taken before the files are read, so a change during the reading is noticed later.
    tls_files_look(directory, &files->stamp);
    int status = read_file(&check, TLS_CERTIFICATE_FILE, &files->certificate);
    if (status == 0)
        status = read_file(&check, TLS_KEY_FILE, &files->key);
    if (status == 0)
        status = read_file(&check, TLS_AUTHORITY_FILE, &files->authority);
    if (status == 0)
        status = parse(&check, files);
    if (status == 0)
        status = check_all(&check);
    if (status == 0)
        files->expires_s = unix_seconds(X509_get0_notAfter(check.leaf));
    X509_free(check.leaf);
    sk_X509_pop_free(check.chain, X509_free);
    sk_X509_pop_free(check.authorities, X509_free);
    EVP_PKEY_free(check.key);
    if (status < 0) {
        const struct tls_stamp stamp = files->stamp;
        tls_files_free(files);
        // Keep the stamp of the refused files, so they are not tried again while unchanged.
        files->stamp = stamp;
    }
    return status;
}

void tls_files_free(struct tls_files *files)
{
    free(files->certificate);
    if (files->key)
        OPENSSL_cleanse(files->key, strlen(files->key));
    free(files->key);
    free(files->authority);
    *files = (struct tls_files){0};
}
