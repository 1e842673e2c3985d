// SPDX-License-Identifier: Apache-2.0
//
// A trace file that a process left behind, of which every byte may be anything. An input that is
// shorter than a trace is the beginning of one.

#include "cli/trace/trace_file.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct trace_file trace;
    static int fd = -1;
    char path[64];
    char error[256] = "";
    if (fd < 0)
        fd = memfd_create("trace", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && ftruncate(fd, TRACE_BYTES) == 0);
    if (size > TRACE_BYTES)
        size = TRACE_BYTES;
    FUZZ_CHECK(pwrite(fd, bytes, size, 0) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (trace_file_read(path, &trace, error, sizeof(error)) < 0) {
        FUZZ_CHECK(error[0] != '\0');
        return 0;
    }
    FUZZ_CHECK(trace.event_count + trace.torn <= LOCKSTEP_TRACE_EVENTS);
    FUZZ_CHECK(memchr(trace.mark, 0, sizeof(trace.mark)) != NULL);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_MODULES; i++)
        FUZZ_CHECK(memchr(trace.modules[i], 0, sizeof(trace.modules[i])) != NULL);
    return 0;
}
