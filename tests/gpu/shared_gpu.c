// SPDX-License-Identifier: Apache-2.0
//
// libcuda-shared.so: the real driver, except that its first GPU seems to be eight. So tests of
// several ranks with a GPU run on a machine that has one. It is loaded through
// LOCKSTEP_CUDA_LIBRARY. The functions of this file take the place of the driver's; the loader
// finds all others in libcuda.so.1, which this library depends on. Any thread.
//
// FAKE_CUDA_EVERYWHERE=1, as with the stand-ins (tests/fake_gpu/fake_gpu.h): all memory counts as
// memory of the device. If the device cannot access ordinary memory by itself, the mapping that
// contains the address is registered.
//
// The device keeps the pages that were there at that time. If the process unmaps them and maps
// others at the same addresses, the device and the processor see different memory, and results are
// wrong without an error. So registered memory is locked: the kernel then refuses to drop its
// pages, as the C library wants to with the stack of a thread that ends, and memory that is mapped
// anew is not locked. If an address is asked for that is registered and not locked, its mapping is
// registered again.
//
// NCCL talks to the real driver and knows that there is one GPU. NCCL takes several ranks of one
// GPU with NCCL_MULTI_RANK_GPU_ENABLE=1, where it has that, and otherwise only in processes that
// pretend to run on different hosts (NCCL_HOSTID).

#include "base/mutex.h"
#include "tests/fake_gpu/fake_gpu.h"
#include "worker/device/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARED_DEVICES 8
#define EXPORTED __attribute__((visibility("default")))

// A function of the real driver.
static void *real(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *function = driver ? dlsym(driver, name) : NULL;
    if (function)
        return function;
    fprintf(stderr, "libcuda-shared.so: the driver has no %s\n", name);
    abort();
}

// ---- devices: a handle is the ordinal -----------------------------------------------------------

EXPORTED int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count)
{
    *count = SHARED_DEVICES;
    return CUDA_OK;
}

EXPORTED int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < SHARED_DEVICES ? CUDA_OK : CUDA_INVALID_DEVICE;
}

// Each process and each ordinal has a uuid of its own.
EXPORTED int cuDeviceGetUuid_v2(struct cuda_uuid *uuid, int device);
int cuDeviceGetUuid_v2(struct cuda_uuid *uuid, int device)
{
    const uint32_t process = (uint32_t)getpid();
    int (*get)(struct cuda_uuid *, int);
    *(void **)&get = real("cuDeviceGetUuid_v2");
    const int result = get(uuid, 0);
    for (int i = 0; i < 4; i++)
        uuid->bytes[i] ^= (unsigned char)(process >> (8 * i));
    uuid->bytes[15] ^= (unsigned char)device;
    return result;
}

EXPORTED int cuDeviceGetName(char *name, int bytes, int device);
int cuDeviceGetName(char *name, int bytes, int device)
{
    int (*get)(char *, int, int);
    (void)device;
    *(void **)&get = real("cuDeviceGetName");
    return get(name, bytes, 0);
}

EXPORTED int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int (*get)(int *, int, int);
    (void)device;
    *(void **)&get = real("cuDeviceGetAttribute");
    return get(value, attribute, 0);
}

EXPORTED int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static atomic_bool kept;
    int (*retain)(void **, int);
    (void)device;
    *(void **)&retain = real("cuDevicePrimaryCtxRetain");
    // The context is kept until the process ends, because making one takes a while.
    if (!atomic_exchange(&kept, true))
        (void)retain(context, 0);
    return retain(context, 0);
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device)
{
    int (*release)(int);
    (void)device;
    *(void **)&release = real("cuDevicePrimaryCtxRelease_v2");
    return release(0);
}

// ---- memory -------------------------------------------------------------------------------------

#define REGIONS_MAX 8192

static struct mutex region_mutex = MUTEX_INITIALIZER;
// Memory that is registered, in no order.
static struct region {
    uint64_t begin;
    uint64_t end;
} regions[REGIONS_MAX];
static unsigned region_count;

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

// True if the page is locked: it has been in memory ever since it was registered. The kernel
// refuses this advice for locked memory; for other memory the advice changes no content.
static bool page_is_locked(uint64_t page)
{
    return madvise((void *)(uintptr_t)page, page_bytes(), MADV_COLD) != 0 && errno == EINVAL;
}

static bool region_add(uint64_t begin, uint64_t end)
{
    int (*host_register)(void *, size_t, unsigned);
    *(void **)&host_register = real("cuMemHostRegister_v2");
    if (region_count == REGIONS_MAX || mlock((void *)(uintptr_t)begin, end - begin) != 0) {
        fprintf(stderr, "libcuda-shared.so: cannot lock %" PRIu64 " bytes (ulimit -l)\n",
                end - begin);
        abort();
    }
    if (host_register((void *)(uintptr_t)begin, end - begin,
                      CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_MAPPED) != CUDA_OK)
        return false;
    regions[region_count++] = (struct region){begin, end};
    return true;
}

// Returns the region that contains the address, or NULL.
static struct region *region_of(uint64_t address)
{
    for (unsigned i = 0; i < region_count; i++) {
        if (address >= regions[i].begin && address < regions[i].end)
            return &regions[i];
    }
    return NULL;
}

// Ends the registration of a region of which some memory is gone. The rest is registered again.
static void region_renew(struct region *region)
{
    int (*host_unregister)(void *);
    const struct region old = *region;
    uint64_t begin = old.begin;
    *(void **)&host_unregister = real("cuMemHostUnregister");
    *region = regions[--region_count];
    (void)host_unregister((void *)(uintptr_t)old.begin);
    for (uint64_t page = old.begin; page < old.end; page += page_bytes()) {
        if (page_is_locked(page))
            continue;
        if (begin < page)
            (void)region_add(begin, page);
        begin = page + page_bytes();
    }
    if (begin < old.end)
        (void)region_add(begin, old.end);
}

// True if the page is registered, and still the page that was registered.
static bool page_is_registered(uint64_t page)
{
    struct region *region = region_of(page);
    if (!region || page_is_locked(page))
        return region != NULL;
    region_renew(region);
    return false;
}

// Finds the mapping of this process that contains the address.
static bool mapping_find(uint64_t address, struct region *mapping)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof(line), maps))
        found = sscanf(line, "%" SCNx64 "-%" SCNx64, &mapping->begin, &mapping->end) == 2 &&
                address >= mapping->begin && address < mapping->end && strstr(line, " rw-") != NULL;
    if (maps)
        fclose(maps);
    return found;
}

// Registers the mapping that contains the page, as far as it is not registered: a mapping grows at
// its end, and a stack at its beginning.
static bool region_register(uint64_t page)
{
    struct region mapping;
    if (!mapping_find(page, &mapping))
        return false;
    uint64_t from = page;
    uint64_t to = page + page_bytes();
    while (from > mapping.begin && !page_is_registered(from - page_bytes()))
        from -= page_bytes();
    while (to < mapping.end && !page_is_registered(to))
        to += page_bytes();
    return region_add(from, to);
}

// True if the device can access the ordinary memory at this address.
static bool memory_reachable(uint64_t address)
{
    int everywhere = 0;
    if (cuDeviceGetAttribute(&everywhere, CUDA_DEVICE_PAGEABLE_ACCESS, 0) == CUDA_OK && everywhere)
        return true;
    const uint64_t page = address & ~(page_bytes() - 1);
    mutex_lock(&region_mutex);
    const bool reachable = page_is_registered(page) || region_register(page);
    mutex_unlock(&region_mutex);
    return reachable;
}

static bool region_knows(uint64_t address)
{
    mutex_lock(&region_mutex);
    const bool known = region_of(address) != NULL;
    mutex_unlock(&region_mutex);
    return known;
}

static bool everywhere(void)
{
    const char *wanted = getenv("FAKE_CUDA_EVERYWHERE");
    return wanted && strcmp(wanted, "1") == 0;
}

// CUDA_POINTER_DEVICE has no answer, because the device of an address is any of the eight.
EXPORTED int cuPointerGetAttribute(void *value, int attribute, uint64_t address);
int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    int (*get)(void *, int, uint64_t);
    if (attribute == CUDA_POINTER_DEVICE)
        return CUDA_INVALID_VALUE;
    *(void **)&get = real("cuPointerGetAttribute");
    const int result = get(value, attribute, address);
    if (attribute != CUDA_POINTER_MEMORY_TYPE || !everywhere())
        return result;
    if ((result != CUDA_OK || region_knows(address)) && !memory_reachable(address))
        return CUDA_INVALID_VALUE;
    memcpy(value, &(unsigned){CUDA_MEMORY_DEVICE}, sizeof(unsigned));
    return CUDA_OK;
}

// ---- what tests ask a stand-in ------------------------------------------------------------------

// Nothing is known of calls, of objects that exist, and of misuse.
EXPORTED uint64_t fake_gpu_calls(const char *name);
uint64_t fake_gpu_calls(const char *name)
{
    (void)name;
    return 0;
}

EXPORTED void fake_gpu_live(struct fake_gpu_live *live);
void fake_gpu_live(struct fake_gpu_live *live)
{
    memset(live, 0, sizeof(*live));
}

EXPORTED void fake_gpu_complaint(char *text, size_t bytes);
void fake_gpu_complaint(char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", "");
}

// Returns a copy, which is valid until the next call of this thread.
EXPORTED void *fake_gpu_peek(uint64_t address, size_t bytes);
void *fake_gpu_peek(uint64_t address, size_t bytes)
{
    static _Thread_local void *copy;
    int (*make)(void **, unsigned, int);
    int (*get)(void *, uint64_t, size_t, void *);
    int (*wait)(void *);
    int (*end)(void *);
    void *stream = NULL;
    free(copy);
    copy = malloc(bytes);
    *(void **)&make = real("cuStreamCreateWithPriority");
    *(void **)&get = real("cuMemcpyDtoHAsync_v2");
    *(void **)&wait = real("cuStreamSynchronize");
    *(void **)&end = real("cuStreamDestroy_v2");
    if (!copy || make(&stream, CUDA_STREAM_NON_BLOCKING, 0) != CUDA_OK ||
        get(copy, address, bytes, stream) != CUDA_OK || wait(stream) != CUDA_OK)
        return NULL;
    (void)end(stream);
    return copy;
}
