// SPDX-License-Identifier: Apache-2.0
//
// The helper process, and a parser for the text that the interpreter writes:
//
//     Thread 0x00007fc6e2a656c0 [name] (most recent call first):
//       File "/usr/lib/python3/train.py", line 3 in load
//       ...
//
//     Current thread 0x00007fc6e3ffab80 (most recent call first):
//       <no Python frame>
//
// The number is the thread's pthread_t. Characters that are not printable ASCII are escaped, but
// quotes are not, so the parser looks for the end of a file's name from the end of the line. The
// text is not trusted.

#include "worker/stacks/python.h"

#include "base/memory_file.h"
#include "base/text.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PYTHON_THREADS 100 // Most threads that the interpreter writes.
// Room for a file and a function of 500 characters each; longer lines are cut.
#define PYTHON_LINE_BYTES 2048
#define PYTHON_STACK_BYTES (64 * 1024) // Size of the helper's stack.
#define PYTHON_DUMP_BYTES (4 << 20) // Most bytes of the helper's text that are read.
#define HELPER_SA_RESTORER 0x04000000ul // The kernel's SA_RESTORER, which glibc hides.

struct python {
    // set at open, then constant
    python_writer *writer;
    // watch thread only
    int fd; // Descriptor of the dump; -1: none.
    _Alignas(16) char stack[PYTHON_STACK_BYTES];
};

struct python *python_open_with(python_writer *writer)
{
    struct python *python = malloc(sizeof(*python));
    if (!python)
        return NULL;
    python->writer = writer;
    python->fd = -1;
    return python;
}

struct python *python_open(void)
{
    python_writer *writer;
    void *symbol = dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads");
    if (!symbol)
        return NULL;
    memcpy(&writer, &symbol, sizeof(writer));
    return python_open_with(writer);
}

static void python_forget(struct python *python)
{
    if (python->fd >= 0)
        close(python->fd);
    python->fd = -1;
}

void python_close(struct python *python)
{
    if (!python)
        return;
    python_forget(python);
    free(python);
}

// ---- The helper --------------------------------------------------------------------------------

static void helper_end(void)
{
    syscall(SYS_exit_group, 1);
}

// Sets a signal handler by a system call. sigaction() is not used, because some programs put their
// own function before it (libjsig and the sanitizers do) that keeps handlers in memory, and the
// helper shares the trainer's memory. The handler never returns, so the restorer is never used.
static void helper_handle(int number, void (*handler)(void))
{
    const struct {
        void (*handler)(void);
        unsigned long flags;
        void (*restorer)(void);
        uint64_t mask;
    } action = {.handler = handler, .flags = HELPER_SA_RESTORER, .restorer = helper_end};
    syscall(SYS_rt_sigaction, number, &action, NULL, sizeof(action.mask));
}

// The helper process. It shares memory and descriptors with the trainer, but no thread, signal
// handler or timer, so its settings do not affect the trainer. It reads the interpreter's memory,
// and writes only to the descriptor. A fault must not run the trainer's crash handlers, but it must
// have a handler: without one the kernel may dump core, and kernels before 5.16 then end all
// processes that share the memory.
static int helper_main(void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    const struct itimerval limit = {.it_value = {.tv_usec = PYTHON_MS * 1000}};
    const struct python *python = argument;
    sigset_t open;
    sigemptyset(&open);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        helper_handle(faults[i], helper_end);
        sigaddset(&open, faults[i]);
    }
    helper_handle(SIGALRM, helper_end);
    sigaddset(&open, SIGALRM);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setitimer(ITIMER_REAL, &limit, NULL);
    sigprocmask(SIG_UNBLOCK, &open, NULL);
    return !python->writer(python->fd, NULL, NULL, PYTHON_THREADS) ? 0 : 1;
}

// The calling thread sleeps until the helper has ended, because the helper shares this thread's
// errno and other thread-local variables. The helper's end sends no signal, and wait() does not see
// the helper, because the trainer may wait for its own children.
static bool helper_run(struct python *python)
{
    const int flags = CLONE_VM | CLONE_VFORK | CLONE_FS | CLONE_FILES;
    int status;
    pid_t pid, ended;
    pid = clone(helper_main, python->stack + PYTHON_STACK_BYTES, flags, python);
    if (pid < 0)
        return false;
    do
        ended = waitpid(pid, &status, (int)__WCLONE);
    while (ended < 0 && errno == EINTR);
    return true;
}

bool python_dump(struct python *python)
{
    python_forget(python);
    python->fd = memory_file_open("lockstep-python");
    if (python->fd < 0)
        return false;
    if (helper_run(python) && lseek(python->fd, 0, SEEK_END) > 0)
        return true;
    python_forget(python);
    return false;
}

// ---- The text ----------------------------------------------------------------------------------

// Reads lines through a window over the file.
struct lines {
    int fd;
    off_t next; // Offset in the file of the window's end.
    size_t size, at;
    char window[4096];
};

static int lines_byte(struct lines *lines)
{
    if (lines->at == lines->size) {
        ssize_t got = 0;
        if (lines->next < PYTHON_DUMP_BYTES)
            got = pread(lines->fd, lines->window, sizeof(lines->window), lines->next);
        if (got <= 0)
            return -1;
        lines->next += got;
        lines->size = (size_t)got;
        lines->at = 0;
    }
    return (unsigned char)lines->window[lines->at++];
}

// Reads the next line, without its end. Unprintable bytes become '?', and a long line is cut.
// Returns false after the last line.
static bool lines_read(struct lines *lines, char line[PYTHON_LINE_BYTES])
{
    size_t size = 0;
    int byte = lines_byte(lines);
    if (byte < 0)
        return false;
    for (; byte >= 0 && byte != '\n'; byte = lines_byte(lines)) {
        if (size < PYTHON_LINE_BYTES - 1)
            line[size++] = byte < ' ' || byte > '~' ? '?' : (char)byte;
    }
    line[size] = '\0';
    return true;
}

// Parses "Thread 0x00007fc6e2a656c0 ..." and "Current thread 0x...".
static bool parse_thread(const char *line, uintptr_t *id)
{
    static const char *const heads[] = {"Thread 0x", "Current thread 0x"};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        if (strncmp(line, heads[i], strlen(heads[i])) == 0) {
            *id = (uintptr_t)strtoull(line + strlen(heads[i]), NULL, 16);
            return true;
        }
    }
    return false;
}

static const char *parse_last(const char *line, const char *text)
{
    const char *last = NULL;
    for (const char *at = strstr(line, text); at; at = strstr(at + 1, text))
        last = at;
    return last;
}

static bool parse_begins(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

// True if a file belongs to Python's own library: "/usr/lib/python3.11/threading.py", but not a
// package that was installed beside it.
static bool parse_library(const char *file)
{
    static const char *const places[] = {"/lib/python", "/lib64/python"};
    if (parse_begins(file + (*file == '"'), "<frozen "))
        return true;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *at = parse_last(file, places[i]);
        if (!at)
            continue;
        at += strlen(places[i]);
        at += strspn(at, "0123456789.t");
        if (at[0] == '/' && !parse_begins(at, "/site-packages/") &&
            !parse_begins(at, "/dist-packages/"))
            return true;
    }
    return false;
}

// Parses `  File "/usr/lib/python3/train.py", line 3 in load`. Unknown values are written as "???".
static bool parse_frame(char *line, struct stack_frame *frame)
{
    static const char head[] = "  File ", middle[] = ", line ", in[] = " in ";
    char *file = line + sizeof(head) - 1;
    if (strncmp(line, head, sizeof(head) - 1) != 0)
        return false;
    const char *at = parse_last(file, middle);
    if (!at)
        return false;
    const char *function = strstr(at, in);
    line[at - line] = '\0';
    const char *slash = strrchr(file, '/');
    frame->library = parse_library(file);
    text_copy(frame->object, sizeof(frame->object), slash ? slash + 1 : file + (*file == '"'));
    const size_t length = strlen(frame->object);
    if (length > 0 && frame->object[length - 1] == '"')
        frame->object[length - 1] = '\0';
    frame->offset = strtoull(at + sizeof(middle) - 1, NULL, 10);
    text_copy(frame->symbol, sizeof(frame->symbol), function ? function + sizeof(in) - 1 : "");
    return true;
}

uint32_t python_parse(int fd, pthread_t id, uint32_t thread, struct stack_frame *frames,
                      uint32_t most)
{
    struct lines lines = {.fd = fd};
    char line[PYTHON_LINE_BYTES];
    uintptr_t current = 0;
    bool seen = false;
    uint32_t count = 0;
    while (count < most && lines_read(&lines, line)) {
        if (parse_thread(line, &current)) {
            if (seen)
                break;
            seen = current == (uintptr_t)id;
        } else if (seen) {
            struct stack_frame frame = {.thread = thread, .python = true};
            if (parse_frame(line, &frame))
                frames[count++] = frame;
        }
    }
    return count;
}

uint32_t python_frames(const struct python *python, pthread_t id, uint32_t thread,
                       struct stack_frame *frames, uint32_t most)
{
    return python->fd >= 0 ? python_parse(python->fd, id, thread, frames, most) : 0;
}
