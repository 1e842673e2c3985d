// SPDX-License-Identifier: Apache-2.0
//
// Finds names for code addresses in this process: the object (a library or the program) that is
// loaded at the address, the offset in the object, and the function, also a static one. Objects
// come from dl_iterate_phdr, and functions from the object's file. dladdr is not used: it waits for
// a lock that another thread holds during a whole dlopen, and a thread that hangs in dlopen is one
// to show. Watch thread; allocates nothing.

#ifndef WORKER_STACKS_SYMBOLS_H
#define WORKER_STACKS_SYMBOLS_H

#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Sets object, offset and symbol of frames[i] for each addresses[i] that is not 0. A name that is
// not known stays empty: the object of generated code, the symbol of a stripped function. If there
// is no object, the offset is the address. files: false if no file may be opened, because a file
// system may hang; then no frame gets a symbol. A call reads each object's file once for every
// SYMBOLS_AT_ONCE of its frames.
void symbols_name(struct stack_frame *frames, const uintptr_t *addresses, size_t count, bool files);

#endif
