// SPDX-License-Identifier: Apache-2.0
//
// The arguments of `lockstep run`. Main thread.

#ifndef LOCKSTEP_CLI_RUN_OPTIONS_H
#define LOCKSTEP_CLI_RUN_OPTIONS_H

#include "cli/run/run.h"

// Reads and checks the arguments, and sets the defaults. Sets the variables of --env in this
// process. Returns 0, an exit status after a sentence on stderr, or -1 if the help was printed.
int options_read(struct run_options *options, int argc, char **argv);

// Returns where the page listens without --http: any port of the loopback address.
const char *options_default_http(void);

#endif
