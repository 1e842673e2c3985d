// SPDX-License-Identifier: Apache-2.0
//
// Reductions over NCCL's types, one rank after the other. Each partial result is rounded to the
// type, so the bits of a result depend on the order of the ranks. Pure.
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

// acc = acc (op) in, element by element. REDUCTION_AVG adds; nccl_average() then divides.
void nccl_combine(enum nccl_reduction op, int type, void *acc, const void *in, size_t count);

// The last step of REDUCTION_AVG: acc / ranks.
void nccl_average(int type, void *acc, size_t count, unsigned ranks);

#endif
