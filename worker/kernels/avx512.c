// SPDX-License-Identifier: Apache-2.0
//
// The kernels for x86-64 with AVX-512 F, BW, DQ and VL; chosen at run time. AVX-512 has fused
// multiply-adds, but no expression is contracted to one (loops.h). Pure; any thread.

#if defined(__x86_64__)
#define KERNEL_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#define KERNEL_F16_WIDTH 16
#define KERNEL_COPY_BYTES 64
#define KERNEL_TABLE kernel_table_avx512
#include "worker/kernels/loops.h"
#else
typedef int kernels_avx512_has_nothing_here; // A translation unit may not be empty.
#endif
