// SPDX-License-Identifier: Apache-2.0
//
// Declarations that the files of the engine share, which engine.c lists. No other wing includes
// this header. Driver only.

#ifndef WORKER_ENGINE_PARTS_H
#define WORKER_ENGINE_PARTS_H

#include "worker/session/session.h"

// ---- landing.c ----------------------------------------------------------------------------------

extern const char engine_no_room[]; // Why a session fails whose buckets have no room on a device.

#endif
