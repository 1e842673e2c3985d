// SPDX-License-Identifier: Apache-2.0
//
// Links over TCP. Engine thread, except tcp_listener_open: any thread.

#ifndef WORKER_LINK_TCP_H
#define WORKER_LINK_TCP_H

#include <stddef.h>
#include <stdint.h>

struct link;
struct listener;

// Opens a listener. Returns NULL with a sentence in error on failure. The port range 0 to 0 means
// any port. host is a numeric address, such as "::1" or "10.0.0.7", not a name.
struct listener *tcp_listener_open(const char *host, uint16_t port_first, uint16_t port_last,
                                   char *error, size_t error_bytes);
// Begins to connect. Returns NULL with a sentence in error on failure.
struct link *link_connect_tcp(const char *host_and_port, char *error, size_t error_bytes);

#endif
