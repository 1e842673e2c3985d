// SPDX-License-Identifier: Apache-2.0
//
// The bounds of the coordinator's messages. check.h has the rules. Any thread.

#ifndef LOCKSTEP_PROTOS_CODEC_CHECK_DOWN_H
#define LOCKSTEP_PROTOS_CODEC_CHECK_DOWN_H

struct codec_fault;
struct down_message;

// Checks a plain struct against every bound. Encoder and decoder both call it.
void codec_check_down(const struct down_message *message, struct codec_fault *fault);

#endif
