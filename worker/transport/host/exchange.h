// SPDX-License-Identifier: Apache-2.0
//
// The short way of a small collective that its caller waits for. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_EXCHANGE_H
#define WORKER_TRANSPORT_HOST_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct flow;
struct shared;
struct flows;

// transport_exchange, when nothing is in flight here. patient: as for moment_pass.
bool exchange_shots(struct flows *flows, struct collective *collective, bool patient);
// Writes the notice of the last shot that was announced; it has so many bytes.
void exchange_note(struct shared *shared, uint32_t index, uint64_t bytes);
// A flow is launched. True if an exchange has announced its shot before.
bool exchange_continues(struct shared *shared, struct flow *flow);

#endif
