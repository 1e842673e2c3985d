// SPDX-License-Identifier: Apache-2.0
//
// `lockstep status`. Main thread.

#ifndef CLI_ASK_STATUS_H
#define CLI_ASK_STATUS_H

// argv[0] is the subcommand's name. Returns the exit status of the process.
int status_main(int argc, char **argv);

#endif
