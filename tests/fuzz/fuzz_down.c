// SPDX-License-Identifier: Apache-2.0
// What a coordinator says to a worker.

#include "tests/fuzz/fuzz_codec.h"

FUZZ_CODEC(down)
