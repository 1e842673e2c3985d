// SPDX-License-Identifier: Apache-2.0
//
// The functions of measure.c that other files call.

#ifndef WORKER_TRANSPORT_MEASURE_H
#define WORKER_TRANSPORT_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

struct peer_link;
struct stream;
struct transport;
struct transport_links;

// The generation begins. 0, or -1 without memory.
int measure_form(struct transport *transport);
// Begins to measure when it has not; whether that has come to its end. All links stand.
bool measure_settled(struct transport *transport, uint64_t now_ms);
// Whether an answer is waited for, and how long at most; UINT64_MAX: none.
bool measure_awaits(const struct transport *transport);
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
