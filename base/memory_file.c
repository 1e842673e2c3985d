// SPDX-License-Identifier: Apache-2.0
// See memory_file.h. Any thread.
#include "base/memory_file.h"

#include "base/file_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define MEMORY_FILE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int memory_file_open(const char *name)
{
    const unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
    if (fd >= 0 || errno != EINVAL)
        return fd;
    return memfd_create(name, flags); // The kernel is older than MFD_NOEXEC_SEAL.
}

int memory_file_resize(int fd, uint64_t bytes)
{
    struct file_limit limit;
    file_limit_begin(&limit);
    const int status = ftruncate(fd, (off_t)bytes);
    file_limit_end(&limit);
    return status;
}

int memory_file_seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, MEMORY_FILE_SEALS);
}

bool memory_file_is_sealed(int fd)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & MEMORY_FILE_SEALS) == MEMORY_FILE_SEALS;
}

int memory_file_make(const char *name, uint64_t bytes)
{
    const int fd = memory_file_open(name);
    if (fd < 0)
        return -1;
    if (file_limit_fill(fd, bytes) == 0 && memory_file_seal(fd) == 0)
        return fd;
    const int number = errno;
    (void)close(fd);
    errno = number;
    return -1;
}
