// SPDX-License-Identifier: Apache-2.0
//
// A stack is the mapping that contains an address on it. Below the stack of a glibc thread is a
// page without access rights, so the mapping ends there. The stack of the main thread grows: it may
// use memory below its mapping, as far as the stack limit and the next lower mapping allow.

#include "worker/stacks/room.h"

#include "worker/stacks/peek.h"
#include "worker/support/spare.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

// For the handler and the unwinder, which use 6 KiB as measured.
#define ROOM_HANDLER_BYTES (24 * 1024)
// For the kernel's signal frame, if the kernel does not report its size.
#define ROOM_FRAME_BYTES (16 * 1024)
#define ROOM_GUARD_BYTES (1024 * 1024) // The kernel keeps this gap below a stack that grows.
#define ROOM_LINE_BYTES 128 // Room for a line of maps; the file names of longer lines are cut.

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

struct mapping {
    uintptr_t low, high;
    uintptr_t below; // End of the mapping before this one.
    bool grows;
};

size_t stack_room_bytes(void)
{
    const unsigned long frame = getauxval(AT_MINSIGSTKSZ);
    return (frame != 0 ? frame : ROOM_FRAME_BYTES) + ROOM_HANDLER_BYTES;
}

// Parses "7ffd6d1e7000-7ffd6d208000 rw-p 00000000 00:00 0      [stack]". Returns true if the
// mapping contains `at`.
static bool mapping_holds(const char *line, uintptr_t at, struct mapping *mapping)
{
    char *end;
    mapping->below = mapping->high;
    mapping->low = (uintptr_t)strtoull(line, &end, 16);
    mapping->high = *end == '-' ? (uintptr_t)strtoull(end + 1, NULL, 16) : 0;
    mapping->grows = strstr(line, "[stack]") != NULL;
    return at >= mapping->low && at < mapping->high;
}

// Reads maps in pieces, because a process may have thousands of lines. /proc/self/maps is empty if
// the main thread has ended.
static bool mapping_find(uintptr_t at, struct mapping *mapping)
{
    char piece[4096], line[ROOM_LINE_BYTES];
    size_t size = 0;
    ssize_t got;
    bool found = false;
    const int fd = spare_open(AT_FDCWD, "/proc/thread-self/maps", O_RDONLY | O_CLOEXEC);
    *mapping = (struct mapping){.low = 0};
    if (fd < 0)
        return false;
    while (!found && ((got = read(fd, piece, sizeof(piece))) > 0 || (got < 0 && errno == EINTR))) {
        for (ssize_t i = 0; i < got && !found; i++) {
            if (piece[i] != '\n') {
                if (size < sizeof(line) - 1)
                    line[size++] = piece[i];
                continue;
            }
            line[size] = '\0';
            size = 0;
            found = mapping_holds(line, at, mapping);
        }
    }
    spare_close(fd);
    return found;
}

static bool mapping_may_grow(const struct mapping *mapping, size_t bytes)
{
    struct rlimit limit;
    if (!mapping->grows || mapping->low - mapping->below < ROOM_GUARD_BYTES + bytes ||
        getrlimit(RLIMIT_STACK, &limit) != 0)
        return false;
    return limit.rlim_cur == RLIM_INFINITY ||
           limit.rlim_cur >= mapping->high - mapping->low + bytes;
}

bool stack_room_in_handler(const ucontext_t *context, uintptr_t at)
{
    const stack_t *alternate = &context->uc_stack;
    const uintptr_t low = (uintptr_t)alternate->ss_sp;
    const bool on_it =
        (alternate->ss_flags & SS_DISABLE) == 0 && at >= low && at - low < alternate->ss_size;
    return !on_it || at - low >= ROOM_HANDLER_BYTES;
}

bool stack_room(uintptr_t at, bool sleeps)
{
    const size_t bytes = stack_room_bytes();
    struct mapping mapping;
    if (!mapping_find(at, &mapping))
        return false;
    if (mapping_may_grow(&mapping, bytes))
        return true;
    if (sleeps)
        return at - mapping.low >= bytes;
    return mapping.high - mapping.low > bytes && peek_untouched(mapping.low, mapping.low + bytes);
}
