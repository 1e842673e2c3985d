// SPDX-License-Identifier: Apache-2.0
//
// Declarations that the files of worker/engine/ share. No other wing includes this header. Driver
// only.

#ifndef WORKER_ENGINE_PARTS_H
#define WORKER_ENGINE_PARTS_H

#include "worker/session/session.h"

// ---- landing.c ----------------------------------------------------------------------------------

extern const char engine_no_room[]; // Error text: a device has no room for the session's buckets.

#endif
