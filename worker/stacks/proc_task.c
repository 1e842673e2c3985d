// SPDX-License-Identifier: Apache-2.0
//
// Reads facts from texts of /proc/self/task/TID. A text may be cut, empty or missing, because of
// the kernel, a sandbox or the end of the thread. Any thread.

#include "worker/stacks/proc_task.h"

#include "base/text.h"
#include "worker/support/proc_text.h"
#include "worker/support/spare.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SYSCALL_RUNS (-1)
#define SYSCALL_UNKNOWN (-2)

// Reads a file, without the newline at its end.
static void proc_task_text(int task, const char *file, char text[PROC_TEXT_BYTES])
{
    proc_text(task, file, text);
    const size_t size = strlen(text);
    if (size > 0 && text[size - 1] == '\n')
        text[size - 1] = '\0';
}

// Parses "4711 (name) S 1 ...". The name may contain anything, also brackets.
static char proc_task_state(const char *stat)
{
    const char *end = strrchr(stat, ')');
    return end && end[1] == ' ' && isalpha((unsigned char)end[2]) ? end[2] : '\0';
}

// Parses "running", or "202 0x7f...": the number and the arguments of the call. "-1 ..." means that
// the thread sleeps outside any system call, in a page fault.
static int32_t proc_task_syscall(const char *text)
{
    char *end;
    if (strcmp(text, "running") == 0)
        return SYSCALL_RUNS;
    if (!isdigit((unsigned char)text[0]))
        return SYSCALL_UNKNOWN;
    errno = 0;
    const long number = strtol(text, &end, 10);
    if (errno != 0 || (*end != ' ' && *end != '\0') || number > INT32_MAX)
        return SYSCALL_UNKNOWN;
    return (int32_t)number;
}

// Reads `count` numbers. Returns false if the text has fewer numbers, or anything else.
static bool proc_task_numbers(const char *text, uint64_t *numbers, size_t count)
{
    char *end;
    for (size_t i = 0; i < count; i++) {
        errno = 0;
        numbers[i] = strtoull(text, &end, 0);
        if (errno != 0 || end == text)
            return false;
        text = end;
    }
    return *text == '\0';
}

// Parses the same text completely: the number, six arguments, the stack and the code. Outside
// system calls there are only the stack and the code.
static void proc_task_call(const char *text, struct proc_call *call)
{
    const struct proc_call unknown = {.number = UINT64_MAX};
    uint64_t numbers[9];
    *call = unknown;
    if (strncmp(text, "-1 ", 3) == 0 && proc_task_numbers(text + 3, numbers, 2)) {
        call->stack = numbers[0];
        call->code = numbers[1];
    }
    if (!isdigit((unsigned char)text[0]) || !proc_task_numbers(text, numbers, 9))
        return;
    call->number = numbers[0];
    memcpy(call->arguments, numbers + 1, sizeof(call->arguments));
    call->stack = numbers[7];
    call->code = numbers[8];
}

// Returns the number of a line such as "SigBlk:\t0000000000000000" in `status`; 0 if there is none.
static uint64_t proc_task_number(const char *status, const char *field, int base)
{
    const char *at = strstr(status, field);
    return at ? strtoull(at + strlen(field), NULL, base) : 0;
}

bool proc_task_read(const char *directory, uint32_t tid, struct stack_thread *thread,
                    struct proc_signals *signals)
{
    char text[PROC_TEXT_BYTES];
    snprintf(text, sizeof(text), "%s/%" PRIu32, directory, tid);
    *signals = (struct proc_signals){.call.number = UINT64_MAX};
    thread->tid = tid;
    thread->name[0] = '\0';
    thread->wchan[0] = '\0';
    thread->state = '\0';
    thread->syscall = SYSCALL_UNKNOWN;
    const int task = spare_open(AT_FDCWD, text, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (task < 0)
        return false;
    proc_task_text(task, "stat", text);
    thread->state = proc_task_state(text);
    proc_task_text(task, "syscall", text);
    thread->syscall = proc_task_syscall(text);
    proc_task_call(text, &signals->call);
    proc_task_text(task, "comm", text);
    text_copy(thread->name, sizeof(thread->name), text);
    proc_task_text(task, "wchan", text);
    if (strcmp(text, "0") != 0)
        text_copy(thread->wchan, sizeof(thread->wchan), text);
    proc_task_text(task, "status", text);
    signals->blocked = proc_task_number(text, "\nSigBlk:", 16);
    signals->pending = proc_task_number(text, "\nSigPnd:", 16);
    signals->switches = proc_task_number(text, "\nvoluntary_ctxt_switches:", 10) +
                        proc_task_number(text, "\nnonvoluntary_ctxt_switches:", 10);
    spare_close(task);
    return true;
}

// Uses getdents64, because opendir() would allocate.
uint32_t proc_task_list(const char *directory, uint32_t *tids, uint32_t most)
{
    struct entry {
        uint64_t number;
        int64_t offset;
        uint16_t size;
        unsigned char type;
        char name[];
    };
    _Alignas(struct entry) char entries[4096];
    uint32_t count = 0;
    long got;
    const int task = spare_open(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (task < 0)
        return 0;
    while (count < most && (got = syscall(SYS_getdents64, task, entries, sizeof(entries))) > 0) {
        for (long at = 0; at < got && count < most;) {
            const struct entry *entry = (const struct entry *)(entries + at);
            if (isdigit((unsigned char)entry->name[0]))
                tids[count++] = (uint32_t)strtoul(entry->name, NULL, 10);
            at += entry->size;
        }
    }
    spare_close(task);
    return count;
}
