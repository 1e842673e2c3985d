// SPDX-License-Identifier: Apache-2.0
//
// The address by which the hosts of --hosts reach the coordinator on the first of them.
// Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_REACH_H
#define LOCKSTEP_CLI_RUN_REACH_H

#include <stddef.h>
#include <stdint.h>

struct remote;

// Writes the address of host 0 that the other hosts use: the one by which ssh has reached it. If
// that is a loopback address, host 0 is this machine, and the other hosts know its address: it is
// the client's. Without SSH_CONNECTION it is the host's name. All hosts have greeted.
void reach_host(const struct remote *remotes, uint32_t count, char *address, size_t capacity);

#endif
