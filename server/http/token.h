// SPDX-License-Identifier: Apache-2.0
//
// The token of --http-token-file. HTTP thread, but for open and close.

#ifndef SERVER_HTTP_TOKEN_H
#define SERVER_HTTP_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

struct http_token;
struct log;

// NULL, with a sentence in error: there is no token in the file. path is borrowed until close.
struct http_token *http_token_open(const char *path, struct log *log, char *error,
                                   size_t error_bytes);
void http_token_close(struct http_token *token); // NULL is allowed.
bool http_token_is(struct http_token *token, const char *given);

#endif
