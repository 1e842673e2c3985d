// SPDX-License-Identifier: Apache-2.0
//
// The limit of open files, which bounds the connections that have not said anything yet.

#ifndef LOCKSTEP_SERVER_RPC_DESCRIPTORS_H
#define LOCKSTEP_SERVER_RPC_DESCRIPTORS_H

#include <stdint.h>

// Sets the soft limit of open files to the hard one, but to no more than `most`. A connection that
// says nothing costs memory until its time is over, and this limit bounds the number of them. Files
// that are open above it stay open. Returns the new limit, 0 if unknown.
uint64_t descriptors_limit(uint64_t most);

#endif
