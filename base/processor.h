// SPDX-License-Identifier: Apache-2.0
//
// The vector instructions of this processor, in the steps in which kernels use them. One rule,
// for the worker that chooses its kernels and for the tool that says what it will choose. Any
// thread.

#ifndef BASE_PROCESSOR_H
#define BASE_PROCESSOR_H

enum processor_vectors {
    PROCESSOR_PORTABLE = 0, // Plain C, as the compiler translates it.
    PROCESSOR_AVX2 = 1, // AVX2 with F16C.
    PROCESSOR_AVX512 = 2, // AVX-512 F, BW, DQ and VL besides.
};

// Asks the processor once: in a virtual machine that takes microseconds.
enum processor_vectors processor_vectors(void);
const char *processor_vectors_name(enum processor_vectors vectors);

#endif
