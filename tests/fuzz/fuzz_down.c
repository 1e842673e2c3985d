// SPDX-License-Identifier: Apache-2.0
// Messages of a coordinator to a worker.

#include "tests/fuzz/fuzz_codec.h"

FUZZ_CODEC(down)
