// SPDX-License-Identifier: Apache-2.0
//
// The functions of check.c that other files call. They return 0, or a status with its text.

#ifndef WORKER_API_CHECK_H
#define WORKER_API_CHECK_H

struct config;

// Finds the address at which other workers reach this host. Asks the resolver for the coordinator's
// address, unless the trainer or LOCKSTEP_ADVERTISE has given an address.
int check_address(struct config *config);
// Checks without a network what the address and the engine of a session would check.
int check_alone(struct config *config);

#endif
