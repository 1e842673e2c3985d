// SPDX-License-Identifier: Apache-2.0
//
// Reads short texts from the kernel: files below /proc and files of control groups. Any thread;
// allocates nothing.

#ifndef WORKER_SUPPORT_PROC_TEXT_H
#define WORKER_SUPPORT_PROC_TEXT_H

// The longest text that is read, `status` of a thread, has half as many bytes.
#define PROC_TEXT_BYTES 4096

// Reads a file into text. The text is cut to fit; it is empty if the file cannot be read.
// directory: as in openat.
void proc_text(int directory, const char *file, char text[PROC_TEXT_BYTES]);

#endif
