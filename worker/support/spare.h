// SPDX-License-Identifier: Apache-2.0
//
// File descriptors that are kept in reserve, so that /proc can be read even when the trainer has
// used up all others: a rank that stands still for lack of descriptors needs an explanation, too.
// The process has LOCKSTEP_SPARE_DESCRIPTORS of them while a session is open. Any thread, but not a
// forked child and not a signal handler.

#ifndef WORKER_SUPPORT_SPARE_H
#define WORKER_SUPPORT_SPARE_H

// A session opens; a session has closed. The first session takes the descriptors, the last one
// gives them back.
void spare_begin(void);
void spare_end(void);

// As openat. If no descriptor is free, the file takes the place of a spare one.
int spare_open(int directory, const char *path, int flags);
// As close, for a descriptor of spare_open. A spare descriptor that gave its place is opened again.
void spare_close(int fd);

#endif
