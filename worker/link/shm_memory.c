// SPDX-License-Identifier: Apache-2.0
//
// The anonymous memory of a link between ranks of one host; see shm_memory.h.

#include "worker/link/shm_memory.h"

#include "base/memory_file.h"
#include "worker/link/shm_ring.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
    // A page that cannot be allocated later would cause a bus error, so all are allocated now.
    const int fd = memory_file_make("lockstep-link", sizeof(struct shm_memory));
    if (fd < 0)
        return -1;
    *memory = shm_memory_map(fd);
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
    return memory_file_is_sealed(fd) && fstat(fd, &status) == 0 &&
           status.st_size == (off_t)sizeof(struct shm_memory) &&
           (uint64_t)status.st_blocks * 512 >= sizeof(struct shm_memory);
}
