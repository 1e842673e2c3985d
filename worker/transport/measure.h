// SPDX-License-Identifier: Apache-2.0
//
// Measures latency and bandwidth of the links of a generation. Engine thread.

#ifndef WORKER_TRANSPORT_MEASURE_H
#define WORKER_TRANSPORT_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct stream;
struct transport;
struct transport_links;

enum measure_stage {
    MEASURE_NONE, // Not all links are proven yet.
    MEASURE_LATENCY,
    // This rank waits while its predecessors measure the latency of their links to it.
    MEASURE_QUIET,
    MEASURE_BANDWIDTH,
    MEASURE_DONE,
};

struct measure {
    // set at open, then constant: the configured values. 0: links are measured.
    uint64_t given_latency_ns;
    uint64_t given_bytes_per_s;
    // engine thread only
    enum measure_stage stage;
    bool over; // True if all ranks have measured their links.
    uint64_t deadline_ms;
    uint64_t quiet_ms; // When MEASURE_QUIET ends, in ms, although predecessors have not finished.
    struct peer_link *targets[2];
    uint32_t target_count;
    uint32_t target; // Index in `targets` of the link that is being measured.
    uint32_t number; // Number of the last ping or burst.
    uint32_t pings; // Number of pings that the target has answered.
    uint64_t best_ns[2]; // By target: the shortest round trip.
    uint64_t burst_bytes;
    uint64_t burst_ns; // The shortest time of a burst of burst_bytes.
    uint32_t tries; // Number of bursts of burst_bytes that were sent.
    uint64_t sent_ns;
    // One frame of payload: bursts are sent from it, and the bursts of others are received into it.
    uint8_t *bytes;
    // The results: highest latency and lowest bandwidth of all targets; 0: unknown.
    uint64_t latency_ns;
    uint64_t bytes_per_s;
};

// Called when the generation begins to form. 0, or -1 without memory.
int measure_form(struct transport *transport);
// Called once all links are proven. Begins to measure if that has not begun. True if measuring has
// ended.
bool measure_settled(struct transport *transport, uint64_t now_ms);
// True while this rank measures.
bool measure_awaits(const struct transport *transport);
// The time in ms at which measure_settled has something to do; UINT64_MAX: never.
uint64_t measure_deadline(const struct transport *transport);
// The header of a MEASURE frame has arrived. Returns NULL, or what is impossible about the frame.
const char *measure_frame_begins(struct peer_link *peer, struct stream *stream);
const char *measure_frame_ended(struct peer_link *peer);
// Called when the generation has ended: forgets all measurements.
void measure_forget(struct transport *transport);
void transport_links(const struct transport *transport, struct transport_links *links);
// Called when every rank has measured its links: pings and bursts that come later are not answered.
// bytes_per_s: the bandwidth of the slowest link of all ranks, equal on all ranks.
void transport_tuned(struct transport *transport, uint64_t bytes_per_s);

#endif
