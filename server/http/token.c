// SPDX-License-Identifier: Apache-2.0
//
// The token of --http-token-file, read again when the file changes. If the new file holds no valid
// token, the old token stays valid. HTTP thread, except for open and close. See parts.h.

#include "server/http/token.h"

#include "server/http/parts.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define TOKEN_BYTES 257 // Includes the NUL.
#define TOKEN_LEAST 16

struct http_token {
    // set at open, then constant
    const char *path;
    struct log *log;
    // HTTP thread only
    char text[TOKEN_BYTES];
    struct stat seen; // The file's state when it was read last.
};

static bool token_usable(const char *token)
{
    size_t size = 0;
    while (token[size] > ' ' && token[size] <= '~')
        size++;
    return size >= TOKEN_LEAST && token[size] == '\0';
}

// Reads the first line of a file, which must be 16 to 256 visible characters. Returns 0, or -1 with
// a sentence in error.
static int read_token(const char *path, char *token, size_t token_bytes, char *error,
                      size_t error_bytes)
{
    char line[TOKEN_BYTES + 1] = ""; // One more byte, to detect a line that is too long.
    FILE *file = fopen(path, "re");
    if (!file) {
        snprintf(error, error_bytes, "cannot read the token of --http-token-file '%s' (%s)", path,
                 strerror(errno));
        return -1;
    }
    const bool read = fgets(line, sizeof(line), file) != NULL;
    fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    if (read && strlen(line) < token_bytes && token_usable(line)) {
        memcpy(token, line, strlen(line) + 1);
        return 0;
    }
    snprintf(error, error_bytes,
             "--http-token-file '%s': its first line must be 16 to 256 visible characters, as "
             "openssl rand -hex 32 makes them",
             path);
    return -1;
}

static bool changed(const struct http_token *token, const struct stat *now)
{
    return now->st_ino != token->seen.st_ino || now->st_size != token->seen.st_size ||
           now->st_dev != token->seen.st_dev || now->st_mtim.tv_sec != token->seen.st_mtim.tv_sec ||
           now->st_mtim.tv_nsec != token->seen.st_mtim.tv_nsec;
}

static void renew(struct http_token *token)
{
    struct stat now;
    char text[TOKEN_BYTES];
    char error[LOCKSTEP_TEXT_BYTES];
    if (stat(token->path, &now) < 0 || !changed(token, &now))
        return;
    token->seen = now;
    if (read_token(token->path, text, sizeof(text), error, sizeof(error)) == 0)
        memcpy(token->text, text, sizeof(text));
    else
        log_event(token->log, LOG_LEVEL_WARN, "token_reload_failed", "text=%s hint=%s", error,
                  "the token that was read before stays good");
}

// The time of the comparison does not depend on where the tokens differ, only on the length of the
// given one.
bool http_token_is(struct http_token *token, const char *given)
{
    renew(token);
    return strlen(given) == strlen(token->text) &&
           CRYPTO_memcmp(given, token->text, strlen(token->text)) == 0;
}

struct http_token *http_token_open(const char *path, struct log *log, char *error,
                                   size_t error_bytes)
{
    struct http_token *token = calloc(1, sizeof(*token));
    if (!token) {
        snprintf(error, error_bytes, "no memory for the token");
        return NULL;
    }
    token->path = path;
    token->log = log;
    // Before the file is read, so that a change during the reading is noticed later.
    (void)stat(path, &token->seen);
    if (read_token(path, token->text, sizeof(token->text), error, error_bytes) == 0)
        return token;
    free(token);
    return NULL;
}

void http_token_close(struct http_token *token)
{
    if (!token)
        return;
    OPENSSL_cleanse(token->text, sizeof(token->text));
    free(token);
}
