// SPDX-License-Identifier: Apache-2.0
//
// `lockstep certs`. Main thread.

#ifndef CLI_CERTS_CERTS_H
#define CLI_CERTS_CERTS_H

// argv[0] is the subcommand's name. Returns the exit status of the process.
int certs_main(int argc, char **argv);

#endif
