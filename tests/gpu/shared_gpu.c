// SPDX-License-Identifier: Apache-2.0
//
// libcuda-shared.so: the real driver, except that its first GPU seems to be eight. So tests of
// several ranks with a GPU run on a machine that has one. It is loaded through
// LOCKSTEP_CUDA_LIBRARY. The functions of this file take the place of the driver's; the loader
// finds all others in libcuda.so.1, which this library depends on. Any thread.
//
// FAKE_CUDA_EVERYWHERE=1, as with the stand-ins (tests/fake_gpu/fake_gpu.h): all memory counts as
// memory of the device. If the device cannot access ordinary memory by itself, the mapping that
// contains the address is registered. It stays registered, so the process must not return memory to
// the system: tests/gpu/test_conformance.sh sets GLIBC_TUNABLES for that.
//
// NCCL talks to the real driver and knows that there is one GPU. NCCL takes several ranks of one
// GPU with NCCL_MULTI_RANK_GPU_ENABLE=1, where it has that, and otherwise only in processes that
// pretend to run on different hosts (NCCL_HOSTID).

#include "base/mutex.h"
#include "tests/fake_gpu/fake_gpu.h"
#include "worker/device/cuda.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static struct mutex region_mutex = MUTEX_INITIALIZER;

// Registers the private mapping of this process that contains the address. Shared ones, which the
// library gives its users, come and go. Parts that are registered
// already are left out: a mapping grows at its end, and a stack at its beginning.
static bool region_register(uint64_t address)
{
    int (*host_register)(void *, size_t, unsigned);
    int (*attribute_of)(void *, int, uint64_t);
    char line[512];
    uint64_t begin = 0;
    uint64_t end = 0;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    *(void **)&host_register = real("cuMemHostRegister_v2");
    *(void **)&attribute_of = real("cuPointerGetAttribute");
    while (maps && !found && fgets(line, sizeof(line), maps))
        found = sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2 && address >= begin &&
                address < end && strstr(line, " rw-p ") != NULL;
    if (maps)
        fclose(maps);
    unsigned kind = 0;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t from = address & ~(page - 1);
    uint64_t to = from + page;
    while (found && from > begin &&
           attribute_of(&kind, CUDA_POINTER_MEMORY_TYPE, from - page) != CUDA_OK)
        from -= page;
    while (found && to < end && attribute_of(&kind, CUDA_POINTER_MEMORY_TYPE, to) != CUDA_OK)
        to += page;
    return found &&
           host_register((void *)(uintptr_t)from, to - from,
                         CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_MAPPED) == CUDA_OK;
}

// True if the device can access the ordinary memory at this address.
static bool memory_reachable(uint64_t address)
{
    int everywhere = 0;
    if (cuDeviceGetAttribute(&everywhere, CUDA_DEVICE_PAGEABLE_ACCESS, 0) == CUDA_OK && everywhere)
        return true;
    mutex_lock(&region_mutex);
    const bool reachable = region_register(address);
    mutex_unlock(&region_mutex);
    return reachable;
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
    if (result != CUDA_OK && !memory_reachable(address))
        return result;
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
