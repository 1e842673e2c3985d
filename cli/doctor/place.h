// SPDX-License-Identifier: Apache-2.0
//
// The place (rank and world size) that a trainer would have if it were started here. Main thread.

#ifndef CLI_DOCTOR_PLACE_H
#define CLI_DOCTOR_PLACE_H

struct doctor_report;

void doctor_place(struct doctor_report *report);

#endif
