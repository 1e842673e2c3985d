// SPDX-License-Identifier: Apache-2.0
//
// File descriptors that are kept, so that /proc can still be read when the trainer has used up all
// others: a rank that stands still for want of descriptors is one that has to be explained. The
// process has LOCKSTEP_SPARE_DESCRIPTORS of them while a session is open. Any thread; not for a
// forked child, nor for a signal handler.

#ifndef WORKER_SUPPORT_SPARE_H
#define WORKER_SUPPORT_SPARE_H

// A session opens, a session has closed: the first one takes them, the last one gives them back.
void spare_begin(void);
void spare_end(void);

// As openat. When no descriptor is free, it takes the place of a spare one.
int spare_open(int directory, const char *path, int flags);
// As close, for what spare_open has opened. The spare one is taken again.
void spare_close(int fd);

#endif
