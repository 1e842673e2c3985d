// SPDX-License-Identifier: Apache-2.0
//
// A fuzzer is one function for each decoder, in a file of its own. It takes any bytes, and must not
// crash or break a FUZZ_CHECK. libFuzzer calls it (make fuzz), or replay.c with the seeds and
// changes of them (make test). Large objects are static, because it is called millions of times.

#ifndef LOCKSTEP_TESTS_FUZZ_H
#define LOCKSTEP_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

// A condition that has to hold for every input. It is checked with NDEBUG, too.
#define FUZZ_CHECK(condition) \
    ((condition) ? (void)0 \
                 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), abort()))

#endif
