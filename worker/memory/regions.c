// SPDX-License-Identifier: Apache-2.0
//
// The memory of this rank that its mates can reach, and the memory of mates that this rank has
// mapped. This file knows no links: the caller sends and receives the descriptors. Threads: as in
// regions.h.
//
// All pages are allocated when a region is made, because a page that cannot be allocated at its
// first access is a bus error, not a failed call. A mate that made its region shorter would cause
// the same bus error in this process; the seals prevent that.

#include "worker/memory/regions.h"

#include "base/file_limit.h"
#include "base/memory_file.h"
#include "base/mutex.h"
#include "worker/support/spare.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert(LOCKSTEP_MAX_MATES <= 32, "a mask has one bit for each mate");

struct region {
    uint32_t number;
    uint32_t offered; // Mask of mates that may have the region, or get it from regions_to_pass.
    uint32_t passed; // Mask of mates to which the descriptor was passed.
    uint32_t mapped; // Mask of mates that have mapped the region.
    int fd; // -1: the region is private again.
    uint8_t *memory; // NULL: the region was freed, and the mates have not been told yet.
    size_t bytes; // A multiple of the page size.
};

struct mate_region {
    uint32_t number;
    uint8_t *memory;
    uint64_t bytes;
};

struct mate {
    uint32_t last; // Highest region number that this mate has passed.
    uint32_t count; // Entries of regions[].
    struct mate_region regions[LOCKSTEP_MAX_REGIONS]; // In ascending order of numbers.
};

struct regions {
    struct mutex mutex; // A leaf: no other lock is taken while this mutex is held.
    // guarded by mutex
    uint32_t number; // Number of the newest region of this rank.
    uint32_t mates; // Mask of the mates, without this rank.
    uint32_t count;
    struct region own[LOCKSTEP_MAX_REGIONS]; // [count], in ascending order of addresses.
    uint32_t freed_count;
    struct region freed[LOCKSTEP_MAX_REGIONS]; // [freed_count], oldest first.
    // atomic
    _Atomic uint32_t news;
    // engine thread only
    int passing; // A copy of the descriptor that is being passed; -1: none.
    struct mate mate[LOCKSTEP_MAX_MATES]; // By local number; this rank's entry is empty.
};

struct regions *regions_open(void)
{
    struct regions *regions = calloc(1, sizeof(*regions));
    if (!regions)
        return NULL;
    mutex_init(&regions->mutex);
    regions->passing = -1;
    return regions;
}

static void region_drop(struct region *region)
{
    if (region->memory)
        munmap(region->memory, region->bytes);
    if (region->fd >= 0)
        close(region->fd);
    region->memory = NULL;
    region->fd = -1;
}

static void mate_clear(struct mate *mate)
{
    for (uint32_t i = 0; i < mate->count; i++)
        munmap(mate->regions[i].memory, (size_t)mate->regions[i].bytes);
    mate->count = 0;
    mate->last = 0;
}

static void regions_end_passing(struct regions *regions)
{
    if (regions->passing >= 0)
        close(regions->passing);
    regions->passing = -1;
}

void regions_close(struct regions *regions)
{
    if (!regions)
        return;
    regions_end_passing(regions);
    for (uint32_t i = 0; i < regions->count; i++)
        region_drop(&regions->own[i]);
    for (uint32_t m = 0; m < LOCKSTEP_MAX_MATES; m++)
        mate_clear(&regions->mate[m]);
    mutex_fini(&regions->mutex);
    free(regions);
}

static void regions_have_news(struct regions *regions)
{
    atomic_fetch_add_explicit(&regions->news, 1, memory_order_release);
}

uint32_t regions_news(const struct regions *regions)
{
    return atomic_load_explicit(&regions->news, memory_order_acquire);
}

// ---- making and freeing -------------------------------------------------------------------------

// Returns the number after `name` in a file of the kernel; UINT64_MAX if there is none.
static uint64_t region_figure(const char *path, const char *name)
{
    char text[1024];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return UINT64_MAX;
    const ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    const char *at = strstr(text, name);
    char *end = NULL;
    if (!at)
        return UINT64_MAX;
    const unsigned long long value = strtoull(at + strlen(name), &end, 10);
    return end == at + strlen(name) ? UINT64_MAX : value;
}

// Returns the free memory of this host and this container, in bytes. The limit of a container
// counts with cgroup v2 and a cgroup namespace of its own; in any other one only the host's memory
// does. A region allocates all its pages at once, and the kernel kills a container that has no
// memory left.
static uint64_t region_room(void)
{
    const uint64_t available = region_figure("/proc/meminfo", "MemAvailable:");
    const uint64_t limit = region_figure("/sys/fs/cgroup/memory.max", "");
    const uint64_t current = region_figure("/sys/fs/cgroup/memory.current", "");
    uint64_t room = available > UINT64_MAX / 1024 ? UINT64_MAX : available * 1024;
    if (limit != UINT64_MAX && current != UINT64_MAX) {
        const uint64_t left = limit > current ? limit - current : 0;
        room = left < room ? left : room;
    }
    return room;
}

// Asks for huge pages, and fills the page tables now instead of in the first step. Failures of both
// calls are ignored.
static void region_populate(void *memory, size_t bytes)
{
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    (void)madvise(memory, bytes, MADV_POPULATE_WRITE);
}

// Returns 0, or a negative errno; on failure nothing is left open or mapped.
static int region_open(struct region *region)
{
    region->fd = memory_file_open("lockstep-region");
    if (region->fd < 0)
        return -errno;
    if (memory_file_resize(region->fd, region->bytes) == 0 && memory_file_seal(region->fd) == 0) {
        void *memory = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
        region->memory = memory == MAP_FAILED ? NULL : memory;
    }
    if (region->memory) {
        region_populate(region->memory, region->bytes);
        // Allocates the pages that madvise has not allocated, or fails.
        if (file_limit_fill(region->fd, region->bytes) == 0)
            return 0;
    }
    const int error = errno;
    region_drop(region);
    return -error;
}

// Returns the index in own[] of the first region that ends after an address.
static uint32_t regions_place_locked(const struct regions *regions, const uint8_t *memory)
{
    uint32_t low = 0;
    uint32_t high = regions->count;
    mutex_assert_held(&regions->mutex);
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const struct region *region = &regions->own[middle];
        if ((uintptr_t)memory < (uintptr_t)region->memory + region->bytes)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int regions_add(struct regions *regions, struct region *region)
{
    int status = -ENOSPC;
    mutex_lock(&regions->mutex);
    if (regions->count + regions->freed_count < LOCKSTEP_MAX_REGIONS &&
        regions->number < REGION_UNMAPPED - 1) {
        const uint32_t place = regions_place_locked(regions, region->memory);
        memmove(&regions->own[place + 1], &regions->own[place],
                (regions->count - place) * sizeof(regions->own[0]));
        region->number = ++regions->number;
        regions->own[place] = *region;
        regions->count++;
        status = 0;
    }
    mutex_unlock(&regions->mutex);
    return status;
}

static bool regions_full(struct regions *regions)
{
    mutex_lock(&regions->mutex);
    const bool full = regions->count + regions->freed_count >= LOCKSTEP_MAX_REGIONS;
    mutex_unlock(&regions->mutex);
    return full;
}

int regions_make(struct regions *regions, size_t bytes, void **memory)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct region region = {.fd = -1};
    *memory = NULL;
    if (bytes < LOCKSTEP_REGION_BYTES || bytes > (size_t)INT64_MAX - page)
        return -EINVAL;
    // Checked before the pages are allocated, because allocating takes time.
    if (regions_full(regions) || bytes > region_room() / 2)
        return -ENOSPC;
    // The links of a recovery need descriptors, too.
    if (!spare_is_room(LOCKSTEP_SESSION_DESCRIPTORS_MOST))
        return -errno;
    region.bytes = (bytes + page - 1) / page * page;
    int status = region_open(&region);
    if (status < 0)
        return status;
    status = regions_add(regions, &region);
    if (status < 0) {
        region_drop(&region);
        return status;
    }
    *memory = region.memory;
    regions_have_news(regions);
    return 0;
}

// Takes a region out of own[]. If some mate may have the region, it stays in freed[] until the
// mates are told.
static void regions_remove_locked(struct regions *regions, uint32_t place)
{
    struct region *region = &regions->own[place];
    mutex_assert_held(&regions->mutex);
    region_drop(region);
    if (region->offered != 0)
        regions->freed[regions->freed_count++] = *region;
    regions->count--;
    memmove(region, region + 1, (regions->count - place) * sizeof(*region));
}

int regions_free(struct regions *regions, void *memory)
{
    mutex_lock(&regions->mutex);
    const uint32_t place = regions_place_locked(regions, memory);
    const bool found = place < regions->count && regions->own[place].memory == memory;
    if (found)
        regions_remove_locked(regions, place);
    mutex_unlock(&regions->mutex);
    if (!found)
        return -ENOENT;
    regions_have_news(regions);
    return 0;
}

size_t regions_find(struct regions *regions, const void *memory, size_t bytes, uint32_t *number,
                    uint64_t *offset)
{
    size_t found = 0;
    mutex_lock(&regions->mutex);
    const uint32_t place = regions_place_locked(regions, memory);
    if (place < regions->count && regions->mates != 0) {
        const struct region *region = &regions->own[place];
        const uintptr_t at = (uintptr_t)memory - (uintptr_t)region->memory;
        if ((uintptr_t)memory >= (uintptr_t)region->memory && region->fd >= 0 &&
            region->mapped == regions->mates) {
            found = bytes < region->bytes - at ? bytes : region->bytes - at;
            *number = region->number;
            *offset = at;
        }
    }
    mutex_unlock(&regions->mutex);
    return found;
}

// ---- this rank's regions, and mates -------------------------------------------------------------

void regions_begin(struct regions *regions, uint32_t local, uint32_t mates)
{
    assert(mates <= LOCKSTEP_MAX_MATES && (mates == 0 || local < mates));
    for (uint32_t m = 0; m < LOCKSTEP_MAX_MATES; m++)
        mate_clear(&regions->mate[m]);
    mutex_lock(&regions->mutex);
    regions->mates = mates == 0 ? 0 : (uint32_t)((UINT64_C(1) << mates) - 1) & ~(1u << local);
    regions->freed_count = 0;
    for (uint32_t i = 0; i < regions->count; i++)
        regions->own[i].offered = regions->own[i].passed = regions->own[i].mapped = 0;
    mutex_unlock(&regions->mutex);
    regions_end_passing(regions);
    regions_have_news(regions);
}

static bool regions_is_mate_locked(const struct regions *regions, uint32_t local)
{
    mutex_assert_held(&regions->mutex);
    return local < LOCKSTEP_MAX_MATES && (regions->mates & 1u << local) != 0;
}

// Withdraws the offer of regions that were freed before they were passed to the mate: such a region
// is never passed.
static void regions_withdraw_locked(struct regions *regions, uint32_t bit)
{
    mutex_assert_held(&regions->mutex);
    for (uint32_t i = 0; i < regions->freed_count; i++) {
        if ((regions->freed[i].passed & bit) == 0)
            regions->freed[i].offered &= ~bit;
    }
}

// Returns the region with the lowest number that was not passed to the mate; NULL if there is none.
static struct region *regions_next_locked(struct regions *regions, uint32_t bit)
{
    struct region *next = NULL;
    mutex_assert_held(&regions->mutex);
    for (uint32_t i = 0; i < regions->count; i++) {
        struct region *region = &regions->own[i];
        if (region->fd >= 0 && (region->passed & bit) == 0 &&
            (!next || region->number < next->number))
            next = region;
    }
    return next;
}

int regions_to_pass(struct regions *regions, uint32_t local, uint32_t *number, uint64_t *bytes)
{
    regions_end_passing(regions);
    mutex_lock(&regions->mutex);
    if (regions_is_mate_locked(regions, local)) {
        const uint32_t bit = 1u << local;
        struct region *next = regions_next_locked(regions, bit);
        regions_withdraw_locked(regions, bit);
        // A copy, because the trainer may free the region before the descriptor is on its way.
        if (next)
            regions->passing = fcntl(next->fd, F_DUPFD_CLOEXEC, 0);
        if (regions->passing >= 0) {
            next->offered |= bit;
            *number = next->number;
            *bytes = next->bytes;
        }
    }
    mutex_unlock(&regions->mutex);
    return regions->passing;
}

// Returns the region of that number, in own[] or freed[]; NULL if there is none.
static struct region *regions_search_locked(struct regions *regions, uint32_t number)
{
    mutex_assert_held(&regions->mutex);
    for (uint32_t i = 0; i < regions->count; i++) {
        if (regions->own[i].number == number)
            return &regions->own[i];
    }
    for (uint32_t i = 0; i < regions->freed_count; i++) {
        if (regions->freed[i].number == number)
            return &regions->freed[i];
    }
    return NULL;
}

void regions_passed(struct regions *regions, uint32_t local, uint32_t number)
{
    mutex_lock(&regions->mutex);
    struct region *region = regions_search_locked(regions, number);
    if (region && regions_is_mate_locked(regions, local))
        region->passed |= region->offered & 1u << local;
    mutex_unlock(&regions->mutex);
    regions_end_passing(regions);
}

bool regions_mapped(struct regions *regions, uint32_t local, uint32_t number)
{
    bool possible = false;
    mutex_lock(&regions->mutex);
    struct region *region = regions_search_locked(regions, number & ~REGION_UNMAPPED);
    if (region && regions_is_mate_locked(regions, local)) {
        const uint32_t bit = region->passed & region->offered & ~region->mapped & 1u << local;
        possible = bit != 0;
        if ((number & REGION_UNMAPPED) != 0)
            region->offered &= ~bit; // The mate need not hear of its end.
        else
            region->mapped |= bit;
    }
    mutex_unlock(&regions->mutex);
    return possible;
}

bool regions_freed(struct regions *regions, uint32_t *number)
{
    bool found = false;
    mutex_lock(&regions->mutex);
    for (uint32_t i = 0; i < regions->freed_count && !found;) {
        struct region *region = &regions->freed[i];
        if (region->mapped != region->offered) {
            i++;
            continue;
        }
        *number = region->number;
        found = region->mapped != 0; // If the mask is 0, no mate has the region.
        regions->freed_count--;
        memmove(region, region + 1, (regions->freed_count - i) * sizeof(*region));
    }
    mutex_unlock(&regions->mutex);
    return found;
}

// ---- the regions of mates -----------------------------------------------------------------------

// Returns NULL, or the reason why the descriptor cannot be a region.
static const char *region_check(int fd, uint64_t bytes)
{
    struct stat status;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return "sent a region that is no memory";
    if (!memory_file_is_sealed(fd))
        return "sent a region that can be cut";
    if (bytes == 0 || status.st_size < 0 || (uint64_t)status.st_size < bytes)
        return "sent a region that is smaller than it says";
    if ((uint64_t)status.st_blocks * 512 < bytes)
        return "sent a region that has holes";
    return NULL;
}

const char *regions_map(struct regions *regions, uint32_t local, uint32_t number, uint64_t bytes,
                        int fd)
{
    const char *wrong = NULL;
    struct mate *mate = &regions->mate[local];
    assert(local < LOCKSTEP_MAX_MATES);
    if (number <= mate->last)
        wrong = "sent a region twice";
    else if (mate->count == LOCKSTEP_MAX_REGIONS)
        wrong = "sent too many regions";
    else
        wrong = region_check(fd, bytes);
    if (!wrong) {
        void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory != MAP_FAILED) {
            region_populate(memory, (size_t)bytes);
            // A forked child must not keep the mate's memory, and does not use it.
            (void)madvise(memory, (size_t)bytes, MADV_DONTFORK);
            mate->regions[mate->count++] = (struct mate_region){number, memory, bytes};
        } else if (errno != ENOMEM) {
            wrong = "sent a region that cannot be mapped";
        }
        mate->last = number;
    }
    close(fd);
    return wrong;
}

// Returns the index of the region of that number, or the index at which it would be inserted.
static uint32_t mate_place(const struct mate *mate, uint32_t number)
{
    uint32_t low = 0;
    uint32_t high = mate->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (mate->regions[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void regions_unmap(struct regions *regions, uint32_t local, uint32_t number)
{
    struct mate *mate = &regions->mate[local];
    assert(local < LOCKSTEP_MAX_MATES);
    const uint32_t place = mate_place(mate, number);
    struct mate_region *region = &mate->regions[place];
    if (place == mate->count || region->number != number)
        return;
    munmap(region->memory, (size_t)region->bytes);
    mate->count--;
    memmove(region, region + 1, (mate->count - place) * sizeof(*region));
}

void *regions_of(const struct regions *regions, uint32_t local, uint32_t number, uint64_t offset,
                 uint64_t bytes)
{
    if (local >= LOCKSTEP_MAX_MATES)
        return NULL;
    const struct mate *mate = &regions->mate[local];
    const uint32_t place = mate_place(mate, number);
    if (place == mate->count || mate->regions[place].number != number)
        return NULL;
    const struct mate_region *region = &mate->regions[place];
    if (offset > region->bytes || bytes > region->bytes - offset)
        return NULL;
    return region->memory + offset;
}

// ---- making regions private again ---------------------------------------------------------------

// Writes a byte of the page as it is, which gives this process a page of its own. A write of
// another thread is neither lost nor undone, and is no data race for a sanitizer to report. An
// atomic addition of 0 would not do: compilers may turn it into a read.
static void region_touch(uint8_t *page) __attribute__((no_sanitize("thread")));
static void region_touch(uint8_t *page)
{
    uint8_t byte = __atomic_load_n(page, __ATOMIC_RELAXED);
    while (
        !__atomic_compare_exchange_n(page, &byte, byte, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

// Maps the same file again, privately, over the old mapping: the kernel copies a page when this
// process next writes to it. So a write of another thread goes to the shared page, and is copied
// with it, or goes to the copy.
static int region_detach(struct region *region)
{
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (mmap(region->memory, region->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
             region->fd, 0) == MAP_FAILED)
        return -ENOMEM;
    for (size_t at = 0; at < region->bytes; at += page_bytes)
        region_touch(region->memory + at);
    close(region->fd);
    region->fd = -1;
    return 0;
}

int regions_detach(struct regions *regions)
{
    int status = 0;
    mutex_lock(&regions->mutex);
    for (uint32_t i = 0; i < regions->count; i++) {
        if (regions->own[i].fd >= 0 && region_detach(&regions->own[i]) < 0)
            status = -ENOMEM;
    }
    mutex_unlock(&regions->mutex);
    return status;
}
