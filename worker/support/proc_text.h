// SPDX-License-Identifier: Apache-2.0
//
// Reads short texts of the kernel: files below /proc and of control groups. Any thread; allocates
// nothing.

#ifndef WORKER_SUPPORT_PROC_TEXT_H
#define WORKER_SUPPORT_PROC_TEXT_H

#define PROC_TEXT_BYTES 4096 // The longest text, `status` of a thread, has half of that.

// Reads a file. The text is cut to fit, and empty if the file cannot be read. directory as in
// openat.
void proc_text(int directory, const char *file, char text[PROC_TEXT_BYTES]);

#endif
