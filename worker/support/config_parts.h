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

#endif
