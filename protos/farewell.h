// SPDX-License-Identifier: Apache-2.0
//
// Why a rank ends, or who was lost: the payload of the frames LEAVE and LOST, by which ranks tell
// each other without the coordinator. This is the payload only; who says it when is the
// transport's business.
//
// The decoder is total: any bytes give a farewell that obeys the bounds below, or a named error.
// Its texts come from another process, so they are cleaned: a byte that is no well-formed UTF-8, or
// a control character, becomes a question mark. Pure functions, any thread.

#ifndef PROTOS_FAREWELL_H
#define PROTOS_FAREWELL_H

#include "protos/limits.h"

#include <stddef.h>
#include <stdint.h>

enum farewell_kind {
    FAREWELL_CLOSED = 0, // The sender closes its session. text: the error before that, or "".
    FAREWELL_LOST = 1, // Rank `rank` is gone without a goodbye, or gives itself up.
    FAREWELL_LEFT = 2, // Rank `rank` said goodbye, and `witness` still needed it.
};

struct farewell {
    enum farewell_kind kind;
    uint32_t rank; // The rank that is gone. CLOSED: the sender.
    uint32_t witness; // The rank that saw it. Equal to `rank`: that rank said it of itself.
    uint64_t step; // LEFT: the step for which it was needed. LOST: the first step that cannot be
                   // completed, by the word of the witness; 0: the present one.
    char host[LOCKSTEP_HOST_BYTES]; // The host of `rank`; "": the sender does not know it.
    char text[LOCKSTEP_FAREWELL_TEXT_BYTES]; // The error that was seen, or the reason of leaving.
};

// Kind, rank, witness, four zeros, step, then both texts, each with its NUL.
#define FAREWELL_HEAD_BYTES 24
#define FAREWELL_BYTES (FAREWELL_HEAD_BYTES + LOCKSTEP_HOST_BYTES + LOCKSTEP_FAREWELL_TEXT_BYTES)

static_assert(FAREWELL_BYTES <= LOCKSTEP_WAVE_BYTES, "it fits in a small frame");

// Returns the number of bytes. A text without a NUL is cut.
size_t farewell_encode(const struct farewell *farewell, uint8_t bytes[FAREWELL_BYTES]);

// Returns NULL, or what is impossible about the bytes; then *farewell is zeroed. world: the number
// of ranks; all ranks are below it.
const char *farewell_decode(const uint8_t *bytes, size_t size, uint32_t world,
                            struct farewell *farewell);

#endif
