// SPDX-License-Identifier: Apache-2.0
//
// The finding about native hooks of PyTorch. Main thread.

#ifndef CLI_DOCTOR_PYTORCH_H
#define CLI_DOCTOR_PYTORCH_H

struct doctor_report;

// Asks an interpreter of Python. python: a name or a path, or NULL for python3 of the PATH.
void doctor_pytorch(struct doctor_report *report, const char *python);

#endif
