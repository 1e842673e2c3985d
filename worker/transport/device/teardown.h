// SPDX-License-Identifier: Apache-2.0
//
// Ends a generation on devices. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_TEARDOWN_H
#define WORKER_TRANSPORT_DEVICE_TEARDOWN_H

#include <stdbool.h>

struct flows;

// Waits for results that are being written to gradients, at most as long as an abort may take. Then
// each collective is done, or nothing of it is written (by NCCL only if flows.recovers is set).
void teardown_deliver(struct flows *flows);
// Forgets all launched collectives, and leaves the communicator as it is. After the return user
// memory is not written any more. teardown_forget must follow once all ranks are frozen.
void teardown_freeze(struct flows *flows);
// Forgets all launched collectives. in_order: true if the other ranks leave, too; otherwise NCCL is
// aborted. After the return user memory is not written any more. It is not read either, unless a
// stream of the trainer has not produced its gradients yet: enqueued work that waits for that
// stream may still read them.
void teardown_forget(struct flows *flows, bool in_order);

#endif
