// SPDX-License-Identifier: Apache-2.0
//
// Tests whether two processes of this machine can share memory the way ranks of a host do: one
// makes memory that has all its pages and cannot change its size, and passes its descriptor over an
// abstract Unix socket. The other maps it, and each sees what the other has written. The test
// really does this with a forked process, because each step is forbidden on some machines. The
// steps must be those of the library: worker/link/shm.c and worker/link/unix.c. Main thread.

#include "cli/doctor/share.h"

#include "base/file_limit.h"
#include "base/memory_file.h"
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARE_BYTES ((size_t)4 * 1024 * 1024)
#define SHARE_WAIT_S 5
#define SHARE_QUESTION 0x4c6f636bU // Written by this process, read by the other.
#define SHARE_ANSWER 0x73746570U

// The parts of the test, in order. The exit code of the other process is the part that failed, or
// SHARE_ALL_WORKS.
enum share_part {
    SHARE_ALL_WORKS,
    SHARE_MEMFD,
    SHARE_FALLOCATE,
    SHARE_SEAL,
    SHARE_MAP,
    SHARE_SOCKET,
    SHARE_FORK,
    SHARE_CONNECT,
    SHARE_PASS,
    SHARE_SEALS_SEEN,
    SHARE_MAP_PASSED,
    SHARE_SEE
};

static const char *const part_names[] = {
    [SHARE_MEMFD] = "making memory (memfd_create)",
    [SHARE_FALLOCATE] = "getting all its pages (fallocate)",
    [SHARE_SEAL] = "sealing its size (F_ADD_SEALS)",
    [SHARE_MAP] = "mapping it (mmap)",
    [SHARE_SOCKET] = "listening on an abstract unix socket",
    [SHARE_FORK] = "starting a second process",
    [SHARE_CONNECT] = "connecting two processes by an abstract unix socket",
    [SHARE_PASS] = "passing a descriptor (SCM_RIGHTS)",
    [SHARE_SEALS_SEEN] = "seeing the seals in the other process",
    [SHARE_MAP_PASSED] = "mapping it in the other process",
    [SHARE_SEE] = "seeing what the other process has written",
};

struct share {
    int memory_fd;
    int listener;
    uint32_t *memory; // [SHARE_BYTES / 4]
    struct sockaddr_un name;
    socklen_t name_size;
};

// ---- memory ------------------------------------------------------------------------------------

static uint32_t *share_map(int fd)
{
    void *memory = mmap(NULL, SHARE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

// Writes the first and the last word.
static void share_write(uint32_t *memory, uint32_t word)
{
    memory[0] = word;
    memory[SHARE_BYTES / sizeof(*memory) - 1] = word;
}

static bool share_reads(const uint32_t *memory, uint32_t word)
{
    return memory[0] == word && memory[SHARE_BYTES / sizeof(*memory) - 1] == word;
}

static enum share_part share_make(struct share *share)
{
    share->memory_fd = memory_file_open("lockstep-doctor");
    if (share->memory_fd < 0)
        return SHARE_MEMFD;
    if (file_limit_fill(share->memory_fd, SHARE_BYTES) < 0)
        return SHARE_FALLOCATE;
    if (memory_file_seal(share->memory_fd) < 0)
        return SHARE_SEAL;
    share->memory = share_map(share->memory_fd);
    if (!share->memory)
        return SHARE_MAP;
    (void)madvise(share->memory, SHARE_BYTES, MADV_DONTFORK);
    share_write(share->memory, SHARE_QUESTION);
    return SHARE_ALL_WORKS;
}

// ---- the socket --------------------------------------------------------------------------------

// Listens on a socket. bind without a name lets the kernel choose an unused abstract name.
static enum share_part share_listen(struct share *share)
{
    const struct timeval patience = {.tv_sec = SHARE_WAIT_S};
    const sa_family_t nameless = AF_UNIX;
    share->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    share->name_size = sizeof(share->name);
    if (share->listener < 0 ||
        bind(share->listener, (const struct sockaddr *)&nameless, sizeof(nameless)) < 0 ||
        listen(share->listener, 1) < 0 ||
        getsockname(share->listener, (struct sockaddr *)&share->name, &share->name_size) < 0 ||
        setsockopt(share->listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0)
        return SHARE_SOCKET;
    return SHARE_ALL_WORKS;
}

union share_control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static bool share_send(int to, int fd)
{
    char byte = 0;
    struct iovec piece = {.iov_base = &byte, .iov_len = 1};
    union share_control control = {.bytes = {0}};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

// Receives a descriptor. Returns it, or -1.
static int share_receive(int from)
{
    char byte = 0;
    int fd = -1;
    struct iovec piece = {.iov_base = &byte, .iov_len = 1};
    union share_control control = {.bytes = {0}};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(fd)))
        memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

// ---- the two processes -------------------------------------------------------------------------

static enum share_part share_take(int fd)
{
    struct stat status;
    if (!memory_file_is_sealed(fd) || fstat(fd, &status) < 0 ||
        status.st_size != (off_t)SHARE_BYTES)
        return SHARE_SEALS_SEEN;
    uint32_t *memory = share_map(fd);
    if (!memory)
        return SHARE_MAP_PASSED;
    if (!share_reads(memory, SHARE_QUESTION))
        return SHARE_SEE;
    share_write(memory, SHARE_ANSWER);
    return SHARE_ALL_WORKS;
}

// Runs in the other process. It maps the memory that was passed, not the memory that it inherited.
static enum share_part share_other(const struct share *share)
{
    const struct timeval patience = {.tv_sec = SHARE_WAIT_S};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
        connect(fd, (const struct sockaddr *)&share->name, share->name_size) < 0)
        return SHARE_CONNECT;
    const int passed = share_receive(fd);
    if (passed < 0)
        return SHARE_PASS;
    return share_take(passed);
}

// Runs this process's side of the test.
static enum share_part share_serve(const struct share *share)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    const int fd = accept4(share->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return SHARE_CONNECT;
    enum share_part failed = SHARE_ALL_WORKS;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.uid != geteuid())
        failed = SHARE_CONNECT;
    else if (!share_send(fd, share->memory_fd))
        failed = SHARE_PASS;
    const int number = errno;
    (void)close(fd); // The other process can still receive bytes that were sent before.
    errno = number;
    return failed;
}

// Waits for the other process. Its exit code is the part that failed; the errno value is unknown.
static enum share_part share_end(const struct share *share, pid_t other)
{
    int status = 0;
    if (waitpid(other, &status, 0) != other)
        return SHARE_FORK;
    errno = 0;
    if (!WIFEXITED(status))
        return SHARE_FORK;
    if (WEXITSTATUS(status) != SHARE_ALL_WORKS)
        return (enum share_part)WEXITSTATUS(status);
    return share_reads(share->memory, SHARE_ANSWER) ? SHARE_ALL_WORKS : SHARE_SEE;
}

static enum share_part share_with_other(const struct share *share)
{
    const pid_t other = fork();
    if (other < 0)
        return SHARE_FORK;
    if (other == 0)
        _exit((int)share_other(share));
    const enum share_part failed = share_serve(share);
    if (failed == SHARE_ALL_WORKS)
        return share_end(share, other);
    const int number = errno;
    (void)kill(other, SIGKILL);
    (void)waitpid(other, NULL, 0);
    errno = number;
    return failed;
}

static void share_close(struct share *share)
{
    if (share->memory)
        (void)munmap(share->memory, SHARE_BYTES);
    if (share->memory_fd >= 0)
        (void)close(share->memory_fd);
    if (share->listener >= 0)
        (void)close(share->listener);
}

const char *doctor_share(int *number)
{
    struct share share = {.memory_fd = -1, .listener = -1};
    enum share_part failed = share_make(&share);
    if (failed == SHARE_ALL_WORKS)
        failed = share_listen(&share);
    if (failed == SHARE_ALL_WORKS)
        failed = share_with_other(&share);
    *number = failed == SHARE_ALL_WORKS ? 0 : errno;
    share_close(&share);
    const size_t known = sizeof(part_names) / sizeof(part_names[0]);
    return failed < known ? part_names[failed] : part_names[SHARE_FORK];
}
