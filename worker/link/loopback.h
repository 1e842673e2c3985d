// SPDX-License-Identifier: Apache-2.0
//
// Links inside one process: pairs of bounded pipes, for tests.

#ifndef WORKER_LINK_LOOPBACK_H
#define WORKER_LINK_LOOPBACK_H

#include <stddef.h>
#include <stdint.h>

struct link;
struct listener;

// Open a listener and connect to a listener by its number. NULL with a sentence in error on
// failure. torn_bytes: the most bytes that one receive or one send moves on the accepted links or
// on the new link; 0: no bound.
struct listener *loopback_listener_open(uint32_t torn_bytes, char *error, size_t error_bytes);
struct link *link_connect_loopback(const char *number, uint32_t torn_bytes, char *error,
                                   size_t error_bytes);

#endif
