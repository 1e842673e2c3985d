// SPDX-License-Identifier: Apache-2.0
//
// Finds the return addresses of a sleeping thread, from its stack pointer and its place in the code
// alone. The thread is not interrupted. All memory is read with peek.h.
//
// The thread's other registers are unknown. A function saves the registers that it changes, so most
// registers are found during the walk. If the frame pointer is needed and no function has saved it,
// unwind.c searches the stack for the function's return address. A return address is proven if the
// instruction before it calls this function. A frame that was found in another way is a guess, and
// so are the frames after it; guesses are marked.

#ifndef WORKER_STACKS_UNWIND_H
#define WORKER_STACKS_UNWIND_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct stack_addresses {
    uint32_t count;
    uint32_t sure; // Number of frames that are proven; the later ones are guesses.
    bool whole; // True if the last frame is where the thread begins, or if code[] is full.
    // The thread's place, then the return addresses outwards.
    uintptr_t code[LOCKSTEP_STACK_FRAMES];
};

// code, stack: where a thread of this process sleeps. resident: true if tables of objects may be
// read only when they are in main memory, because a file system may hang. The thread may continue
// meanwhile; then the addresses mean nothing, and the caller has to find that out.
void unwind(uintptr_t code, uintptr_t stack, bool resident, struct stack_addresses *addresses);

// True if a thread or the program begins in the function of a return address, so it has no caller.
// True on machines whose call frame information is not read. resident: as in unwind.
bool unwind_begins(uintptr_t code, bool resident);

#endif
