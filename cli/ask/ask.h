// SPDX-License-Identifier: Apache-2.0
//
// Shared by the commands that ask a running coordinator: its address, the job that is meant, and a
// question. Main thread.

#ifndef LOCKSTEP_CLI_ASK_ASK_H
#define LOCKSTEP_CLI_ASK_ASK_H

#include "cli/ask/http.h"
#include "protos/limits.h"

#include <stdbool.h>

#define ASK_DEFAULT "127.0.0.1:8080" // The daemon's default.
#define ASK_PATH_BYTES (LOCKSTEP_JOB_NAME_BYTES + 64)

struct ask {
    const char *command; // For messages.
    struct http_peer peer;
    bool guessed; // True if the address is the default one.
    char job[LOCKSTEP_JOB_NAME_BYTES]; // "": none was named.
    char error[LOCKSTEP_TEXT_BYTES]; // The error of the last question.
    int refused; // HTTP status of the last question, when it was no good answer; 0: there was none.
};

// Values of options. 0, or CLI_MISUSE with a sentence on stderr.
int ask_set_address(struct ask *ask, char *value); // Overwrites a token in it.
int ask_set_job(struct ask *ask, const char *value);
int ask_set_token(struct ask *ask, const char *file); // Its first line.
int ask_set_cacert(struct ask *ask, const char *file); // And so TLS, whatever the address says.

// The options that all of these commands have for it, for their tables, and what sets them. The
// keys are above those that are letters.
#define ASK_KEY_CACERT 0x100
#define ASK_KEY_TOKEN 0x101
#define ASK_OPTIONS \
    {"cacert", required_argument, NULL, ASK_KEY_CACERT}, \
    { \
        "token-file", required_argument, NULL, ASK_KEY_TOKEN \
    }
#define ASK_HELP \
    "      --cacert FILE      Over TLS, and believe the authorities in FILE (https://HOST:PORT\n" \
    "                         alone: those of this machine)\n" \
    "      --token-file FILE  Its first line is the token that the coordinator asks for\n"
int ask_set_option(struct ask *ask, int key, const char *value); // CLI_MISUSE: no such key.

// After the options: without --http it is LOCKSTEP_DASHBOARD, else the page of the job that
// `lockstep run` has started on this machine, else the default. CLI_MISUSE with a sentence if there
// are several.
int ask_find(struct ask *ask);

// GET. The answer is given in *body (free it), NUL-terminated. False: the sentence is in error.
bool ask_get(struct ask *ask, const char *path, char **body);

#endif
