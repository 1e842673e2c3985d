// SPDX-License-Identifier: Apache-2.0
//
// The limit of open files. It bounds the number of connections that have sent nothing yet.

#ifndef LOCKSTEP_SERVER_RPC_DESCRIPTORS_H
#define LOCKSTEP_SERVER_RPC_DESCRIPTORS_H

#include <stdint.h>

// Sets the soft limit of open files to the hard limit, but at most to `most`. A connection that
// sends nothing costs memory until it times out, and this limit bounds the number of such
// connections. Files that are already open above the limit stay open. Returns the new limit, or 0
// if it is unknown.
uint64_t descriptors_limit(uint64_t most);

#endif
