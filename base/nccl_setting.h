// SPDX-License-Identifier: Apache-2.0
// Finds out how NCCL is set, without NCCL. Any thread.
#ifndef LOCKSTEP_BASE_NCCL_SETTING_H
#define LOCKSTEP_BASE_NCCL_SETTING_H

#include <stdbool.h>
#include <stddef.h>

// Looks for an NCCL variable where NCCL looks, in the same order: the environment, the file that
// NCCL_CONF_FILE names or ~/.nccl.conf, /etc/nccl.conf. Returns false if it is not set, so that
// NCCL chooses.
bool nccl_setting(const char *name, char *value, size_t bytes);

// Returns true if NCCL_COMM_BLOCKING is set. NCCL prefers it to the configuration of a
// communicator, and then waits for lost ranks for ever.
bool nccl_setting_blocks(void);

#endif
