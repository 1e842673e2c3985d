// SPDX-License-Identifier: Apache-2.0
//
// The functions of saved.c that other files call.

#ifndef WORKER_API_SAVED_H
#define WORKER_API_SAVED_H

#include "worker/session/session.h"

#include <stddef.h>
#include <stdio.h>

// Writes what is to be saved, all but the checksum. Trainer, outside a step.
void saved_write(struct lockstep_session *session, enum saved_kind kind, FILE *file);
// Checks the text of a file, and takes it over when nothing is wrong with it; path is for texts.
// Trainer, before lockstep_start.
int saved_read(struct lockstep_session *session, enum saved_kind kind, const char *path,
               const char *bytes, size_t size);

#endif
