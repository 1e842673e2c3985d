// SPDX-License-Identifier: Apache-2.0
//
// The functions of NCCL that this library uses, as a struct that nccl_load fills from libnccl.so.2
// at run time. The declarations are not taken from NVIDIA's header: this file repeats names,
// numbers and prototypes of the ABI, and `make gpu-abi` compares them with the real header where
// there is one. Communicators and streams are opaque pointers, results are int. This file adds no
// behaviour. Any thread, with NCCL's own rule: only one thread at a time uses a communicator.

#ifndef WORKER_DEVICE_NCCL_H
#define WORKER_DEVICE_NCCL_H

#include <limits.h>
#include <stddef.h>

#define NCCL_RELEASE(major, minor) ((major)*10000 + (minor)*100)
#define NCCL_OLDEST NCCL_RELEASE(2, 18)

enum nccl_result {
    NCCL_OK = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7, // Returned for a communicator that does not block: poll it again.
};

enum nccl_type {
    NCCL_INT8 = 0,
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_UINT32 = 3,
    NCCL_INT64 = 4,
    NCCL_UINT64 = 5,
    NCCL_FLOAT16 = 6,
    NCCL_FLOAT32 = 7,
    NCCL_FLOAT64 = 8,
    NCCL_BFLOAT16 = 9,
};

enum nccl_operation {
    NCCL_SUM = 0,
};

// NCCL takes this struct by value.
struct nccl_unique_id {
    char bytes[128];
};

// The layout of NCCL 2.18, the oldest supported version. Newer versions read `bytes` and `version`,
// and use defaults for the fields that this struct lacks. The last field takes the place of padding
// at the end of 2.18's struct.
struct nccl_config {
    size_t bytes;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
    int undefined;
};

#define NCCL_CONFIG_MAGIC 0xcafebeefU
#define NCCL_UNDEFINED INT_MIN
#define NCCL_CONFIG_INIT \
    { \
        sizeof(struct nccl_config), NCCL_CONFIG_MAGIC, NCCL_OLDEST, NCCL_UNDEFINED, \
            NCCL_UNDEFINED, NCCL_UNDEFINED, NCCL_UNDEFINED, NULL, NCCL_UNDEFINED, NCCL_UNDEFINED \
    }

struct nccl {
    int (*get_version)(int *version); // 10000 * major + 100 * minor + patch
    const char *(*get_error_string)(int result);
    const char *(*get_last_error)(void *comm);

    // communicators
    int (*get_unique_id)(struct nccl_unique_id *id);
    int (*comm_init_rank_config)(void **comm, int ranks, struct nccl_unique_id id, int rank,
                                 struct nccl_config *config);
    int (*comm_finalize)(void *comm);
    int (*comm_destroy)(void *comm);
    int (*comm_abort)(void *comm);
    int (*comm_get_async_error)(void *comm, int *result);
    int (*comm_register)(void *comm, void *memory, size_t bytes,
                         void **handle); // Optional: exists since NCCL 2.19.
    int (*comm_deregister)(void *comm, void *handle); // Optional: exists since NCCL 2.19.

    // collectives
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *in, void *out, size_t count, int type, int operation, void *comm,
                      void *stream);
    int (*reduce_scatter)(const void *in, void *out, size_t count_out, int type, int operation,
                          void *comm, void *stream);
    // Optional, and for tests only: NULL where NCCL lacks them.
    int (*all_gather)(const void *in, void *out, size_t count_in, int type, void *comm,
                      void *stream);
    int (*broadcast)(const void *in, void *out, size_t count, int type, int root, void *comm,
                     void *stream);
};

// Returns NCCL's functions. The first call loads them from the library that is already in the
// process, or from libnccl.so.2, or from the file that LOCKSTEP_NCCL_LIBRARY names. Returns NULL
// with a sentence in error on failure. After the first success every call returns the same pointer.
// The caller checks NCCL's version.
const struct nccl *nccl_load(char *error, size_t error_bytes);

// Returns the file that the functions came from; "" if it is not known. Call it only after
// nccl_load has succeeded.
const char *nccl_path(void);

#endif
