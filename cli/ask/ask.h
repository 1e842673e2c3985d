// SPDX-License-Identifier: Apache-2.0
//
// Shared by the commands that ask a running coordinator: its address, the job, and the request.
// Main thread.

#ifndef LOCKSTEP_CLI_ASK_ASK_H
#define LOCKSTEP_CLI_ASK_ASK_H

#include "cli/ask/http.h"
#include "protos/limits.h"

#include <stdbool.h>

#define ASK_DEFAULT "127.0.0.1:8080" // The default HTTP address of the daemon.
#define ASK_PATH_BYTES (LOCKSTEP_JOB_NAME_BYTES + 64)

struct ask {
    const char *command; // The command's name, for messages.
    struct http_peer peer;
    bool guessed; // True if the address is the default one.
    char job[LOCKSTEP_JOB_NAME_BYTES]; // "": no job was named.
    char error[LOCKSTEP_TEXT_BYTES]; // The error of the last request.
    int refused; // HTTP status of the last request if the coordinator refused it; 0: it did not.
};

// The functions below set the values of options. They return 0, or CLI_MISUSE with a sentence on
// stderr.
int ask_set_address(struct ask *ask, char *value); // Overwrites a token in value.
int ask_set_job(struct ask *ask, const char *value);
int ask_set_token(struct ask *ask, const char *file); // The token is the file's first line.
// Also turns TLS on, whatever the address says.
int ask_set_cacert(struct ask *ask, const char *file);

// The options --cacert and --token-file for the option tables of these commands. ask_set_option
// sets them. The keys are larger than any letter.
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
// Returns CLI_MISUSE for an unknown key.
int ask_set_option(struct ask *ask, int key, const char *value);

// Call it after the options were read. It finds the address if --http was not given:
// LOCKSTEP_DASHBOARD, or the page of the job that `lockstep run` has started on this machine, or
// the default. Returns 0, or CLI_MISUSE with a sentence on stderr if there are several jobs.
int ask_find(struct ask *ask);

// Sends a GET. The answer is given in *body (free it), NUL-terminated. Returns false with a
// sentence in ask->error.
bool ask_get(struct ask *ask, const char *path, char **body);

#endif
