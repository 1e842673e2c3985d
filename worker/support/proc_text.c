// SPDX-License-Identifier: Apache-2.0

#include "worker/support/proc_text.h"

#include "worker/support/spare.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

void proc_text(int directory, const char *file, char text[PROC_TEXT_BYTES])
{
    size_t size = 0;
    ssize_t got = 1;
    const int fd = spare_open(directory, file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    while (fd >= 0 && got > 0 && size < PROC_TEXT_BYTES - 1) {
        got = read(fd, text + size, PROC_TEXT_BYTES - 1 - size);
        if (got > 0)
            size += (size_t)got;
        else if (got < 0 && errno == EINTR)
            got = 1;
    }
    if (fd >= 0)
        spare_close(fd);
    text[size] = '\0';
}
