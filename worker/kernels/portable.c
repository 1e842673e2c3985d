// SPDX-License-Identifier: Apache-2.0
//
// The kernels for the instructions that every machine of this architecture has (x86-64: SSE2,
// aarch64: NEON). The loops are in loops.h. Pure; any thread.

#define KERNEL_TARGET
#define KERNEL_COPY_BYTES 16
#define KERNEL_TABLE kernel_table_portable
#include "worker/kernels/loops.h"
