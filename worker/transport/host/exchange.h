// SPDX-License-Identifier: Apache-2.0
//
// The fast path of a small collective that its caller waits for. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_EXCHANGE_H
#define WORKER_TRANSPORT_HOST_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct flow;
struct shared;
struct flows;

// As transport_exchange; nothing may be in flight here. patient: as for moment_pass.
bool exchange_shots(struct flows *flows, struct collective *collective, bool patient);
// Writes the notice of the shot that was announced last, which is in record `index` and has `bytes`
// of payload.
void exchange_note(struct shared *shared, uint32_t index, uint64_t bytes);
// Called when a flow is launched. True if an exchange has already announced its shot.
bool exchange_continues(struct shared *shared, struct flow *flow);

#endif
