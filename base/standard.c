// SPDX-License-Identifier: Apache-2.0
// See standard.h.
#include "base/standard.h"

#include <fcntl.h>
#include <unistd.h>

bool standard_occupy(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        const int opened = fcntl(fd, F_GETFD) < 0 ? open("/dev/null", O_RDONLY) : fd;
        if (opened < 0)
            return false;
        if (opened != fd) // Another thread has taken the number.
            close(opened);
    }
    return true;
}
