// SPDX-License-Identifier: Apache-2.0
//
// A library that this one uses if the machine has it. It is found at run time, first among the
// libraries that the process already has, and its functions go into a struct of pointers. The fence
// of such a library (worker/device/cuda.c, worker/device/nccl.c) names the file and the symbols;
// this file loads them, with the only dlopen of liblockstep. What a library does is not handled
// here. Any thread.

#ifndef WORKER_SUPPORT_FOREIGN_H
#define WORKER_SUPPORT_FOREIGN_H

#include "base/mutex.h"

#include <stdbool.h>
#include <stddef.h>

#define FOREIGN_PATH_BYTES 256

// One function pointer of the table, and the name that the library exports it under.
struct foreign_symbol {
    const char *name;
    size_t offset; // Offset of the pointer in the table.
    bool optional; // True if the pointer may be NULL, because the library does not have the symbol.
};

struct foreign {
    // constant
    const char *file; // The name given to dlopen: "libcuda.so.1".
    const char *variable; // An environment variable that names another file.
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
    FOREIGN_PRESENT, // Only a library that the process has loaded already; nothing is loaded.
    FOREIGN_ANYWHERE,
};

// Fills the table, once in a process; the library then stays loaded. True if the table is filled.
// After a failure, which is one sentence in `error`, the next call tries again. Blocks on the
// loader's lock.
bool foreign_load(struct foreign *library, enum foreign_search search, char *error,
                  size_t error_bytes);

// The file that the table came from; "" before it is filled, or if the loader does not say.
const char *foreign_path(struct foreign *library);

#endif
