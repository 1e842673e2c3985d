// SPDX-License-Identifier: Apache-2.0

#include "worker/stacks/peek.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define PEEK_PAGES 64 // Pages of one mincore call.

// The kernel finds the memory through the calling thread's id. Through the process's id it would
// not if the main thread has ended and another one goes on.
bool peek(uintptr_t address, void *to, size_t bytes)
{
    const struct iovec local = {.iov_base = to, .iov_len = bytes};
    const struct iovec remote = {.iov_base = (void *)address, .iov_len = bytes};
    return process_vm_readv(gettid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

// Returns the number of pages of [from, to) in main memory; SIZE_MAX: not all pages are mapped.
static size_t pages_resident(uintptr_t from, uintptr_t to)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char resident[PEEK_PAGES];
    size_t count = 0;
    from -= from % page;
    while (from < to) {
        size_t pages = (to - from + page - 1) / page;
        if (pages > PEEK_PAGES)
            pages = PEEK_PAGES;
        if (mincore((void *)from, pages * page, resident) != 0)
            return SIZE_MAX;
        for (size_t i = 0; i < pages; i++)
            count += resident[i] & 1;
        from += pages * page;
    }
    return count;
}

bool peek_resident(uintptr_t address, void *to, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t end = address + bytes;
    const size_t pages = (end + page - 1) / page - address / page;
    return pages_resident(address, end) == pages && peek(address, to, bytes);
}

bool peek_untouched(uintptr_t from, uintptr_t to)
{
    return pages_resident(from, to) == 0;
}
