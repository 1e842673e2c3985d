// SPDX-License-Identifier: Apache-2.0
//
// Finds the call frame information of an address. Threads: as in cfi.h.

#ifndef WORKER_STACKS_CFI_FIND_H
#define WORKER_STACKS_CFI_FIND_H

#include <stdbool.h>
#include <stdint.h>

struct cfi_function;

// Finds the function and the rules at an address. exact: as in struct cfi_registers. resident: true
// if only bytes in main memory may be read (peek_resident). Returns false if there is no
// information.
bool cfi_find(uintptr_t code, bool exact, bool resident, struct cfi_function *function);

#endif
