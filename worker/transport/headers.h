// SPDX-License-Identifier: Apache-2.0
//
// Step headers: sent to the ring successor, received from the ring predecessor, and kept until they
// are reported. Engine thread.

#ifndef WORKER_TRANSPORT_HEADERS_H
#define WORKER_TRANSPORT_HEADERS_H

#include "protos/frame.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct transport;

// A step header that has arrived and is not reported yet.
struct early_header {
    struct step_header header;
    uint32_t note_bytes;
    uint8_t note[LOCKSTEP_NOTE_BYTES];
};

struct step_headers {
    struct early_header early[LOCKSTEP_EARLY_HEADERS]; // A ring.
    uint32_t first; // Index in `early` of the header that is reported next.
    uint32_t count;
    uint8_t note[LOCKSTEP_NOTE_BYTES]; // The note of the header that is being received.
    uint64_t sent; // Step of the last header that this rank sent.
    uint64_t received; // Step of the last header that this rank received.
};

// The header of a STEP_HEADER frame has arrived. Returns NULL, or what is impossible about the
// frame.
const char *headers_begin(struct peer_link *peer);
void headers_end(struct peer_link *peer);
// Reports one step header by the event `header`. False if there was none.
bool headers_report(struct transport *transport);
// True if `peer` is the ring predecessor and its header of this rank's current step has not
// arrived.
bool headers_need(const struct transport *transport, const struct peer_link *peer);
// Sends a step header and its note to the ring successor. note: at most LOCKSTEP_NOTE_BYTES,
// copied.
void transport_header(struct transport *transport, const struct step_header *header,
                      const uint8_t *note, uint32_t note_bytes);
void headers_forget(struct transport *transport);

#endif
