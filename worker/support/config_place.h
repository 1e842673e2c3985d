// SPDX-License-Identifier: Apache-2.0
//
// Determines the world that a session asks for, and the session's place in that world. Runs on the
// thread that opens the session.

#ifndef WORKER_SUPPORT_CONFIG_PLACE_H
#define WORKER_SUPPORT_CONFIG_PLACE_H

#include <lockstep/lockstep.h>

struct config;
struct lockstep_config;

// Determines the world's size, the wanted rank and the job's name from LOCKSTEP_* variables and the
// trainer's values, completed by the launcher's variables. Called after the coordinator's address
// is known. Returns 0, or LOCKSTEP_E_CONFIG.
int config_place(const struct lockstep_config *given, struct config *config);

// Checks the list of the coordinator's addresses. NULL is fine. Returns 0, or LOCKSTEP_E_CONFIG.
int config_place_coordinator(const char *list);

#endif
