// SPDX-License-Identifier: Apache-2.0
// See file_mode.h.
#include "base/file_mode.h"

#include <sys/stat.h>

bool file_mode_exposed(const char *path, unsigned *mode)
{
    struct stat status;
    if (stat(path, &status) < 0)
        return false;
    *mode = status.st_mode & 07777;
    return (status.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) != 0;
}
