// SPDX-License-Identifier: Apache-2.0
//
// The functions of tcp.c that other files call.

#ifndef WORKER_LINK_TCP_H
#define WORKER_LINK_TCP_H

#include <stddef.h>
#include <stdint.h>

struct link;
struct listener;

// NULL with a sentence in error. A port range of 0 to 0 means any port; "::1" and "10.0.0.7" are
// hosts, names are not.
struct listener *tcp_listener_open(const char *host, uint16_t port_first, uint16_t port_last,
                                   char *error, size_t error_bytes);
struct link *link_connect_tcp(const char *host_and_port, char *error, size_t error_bytes);

#endif
