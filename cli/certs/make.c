// SPDX-License-Identifier: Apache-2.0
//
// make.h over OpenSSL 3. All files are made in memory first and then written. If one cannot be
// written, those before it are removed. Main thread.

#include "cli/certs/make.h"

#include "base/text.h"
#include "base/tls_files.h"
#include "base/tls_names.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SERIAL_BYTES 19 // RFC 5280 allows 20. With 19 the number is always positive.
// Certificates begin this long ago, so that hosts whose clocks are a little late accept them, too.
#define EARLY_S 300
#define DAY_S 86400L
#define FILES 3
#define NAMES_BYTES (CERTS_NAMES * 264)

struct failure {
    char *text;
    size_t bytes;
};

static int fail(const struct failure *failure, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int fail(const struct failure *failure, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure->text, failure->bytes, format, arguments);
    va_end(arguments);
    ERR_clear_error();
    return -1;
}

static int fail_openssl(const struct failure *failure, const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    return fail(failure, "%s: OpenSSL says: %s", what, reason ? reason : "no reason");
}

// ---- roles --------------------------------------------------------------------------------------

static const char *const role_names[] = {"", "coordinator", "worker", "observer"};

enum certs_role certs_role_of(const char *word)
{
    for (int role = CERTS_COORDINATOR; role <= CERTS_OBSERVER; role++) {
        if (strcmp(word, role_names[role]) == 0)
            return (enum certs_role)role;
    }
    return CERTS_NO_ROLE;
}

const char *certs_role_name(enum certs_role role)
{
    return role_names[role];
}

void certs_uri(const struct certs_request *request, char *text, size_t text_bytes)
{
    if (request->role == CERTS_WORKER)
        snprintf(text, text_bytes, "%s%s%s", TLS_NAME_WORKER_BEGIN,
                 request->job ? request->job : TLS_NAME_ANY_JOB, TLS_NAME_WORKER_END);
    else
        text_copy(text, text_bytes,
                  request->role == CERTS_COORDINATOR ? TLS_NAME_COORDINATOR : TLS_NAME_OBSERVER);
}

// ---- files --------------------------------------------------------------------------------------

struct file {
    char path[PATH_MAX];
    BIO *content; // owned
};

static int place(const struct failure *failure, struct file *file, const char *directory,
                 const char *name)
{
    struct stat status;
    const int size = snprintf(file->path, sizeof(file->path), "%s/%s", directory, name);
    if (size >= (int)sizeof(file->path))
        return fail(failure, "%s/%s: the path is too long", directory, name);
    if (lstat(file->path, &status) == 0)
        return fail(failure,
                    "%s exists already, and nothing is overwritten; choose another "
                    "directory, or move it away",
                    file->path);
    file->content = BIO_new(BIO_s_mem());
    return file->content ? 0 : fail(failure, "no memory");
}

static int write_file(const struct failure *failure, const struct file *file)
{
    char *bytes = NULL;
    const long size = BIO_get_mem_data(file->content, &bytes);
    const int fd = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return fail(failure, "cannot make %s: %s", file->path, strerror(errno));
    errno = ENOSPC; // The reason if the system writes a part only, which sets no errno.
    const bool whole = write(fd, bytes, (size_t)size) == size && fsync(fd) == 0;
    int error = whole ? 0 : errno;
    if (close(fd) != 0 && whole)
        error = errno;
    if (error == 0)
        return 0;
    unlink(file->path);
    return fail(failure, "cannot write %s: %s", file->path, strerror(error));
}

static int write_files(const struct failure *failure, const char *directory,
                       const struct file *files, size_t count)
{
    if (mkdir(directory, 0700) < 0 && errno != EEXIST)
        return fail(failure, "cannot make the directory %s: %s", directory, strerror(errno));
    for (size_t i = 0; i < count; i++) {
        if (write_file(failure, &files[i]) == 0)
            continue;
        while (i-- > 0)
            unlink(files[i].path);
        return -1;
    }
    return 0;
}

static void drop_files(struct file *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        BIO_free(files[i].content);
}

// ---- a certificate ------------------------------------------------------------------------------

struct extension {
    int id;
    const char *value; // In the syntax of openssl's configuration; NULL: no extension.
};

static bool add_extension(X509 *certificate, X509 *issuer, int id, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *made = X509V3_EXT_conf_nid(NULL, &context, id, value);
    const bool added = made && X509_add_ext(certificate, made, -1) == 1;
    X509_EXTENSION_free(made);
    return added;
}

static bool set_serial(X509 *certificate)
{
    unsigned char bytes[SERIAL_BYTES];
    BIGNUM *number = NULL;
    const bool set = RAND_bytes(bytes, sizeof(bytes)) == 1 &&
                     (number = BN_bin2bn(bytes, sizeof(bytes), NULL)) &&
                     BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate));
    BN_free(number);
    return set;
}

static bool set_subject(X509 *certificate, const char *name)
{
    X509_NAME *subject = X509_get_subject_name(certificate);
    return X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_UTF8,
                                      (const unsigned char *)"Lockstep", -1, -1, 0) == 1 &&
           X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1,
                                      -1, 0) == 1;
}

// A certificate is of no use after its issuer has ended.
static bool end_with_issuer(X509 *made, const X509 *issuer)
{
    return !issuer ||
           ASN1_TIME_compare(X509_get0_notAfter(made), X509_get0_notAfter(issuer)) <= 0 ||
           X509_set1_notAfter(made, X509_get0_notAfter(issuer)) == 1;
}

// Returns a certificate that is not signed yet. issuer NULL: the certificate is its own issuer.
static X509 *begin_certificate(EVP_PKEY *key, X509 *issuer, const char *name, unsigned days)
{
    X509 *made = X509_new();
    if (made && X509_set_version(made, X509_VERSION_3) == 1 && set_serial(made) &&
        set_subject(made, name) &&
        X509_set_issuer_name(made, X509_get_subject_name(issuer ? issuer : made)) == 1 &&
        X509_gmtime_adj(X509_getm_notBefore(made), -EARLY_S) &&
        X509_gmtime_adj(X509_getm_notAfter(made), (long)days * DAY_S) &&
        end_with_issuer(made, issuer) && X509_set_pubkey(made, key) == 1)
        return made;
    X509_free(made);
    return NULL;
}

static bool finish_certificate(X509 *made, X509 *issuer, EVP_PKEY *issuer_key,
                               const struct extension *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (list[i].value &&
            !add_extension(made, issuer ? issuer : made, list[i].id, list[i].value))
            return false;
    }
    return X509_sign(made, issuer_key, EVP_sha256()) > 0;
}

static bool write_key(BIO *to, EVP_PKEY *key)
{
    return PEM_write_bio_PKCS8PrivateKey(to, key, NULL, NULL, 0, NULL, NULL) == 1;
}

// ---- the authority ------------------------------------------------------------------------------

static X509 *make_authority(EVP_PKEY *key, unsigned days)
{
    static const struct extension list[] = {
        {NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
        {NID_key_usage, "critical,keyCertSign,cRLSign"},
        {NID_subject_key_identifier, "hash"},
    };
    X509 *made = begin_certificate(key, NULL, "Lockstep authority", days);
    if (made && finish_certificate(made, NULL, key, list, sizeof(list) / sizeof(list[0])))
        return made;
    X509_free(made);
    return NULL;
}

int certs_make_authority(const char *directory, unsigned days, char *error, size_t error_bytes)
{
    const struct failure failure = {error, error_bytes};
    struct file files[2] = {0};
    EVP_PKEY *key = NULL;
    X509 *made = NULL;
    int status = place(&failure, &files[0], directory, CERTS_KEY_FILE);
    if (status == 0)
        status = place(&failure, &files[1], directory, TLS_AUTHORITY_FILE);
    if (status == 0) {
        key = EVP_EC_gen("P-256");
        made = key ? make_authority(key, days) : NULL;
        if (!made || !write_key(files[0].content, key) ||
            PEM_write_bio_X509(files[1].content, made) != 1)
            status = fail_openssl(&failure, "cannot make an authority");
    }
    if (status == 0)
        status = write_files(&failure, directory, files, 2);
    drop_files(files, 2);
    X509_free(made);
    EVP_PKEY_free(key);
    return status;
}

struct authority {
    X509 *certificate;
    EVP_PKEY *key;
};

static FILE *open_in(const char *directory, const char *name, char *path, size_t path_bytes)
{
    errno = ENAMETOOLONG;
    return snprintf(path, path_bytes, "%s/%s", directory, name) < (int)path_bytes
               ? fopen(path, "re")
               : NULL;
}

static int read_authority(const struct failure *failure, const char *directory,
                          struct authority *authority)
{
    char path[PATH_MAX];
    FILE *file = open_in(directory, TLS_AUTHORITY_FILE, path, sizeof(path));
    if (!file)
        return fail(failure, "cannot read %s: %s; lockstep certs init makes an authority", path,
                    strerror(errno));
    authority->certificate = PEM_read_X509(file, NULL, NULL, NULL);
    (void)fclose(file);
    if (!authority->certificate)
        return fail(failure, "%s holds no certificate in PEM", path);
    file = open_in(directory, CERTS_KEY_FILE, path, sizeof(path));
    if (!file)
        return fail(failure, "cannot read %s: %s", path, strerror(errno));
    authority->key = PEM_read_PrivateKey(file, NULL, NULL, NULL);
    (void)fclose(file);
    if (!authority->key)
        return fail(failure, "%s holds no private key in PEM", path);
    if (X509_check_private_key(authority->certificate, authority->key) != 1)
        return fail(failure, "%s does not belong to %s", path, TLS_AUTHORITY_FILE);
    return 0;
}

// ---- issuing ------------------------------------------------------------------------------------

static bool is_address(const char *name)
{
    unsigned char binary[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, name, binary) == 1 || inet_pton(AF_INET6, name, binary) == 1;
}

// Returns true for a valid DNS name. It must not have characters with a meaning in OpenSSL's
// configuration.
static bool is_dns_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.*";
    return name[0] && strlen(name) < 254 && name[strspn(name, allowed)] == '\0';
}

bool certs_is_name(const char *name)
{
    return is_address(name) || is_dns_name(name);
}

static int list_names(const struct failure *failure, const struct certs_request *request,
                      struct text *list)
{
    char uri[256];
    certs_uri(request, uri, sizeof(uri));
    text_append(list, "URI:%s", uri);
    for (size_t i = 0; i < request->name_count; i++) {
        const char *name = request->names[i];
        text_append(list, ",%s:%s", is_address(name) ? "IP" : "DNS", name);
    }
    return list->truncated ? fail(failure, "too many names") : 0;
}

static X509 *make_certificate(const struct authority *authority, EVP_PKEY *key,
                              const struct certs_request *request, const char *names)
{
    const struct extension list[] = {
        {NID_basic_constraints, "critical,CA:FALSE"},
        {NID_key_usage, "critical,digitalSignature"},
        {NID_ext_key_usage, request->role == CERTS_COORDINATOR ? "serverAuth" : "clientAuth"},
        {NID_subject_alt_name, names},
        {NID_subject_key_identifier, "hash"},
        {NID_authority_key_identifier, "keyid:always"},
    };
    X509 *made = begin_certificate(key, authority->certificate, certs_role_name(request->role),
                                   request->days);
    if (made && finish_certificate(made, authority->certificate, authority->key, list,
                                   sizeof(list) / sizeof(list[0])))
        return made;
    X509_free(made);
    return NULL;
}

// Checks that the authority holds now, and lowers the days if it ends earlier. The time of EARLY_S
// is not missed: an authority that was made a moment ago has all its days.
static int fit_days(const struct failure *failure, const X509 *authority,
                    struct certs_request *request)
{
    int days = 0;
    int seconds = 0;
    if (X509_cmp_current_time(X509_get0_notBefore(authority)) > 0)
        return fail(failure, "the authority does not hold yet: is the clock right?");
    if (ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(authority)) != 1)
        return fail_openssl(failure, "the end of the authority cannot be read");
    if (days < 0 || seconds < 0)
        return fail(failure, "the authority has ended, so no host believes its certificates; make "
                             "another with lockstep certs init, in another directory");
    const long left = (days * DAY_S + seconds + EARLY_S) / DAY_S;
    request->cut = left < (long)request->days;
    if (request->cut)
        request->days = (unsigned)left;
    return 0;
}

static int issue(const struct failure *failure, const struct authority *authority,
                 struct certs_request *request, struct file *files)
{
    char bytes[NAMES_BYTES];
    struct text names;
    text_init(&names, bytes, sizeof(bytes));
    if (list_names(failure, request, &names) < 0 ||
        fit_days(failure, authority->certificate, request) < 0)
        return -1;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *made = key ? make_certificate(authority, key, request, bytes) : NULL;
    const bool whole = made && PEM_write_bio_X509(files[0].content, made) == 1 &&
                       write_key(files[1].content, key) &&
                       PEM_write_bio_X509(files[2].content, authority->certificate) == 1;
    X509_free(made);
    EVP_PKEY_free(key);
    return whole ? 0 : fail_openssl(failure, "cannot make a certificate");
}

static int place_files(const struct failure *failure, struct file files[FILES], const char *out)
{
    static const char *const names[FILES] = {TLS_CERTIFICATE_FILE, TLS_KEY_FILE,
                                             TLS_AUTHORITY_FILE};
    int status = 0;
    for (size_t i = 0; status == 0 && i < FILES; i++)
        status = place(failure, &files[i], out, names[i]);
    return status;
}

int certs_check(const struct certs_request *request, const char *out, char *error,
                size_t error_bytes)
{
    const struct failure failure = {error, error_bytes};
    char bytes[NAMES_BYTES];
    struct text names;
    struct file files[FILES] = {0};
    text_init(&names, bytes, sizeof(bytes));
    int status = list_names(&failure, request, &names);
    if (status == 0)
        status = place_files(&failure, files, out);
    drop_files(files, FILES);
    return status;
}

int certs_issue(const char *directory, struct certs_request *request, const char *out, char *error,
                size_t error_bytes)
{
    const struct failure failure = {error, error_bytes};
    struct authority authority = {0};
    struct file files[FILES] = {0};
    int status = read_authority(&failure, directory, &authority);
    if (status == 0)
        status = place_files(&failure, files, out);
    if (status == 0)
        status = issue(&failure, &authority, request, files);
    if (status == 0)
        status = write_files(&failure, out, files, FILES);
    drop_files(files, FILES);
    X509_free(authority.certificate);
    EVP_PKEY_free(authority.key);
    return status;
}
