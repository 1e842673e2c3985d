// SPDX-License-Identifier: Apache-2.0
//
// Elements of NCCL's types, added (and so on) one rank after the other: each partial result is
// rounded to the type, so the order is seen in the bits. Pure.
#ifndef TESTS_FAKE_GPU_NCCL_SUM_H
#define TESTS_FAKE_GPU_NCCL_SUM_H

#include <stddef.h>

enum nccl_reduction {
    REDUCTION_SUM,
    REDUCTION_PROD,
    REDUCTION_MAX,
    REDUCTION_MIN,
    REDUCTION_AVG,
    REDUCTIONS,
};

size_t nccl_type_bytes(int type); // 0: no such type.
const char *nccl_type_name(int type);

// acc = acc (op) in, element by element. AVG adds.
void nccl_combine(enum nccl_reduction op, int type, void *acc, const void *in, size_t count);

// The last step of AVG: acc / ranks.
void nccl_average(int type, void *acc, size_t count, unsigned ranks);

#endif
