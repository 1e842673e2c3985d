// SPDX-License-Identifier: Apache-2.0
//
// Runs worker/device/kernels.cu itself, compiled for the host, in one thread: block after block,
// thread after thread. A device computes the same results, because the threads of a kernel share
// only one word, which the first thread of a block writes. The emulation tests, under sanitizers,
// that the kernels read and write the right memory. It does not test races, speed, or nvcc's
// output. Not thread-safe.

#ifndef TESTS_SUPPORT_DEVICE_EMULATION_H
#define TESTS_SUPPORT_DEVICE_EMULATION_H

#include "worker/device/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void emulate_pack(const struct device_pack *pack);
void emulate_finish(const struct device_finish *finish);
void emulate_gather(const struct device_gather *gather);
void emulate_scatter(const struct device_scatter *scatter);
void emulate_add(const struct device_add *add);

// Functions that the user of the emulation provides: floats of 16 bits to float32 and back, as
// worker/kernels/kernels.h does it.
float emulated_half_widen(uint16_t from);
uint16_t emulated_half_narrow(float from);
uint16_t emulated_bfloat16_narrow(float from);

#ifdef __cplusplus
}
#endif

#endif
