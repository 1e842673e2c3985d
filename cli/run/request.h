// SPDX-License-Identifier: Apache-2.0
//
// The request that `lockstep run --hosts` sends to `lockstep run-host` on each host: what is to run
// there. It travels on stdin, because everybody on a machine can read the arguments of its
// processes. It has REQUEST_SIZE_BYTES hexadecimal digits, its size, and then NUL-terminated texts
// NAME=VALUE. Main thread on the host, supervisor's thread at the launcher.

#ifndef LOCKSTEP_CLI_RUN_REQUEST_H
#define LOCKSTEP_CLI_RUN_REQUEST_H

#include "cli/run/run.h"

#include <stdbool.h>
#include <stddef.h>

#define REQUEST_SIZE_BYTES 8
#define REQUEST_BYTES (4 * 1024 * 1024) // Largest size, without the digits.

// Makes the request for one of options->hosts. coordinator: its address, or for the host that
// starts it, where it listens; NULL: one host with a private one. serves: the host starts it.
// Returns the bytes, which the caller frees, or NULL with errno.
char *request_make(const struct run_options *options, uint32_t host, const char *coordinator,
                   bool serves, size_t *size);

// Reads the digits. Returns false if they are none or the size is above REQUEST_BYTES.
bool request_size(const char digits[REQUEST_SIZE_BYTES], size_t *size);

// Sets options from the texts, sets the variables of this process, and enters the working
// directory. options borrows the bytes until the end of the process. Returns 0, or an exit status
// after a sentence on stderr.
int request_take(char *bytes, size_t size, struct run_options *options);

#endif
