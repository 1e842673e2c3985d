// SPDX-License-Identifier: Apache-2.0
//
// File descriptors kept in reserve, so that this library can read /proc even when the trainer has
// used up all other descriptors. A rank that stalls for lack of descriptors needs an explanation,
// too. The process keeps LOCKSTEP_SPARE_DESCRIPTORS of them while a session is open. Any thread,
// but not in a forked child and not in a signal handler.

#ifndef WORKER_SUPPORT_SPARE_H
#define WORKER_SUPPORT_SPARE_H

#include <stdbool.h>
#include <stdint.h>

// A session opens; a session has closed. The first session opens the spare descriptors, the last
// session closes them.
void spare_begin(void);
void spare_end(void);

// As openat. If no descriptor is free, one spare descriptor is closed to make room for the file.
int spare_open(int directory, const char *path, int flags);
// Closes a descriptor of spare_open, and opens a spare descriptor again if one is missing.
void spare_close(int fd);

// Opens up to `count` descriptors, at most LOCKSTEP_SESSION_DESCRIPTORS_MOST, and closes them
// again. Returns how many it could open; if that is less than `count`, errno says why.
uint32_t spare_room(uint32_t count);

// Returns true if the process can open `count` descriptors, at most
// LOCKSTEP_SESSION_DESCRIPTORS_MOST; if not, errno says why. Opens only one of them, so other
// threads find the others meanwhile. Without /proc it opens them all, as spare_room.
bool spare_is_room(uint32_t count);

#endif
