// SPDX-License-Identifier: Apache-2.0
//
// Uses up all file descriptors; see full.h.

#include "tests/support/full.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

void full_begin(struct full *full, rlim_t limit)
{
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &full->before), 0);
    const struct rlimit low = {limit, full->before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    full->count = 0;
    while (full->count < FULL_MOST && (full->fds[full->count] = dup(STDERR_FILENO)) >= 0)
        full->count++;
    assert_int_equal(errno, EMFILE);
}

void full_end(const struct full *full)
{
    for (int i = 0; i < full->count; i++)
        close(full->fds[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &full->before), 0);
}
