// SPDX-License-Identifier: Apache-2.0
//
// Step headers that come from the ring predecessor, and what is kept of them. Engine thread.

#ifndef WORKER_TRANSPORT_HEADERS_H
#define WORKER_TRANSPORT_HEADERS_H

#include "protos/frame.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct transport;

// A header that has arrived and is not reported.
struct early_header {
    struct step_header header;
    uint32_t note_bytes;
    uint8_t note[LOCKSTEP_NOTE_BYTES];
};

struct step_headers {
    struct early_header early[LOCKSTEP_EARLY_HEADERS];
    uint32_t count;
    uint8_t note[LOCKSTEP_NOTE_BYTES]; // The note of the header that is being received.
    uint64_t sent; // Step of the last header that this rank sent.
    uint64_t received; // Step of the last one that came.
};

// A frame of kind STEP_HEADER begins. NULL, or what is impossible about it.
const char *headers_begin(struct peer_link *peer);
void headers_end(struct peer_link *peer);
// Reports one header. True if there was one.
bool headers_report(struct transport *transport);
// True if the predecessor has not begun the step that this rank has begun.
bool headers_need(const struct transport *transport, const struct peer_link *peer);
// note: at most LOCKSTEP_NOTE_BYTES, copied.
void transport_header(struct transport *transport, const struct step_header *header,
                      const uint8_t *note, uint32_t note_bytes);
void headers_forget(struct transport *transport);

#endif
