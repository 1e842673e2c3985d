// SPDX-License-Identifier: Apache-2.0
//
// The functions of place.c that other files call.

#ifndef CLI_DOCTOR_PLACE_H
#define CLI_DOCTOR_PLACE_H

struct doctor_report;

void doctor_place(struct doctor_report *report);

#endif
