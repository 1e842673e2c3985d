// SPDX-License-Identifier: Apache-2.0
//
// Reads how sums travel: transport, algorithm, order of additions, speed of links, slots. Runs on
// the thread that opens the session.

#ifndef WORKER_SUPPORT_CONFIG_TRAVEL_H
#define WORKER_SUPPORT_CONFIG_TRAVEL_H

#include <lockstep/lockstep.h>

struct config;
struct lockstep_config;

// Called after the transport that the trainer chose is known. Returns 0, or LOCKSTEP_E_CONFIG.
int config_travel(const struct lockstep_config *given, struct config *config);

#endif
