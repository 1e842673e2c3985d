// SPDX-License-Identifier: Apache-2.0
//
// The set of vector instructions that the kernels use on this processor. The worker chooses its
// kernels by this rule, and `lockstep doctor` reports the choice. Any thread.

#ifndef BASE_PROCESSOR_H
#define BASE_PROCESSOR_H

enum processor_vectors {
    PROCESSOR_PORTABLE = 0, // Plain C, as the compiler translates it.
    PROCESSOR_AVX2 = 1, // AVX2 with F16C.
    PROCESSOR_AVX512 = 2, // The above, and AVX-512 F, BW, DQ and VL.
};

// Asks the processor once and remembers the answer, because asking takes microseconds in a virtual
// machine.
enum processor_vectors processor_vectors(void);
const char *processor_vectors_name(enum processor_vectors vectors);

#endif
