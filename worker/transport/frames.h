// SPDX-License-Identifier: Apache-2.0
//
// What the transport does with the frames of a stream. Engine thread.

#ifndef WORKER_TRANSPORT_FRAMES_H
#define WORKER_TRANSPORT_FRAMES_H

#include "worker/link/stream.h"

// The context of such a stream is a struct peer_link.
extern const struct stream_owner transport_stream_owner;

#endif
