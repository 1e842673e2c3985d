// SPDX-License-Identifier: Apache-2.0
// Messages of a worker to its coordinator.

#include "tests/fuzz/fuzz_codec.h"

FUZZ_CODEC(up)
