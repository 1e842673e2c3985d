// SPDX-License-Identifier: Apache-2.0
//
// Names for addresses of code in this process: the object (a library or the program) that is loaded
// there, the offset in it, and the function, also a static one. Objects come from dl_iterate_phdr
// and functions from the object's file. dladdr is not used: it waits for a lock that another thread
// holds through all of a dlopen, and a thread that hangs in dlopen is one to show. The watch
// thread; allocates nothing.

#ifndef WORKER_STACKS_SYMBOLS_H
#define WORKER_STACKS_SYMBOLS_H

#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Sets object, offset and symbol of frames[i] for each addresses[i] that is not 0. A name that is
// not known stays empty: the object of generated code, the symbol of a stripped function. Without
// an object the offset is the address. files: false if no file may be opened, because a file system
// may hang; then no frame has a symbol. Each object's file is read once in a call, however many
// frames it has.
void symbols_name(struct stack_frame *frames, const uintptr_t *addresses, size_t count, bool files);

#endif
