// SPDX-License-Identifier: Apache-2.0
//
// Changing the size of a file where RLIMIT_FSIZE (ulimit -f) forbids it raises SIGXFSZ, which ends
// the process. Between file_limit_begin and file_limit_end the calling thread does not get the
// signal, and the call that would make the file too large fails with EFBIG. The limit also holds
// for memory files (memfd).

#ifndef LOCKSTEP_BASE_FILE_LIMIT_H
#define LOCKSTEP_BASE_FILE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

struct file_limit {
    sigset_t before;
    bool pending; // True if SIGXFSZ was already pending at the begin.
};

void file_limit_begin(struct file_limit *limit);
void file_limit_end(const struct file_limit *limit); // Preserves errno.

#endif
