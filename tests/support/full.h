// SPDX-License-Identifier: Apache-2.0
//
// Uses up all file descriptors of the process, for tests of failures to open files and sockets.

#ifndef LOCKSTEP_TESTS_FULL_H
#define LOCKSTEP_TESTS_FULL_H

#include <sys/resource.h>

#define FULL_MOST 1024

struct full {
    struct rlimit before;
    int fds[FULL_MOST];
    int count;
};

// Lowers the limit on file descriptors to `limit`, and opens descriptors until none is free.
void full_begin(struct full *full, rlim_t limit);
// Closes these descriptors and restores the limit.
void full_end(const struct full *full);

#endif
