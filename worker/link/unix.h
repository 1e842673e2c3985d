// SPDX-License-Identifier: Apache-2.0
//
// The functions of unix.c that other files call.

#ifndef WORKER_LINK_UNIX_H
#define WORKER_LINK_UNIX_H

#include <stddef.h>

struct link;
struct listener;

// A unix socket without a file, with a random name: "unix:0123...". For processes of this user in
// this network namespace; links in memory come of it.
struct listener *unix_listener_open(char *error, size_t error_bytes);
// Makes the memory of the link and connects, at once or not at all: NULL with a sentence in error
// when nobody of this name listens here, as in another container, or when there is no memory.
struct link *link_connect_unix(const char *token, char *error, size_t error_bytes);

#endif
