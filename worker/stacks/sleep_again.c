// SPDX-License-Identifier: Apache-2.0

#include "worker/stacks/sleep_again.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

// ---- Calls that the kernel continues -----------------------------------------------------------

static uint64_t futex_command(const struct proc_call *call)
{
    return call->arguments[1] & (uint64_t)FUTEX_CMD_MASK;
}

static bool kernel_goes_on(const struct proc_call *call)
{
    switch (call->number) {
    case SYS_futex: // The fourth argument is the timeout.
        return (futex_command(call) == FUTEX_WAIT || futex_command(call) == FUTEX_WAIT_BITSET ||
                futex_command(call) == FUTEX_LOCK_PI) &&
               call->arguments[3] == 0;
    case SYS_wait4:
    case SYS_waitid:
    case SYS_flock:
        return true;
    default:
        return false;
    }
}

#if defined(__x86_64__)

// ---- Calls that the handler restarts -----------------------------------------------------------

// True for calls that end at the right time after a restart: their end is an absolute time, or the
// kernel writes the remaining time back to the place from which the call reads it, as in sleep().
static bool made_anew(const struct proc_call *call)
{
    const uint64_t *arguments = call->arguments;
    switch (call->number) {
    case SYS_nanosleep:
        return arguments[0] == arguments[1];
    case SYS_clock_nanosleep:
        return (arguments[1] & TIMER_ABSTIME) != 0 || arguments[2] == arguments[3];
    case SYS_select:
    case SYS_pselect6:
    case SYS_ppoll:
        return true;
    case SYS_futex:
        return futex_command(call) == FUTEX_WAIT_BITSET;
    default:
        return false;
    }
}

bool sleep_again_unnoticed(const struct proc_call *call)
{
    return made_anew(call) || kernel_goes_on(call);
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

bool sleep_again_unnoticed(const struct proc_call *call)
{
    return kernel_goes_on(call);
}

void sleep_again(void *context, const struct proc_call *call)
{
    (void)context;
    (void)call;
}

#endif
