// SPDX-License-Identifier: Apache-2.0
// See file_limit.h. Any thread.
#include "base/file_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#define FILL_TRIES 10 // A stop of the process interrupts, too, and cannot be blocked.

static bool file_limit_pending(void)
{
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

static void file_limit_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGXFSZ);
}

static void file_limit_block(struct file_limit *limit, const sigset_t *set)
{
    pthread_sigmask(SIG_BLOCK, set, &limit->before);
    limit->pending = file_limit_pending();
}

void file_limit_begin(struct file_limit *limit)
{
    sigset_t set;
    file_limit_set(&set);
    file_limit_block(limit, &set);
}

void file_limit_end(const struct file_limit *limit)
{
    const int number = errno;
    const struct timespec now = {0};
    sigset_t set;
    file_limit_set(&set);
    if (!limit->pending && file_limit_pending())
        (void)sigtimedwait(&set, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &limit->before, NULL);
    errno = number;
}

int file_limit_fill(int fd, uint64_t bytes)
{
    struct file_limit limit;
    sigset_t set;
    sigfillset(&set);
    file_limit_block(&limit, &set);
    int error = EINTR;
    for (int tries = 0; tries < FILL_TRIES && error == EINTR; tries++)
        error = posix_fallocate(fd, 0, (off_t)bytes);
    file_limit_end(&limit);
    errno = error;
    return error == 0 ? 0 : -1;
}
