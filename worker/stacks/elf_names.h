// SPDX-License-Identifier: Apache-2.0
//
// Finds names of functions in the symbol table of an ELF file: .symtab, which also has the static
// functions, or .dynsym if the file is stripped. The file is not trusted: every offset, size and
// index is checked. The file is read with pread, so a file that shrinks meanwhile gives a short
// read and no bus error. One pass over the table, with a buffer of fixed size, finds the names for
// all wanted addresses of the file. Keeps no state and allocates nothing. Any thread.

#ifndef WORKER_STACKS_ELF_NAMES_H
#define WORKER_STACKS_ELF_NAMES_H

#include "protos/limits.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>

#define ELF_MAX_SEGMENTS 32

struct elf_want {
    uint64_t address; // An address in the file, before the load address is added.
    // [LOCKSTEP_SYMBOL_BYTES], borrowed; empty before the search. Stays empty if no function
    // contains the address.
    char *name;
    uint64_t start; // Start of the best function found so far.
};

// Removes the suffix that a compiler adds to the name of a part or a variant of a function:
// "take_rows.constprop.0" becomes "take_rows".
void elf_name_cut(char *name);

// True if the file has exactly these program headers. A file that was replaced after it was loaded
// nearly always has other headers.
bool elf_names_has_segments(int fd, const Elf64_Phdr *segments, uint32_t count);

// Fills in the names of all wants, which must be sorted by address. Returns false if the file has
// no readable symbol table.
bool elf_names(int fd, struct elf_want *wants, uint32_t count);

#endif
