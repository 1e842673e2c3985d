// SPDX-License-Identifier: Apache-2.0
//
// Names of the system calls that may sleep for long in state D: calls for files, memory, processes
// and devices. See kernel_sleep.h. The numbers differ between machines, so the machine of the
// thread translates them to names.

#include "worker/watch/kernel_sleep.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>
#include <sys/syscall.h>

#define NAMED(name) \
    { \
        SYS_##name, #name \
    }

static const struct {
    long number;
    const char *name;
} kernel_calls[] = {
    NAMED(read),
    NAMED(write),
    NAMED(pread64),
    NAMED(pwrite64),
    NAMED(readv),
    NAMED(writev),
    NAMED(preadv),
    NAMED(pwritev),
    NAMED(preadv2),
    NAMED(pwritev2),
    NAMED(openat),
    NAMED(close),
    NAMED(newfstatat),
    NAMED(fstat),
    NAMED(statx),
    NAMED(statfs),
    NAMED(fstatfs),
    NAMED(lseek),
    NAMED(fsync),
    NAMED(fdatasync),
    NAMED(sync),
    NAMED(syncfs),
    NAMED(msync),
    NAMED(fallocate),
    NAMED(ftruncate),
    NAMED(truncate),
    NAMED(unlinkat),
    NAMED(renameat2),
    NAMED(linkat),
    NAMED(mkdirat),
    NAMED(getdents64),
    NAMED(readlinkat),
    NAMED(faccessat),
    NAMED(flock),
    NAMED(fcntl),
    NAMED(sendfile),
    NAMED(splice),
    NAMED(copy_file_range),
    NAMED(io_getevents),
    NAMED(io_submit),
    NAMED(ioctl),
    NAMED(mmap),
    NAMED(munmap),
    NAMED(mremap),
    NAMED(mprotect),
    NAMED(madvise),
    NAMED(brk),
    NAMED(mount),
    NAMED(umount2),
    NAMED(clone),
    NAMED(execve),
    NAMED(execveat),
    NAMED(wait4),
    NAMED(exit_group),
    NAMED(exit),
    NAMED(futex),
    NAMED(setxattr),
    NAMED(getxattr),
    NAMED(recvmsg),
    NAMED(recvfrom),
    NAMED(sendmsg),
    NAMED(sendto),
    NAMED(init_module),
    NAMED(finit_module),
#ifdef SYS_open
    NAMED(open),
    NAMED(stat),
    NAMED(lstat),
    NAMED(access),
    NAMED(unlink),
    NAMED(rename),
    NAMED(mkdir),
    NAMED(rmdir),
    NAMED(getdents),
    NAMED(fork),
    NAMED(vfork),
    NAMED(readlink),
#endif
#ifdef SYS_clone3
    NAMED(clone3),
#endif
#ifdef SYS_openat2
    NAMED(openat2),
    NAMED(faccessat2),
#endif
#ifdef SYS_io_uring_enter
    NAMED(io_uring_enter),
#endif
};

void kernel_sleep_call(int32_t number, char *text, size_t bytes)
{
    struct text out;
    text_init(&out, text, bytes);
    for (size_t i = 0; i < sizeof(kernel_calls) / sizeof(kernel_calls[0]); i++) {
        if (kernel_calls[i].number != number)
            continue;
        text_append(&out, "%s", kernel_calls[i].name);
        return;
    }
    if (number >= 0)
        text_append(&out, "system call %" PRId32, number);
}

void kernel_sleep_text(int32_t number, const char *wchan, char *text, size_t bytes)
{
    struct text out;
    kernel_sleep_call(number, text, bytes);
    if (wchan[0] == '\0')
        return;
    if (text[0] == '\0') {
        text_copy(text, bytes, wchan);
        return;
    }
    const size_t used = strlen(text);
    text_init(&out, text + used, bytes - used);
    text_append(&out, " (%s)", wchan);
}
