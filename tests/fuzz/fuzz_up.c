// SPDX-License-Identifier: Apache-2.0
// What a worker says to its coordinator.

#include "tests/fuzz/fuzz_codec.h"

FUZZ_CODEC(up)
