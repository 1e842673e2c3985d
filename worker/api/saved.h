// SPDX-License-Identifier: Apache-2.0
//
// The functions of saved.c that other files call.

#ifndef WORKER_API_SAVED_H
#define WORKER_API_SAVED_H

#include "worker/session/session.h"

#include <stddef.h>
#include <stdio.h>

enum saved_kind {
    SAVED_LAYOUT = 0,
    SAVED_SESSION = 1,
};

// Writes the content of a saved file, without the last line. Trainer, outside a step.
void saved_write(struct lockstep_session *session, enum saved_kind kind, FILE *file);
// Checks the text of a file, and applies it to the session if it is valid. path is for error texts.
// Trainer, before lockstep_start.
int saved_read(struct lockstep_session *session, enum saved_kind kind, const char *path,
               const char *bytes, size_t size);

#endif
