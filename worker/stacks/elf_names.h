// SPDX-License-Identifier: Apache-2.0
//
// Names of functions from the symbol table of an ELF file: .symtab, which has the static functions
// too, or .dynsym where that was stripped. The file is not trusted: every offset, size and index is
// checked against what was read, and it is read with pread, so one that shrinks meanwhile is a
// short read and no bus error. One pass over the table in a buffer of fixed size serves all
// addresses of the file; nothing is kept and nothing allocated. Any thread.

#ifndef WORKER_STACKS_ELF_NAMES_H
#define WORKER_STACKS_ELF_NAMES_H

#include "protos/limits.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>

#define ELF_MAX_SEGMENTS 32

struct elf_want {
    uint64_t address; // In the file's own addresses, without where it was loaded.
    char *name; // [LOCKSTEP_SYMBOL_BYTES], borrowed; empty, and stays so where no function is.
    uint64_t start; // Of the best function so far.
};

// Cuts off what compilers add to the name of a function of which they make a part, or a variant for
// some arguments: "take_rows.constprop.0" is take_rows for people.
void elf_name_cut(char *name);

// Whether the file has just these program headers: a file that was replaced since it was loaded
// nearly always has others.
bool elf_names_has_segments(int fd, const Elf64_Phdr *segments, uint32_t count);

// Fills in the names of all wants, which are sorted by address. False: the file has no symbol table
// that can be understood.
bool elf_names(int fd, struct elf_want *wants, uint32_t count);

#endif
