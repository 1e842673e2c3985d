// SPDX-License-Identifier: Apache-2.0
//
// Return addresses of a thread that sleeps, from its stack pointer and its place in the code alone:
// the thread is not interrupted and does not learn of it. All memory is read with peek.h.
//
// The other registers of the thread are unknown. A function saves those that it changes, so most
// come to light on the way. Where the frame pointer is needed and no function has saved it, the
// stack is searched for the return address of the function (unwind.c). Return addresses whose call
// instruction calls just this function are proven; a frame that was found otherwise, and those
// behind it, are guesses, and are marked.

#ifndef WORKER_STACKS_UNWIND_H
#define WORKER_STACKS_UNWIND_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct stack_addresses {
    uint32_t count;
    uint32_t sure; // Frames from this one on are guesses.
    bool whole; // True if the last one is where the thread begins, or there was no more room.
    uintptr_t code[LOCKSTEP_STACK_FRAMES]; // Innermost first: where it is, then return addresses.
};

// code, stack: where a thread of this process sleeps. resident: read the tables of objects only
// where they are in main memory, for when a file system may be what hangs. The thread may go on
// meanwhile: then the addresses are of nobody, and the caller has to find that out.
void unwind(uintptr_t code, uintptr_t stack, bool resident, struct stack_addresses *addresses);

#endif
