// SPDX-License-Identifier: Apache-2.0
//
// Which elements of a collective are final in user memory when its generation is frozen
// (docs/internals/recovery.md, R4). A way of reducing adds the spans that it knows of; the caller
// makes maximal runs of them. Engine thread.

#ifndef WORKER_TRANSPORT_FLOW_FINALS_H
#define WORKER_TRANSPORT_FLOW_FINALS_H

#include "protos/redo.h"
#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct extent;
struct flow;
struct peer_link;

struct finals {
    // Why the final elements are not known, as a fact about the collective; NULL: they are known.
    const char *unknown;
    bool lacks; // True if this rank has no memory for the runs.
    // REDUCE_MEAN: the total weight of the final elements. 0: nothing was written.
    uint64_t weight;
    uint32_t count;
    uint32_t room;
    struct redo_run *runs; // [count], allocated.
};

// Adds elements that are final. The span may be empty. Spans may overlap and come in any order.
void finals_add(struct finals *finals, struct ring_span span);
// Notes the total weight with which final elements were written.
void finals_weigh(struct finals *finals, uint64_t weight);
// True if a frame of the flow is arriving from the peer: its header is here, and its payload is not
// complete.
bool finals_arrives(const struct peer_link *peer, const struct flow *flow);
// Adds the elements of an arriving frame that are in user memory already. span: the elements of the
// whole frame. Adds nothing if the payload goes to scratch.
void finals_add_arriving(struct finals *finals, const struct peer_link *peer,
                         struct ring_span span);
// Sorts the runs, joins those that touch each other, and removes elements beyond `elements`.
void finals_tidy(struct finals *finals, uint64_t elements);
// Removes the elements of tidy runs that have no output: nothing was written there.
void finals_leave_out(struct finals *finals, const struct extent *extents, uint32_t count);
// True if the runs are all elements.
bool finals_are_all(const struct finals *finals, uint64_t elements);
void finals_free(struct finals *finals);

#endif
