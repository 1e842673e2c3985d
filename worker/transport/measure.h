// SPDX-License-Identifier: Apache-2.0
//
// How fast the links of a generation are: what is measured, and what is known. Engine thread.

#ifndef WORKER_TRANSPORT_MEASURE_H
#define WORKER_TRANSPORT_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct stream;
struct transport;
struct transport_links;

enum measure_stage {
    MEASURE_NONE, // Not all links stand.
    MEASURE_LATENCY,
    MEASURE_QUIET, // Others still measure the latency of links to this rank.
    MEASURE_BANDWIDTH,
    MEASURE_DONE,
};

struct measure {
    // set at open, then constant. 0: links are measured.
    uint64_t given_latency_ns;
    uint64_t given_bytes_per_s;
    // engine thread only
    enum measure_stage stage;
    bool over; // All ranks have measured.
    uint64_t deadline_ms;
    uint64_t quiet_ms; // So long others are waited for.
    struct peer_link *targets[2];
    uint32_t target_count;
    uint32_t target; // The one that is measured.
    uint32_t number; // Number of the last ping or burst.
    uint32_t pings; // Answered by the target.
    uint64_t best_ns[2]; // By target: the shortest round trip.
    uint64_t burst_bytes;
    uint64_t burst_ns; // The best of this size.
    uint32_t tries; // Bursts of this size that were sent.
    uint64_t sent_ns;
    uint8_t *bytes; // What bursts consist of, and where those of others end.
    // Results: of the slowest target.
    uint64_t latency_ns;
    uint64_t bytes_per_s;
};

// The generation begins. 0, or -1 without memory.
int measure_form(struct transport *transport);
// Begins to measure if it has not begun. True if measuring has ended. All links stand.
bool measure_settled(struct transport *transport, uint64_t now_ms);
// True while an answer is awaited.
bool measure_awaits(const struct transport *transport);
// When measure_settled has something to do; UINT64_MAX: never.
uint64_t measure_deadline(const struct transport *transport);
// A frame of kind MEASURE. NULL, or what is impossible about it.
const char *measure_frame_begins(struct peer_link *peer, struct stream *stream);
const char *measure_frame_ended(struct peer_link *peer);
// The links are closed.
void measure_forget(struct transport *transport);
void transport_links(const struct transport *transport, struct transport_links *links);
// Every rank has measured its links: who measures from now on breaks the protocol. bytes_per_s: of
// the slowest of all; the same on all ranks.
void transport_tuned(struct transport *transport, uint64_t bytes_per_s);

#endif
