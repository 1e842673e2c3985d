// SPDX-License-Identifier: Apache-2.0
//
// Hands each frame of a stream to the part of the transport that its kind belongs to. Engine
// thread.

#ifndef WORKER_TRANSPORT_FRAMES_H
#define WORKER_TRANSPORT_FRAMES_H

#include "worker/link/stream.h"

// The owner of a stream whose context is a struct peer_link.
extern const struct stream_owner transport_stream_owner;

#endif
