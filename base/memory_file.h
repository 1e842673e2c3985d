// SPDX-License-Identifier: Apache-2.0
//
// Memory that has a descriptor and no name in a folder (memfd), so that processes of one host can
// share it. The kernel frees it when the last process that holds it ends. A page of a file that was
// made shorter is a bus error for all who have mapped it; sealed memory keeps its size for ever.
// Functions that return an int return -1 with errno on failure. Any thread.

#ifndef LOCKSTEP_BASE_MEMORY_FILE_H
#define LOCKSTEP_BASE_MEMORY_FILE_H

#include <stdbool.h>
#include <stdint.h>

// Returns the descriptor of empty memory. Nobody can execute the memory, if the kernel can say so.
// The name is for people only: it is shown in /proc.
int memory_file_open(const char *name);
int memory_file_resize(int fd, uint64_t bytes); // Raises no SIGXFSZ; see file_limit.h.
int memory_file_seal(int fd);
bool memory_file_is_sealed(int fd);

// Returns the descriptor of memory that is sealed and whose pages are all allocated.
int memory_file_make(const char *name, uint64_t bytes);

#endif
