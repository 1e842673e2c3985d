// SPDX-License-Identifier: Apache-2.0
//
// An optional library, which liblockstep uses if the machine has it. The library is found at run
// time, first among the libraries that the process has already loaded, and its functions are stored
// in a struct of pointers. One file for each such library (worker/device/cuda.c,
// worker/device/nccl.c) lists the file name and the symbols; this file loads them, with the only
// dlopen of liblockstep. The use of the library's functions is not handled here. Any thread.

#ifndef WORKER_SUPPORT_FOREIGN_H
#define WORKER_SUPPORT_FOREIGN_H

#include "base/mutex.h"

#include <stdbool.h>
#include <stddef.h>

#define FOREIGN_PATH_BYTES 256

// One function pointer of the table, and the name of the library's symbol for it.
struct foreign_symbol {
    const char *name;
    size_t offset; // Offset of the pointer in the table.
    bool optional; // True if the library may lack the symbol; then the pointer is NULL.
};

struct foreign {
    // constant
    const char *file; // The file name for dlopen: "libcuda.so.1".
    const char *variable; // Name of an environment variable that can name another file.
    const char *advice; // End of the error text if the file is missing.
    const char *age; // End of the error text if the file lacks a symbol.
    const struct foreign_symbol *symbols;
    size_t symbol_count;
    void *table;

    // guarded by mutex
    struct mutex mutex;
    bool loaded; // True once the table is filled; it is constant from then on.
    char path[FOREIGN_PATH_BYTES]; // The file that was loaded; empty if the loader does not say.
};

enum foreign_search {
    FOREIGN_PRESENT, // Only a library that the process has already loaded; no library is loaded.
    FOREIGN_ANYWHERE,
};

// Fills the table, once in a process; the library then stays loaded. Returns true if the table is
// filled. After a failure, which is one sentence in `error`, the next call tries again. Blocks on
// the loader's lock.
bool foreign_load(struct foreign *library, enum foreign_search search, char *error,
                  size_t error_bytes);

// Returns true if the variable names a file that cannot be loaded, or that is another library; then
// the reason is in `error`. Nothing stays loaded. Blocks on the loader's lock.
bool foreign_is_misnamed(const struct foreign *library, char *error, size_t error_bytes);

// Returns the file that the table came from; "" before the table is filled, or if the loader does
// not report the file.
const char *foreign_path(struct foreign *library);

#endif
