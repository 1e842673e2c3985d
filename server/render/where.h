// SPDX-License-Identifier: Apache-2.0
//
// Where workers are, for the files of render.h: places, flags, names of modules, stalls. Any
// thread; nothing is shared.

#ifndef LOCKSTEP_SERVER_RENDER_WHERE_H
#define LOCKSTEP_SERVER_RENDER_WHERE_H

#include "base/json.h"
#include "server/state/snapshot.h"

#define RENDER_MODULE_BYTES (LOCKSTEP_NAME_BYTES + 16)

// Returns the number of a call as people and programs see it, which counts from 1. Messages count
// from 0.
static inline uint64_t render_call(uint32_t call)
{
    return (uint64_t)call + 1;
}

#endif
