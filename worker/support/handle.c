// SPDX-License-Identifier: Apache-2.0
//
// The registry of live handles: open addressing with linear probing over atomic words. Any thread.
//
// A word is EMPTY, a TOMBSTONE, or an address with its kind in the three low bits, so that a reader
// never sees an address without its kind. Words never move: a handle stays in its place from add to
// remove. A reader walks from the home place of the address to the first EMPTY word. The reader
// finds every handle that was added before, because no place between the home place and the handle
// becomes EMPTY:
//
// - remove writes a TOMBSTONE. It replaces the TOMBSTONE by EMPTY only if the next place is EMPTY,
//   because then no walk to a handle passes this place. It then does the same with the places
//   before it, so tombstones do not pile up.
// - add takes the first TOMBSTONE or EMPTY place of the walk.
//
// At most half of the places hold handles. A walk visits each place at most once, even if all other
// places hold tombstones.

#include "worker/support/handle.h"

#include "protos/limits.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define PLACE_BITS 14
#define PLACES (1u << PLACE_BITS)
#define EMPTY ((uintptr_t)0)
#define TOMBSTONE ((uintptr_t)7) // Neither a valid kind nor an address.
#define KIND_MASK ((uintptr_t)7)

static_assert(PLACES >= 2 * LOCKSTEP_MAX_HANDLES, "at most half of the places hold handles");
static_assert((unsigned)HANDLE_GROUP < TOMBSTONE, "a kind fits in the low bits");

static pthread_mutex_t handle_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned handle_count; // guarded by mutex
static _Atomic(uintptr_t) handles[PLACES]; // atomic; written under mutex

// Returns the first place of a walk. Neighbouring allocations get places far apart (Fibonacci
// hashing).
static unsigned handle_home(uintptr_t address)
{
    return (unsigned)((uint64_t)(address >> 3) * 0x9e3779b97f4a7c15u >> (64 - PLACE_BITS));
}

static unsigned handle_next(unsigned place)
{
    return (place + 1) % PLACES;
}

static uintptr_t handle_word(unsigned place)
{
    return atomic_load_explicit(&handles[place], memory_order_acquire);
}

static void handle_set(unsigned place, uintptr_t word)
{
    atomic_store_explicit(&handles[place], word, memory_order_release);
}

// Returns the place that holds this address, with any kind; PLACES if there is none. Then
// *free_place, unless free_place is NULL, is the first place of the walk that add may take.
static unsigned handle_find(uintptr_t address, unsigned *free_place)
{
    unsigned place = handle_home(address), first_free = PLACES;
    for (unsigned walked = 0; walked < PLACES; walked++, place = handle_next(place)) {
        uintptr_t word = handle_word(place);
        if ((word == EMPTY || word == TOMBSTONE) && first_free == PLACES)
            first_free = place;
        if (word == EMPTY)
            break;
        if (word != TOMBSTONE && (word & ~KIND_MASK) == address)
            return place;
    }
    if (free_place)
        *free_place = first_free;
    return PLACES;
}

int handle_add(enum handle_kind kind, const void *handle)
{
    uintptr_t address = (uintptr_t)handle;
    unsigned place = PLACES;
    int status = -1;
    assert(kind >= HANDLE_SESSION && kind <= HANDLE_GROUP);
    assert(handle && (address & KIND_MASK) == 0);

    pthread_mutex_lock(&handle_mutex);
    bool is_new = handle_find(address, &place) == PLACES;
    if (is_new && handle_count < LOCKSTEP_MAX_HANDLES) {
        handle_set(place, address | (uintptr_t)kind);
        handle_count++;
        status = 0;
    }
    pthread_mutex_unlock(&handle_mutex);
    assert(is_new);
    return status;
}

void handle_remove(const void *handle)
{
    uintptr_t address = (uintptr_t)handle;
    if (address == 0 || (address & KIND_MASK) != 0)
        return;
    pthread_mutex_lock(&handle_mutex);
    unsigned place = handle_find(address, NULL);
    if (place != PLACES) {
        handle_set(place, TOMBSTONE);
        handle_count--;
        while (handle_word(place) == TOMBSTONE && handle_word(handle_next(place)) == EMPTY) {
            handle_set(place, EMPTY);
            place = (place + PLACES - 1) % PLACES;
        }
    }
    pthread_mutex_unlock(&handle_mutex);
}

bool handle_is(enum handle_kind kind, const void *handle)
{
    uintptr_t address = (uintptr_t)handle;
    if (address == 0 || (address & KIND_MASK) != 0)
        return false;
    unsigned place = handle_find(address, NULL);
    // The handle may have been removed between the two reads; then it is not live.
    return place != PLACES && handle_word(place) == (address | (uintptr_t)kind);
}
