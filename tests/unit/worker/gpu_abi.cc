// SPDX-License-Identifier: Apache-2.0
//
// Compares what worker/device/cuda.h and worker/device/nccl.h declare with NVIDIA's own headers:
// prototypes as the machine passes them, numbers, sizes and offsets. Only compiled, never run;
// test_gpu_abi.sh does it where these headers are, with the lists of functions that it takes from
// worker/device/cuda.c and worker/device/nccl.c:
//
//     ABI(field, symbol)    for every line of the table
//
// C++, because it can take a type apart.

#include <cstddef>
#include <string_view>
#include <type_traits>

extern "C" {
#include "worker/device/cuda.h"
#include "worker/device/nccl.h"
}

#include <cuda.h>
#include <nccl.h>

// ---- when two types are passed alike ------------------------------------------------------------

template <class T> constexpr bool is_function_pointer =
    std::is_function_v<std::remove_pointer_t<T>> && std::is_pointer_v<T>;

template <class Ours, class Theirs> struct alike;

// Targets of pointers: the same, something opaque on either side, or structures, whose layouts are
// compared below.
template <class Ours, class Theirs> constexpr bool alike_behind_pointer()
{
    if constexpr (std::is_const_v<Ours> != std::is_const_v<Theirs>)
        return false;
    else if constexpr (std::is_void_v<Ours>)
        return std::is_void_v<Theirs> || std::is_class_v<Theirs>;
    else if constexpr (std::is_void_v<Theirs>)
        return false;
    else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>)
        return true;
    else
        return alike<std::remove_const_t<Ours>, std::remove_const_t<Theirs>>::value;
}

template <class Ours, class Theirs> constexpr bool alike_values()
{
    using ours = std::remove_cv_t<Ours>;
    using theirs = std::remove_cv_t<Theirs>;
    if constexpr (std::is_void_v<ours> || std::is_void_v<theirs>)
        return std::is_same_v<ours, theirs>;
    else if constexpr (is_function_pointer<ours> && is_function_pointer<theirs>)
        return alike<std::remove_pointer_t<ours>, std::remove_pointer_t<theirs>>::value;
    else if constexpr (std::is_pointer_v<ours> && std::is_pointer_v<theirs>)
        return alike_behind_pointer<std::remove_pointer_t<ours>, std::remove_pointer_t<theirs>>();
    else if constexpr (std::is_class_v<ours> && std::is_class_v<theirs>)
        return sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs);
    else if constexpr (std::is_enum_v<theirs>)
        return std::is_integral_v<ours> && sizeof(ours) == sizeof(theirs);
    else if constexpr (std::is_integral_v<ours> && std::is_integral_v<theirs>)
        return sizeof(ours) == sizeof(theirs) &&
               std::is_signed_v<ours> == std::is_signed_v<theirs>;
    else
        return std::is_same_v<ours, theirs>;
}

template <class Ours, class Theirs> struct alike {
    static constexpr bool value = alike_values<Ours, Theirs>();
};

template <class R, class... As, class S, class... Bs> struct alike<R(As...), S(Bs...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(As) == sizeof...(Bs))
            return (alike<R, S>::value && ... && alike<As, Bs>::value);
        else
            return false;
    }();
};

// It can say no.
struct opaque;
enum number { ZERO, ONE };
static_assert(alike<int(void *, long), number(opaque *, long)>::value);
static_assert(!alike<int(int), int(unsigned)>::value);
static_assert(!alike<int(int), int(long)>::value);
static_assert(!alike<int(int), int(int, int)>::value);
static_assert(!alike<int(void *), int(opaque **)>::value);
static_assert(!alike<int(void **), int(opaque *)>::value);
static_assert(!alike<int(void *), int(const void *)>::value);
static_assert(!alike<int(void (*)(void *)), int(void (*)(int))>::value);
static_assert(!alike<int(cuda_uuid), int(nccl_unique_id)>::value);
static_assert(!alike<const char *(int), int(int)>::value);
static_assert(!alike<int(float *), int(double *)>::value);

// ---- functions ----------------------------------------------------------------------------------

#define TEXT(name) #name
#define NAME_IN_HEADER(name) TEXT(name)

// The header renames functions to their newest version. Our names must be the newest, with one
// exception: its newest version is newer than the oldest driver, and does the same.
constexpr bool newest(std::string_view symbol, std::string_view in_header)
{
    return symbol == in_header || symbol == "cuEventElapsedTime";
}

#define ABI(field, symbol) \
    static_assert(alike<std::remove_pointer_t<decltype(library::field)>, decltype(symbol)>::value, \
                  #symbol " has another prototype"); \
    static_assert(newest(#symbol, NAME_IN_HEADER(symbol)), #symbol " has a newer version");

namespace cuda_functions
{
using library = struct cuda;
#include "cuda.abi"
}

namespace nccl_functions
{
using library = struct nccl;
#include "nccl.abi"
}

// ---- numbers ------------------------------------------------------------------------------------

#define NUMBER(ours, theirs) static_assert((long)(ours) == (long)(theirs), #ours)

NUMBER(CUDA_OK, CUDA_SUCCESS);
NUMBER(CUDA_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
NUMBER(CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
NUMBER(CUDA_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
NUMBER(CUDA_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
NUMBER(CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
NUMBER(CUDA_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
NUMBER(CUDA_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
NUMBER(CUDA_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
NUMBER(CUDA_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
NUMBER(CUDA_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
NUMBER(CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
NUMBER(CUDA_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
NUMBER(CUDA_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
NUMBER(CUDA_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
NUMBER(CUDA_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);

NUMBER(CUDA_DEVICE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
NUMBER(CUDA_DEVICE_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
NUMBER(CUDA_DEVICE_COMPUTE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
NUMBER(CUDA_DEVICE_PCI_BUS, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
NUMBER(CUDA_DEVICE_PCI_DEVICE, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
NUMBER(CUDA_DEVICE_COPY_ENGINES, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
NUMBER(CUDA_DEVICE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
NUMBER(CUDA_DEVICE_PCI_DOMAIN, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
NUMBER(CUDA_DEVICE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
NUMBER(CUDA_DEVICE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
NUMBER(CUDA_DEVICE_PAGEABLE_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
NUMBER(CUDA_DEVICE_REGISTERED_SAME_ADDRESS,
       CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);

NUMBER(CUDA_POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
NUMBER(CUDA_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
NUMBER(CUDA_POINTER_DEVICE_ADDRESS, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
NUMBER(CUDA_POINTER_HOST_ADDRESS, CU_POINTER_ATTRIBUTE_HOST_POINTER);
NUMBER(CUDA_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
NUMBER(CUDA_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
NUMBER(CUDA_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
NUMBER(CUDA_POINTER_RANGE_BYTES, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
NUMBER(CUDA_MEMORY_HOST, CU_MEMORYTYPE_HOST);
NUMBER(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);

NUMBER(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
NUMBER(CUDA_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
NUMBER(CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
NUMBER(CUDA_HOST_ALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
NUMBER(CUDA_HOST_ALLOC_MAPPED, CU_MEMHOSTALLOC_DEVICEMAP);
NUMBER(CUDA_HOST_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
NUMBER(CUDA_HOST_REGISTER_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP);
NUMBER(CUDA_WAIT_VALUE_AT_LEAST, CU_STREAM_WAIT_VALUE_GEQ);
NUMBER(CUDA_WAIT_VALUE_EQUAL, CU_STREAM_WAIT_VALUE_EQ);
// No constants in the compiler's sense.
static_assert(NAME_IN_HEADER(CUDA_STREAM_LEGACY) == std::string_view("((void *)1)") &&
              NAME_IN_HEADER(CU_STREAM_LEGACY) == std::string_view("((CUstream)0x1)"));
static_assert(NAME_IN_HEADER(CUDA_STREAM_PER_THREAD) == std::string_view("((void *)2)") &&
              NAME_IN_HEADER(CU_STREAM_PER_THREAD) == std::string_view("((CUstream)0x2)"));

NUMBER(NCCL_OK, ncclSuccess);
NUMBER(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
NUMBER(NCCL_SYSTEM_ERROR, ncclSystemError);
NUMBER(NCCL_INTERNAL_ERROR, ncclInternalError);
NUMBER(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
NUMBER(NCCL_INVALID_USAGE, ncclInvalidUsage);
NUMBER(NCCL_REMOTE_ERROR, ncclRemoteError);
NUMBER(NCCL_IN_PROGRESS, ncclInProgress);
NUMBER(NCCL_INT8, ncclInt8);
NUMBER(NCCL_UINT8, ncclUint8);
NUMBER(NCCL_INT32, ncclInt32);
NUMBER(NCCL_UINT32, ncclUint32);
NUMBER(NCCL_INT64, ncclInt64);
NUMBER(NCCL_UINT64, ncclUint64);
NUMBER(NCCL_FLOAT16, ncclFloat16);
NUMBER(NCCL_FLOAT32, ncclFloat32);
NUMBER(NCCL_FLOAT64, ncclFloat64);
NUMBER(NCCL_BFLOAT16, ncclBfloat16);
NUMBER(NCCL_SUM, ncclSum);
NUMBER(NCCL_RELEASE(2, 18), NCCL_VERSION(2, 18, 0));
// Older headers have the number in their initializer only.
constexpr ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
static_assert(initial.magic == NCCL_CONFIG_MAGIC);
NUMBER(NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);

// ---- structures ---------------------------------------------------------------------------------

static_assert(sizeof(struct cuda_uuid) == sizeof(CUuuid));
static_assert(sizeof(struct nccl_unique_id) == sizeof(ncclUniqueId));

#define OFFSET(ours, theirs) \
    static_assert(offsetof(struct nccl_config, ours) == offsetof(ncclConfig_t, theirs), #theirs); \
    static_assert(alike<decltype(nccl_config::ours), decltype(ncclConfig_t::theirs)>::value, #theirs)

OFFSET(bytes, size);
OFFSET(magic, magic);
OFFSET(version, version);
OFFSET(blocking, blocking);
OFFSET(cga_cluster_size, cgaClusterSize);
OFFSET(min_ctas, minCTAs);
OFFSET(max_ctas, maxCTAs);
OFFSET(net_name, netName);
OFFSET(split_share, splitShare);
static_assert(sizeof(struct nccl_config) <= sizeof(ncclConfig_t));
