// SPDX-License-Identifier: Apache-2.0
//
// The anonymous memory of a link between ranks of one host; see shm_memory.h.

#include "worker/link/shm_memory.h"

#include "base/file_limit.h"
#include "worker/link/shm_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SHM_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int memory_create(void)
{
    const unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    const int fd = memfd_create("lockstep-link", flags | MFD_NOEXEC_SEAL);
    if (fd >= 0 || errno != EINVAL)
        return fd;
    return memfd_create("lockstep-link", flags); // The kernel is older than MFD_NOEXEC_SEAL.
}

// Allocates all pages now, because a page that cannot be allocated later would cause a bus error.
static int memory_fill(int fd)
{
    return file_limit_fill(fd, sizeof(struct shm_memory)) < 0 ? -1
                                                              : fcntl(fd, F_ADD_SEALS, SHM_SEALS);
}

struct shm_memory *shm_memory_map(int fd)
{
    void *memory = mmap(NULL, sizeof(struct shm_memory), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED)
        return NULL;
    // A forked child must not keep the memory, and does not use it.
    (void)madvise(memory, sizeof(struct shm_memory), MADV_DONTFORK);
    return memory;
}

int shm_memory_make(struct shm_memory **memory)
{
    const int fd = memory_create();
    if (fd < 0)
        return -1;
    *memory = memory_fill(fd) < 0 ? NULL : shm_memory_map(fd);
    if (*memory)
        return fd;
    const int number = errno;
    (void)close(fd);
    errno = number;
    return -1;
}

void shm_memory_unmap(struct shm_memory *memory)
{
    if (memory)
        (void)munmap(memory, sizeof(*memory));
}

bool shm_memory_is_sound(int fd)
{
    struct stat status;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SHM_SEALS) != SHM_SEALS || fstat(fd, &status) < 0)
        return false;
    return status.st_size == (off_t)sizeof(struct shm_memory) &&
           (uint64_t)status.st_blocks * 512 >= sizeof(struct shm_memory);
}
