// SPDX-License-Identifier: Apache-2.0
//
// Replaces glibc's allocation functions, so that a test program sees every allocation of its own
// code and of its libraries, and can make chosen allocations fail. One file of a program includes
// this header and defines allocation_fails. INTERPOSER is 0 under a sanitizer that replaces the
// allocator itself; nothing is replaced then. Any thread.

#ifndef LOCKSTEP_TESTS_INTERPOSER_H
#define LOCKSTEP_TESTS_INTERPOSER_H

#define INTERPOSER 1
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef INTERPOSER
#define INTERPOSER 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef INTERPOSER
#define INTERPOSER 0
#endif
#endif

#if INTERPOSER

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// Exports the functions, so that loaded libraries call them as well.
#define INTERPOSED __attribute__((visibility("default")))

// Called before each allocation, with the address of the calling code. Returns true if the
// allocation has to fail. Must not allocate.
static bool allocation_fails(const void *caller);

// Begin and end of this program's own code; the code of libraries lies outside.
extern const char __executable_start, etext;

static inline bool interposer_is_ours(const void *caller)
{
    return (const char *)caller >= &__executable_start && (const char *)caller < &etext;
}

// glibc's own functions, under the names that it keeps for interposers.
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t members, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

#define ALLOCATION_FAILS() (allocation_fails(__builtin_return_address(0)) && (errno = ENOMEM) != 0)

INTERPOSED void *malloc(size_t size)
{
    return ALLOCATION_FAILS() ? NULL : __libc_malloc(size);
}

INTERPOSED void *calloc(size_t members, size_t size)
{
    return ALLOCATION_FAILS() ? NULL : __libc_calloc(members, size);
}

INTERPOSED void *realloc(void *memory, size_t size)
{
    return ALLOCATION_FAILS() ? NULL : __libc_realloc(memory, size);
}

INTERPOSED void *memalign(size_t alignment, size_t size);
INTERPOSED void *memalign(size_t alignment, size_t size)
{
    return ALLOCATION_FAILS() ? NULL : __libc_memalign(alignment, size);
}

INTERPOSED void *aligned_alloc(size_t alignment, size_t size)
{
    return ALLOCATION_FAILS() ? NULL : __libc_memalign(alignment, size);
}

INTERPOSED int posix_memalign(void **memory, size_t alignment, size_t size)
{
    if (ALLOCATION_FAILS())
        return ENOMEM;
    *memory = __libc_memalign(alignment, size);
    return !*memory ? ENOMEM : 0;
}

INTERPOSED void free(void *memory)
{
    __libc_free(memory);
}

INTERPOSED char *strdup(const char *text)
{
    const size_t size = strlen(text) + 1;
    char *copy = ALLOCATION_FAILS() ? NULL : __libc_malloc(size);
    return !copy ? NULL : memcpy(copy, text, size);
}

INTERPOSED char *strndup(const char *text, size_t most)
{
    const size_t size = strnlen(text, most);
    char *copy = ALLOCATION_FAILS() ? NULL : __libc_calloc(1, size + 1);
    return !copy ? NULL : memcpy(copy, text, size);
}

#endif

#endif
