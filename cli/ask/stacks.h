// SPDX-License-Identifier: Apache-2.0
//
// `lockstep stacks`. Main thread.

#ifndef CLI_ASK_STACKS_H
#define CLI_ASK_STACKS_H

// argv[0] is the subcommand's name. Returns the exit status of the process.
int stacks_main(int argc, char **argv);

#endif
