// SPDX-License-Identifier: Apache-2.0
//
// show.h over OpenSSL 3. Main thread.

#include "cli/certs/show.h"

#include "base/text.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// Moves the text that was printed to `from` into text. It is cut if it does not fit.
static void take(BIO *from, char *text, size_t text_bytes)
{
    char *bytes = NULL;
    const long size = BIO_get_mem_data(from, &bytes);
    struct text to;
    text_init(&to, text, text_bytes);
    text_append_bytes(&to, bytes, size > 0 ? (size_t)size : 0);
    (void)BIO_reset(from);
}

static void take_name(BIO *bio, const X509_NAME *name, char *text, size_t text_bytes)
{
    X509_NAME_print_ex(bio, name, 0, XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
    take(bio, text, text_bytes);
}

static void take_date(const ASN1_TIME *time, char *text, size_t text_bytes)
{
    struct tm tm = {0};
    if (ASN1_TIME_to_tm(time, &tm) != 1 ||
        strftime(text, text_bytes, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        text_copy(text, text_bytes, "unknown");
}

static void take_names(BIO *bio, const X509 *certificate, char *text, size_t text_bytes)
{
    GENERAL_NAMES *list = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(list); i++) {
        BIO_printf(bio, "%s", i > 0 ? ", " : "");
        GENERAL_NAME_print(bio, sk_GENERAL_NAME_value(list, i));
    }
    GENERAL_NAMES_free(list);
    take(bio, text, text_bytes);
}

static void take_hash(const X509 *certificate, char *text, size_t text_bytes)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    struct text to;
    text_init(&to, text, text_bytes);
    if (X509_digest(certificate, EVP_sha256(), hash, &size) != 1)
        size = 0;
    for (unsigned i = 0; i < size; i++)
        text_append(&to, "%02x", hash[i]);
}

static void look(BIO *bio, X509 *certificate, struct certs_shown *shown)
{
    const ASN1_TIME *begin = X509_get0_notBefore(certificate);
    const ASN1_TIME *end = X509_get0_notAfter(certificate);
    int days = 0;
    int seconds = 0;
    *shown = (struct certs_shown){0};
    take_name(bio, X509_get_subject_name(certificate), shown->subject, sizeof(shown->subject));
    take_name(bio, X509_get_issuer_name(certificate), shown->issuer, sizeof(shown->issuer));
    take_names(bio, certificate, shown->names, sizeof(shown->names));
    take_date(begin, shown->begins, sizeof(shown->begins));
    take_date(end, shown->ends, sizeof(shown->ends));
    take_hash(certificate, shown->sha256, sizeof(shown->sha256));
    ASN1_TIME_diff(&days, &seconds, NULL, end);
    shown->days_left = seconds < 0 && days == 0 ? -1 : days;
    shown->holds = X509_cmp_current_time(begin) < 0 && X509_cmp_current_time(end) > 0;
    shown->authority = X509_check_ca(certificate) > 0;
}

int certs_show_file(const char *path, void (*show)(void *context, const struct certs_shown *shown),
                    void *context, char *error, size_t error_bytes)
{
    int count = 0;
    X509 *next;
    FILE *file = fopen(path, "re");
    BIO *bio = BIO_new(BIO_s_mem());
    if (!file || !bio) {
        snprintf(error, error_bytes, "cannot read %s: %s", path, strerror(errno));
        if (file)
            (void)fclose(file);
        BIO_free(bio);
        return -1;
    }
    while ((next = PEM_read_X509(file, NULL, NULL, NULL))) {
        struct certs_shown shown;
        look(bio, next, &shown);
        X509_free(next);
        show(context, &shown);
        count++;
    }
    ERR_clear_error();
    BIO_free(bio);
    (void)fclose(file);
    if (count > 0)
        return count;
    snprintf(error, error_bytes, "%s holds no certificate in PEM", path);
    return -1;
}
