// SPDX-License-Identifier: Apache-2.0
//
// Findings for ranks with a GPU. Main thread, after all forks.

#ifndef CLI_DOCTOR_GPU_H
#define CLI_DOCTOR_GPU_H

struct doctor_report;

// After doctor_machine, which forks. Loads libraries of NVIDIA's into this process.
void doctor_gpu(struct doctor_report *report);

#endif
