// SPDX-License-Identifier: Apache-2.0
//
// What the commands have in common that ask a running coordinator: where it is, which job is meant,
// and a question to it. Main thread.

#ifndef LOCKSTEP_CLI_ASK_H
#define LOCKSTEP_CLI_ASK_H

#include "protos/limits.h"

#include <stdbool.h>

#define ASK_DEFAULT "127.0.0.1:8080" // Of the daemon.
#define ASK_TOKEN_BYTES 512
#define ASK_PATH_BYTES (LOCKSTEP_JOB_NAME_BYTES + 64)

struct ask {
    const char *command; // For messages.
    char address[LOCKSTEP_ADDRESS_BYTES]; // HOST:PORT
    char job[LOCKSTEP_JOB_NAME_BYTES]; // "": none was named.
    char token[ASK_TOKEN_BYTES]; // "": none is shown.
    char error[LOCKSTEP_TEXT_BYTES]; // Of the last question.
};

// Values of options. 0, or CLI_MISUSE with a sentence on stderr.
int ask_set_address(struct ask *ask, const char *value);
int ask_set_job(struct ask *ask, const char *value);
int ask_set_token(struct ask *ask, const char *file); // Its first line.

// After the options: without --http it is LOCKSTEP_DASHBOARD, else the default.
int ask_find(struct ask *ask);

// GET. The answer is given in *body (free it), NUL-terminated. False: the sentence is in error.
bool ask_get(struct ask *ask, const char *path, char **body);

#endif
