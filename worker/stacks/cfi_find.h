// SPDX-License-Identifier: Apache-2.0
//
// The functions of cfi_find.c that other files call.

#ifndef WORKER_STACKS_CFI_FIND_H
#define WORKER_STACKS_CFI_FIND_H

#include <stdbool.h>
#include <stdint.h>

struct cfi_function;

// The rules at an address. resident: read only what is in main memory (peek_resident). False: none.
bool cfi_find(uintptr_t code, bool exact, bool resident, struct cfi_function *function);

#endif
