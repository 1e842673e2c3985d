// SPDX-License-Identifier: Apache-2.0
// Questions about the address of a socket. Any thread.
#ifndef LOCKSTEP_BASE_ADDRESS_H
#define LOCKSTEP_BASE_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

// True if the address is 127.0.0.0/8 or ::1. False for another family than IPv4 and IPv6.
bool address_is_loopback(const struct sockaddr *address);

// Returns "127.0.0.1", or "::1" if this machine has no IPv4 loopback address.
const char *address_loopback(void);

#endif
