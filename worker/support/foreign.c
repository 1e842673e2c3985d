// SPDX-License-Identifier: Apache-2.0
//
// The only dlopen of liblockstep; see worker/support/foreign.h.

#include "worker/support/foreign.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// POSIX allows dlsym to return a function as an object pointer; C11 has no cast for that, so memcpy
// copies it.
static_assert(sizeof(void *) == sizeof(void (*)(void)), "dlsym returns functions");

static const char *file_of(const struct foreign *library)
{
    const char *other = getenv(library->variable);
    return other && *other ? other : library->file;
}

// The loader first takes a library of this name (or soname) that the process has already loaded,
// and then looks for a file. The handle stays open after a success, because pointers into the
// library stay in use.
static void *open_file(const struct foreign *library, enum foreign_search search, char *error,
                       size_t error_bytes)
{
    const char *file = file_of(library);
    const int present = search == FOREIGN_PRESENT ? RTLD_NOLOAD : 0;
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | present);
    if (handle)
        return handle;
    const char *reason = dlerror();
    if (search == FOREIGN_PRESENT)
        snprintf(error, error_bytes, "this process has not loaded %s", file);
    else if (file == library->file)
        snprintf(error, error_bytes, "cannot load %s%s", reason ? reason : file, library->advice);
    else
        snprintf(error, error_bytes, "cannot load %s (%s names it)", reason ? reason : file,
                 library->variable);
    return NULL;
}

// Returns true if the library has all symbols that are not optional.
static bool find_all(const struct foreign *library, void *handle, char *error, size_t error_bytes)
{
    for (size_t i = 0; i < library->symbol_count; i++) {
        const struct foreign_symbol *symbol = &library->symbols[i];
        if (!symbol->optional && !dlsym(handle, symbol->name)) {
            snprintf(error, error_bytes, "%s has no %s: %s", file_of(library), symbol->name,
                     library->age);
            return false;
        }
    }
    return true;
}

static void fill_table(const struct foreign *library, void *handle)
{
    for (size_t i = 0; i < library->symbol_count; i++) {
        const struct foreign_symbol *symbol = &library->symbols[i];
        void *function = dlsym(handle, symbol->name);
        memcpy((char *)library->table + symbol->offset, &function, sizeof(function));
    }
}

static void remember_path(struct foreign *library, void *handle)
{
    void *first = dlsym(handle, library->symbols[0].name);
    Dl_info info;
    if (first && dladdr(first, &info) && info.dli_fname)
        snprintf(library->path, sizeof(library->path), "%s", info.dli_fname);
}

static bool load_locked(struct foreign *library, enum foreign_search search, char *error,
                        size_t error_bytes)
{
    mutex_assert_held(&library->mutex);
    if (library->loaded)
        return true;
    void *handle = open_file(library, search, error, error_bytes);
    if (!handle)
        return false;
    if (!find_all(library, handle, error, error_bytes)) {
        dlclose(handle);
        return false;
    }
    fill_table(library, handle);
    remember_path(library, handle);
    library->loaded = true;
    return true;
}

bool foreign_is_misnamed(const struct foreign *library, char *error, size_t error_bytes)
{
    const char *file = file_of(library);
    if (file == library->file)
        return false;
    void *handle = open_file(library, FOREIGN_ANYWHERE, error, error_bytes);
    const bool whole = handle && find_all(library, handle, error, error_bytes);
    if (handle)
        dlclose(handle);
    return !whole;
}

bool foreign_load(struct foreign *library, enum foreign_search search, char *error,
                  size_t error_bytes)
{
    mutex_lock(&library->mutex);
    const bool loaded = load_locked(library, search, error, error_bytes);
    mutex_unlock(&library->mutex);
    return loaded;
}

const char *foreign_path(struct foreign *library)
{
    mutex_lock(&library->mutex);
    const bool loaded = library->loaded;
    mutex_unlock(&library->mutex);
    return loaded ? library->path : "";
}
