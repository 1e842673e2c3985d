// SPDX-License-Identifier: Apache-2.0
//
// What the files of the engine share, which engine.c lists. Nobody else includes it. Whoever drives
// calls all of it.

#ifndef WORKER_ENGINE_PARTS_H
#define WORKER_ENGINE_PARTS_H

#include "worker/session/session.h"

// ---- landing.c ----------------------------------------------------------------------------------

extern const char engine_no_room[]; // Why a session fails whose buckets have no room on a device.

#endif
