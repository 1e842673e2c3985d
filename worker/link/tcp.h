// SPDX-License-Identifier: Apache-2.0
//
// Links over TCP. The engine's thread, but tcp_listener_open: any.

#ifndef WORKER_LINK_TCP_H
#define WORKER_LINK_TCP_H

#include <stddef.h>
#include <stdint.h>

struct link;
struct listener;

// Opens a listener. NULL with a sentence in error. The port range 0 to 0 means any port. host is a
// numeric address, "::1" or "10.0.0.7", not a name.
struct listener *tcp_listener_open(const char *host, uint16_t port_first, uint16_t port_last,
                                   char *error, size_t error_bytes);
// Begins to connect. NULL with a sentence in error.
struct link *link_connect_tcp(const char *host_and_port, char *error, size_t error_bytes);

#endif
