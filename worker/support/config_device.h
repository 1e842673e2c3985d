// SPDX-License-Identifier: Apache-2.0
//
// Reads which devices the session uses. Runs on the thread that opens the session.

#ifndef WORKER_SUPPORT_CONFIG_DEVICE_H
#define WORKER_SUPPORT_CONFIG_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

struct config;
struct lockstep_config;

// Returns 0, or LOCKSTEP_E_CONFIG.
int config_device(const struct lockstep_config *given, struct config *config);

// Reads the next device number of "cuda:0,1". The caller first sets *rest to the text after the
// colon; after the last device *rest is "". Returns false if *rest does not begin with a device
// number.
#define CONFIG_DEVICE_KIND "cuda:"
bool config_device_next(const char **rest, uint64_t *number);

#endif
