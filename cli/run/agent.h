// SPDX-License-Identifier: Apache-2.0
//
// `lockstep run-host`: the part of `lockstep run --hosts` on each host. Main thread.

#ifndef LOCKSTEP_CLI_RUN_AGENT_H
#define LOCKSTEP_CLI_RUN_AGENT_H

// argv[0] is the subcommand's name. Returns the exit status of the process.
int agent_main(int argc, char **argv);

#endif
