// SPDX-License-Identifier: Apache-2.0
//
// The rules of control messages: every bound of limits.h and every enum of types.h, checked on
// plain structs. Encoders check before they write and decoders after they read, so the one side
// sends only messages that the other side takes. check_up.c and check_down.c have a
// function for each message; the pieces are here. Pure. Any thread.
//
// A list that does not fit its array is CODEC_TOO_LONG, a number outside its range is
// CODEC_INVALID. Two things are not checked here: whether the sender may send this message now
// (worker and coordinator check that), and the numbers of a hello (the coordinator checks them,
// because it refuses them with a sentence for people).

#ifndef LOCKSTEP_PROTOS_CODEC_CHECK_H
#define LOCKSTEP_PROTOS_CODEC_CHECK_H

#include "protos/types.h"

#include <stddef.h>
#include <stdint.h>

struct codec_fault;

// Checks that text is valid UTF-8 of at most `bytes` bytes, including its NUL.
void codec_check_text(const char *text, size_t bytes, struct codec_fault *fault);

// Check that a number, or the count of a list, is at most max.
void codec_check_number(uint64_t value, uint64_t max, const char *detail,
                        struct codec_fault *fault);
void codec_check_count(uint32_t count, uint32_t max, const char *detail, struct codec_fault *fault);

// Checks that items [first, first + count) are within the total.
void codec_check_part(uint32_t first, uint32_t count, uint32_t total, const char *detail,
                      struct codec_fault *fault);

void codec_check_rank(uint32_t rank, struct codec_fault *fault);
void codec_check_dtype(enum dtype dtype, struct codec_fault *fault);
void codec_check_halt_kind(enum halt_kind kind, struct codec_fault *fault);
void codec_check_algorithm(uint32_t algorithm, struct codec_fault *fault);
void codec_check_module(uint32_t module, struct codec_fault *fault);
void codec_check_call(uint32_t call, struct codec_fault *fault);
void codec_check_call_id(const struct call_id *id, struct codec_fault *fault);
void codec_check_slot(const struct slot_id *slot, struct codec_fault *fault);
void codec_check_layout_part(const struct layout_part *part, struct codec_fault *fault);

#endif
