// SPDX-License-Identifier: Apache-2.0
//
// `lockstep trace`. Main thread.

#ifndef CLI_TRACE_TRACE_H
#define CLI_TRACE_TRACE_H

// argv[0] is the subcommand's name. Returns the exit status of the process.
int trace_main(int argc, char **argv);

#endif
