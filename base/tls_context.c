// SPDX-License-Identifier: Apache-2.0
// tls_context.h over OpenSSL 3. Any thread.

#include "base/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

struct ssl_ctx_st *tls_context_new(bool server)
{
    SSL_CTX *context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (context && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1)
        return context;
    SSL_CTX_free(context);
    return NULL;
}

bool tls_context_show(struct ssl_ctx_st *context, const struct tls_files *files)
{
    BIO *chain = BIO_new_mem_buf(files->certificate, -1);
    BIO *secret = BIO_new_mem_buf(files->key, -1);
    X509 *leaf = chain ? PEM_read_bio_X509(chain, NULL, NULL, NULL) : NULL;
    EVP_PKEY *key = secret ? PEM_read_bio_PrivateKey(secret, NULL, NULL, NULL) : NULL;
    X509 *next;
    bool shown = leaf && key && SSL_CTX_use_certificate(context, leaf) == 1 &&
                 SSL_CTX_use_PrivateKey(context, key) == 1;
    while (shown && (next = PEM_read_bio_X509(chain, NULL, NULL, NULL))) {
        shown = SSL_CTX_add0_chain_cert(context, next) == 1;
        if (!shown)
            X509_free(next);
    }
    X509_free(leaf);
    EVP_PKEY_free(key);
    BIO_free(chain);
    BIO_free(secret);
    ERR_clear_error();
    return shown;
}

bool tls_context_trust(struct ssl_ctx_st *context, const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *next;
    int count = 0;
    while (bio && (next = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        count += X509_STORE_add_cert(SSL_CTX_get_cert_store(context), next);
        X509_free(next);
    }
    BIO_free(bio);
    ERR_clear_error();
    return count > 0;
}
