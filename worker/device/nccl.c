// SPDX-License-Identifier: Apache-2.0
//
// The only file that knows the names of libnccl's symbols. See worker/device/nccl.h.

#include "worker/device/nccl.h"

#include "worker/support/foreign.h"

static struct nccl table;

#define NEEDED(field, name) \
    { \
        name, offsetof(struct nccl, field), false \
    }
#define OPTIONAL(field, name) \
    { \
        name, offsetof(struct nccl, field), true \
    }

// foreign_path reports the file that the first symbol comes from.
static const struct foreign_symbol symbols[] = {
    NEEDED(get_version, "ncclGetVersion"),
    NEEDED(get_error_string, "ncclGetErrorString"),
    NEEDED(get_last_error, "ncclGetLastError"),
    NEEDED(get_unique_id, "ncclGetUniqueId"),
    NEEDED(comm_init_rank_config, "ncclCommInitRankConfig"),
    NEEDED(comm_finalize, "ncclCommFinalize"),
    NEEDED(comm_destroy, "ncclCommDestroy"),
    NEEDED(comm_abort, "ncclCommAbort"),
    NEEDED(comm_get_async_error, "ncclCommGetAsyncError"),
    OPTIONAL(comm_register, "ncclCommRegister"),
    OPTIONAL(comm_deregister, "ncclCommDeregister"),
    NEEDED(group_start, "ncclGroupStart"),
    NEEDED(group_end, "ncclGroupEnd"),
    NEEDED(all_reduce, "ncclAllReduce"),
    NEEDED(reduce_scatter, "ncclReduceScatter"),
    OPTIONAL(all_gather, "ncclAllGather"),
    OPTIONAL(broadcast, "ncclBroadcast"),
};

static_assert(sizeof(table) == sizeof(symbols) / sizeof(*symbols) * sizeof(table.get_version),
              "every function has its symbol");

static struct foreign library = {
    .file = "libnccl.so.2",
    .variable = "LOCKSTEP_NCCL_LIBRARY",
    .advice = "; it comes with NCCL, and with PyTorch",
    .age = "it is older than 2.14",
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(*symbols),
    .table = &table,
    .mutex = MUTEX_INITIALIZER,
};

const struct nccl *nccl_load(char *error, size_t error_bytes)
{
    return foreign_load(&library, FOREIGN_ANYWHERE, error, error_bytes) ? &table : NULL;
}

const char *nccl_path(void)
{
    return foreign_path(&library);
}
