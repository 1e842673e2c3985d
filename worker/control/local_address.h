// SPDX-License-Identifier: Apache-2.0
//
// Finds the address of this host that faces a coordinator. Any thread.

#ifndef WORKER_CONTROL_LOCAL_ADDRESS_H
#define WORKER_CONTROL_LOCAL_ADDRESS_H

#include <stddef.h>

// Writes the local address from which this host reaches the first address of the list
// (base/parse.h) that leads anywhere, as text without a port ("10.0.0.7"). It is the own address of
// a connected UDP socket. Returns 0, or -1; or -2 with errno if this process lacks memory or
// descriptors; or -3 if the last host name cannot be resolved, and then text is a sentence about
// it.
int control_local_address(const char *list, char *text, size_t text_bytes);

#endif
