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
#include <stdint.h>

struct file_limit {
    sigset_t before;
    bool pending; // True if SIGXFSZ was already pending at the begin.
};

void file_limit_begin(struct file_limit *limit);
void file_limit_end(const struct file_limit *limit); // Preserves errno.

// Allocates the pages or blocks of a file that has none yet, `bytes` from its beginning. An access
// to memory that is mapped from there cannot raise SIGBUS then. The file grows if it is smaller.
// Meanwhile the thread gets no signals: one would end the call with EINTR, and the kernel would
// free the pages again, so that a program with a fast timer would never get them. Returns 0, or -1
// with errno.
int file_limit_fill(int fd, uint64_t bytes);

#endif
