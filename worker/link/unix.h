// SPDX-License-Identifier: Apache-2.0
//
// Connects processes of one host; the links themselves are in shm.c. Engine thread, except
// unix_listener_open: any thread.

#ifndef WORKER_LINK_UNIX_H
#define WORKER_LINK_UNIX_H

#include <stddef.h>

struct link;
struct listener;

// Opens a unix socket that has a random name and no file: "unix:0123...". Processes of this user in
// this network namespace can connect. Each connection becomes a link in memory. NULL with a
// sentence in error on failure.
struct listener *unix_listener_open(char *error, size_t error_bytes);
// Makes the memory of the link and connects, without waiting. Returns NULL with a sentence in error
// if no process listens under this name in this network namespace (it may be in another container),
// or if there is no memory.
struct link *link_connect_unix(const char *token, char *error, size_t error_bytes);

#endif
