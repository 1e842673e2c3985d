// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of processes; process.h has the contract.

#include "worker/support/process.h"

#include "worker/support/proc_text.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROCESS_STARTED_FIELD 22 // Field of /proc/PID/stat, counted from 1.
#define PROCESS_NAME_FIELD 2 // The name stands in brackets, and may have blanks and brackets.

// When the process with this pid started, in clock ticks; 0: there is none.
static uint64_t process_ticks(uint32_t pid)
{
    char path[32];
    char text[PROC_TEXT_BYTES];
    snprintf(path, sizeof(path), "/proc/%" PRIu32 "/stat", pid);
    proc_text(AT_FDCWD, path, text);
    const char *at = strrchr(text, ')');
    for (int field = PROCESS_NAME_FIELD; at && field < PROCESS_STARTED_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

uint64_t process_started_at(uint64_t ticks)
{
    struct stat space;
    if (ticks == 0 || stat("/proc/self/ns/pid", &space) != 0)
        return ticks;
    return ticks ^ (uint64_t)space.st_ino << 32;
}

uint64_t process_started(uint32_t pid)
{
    return process_started_at(process_ticks(pid));
}

int process_open(uint32_t pid, uint64_t started)
{
    if (pid == 0 || started == 0)
        return -1;
    const int descriptor = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    // The pid may belong to another process by now. It belongs to this one as long as it is open.
    if (descriptor >= 0 && process_started(pid) != started) {
        (void)close(descriptor);
        return -1;
    }
    return descriptor;
}

bool process_is_gone(int descriptor)
{
    struct pollfd look = {.fd = descriptor, .events = POLLIN};
    return descriptor >= 0 && poll(&look, 1, 0) > 0;
}
