// SPDX-License-Identifier: Apache-2.0
//
// Which of this host's addresses faces a coordinator. Any thread.

#ifndef WORKER_CONTROL_LOCAL_ADDRESS_H
#define WORKER_CONTROL_LOCAL_ADDRESS_H

#include <stddef.h>

// The local address by which this host reaches `address`, as text without a port ("10.0.0.7"):
// a connected UDP socket's own name. 0, or -1; or -2 with errno when this process lacks memory or
// descriptors for the question.
int control_local_address(const char *address, char *text, size_t text_bytes);

#endif
