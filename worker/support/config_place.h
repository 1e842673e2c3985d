// SPDX-License-Identifier: Apache-2.0
//
// Which place in which world a session asks for. Runs on the thread that opens.

#ifndef WORKER_SUPPORT_CONFIG_PLACE_H
#define WORKER_SUPPORT_CONFIG_PLACE_H

#include <lockstep/lockstep.h>

struct config;
struct lockstep_config;

// The world's size, the rank wished for and the job's name: what LOCKSTEP_* variables and the
// trainer say, completed by what the launcher says. After the coordinator's address is known.
// 0, or LOCKSTEP_E_CONFIG.
int config_place(const struct lockstep_config *given, struct config *config);

#endif
