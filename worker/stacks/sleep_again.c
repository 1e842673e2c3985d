// SPDX-License-Identifier: Apache-2.0

#include "worker/stacks/sleep_again.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

// ---- Calls that the kernel goes on with --------------------------------------------------------

static uint64_t futex_command(const struct proc_call *call)
{
    return call->arguments[1] & (uint64_t)FUTEX_CMD_MASK;
}

static bool kernel_goes_on(const struct proc_call *call)
{
    switch (call->number) {
    case SYS_futex: // The fourth argument is the time.
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

// ---- Calls that are made anew ------------------------------------------------------------------

// They end when they should: their end is an instant, or what is left of their time is written
// back to where they read it from, as sleep() has it.
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
