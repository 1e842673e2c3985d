// SPDX-License-Identifier: Apache-2.0
//
// Findings about ranks with a GPU. Main thread, after all forks.

#ifndef CLI_DOCTOR_GPU_H
#define CLI_DOCTOR_GPU_H

struct doctor_report;

// Adds the findings. Call it after doctor_machine, which forks. Loads NVIDIA's libraries into this
// process.
void doctor_gpu(struct doctor_report *report);

#endif
