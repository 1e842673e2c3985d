// SPDX-License-Identifier: Apache-2.0
//
// Facts of an element type: its size, its name, its kind. Pure; any thread. Every function also
// accepts a number that is no dtype.

#ifndef WORKER_KERNELS_DTYPE_H
#define WORKER_KERNELS_DTYPE_H

#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>

size_t dtype_size(enum dtype dtype); // Bytes of one element; 0 for no dtype.
const char *dtype_name(enum dtype dtype); // "float32"; "unknown" for no dtype.
bool dtype_is_float(enum dtype dtype);
bool dtype_is_small(enum dtype dtype); // True if the dtype is a float of 16 bits.

#endif
