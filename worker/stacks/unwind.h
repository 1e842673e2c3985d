// SPDX-License-Identifier: Apache-2.0
//
// Return addresses of a sleeping thread, found from its stack pointer and its place in the code
// alone. The thread is not interrupted. All memory is read with peek.h.
//
// The other registers of the thread are unknown. A function saves the registers that it changes, so
// most of them are found on the way. If the frame pointer is needed and no function has saved it,
// unwind.c searches the stack for the return address of the function. A return address behind an
// instruction that calls this function is proven. A frame that was found in another way is a guess,
// and so are the frames behind it; guesses are marked.

#ifndef WORKER_STACKS_UNWIND_H
#define WORKER_STACKS_UNWIND_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct stack_addresses {
    uint32_t count;
    uint32_t sure; // Frames before this index are proven; the others are guesses.
    bool whole; // True if the last frame is where the thread begins, or there was no more room.
    uintptr_t code[LOCKSTEP_STACK_FRAMES]; // The thread's place, then return addresses outwards.
};

// code, stack: where a thread of this process sleeps. resident: true if tables of objects are read
// only when they are in main memory, because a file system may hang. The thread may go on
// meanwhile; then the addresses mean nothing, and the caller has to find that out.
void unwind(uintptr_t code, uintptr_t stack, bool resident, struct stack_addresses *addresses);

#endif
