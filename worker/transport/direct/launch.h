// SPDX-License-Identifier: Apache-2.0
//
// Who takes part in a flow by this way, and with what. Engine thread.

#ifndef WORKER_TRANSPORT_DIRECT_LAUNCH_H
#define WORKER_TRANSPORT_DIRECT_LAUNCH_H

struct flow;
struct flows;

void direct_launch(struct flows *flows, struct flow *flow);

#endif
