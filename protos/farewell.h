// SPDX-License-Identifier: Apache-2.0
//
// The payload of the frames LEAVE and LOST: why a rank ends, or which rank was lost. Ranks exchange
// these frames without the coordinator. This file has the payload only; the transport decides when
// a rank sends it.
//
// The decoder accepts any bytes: it returns a farewell that obeys the bounds below, or an error.
// The texts come from another process, so the decoder cleans them: a byte that is not well-formed
// UTF-8, or a control character, becomes a question mark. Pure functions, any thread.

#ifndef PROTOS_FAREWELL_H
#define PROTOS_FAREWELL_H

#include "protos/limits.h"

#include <stddef.h>
#include <stdint.h>

enum farewell_kind {
    FAREWELL_CLOSED = 0, // The sender closes its session. text: its error before that, or "".
    FAREWELL_LOST = 1, // `rank` ended without a LEAVE frame, or aborted itself.
    FAREWELL_LEFT = 2, // `rank` closed its session while rank `witness` still needed it.
    // The sender ends the generation for a new one, because a rank was lost: it is alive. step: the
    // number of the new generation's ballot.
    FAREWELL_FROZEN = 3,
};

struct farewell {
    enum farewell_kind kind;
    uint32_t rank; // The rank that is gone. CLOSED: the sender.
    uint32_t witness; // The rank that noticed it. Equal to `rank`: `rank` reports itself.
    // LEFT: the step for which `rank` was needed. LOST: the first step that cannot be completed, as
    // the witness says; 0: the present step.
    uint64_t step;
    char host[LOCKSTEP_HOST_BYTES]; // The host of `rank`; "": the sender does not know it.
    // The error that the witness saw, or the reason for leaving.
    char text[LOCKSTEP_FAREWELL_TEXT_BYTES];
};

// On the wire: kind, rank, witness, four zeros, step, then host and text, each with its NUL.
#define FAREWELL_HEAD_BYTES 24
#define FAREWELL_BYTES (FAREWELL_HEAD_BYTES + LOCKSTEP_HOST_BYTES + LOCKSTEP_FAREWELL_TEXT_BYTES)

static_assert(FAREWELL_BYTES <= LOCKSTEP_WAVE_BYTES, "it fits in a small frame");

// Encodes a farewell and returns the number of bytes. A text without a NUL is cut.
size_t farewell_encode(const struct farewell *farewell, uint8_t bytes[FAREWELL_BYTES]);

// Returns NULL, or a static sentence that says what is wrong with the bytes; then *farewell is
// zeroed. world: the number of ranks. A rank that is not below world is refused.
const char *farewell_decode(const uint8_t *bytes, size_t size, uint32_t world,
                            struct farewell *farewell);

#endif
