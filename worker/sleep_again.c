// SPDX-License-Identifier: Apache-2.0

#include "worker/sleep_again.h"

#include "protos/limits.h"

#if defined(__x86_64__)

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

enum sleep_kind {
    SLEEP_OTHER, // Not known to bear it, or the kernel does it.
    SLEEP_EXACT, // It ends when it should: its end is given, or what is left is written back.
    SLEEP_LONGER, // Its time begins anew.
};

// nanosleep writes what is left to where it reads from, if the caller says so; that is how sleep()
// goes on.
static enum sleep_kind sleep_nano(uint64_t wanted, uint64_t left)
{
    return wanted == left ? SLEEP_EXACT : SLEEP_LONGER;
}

static enum sleep_kind sleep_futex(const struct proc_call *call)
{
    switch ((int)call->arguments[1] & FUTEX_CMD_MASK) {
    case FUTEX_WAIT_BITSET: // Until an instant.
        return SLEEP_EXACT;
    case FUTEX_WAIT:
        return SLEEP_LONGER;
    default:
        return SLEEP_OTHER;
    }
}

// Milliseconds; below 0 is for ever.
static enum sleep_kind sleep_milliseconds(uint64_t argument)
{
    return (int32_t)argument < 0 ? SLEEP_EXACT : SLEEP_LONGER;
}

static enum sleep_kind sleep_kind(const struct proc_call *call)
{
    const uint64_t *arguments = call->arguments;
    switch (call->number) {
    case SYS_nanosleep:
        return sleep_nano(arguments[0], arguments[1]);
    case SYS_clock_nanosleep:
        return (arguments[1] & TIMER_ABSTIME) != 0 ? SLEEP_EXACT
                                                   : sleep_nano(arguments[2], arguments[3]);
    case SYS_poll:
        return sleep_milliseconds(arguments[2]);
    case SYS_epoll_wait:
    case SYS_epoll_pwait:
        return sleep_milliseconds(arguments[3]);
    case SYS_select: // These write back what is left.
    case SYS_pselect6:
    case SYS_ppoll:
        return SLEEP_EXACT;
    case SYS_futex:
        return sleep_futex(call);
    default:
        return SLEEP_OTHER;
    }
}

bool sleep_again_may(uint32_t tid, const struct proc_call *call)
{
    static struct made {
        uint32_t tid; // 0: none.
        struct proc_call call;
    } made_anew[LOCKSTEP_STACK_THREADS];
    struct made *made = &made_anew[tid % LOCKSTEP_STACK_THREADS];
    const enum sleep_kind kind = sleep_kind(call);
    const bool same = made->tid == tid && memcmp(&made->call, call, sizeof(*call)) == 0;
    if (kind != SLEEP_LONGER)
        return kind == SLEEP_EXACT;
    made->tid = same ? 0 : tid;
    made->call = *call;
    return !same;
}

void sleep_again(void *context, const struct proc_call *call)
{
    static const unsigned char instruction[] = {0x0f, 0x05}; // syscall
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint64_t arguments[] = {(uint64_t)registers[REG_RDI], (uint64_t)registers[REG_RSI],
                                  (uint64_t)registers[REG_RDX], (uint64_t)registers[REG_R10],
                                  (uint64_t)registers[REG_R8],  (uint64_t)registers[REG_R9]};
    static_assert(sizeof(arguments) == sizeof(call->arguments), "a call has six");
    if (registers[REG_RAX] != -EINTR || (uint64_t)registers[REG_RSP] != call->stack ||
        (uint64_t)registers[REG_RIP] != call->code ||
        memcmp(arguments, call->arguments, sizeof(arguments)) != 0 ||
        memcmp((const char *)call->code - sizeof(instruction), instruction, sizeof(instruction)) !=
            0)
        return;
    registers[REG_RAX] = (greg_t)call->number;
    registers[REG_RIP] -= (greg_t)sizeof(instruction);
}

#else

bool sleep_again_may(uint32_t tid, const struct proc_call *call)
{
    (void)tid;
    (void)call;
    return false;
}

void sleep_again(void *context, const struct proc_call *call)
{
    (void)context;
    (void)call;
}

#endif
