// SPDX-License-Identifier: Apache-2.0
//
// The short texts in which the kernel says what it knows: files below /proc and of control groups.
// Any thread; allocates nothing.

#ifndef WORKER_SUPPORT_PROC_TEXT_H
#define WORKER_SUPPORT_PROC_TEXT_H

#define PROC_TEXT_BYTES 4096 // `status` of a thread is the longest, with half of it.

// The text of a file as it is, cut where the room ends; empty: none. directory as in openat.
void proc_text(int directory, const char *file, char text[PROC_TEXT_BYTES]);

#endif
