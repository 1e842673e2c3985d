// SPDX-License-Identifier: Apache-2.0
//
// How links between processes of one host are connected; the links themselves are in shm.c. The
// engine's thread, but unix_listener_open: any.

#ifndef WORKER_LINK_UNIX_H
#define WORKER_LINK_UNIX_H

#include <stddef.h>

struct link;
struct listener;

// Opens a unix socket without a file and with a random name: "unix:0123...". Processes of this user
// in this network namespace can connect. The connections are links in memory.
struct listener *unix_listener_open(char *error, size_t error_bytes);
// Makes the memory of the link and connects, without waiting. NULL with a sentence in error if no
// process listens under this name here (it may be in another container), or if there is no memory.
struct link *link_connect_unix(const char *token, char *error, size_t error_bytes);

#endif
