// SPDX-License-Identifier: Apache-2.0
//
// The functions of codec_check.c that other files call.

#ifndef PROTOS_CODEC_CHECK_H
#define PROTOS_CODEC_CHECK_H

#include <stddef.h>

struct codec_fault;
struct down_message;
struct up_message;

// Whether a plain struct obeys every bound: both directions ask this, so they cannot differ.
void codec_check_up(const struct up_message *message, struct codec_fault *fault);
void codec_check_down(const struct down_message *message, struct codec_fault *fault);
void codec_check_text(const char *text, size_t bytes, struct codec_fault *fault);

#endif
