// SPDX-License-Identifier: Apache-2.0
//
// See nccl_segment.h. Any thread.
#include "tests/fake_gpu/nccl_segment.h"

#include "base/mutex.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// The bytes of a unique id.
struct segment_name {
    char magic[16];
    int64_t pid;
    int64_t fd;
    uint64_t nonce;
};

static const char magic[16] = "fake nccl";

static struct segment *segment_map(int fd)
{
    void *memory = mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

bool segment_create(struct nccl_unique_id *id)
{
    struct segment_name name = {.pid = getpid()};
    const int fd = memfd_create("fake-nccl", MFD_CLOEXEC);
    if (fd < 0)
        return false;
    struct segment *segment = ftruncate(fd, sizeof(*segment)) == 0 ? segment_map(fd) : NULL;
    if (!segment || getrandom(&name.nonce, sizeof(name.nonce), 0) < 0) {
        close(fd);
        return false;
    }
    segment->nonce = name.nonce;
    segment_close(segment);
    memcpy(name.magic, magic, sizeof(magic));
    name.fd = fd;
    memset(id, 0, sizeof(*id));
    memcpy(id->bytes, &name, sizeof(name));
    return true;
}

static bool name_read(const struct nccl_unique_id *id, struct segment_name *name)
{
    memcpy(name, id->bytes, sizeof(*name));
    return memcmp(name->magic, magic, sizeof(magic)) == 0;
}

struct segment *segment_open(const struct nccl_unique_id *id)
{
    struct segment_name name;
    char path[64];
    if (!name_read(id, &name))
        return NULL;
    snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)name.pid, (long long)name.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct segment *segment = NULL;
    if (lseek(fd, 0, SEEK_END) == (off_t)sizeof(*segment))
        segment = segment_map(fd);
    close(fd);
    if (segment && segment->nonce != name.nonce) {
        segment_close(segment);
        return NULL;
    }
    return segment;
}

void segment_close(struct segment *segment)
{
    munmap(segment, sizeof(*segment));
}

void segment_forget(const struct nccl_unique_id *id)
{
    static struct mutex mutex = MUTEX_INITIALIZER;
    struct segment_name name;
    if (!name_read(id, &name) || name.pid != getpid())
        return;
    // Several ranks of one process may call this. After the first call the descriptor's number may
    // belong to another file, which segment_open() detects.
    mutex_lock(&mutex);
    struct segment *segment = segment_open(id);
    if (segment) {
        close((int)name.fd);
        segment_close(segment);
    }
    mutex_unlock(&mutex);
}

void segment_ring(struct segment *segment)
{
    atomic_fetch_add(&segment->bell, 1);
    syscall(SYS_futex, &segment->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void segment_wait(struct segment *segment, uint32_t bell)
{
    const struct timespec limit = {.tv_nsec = SEGMENT_WAIT_MS * 1000000L};
    syscall(SYS_futex, &segment->bell, FUTEX_WAIT, bell, &limit, NULL, 0);
}
