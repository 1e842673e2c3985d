// SPDX-License-Identifier: Apache-2.0
//
// Findings about the data plane on this machine. Main thread.

#ifndef CLI_DOCTOR_MACHINE_H
#define CLI_DOCTOR_MACHINE_H

struct doctor_report;

// Adds the findings. Takes under a second, because it measures the limits of the network.
void doctor_machine(struct doctor_report *report);

#endif
