// SPDX-License-Identifier: Apache-2.0
//
// Findings for the data plane on this machine. Main thread.

#ifndef CLI_DOCTOR_MACHINE_H
#define CLI_DOCTOR_MACHINE_H

struct doctor_report;

// Takes under a second; the network's limits are measured.
void doctor_machine(struct doctor_report *report);

#endif
