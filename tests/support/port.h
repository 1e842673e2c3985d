// SPDX-License-Identifier: Apache-2.0
//
// Ports for tests whose coordinator ends and comes back at the same address.

#ifndef LOCKSTEP_TESTS_PORT_H
#define LOCKSTEP_TESTS_PORT_H

#include <stdint.h>

// Returns a TCP port on which nobody listens at any address. It is below 32768, where the ports
// begin that Linux gives to connections, so no connection takes it while the coordinator is away.
// No other test gets it as long as this process or a child of it lives.
uint16_t test_port(void);

#endif
