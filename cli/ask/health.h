// SPDX-License-Identifier: Apache-2.0
//
// `lockstep health`. Main thread.

#ifndef LOCKSTEP_CLI_ASK_HEALTH_H
#define LOCKSTEP_CLI_ASK_HEALTH_H

// argv[0] is the subcommand's name. Returns the exit status of the process.
int health_main(int argc, char **argv);

#endif
