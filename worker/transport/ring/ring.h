// SPDX-License-Identifier: Apache-2.0
//
// Collectives along a ring of ranks, as a way of reducing. Driver thread.

#ifndef WORKER_TRANSPORT_RING_RING_H
#define WORKER_TRANSPORT_RING_RING_H

#include "worker/transport/flow/way.h"

extern const struct way ring_way;

#endif
