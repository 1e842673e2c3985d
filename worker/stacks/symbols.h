// SPDX-License-Identifier: Apache-2.0
//
// Names for addresses of code in this process: the object (a library, the program) that is loaded
// there, the offset in it, and the function, static ones included. Objects come from
// dl_iterate_phdr and functions from the object's file. Not from dladdr: that waits for a lock that
// another thread holds through all of a dlopen, and a thread that hangs in there is one that people
// want to see. The watch thread; allocates nothing.

#ifndef WORKER_STACKS_SYMBOLS_H
#define WORKER_STACKS_SYMBOLS_H

#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Sets object, offset and symbol of frames[i] for each addresses[i] that is not 0. What is not
// known stays empty: the object of generated code, the symbol of a stripped function; the offset is
// the address then. files false: no file is opened, so nothing has a symbol; for when a file system
// may be what hangs. Each object's file is read once in a call, however many frames it has.
void symbols_name(struct stack_frame *frames, const uintptr_t *addresses, size_t count, bool files);

#endif
