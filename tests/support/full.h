// SPDX-License-Identifier: Apache-2.0
//
// A process without a free file descriptor, for a while.

#ifndef LOCKSTEP_TESTS_FULL_H
#define LOCKSTEP_TESTS_FULL_H

#include <sys/resource.h>

#define FULL_MOST 1024

struct full {
    struct rlimit before;
    int fds[FULL_MOST];
    int count;
};

// Lowers the limit on descriptors to `limit`, and takes all that are free.
void full_begin(struct full *full, rlim_t limit);
// Gives them back, with the limit.
void full_end(const struct full *full);

#endif
