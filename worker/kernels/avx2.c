// SPDX-License-Identifier: Apache-2.0
//
// The kernels for x86-64 with AVX2 and F16C; chosen at run time. FMA is left out on purpose, so
// that no expression can be contracted. The loops are in loops.h. Pure; any thread.

#if defined(__x86_64__)
#define KERNEL_TARGET __attribute__((target("avx2,f16c")))
#define KERNEL_F16_WIDTH 8
#define KERNEL_COPY_BYTES 32
#define KERNEL_TABLE kernel_table_avx2
#include "worker/kernels/loops.h"
#else
typedef int kernels_avx2_has_nothing_here; // A translation unit may not be empty.
#endif
