// SPDX-License-Identifier: Apache-2.0
//
// The functions of loopback.c that other files call.

#ifndef WORKER_LINK_LOOPBACK_H
#define WORKER_LINK_LOOPBACK_H

#include <stddef.h>
#include <stdint.h>

struct link;
struct listener;

// torn_bytes: at most so many bytes a read and a write, on the links accepted; 0: no bound.
struct listener *loopback_listener_open(uint32_t torn_bytes, char *error, size_t error_bytes);
struct link *link_connect_loopback(const char *number, uint32_t torn_bytes, char *error,
                                   size_t error_bytes);

#endif
