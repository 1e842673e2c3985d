// SPDX-License-Identifier: Apache-2.0
//
// The sentence about a stall in which all ranks wait. Runs inside coordinator_step, and in views.

#ifndef COORDINATOR_STANDING_H
#define COORDINATOR_STANDING_H

#include <stdint.h>

struct coordinator;
struct job;
struct text;

// Adds the sentence about a stall that no rank explains: what each rank waits for, with times as of
// now_ms.
void standing_sentence(const struct coordinator *core, const struct job *job, uint64_t now_ms,
                       struct text *sentence);

#endif
