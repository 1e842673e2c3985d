// SPDX-License-Identifier: Apache-2.0
//
// The bounds of a worker's messages. check.h has the rules. Any thread.

#ifndef LOCKSTEP_PROTOS_CODEC_CHECK_UP_H
#define LOCKSTEP_PROTOS_CODEC_CHECK_UP_H

struct codec_fault;
struct up_message;

// Checks a plain struct against every bound. Encoder and decoder both call it.
void codec_check_up(const struct up_message *message, struct codec_fault *fault);

#endif
