// SPDX-License-Identifier: Apache-2.0
//
// The end of a generation on devices. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_TEARDOWN_H
#define WORKER_TRANSPORT_DEVICE_TEARDOWN_H

#include <stdbool.h>

struct flows;

// Forgets what was launched. in_order: the other ranks leave, too; else NCCL is given up. User
// memory is not written any more when it returns, and not read, unless a stream of the trainer has
// not made its gradients yet: what waits for that may read them when it has.
void teardown_forget(struct flows *flows, bool in_order);

#endif
