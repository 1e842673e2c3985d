// SPDX-License-Identifier: Apache-2.0
//
// A log sink that writes to a file descriptor. Any thread of the library runs it.

#include "lockstep/lockstep.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#define LOG_LINE_BYTES PIPE_BUF // A pipe takes so many bytes whole.

void lockstep_log_to_fd(void *context, lockstep_log_level level, const char *line)
{
    const int fd = (int)(intptr_t)context;
    const int before = errno;
    char text[LOG_LINE_BYTES];
    ssize_t written;
    int size = snprintf(text, sizeof(text), "%d %s", (int)level, line);
    if (size < 0)
        return;
    if (size > (int)sizeof(text) - 1)
        size = (int)sizeof(text) - 1;
    text[size] = '\n';
    do {
        written = write(fd, text, (size_t)size + 1);
    } while (written < 0 && errno == EINTR);
    errno = before;
}
