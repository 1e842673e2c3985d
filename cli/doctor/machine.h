// SPDX-License-Identifier: Apache-2.0
//
// The functions of machine.c that other files call.

#ifndef CLI_DOCTOR_MACHINE_H
#define CLI_DOCTOR_MACHINE_H

struct doctor_report;

// Takes under a second; the network's limits are measured.
void doctor_machine(struct doctor_report *report);

#endif
