// SPDX-License-Identifier: Apache-2.0
//
// What the files of the configuration share: config.c, and config_place.c for the place in the
// world. Runs on the thread that opens.

#ifndef WORKER_SUPPORT_CONFIG_PARTS_H
#define WORKER_SUPPORT_CONFIG_PARTS_H

#include "worker/support/config.h"

#define CONFIG_DEFAULT_JOB "default"

// The value of an environment variable; an empty one counts as not set.
const char *config_environment(const char *name);

// Reads a variable that holds a number. *to stays as it is where the variable is not set.
// 0, or LOCKSTEP_E_CONFIG.
int config_number(const char *name, uint64_t maximum, uint32_t *to);

// Copies a text that has to fit and to be UTF-8; NULL copies nothing. 0, or LOCKSTEP_E_CONFIG, with
// what in the error text.
int config_string(char *to, size_t bytes, const char *from, const char *what);

// The world's size, the rank wished for and the job's name: what LOCKSTEP_* variables and the
// trainer say, completed by what the launcher says. After the coordinator's address is known.
// 0, or LOCKSTEP_E_CONFIG.
int config_place(const struct lockstep_config *given, struct config *config);

#endif
