// SPDX-License-Identifier: Apache-2.0
//
// The value of --hosts: "a:4,user@b:2,[fe80::1]:4". Main thread.

#ifndef LOCKSTEP_CLI_RUN_HOST_LIST_H
#define LOCKSTEP_CLI_RUN_HOST_LIST_H

#include "cli/run/run.h"

// Reads the list. A host without a number has options->workers workers, or 1. Sets the hosts, and
// options->workers and world_size to the sum. Returns 0, or an exit status after a sentence on
// stderr.
int host_list_read(struct run_options *options, const char *list);

#endif
