// SPDX-License-Identifier: Apache-2.0
//
// The token of --http-token-file. HTTP thread, except for open and close.

#ifndef SERVER_HTTP_TOKEN_H
#define SERVER_HTTP_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

struct http_token;
struct log;

// Returns NULL, with a sentence in error, if the file holds no valid token. path is borrowed until
// close.
struct http_token *http_token_open(const char *path, struct log *log, char *error,
                                   size_t error_bytes);
void http_token_close(struct http_token *token); // NULL is allowed.
bool http_token_is(struct http_token *token, const char *given);

#endif
