// SPDX-License-Identifier: Apache-2.0
//
// Changing the size of a file where RLIMIT_FSIZE (ulimit -f) forbids it raises SIGXFSZ, which ends
// the process. Between these two calls the signal does not reach the calling thread, and the call
// that makes the file too large fails with EFBIG. Files of memory have this limit, too.

#ifndef LOCKSTEP_BASE_FILE_LIMIT_H
#define LOCKSTEP_BASE_FILE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

struct file_limit {
    sigset_t before;
    bool pending; // The signal was pending before.
};

void file_limit_begin(struct file_limit *limit);
void file_limit_end(const struct file_limit *limit); // errno stays as it is.

#endif
