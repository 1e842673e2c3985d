// SPDX-License-Identifier: Apache-2.0
//
// `lockstep stalls`. Main thread.

#ifndef CLI_ASK_STALLS_H
#define CLI_ASK_STALLS_H

// argv[0] is the subcommand's name. Returns the exit status of the process.
int stalls_main(int argc, char **argv);

#endif
