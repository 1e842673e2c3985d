// SPDX-License-Identifier: Apache-2.0
//
// A library that this one uses when the machine has it: found at run time, what the process already
// has first, its functions put into a struct of pointers. The fence of such a library
// (worker/device/cuda.c, worker/device/nccl.c) says which file and which symbols; here is how, once
// for all of them, and the only dlopen of liblockstep. Not a place for anything that such a library
// does. Any thread.

#ifndef WORKER_SUPPORT_FOREIGN_H
#define WORKER_SUPPORT_FOREIGN_H

#include "base/mutex.h"

#include <stdbool.h>
#include <stddef.h>

#define FOREIGN_PATH_BYTES 256

// One function pointer of the table, and the name that the library exports it under.
struct foreign_symbol {
    const char *name;
    size_t offset; // Of the pointer in the table.
    bool optional; // NULL in the table when the library does not have it.
};

struct foreign {
    // constant
    const char *file; // What dlopen is asked for: "libcuda.so.1".
    const char *variable; // An environment variable that names another file.
    const char *advice; // Ends the sentence of a file that is not there.
    const char *age; // Ends the sentence of a file without one of the symbols.
    const struct foreign_symbol *symbols;
    size_t symbol_count;
    void *table;

    // guarded by mutex
    struct mutex mutex;
    bool loaded; // The table is filled, and constant from then on.
    char path[FOREIGN_PATH_BYTES]; // The file that was taken, where the loader says so.
};

enum foreign_search {
    FOREIGN_PRESENT, // Only what the process has loaded already; nothing is loaded.
    FOREIGN_ANYWHERE,
};

// Whether the table is filled; it is filled once a process, and the library then stays. After a
// failure, which is one sentence in `error`, the next call looks again. Blocks on the loader's
// lock.
bool foreign_load(struct foreign *library, enum foreign_search search, char *error,
                  size_t error_bytes);

// The file that the table came from; "" before it is filled, or when the loader does not say.
const char *foreign_path(struct foreign *library);

#endif
