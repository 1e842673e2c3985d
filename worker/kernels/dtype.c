// SPDX-License-Identifier: Apache-2.0
//
// Facts of the element types. Pure; any thread.

#include "worker/kernels/dtype.h"

struct dtype_fact {
    const char *name;
    size_t size; // Bytes of one element.
    bool is_float;
};

static const struct dtype_fact dtype_facts[] = {
    [DTYPE_NONE] = {"none", 0, false},        [DTYPE_FLOAT32] = {"float32", 4, true},
    [DTYPE_FLOAT64] = {"float64", 8, true},   [DTYPE_INT32] = {"int32", 4, false},
    [DTYPE_INT64] = {"int64", 8, false},      [DTYPE_FLOAT16] = {"float16", 2, true},
    [DTYPE_BFLOAT16] = {"bfloat16", 2, true}, [DTYPE_UINT8] = {"uint8", 1, false},
    [DTYPE_INT8] = {"int8", 1, false},        [DTYPE_INT16] = {"int16", 2, false},
    [DTYPE_UINT16] = {"uint16", 2, false},    [DTYPE_UINT32] = {"uint32", 4, false},
    [DTYPE_UINT64] = {"uint64", 8, false},    [DTYPE_BOOL] = {"bool", 1, false},
};

// Returns the facts of a dtype. The number may be invalid, because it may come from a peer or the
// trainer.
static const struct dtype_fact *dtype_fact(enum dtype dtype)
{
    static const struct dtype_fact unknown = {"unknown", 0, false};
    return (unsigned)dtype < sizeof(dtype_facts) / sizeof(dtype_facts[0]) ? &dtype_facts[dtype]
                                                                          : &unknown;
}

size_t dtype_size(enum dtype dtype)
{
    return dtype_fact(dtype)->size;
}

const char *dtype_name(enum dtype dtype)
{
    return dtype_fact(dtype)->name;
}

bool dtype_is_float(enum dtype dtype)
{
    return dtype_fact(dtype)->is_float;
}

bool dtype_is_small(enum dtype dtype)
{
    return dtype_is_float(dtype) && dtype_size(dtype) == 2;
}
