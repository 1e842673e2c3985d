// SPDX-License-Identifier: Apache-2.0
//
// What the files of this folder share. direct.c has the words and the argument. Engine thread.

#ifndef WORKER_TRANSPORT_DIRECT_DIRECT_H
#define WORKER_TRANSPORT_DIRECT_DIRECT_H

#include "worker/transport/direct/schedule.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/way.h"

// Own pieces of a reduction in flight at most.
#define DIRECT_WINDOW 8
#define DIRECT_NO_MEMBER UINT32_MAX

// The field `part` of FRAME_DIRECT.
enum direct_part {
    DIRECT_INPUT = 0, // A piece of the sender's input. weight: the input's weight.
    DIRECT_SUM = 1, // The same, but the input is multiplied by its weight already.
    DIRECT_FINAL = 2, // A piece of final bytes. weight: total weight, or elements of the part.
    // A part will come. weight: its elements. The payload is the address of the part in the memory
    // of the sender (DIRECT_ADDRESS_BYTES), if the receiver may read it there; or none.
    DIRECT_ANNOUNCE = 3,
    DIRECT_GRANT_INPUTS = 4, // The receiver has room for the inputs below `credit`.
    // The receiver has room for the final pieces below `credit`. weight: the elements it awaits.
    DIRECT_GRANT_FINALS = 5,
    DIRECT_TAKEN = 6, // The receiver has read the announced part itself. weight: its elements.
    // The receive of a part has begun that was announced although it is short (ahead.h). credit:
    // its pieces; weight: its elements.
    DIRECT_ASK = 7,
};

#define DIRECT_ADDRESS_BYTES \
    sizeof(uint64_t) // In the byte order of the host that both sides share.

// The pieces that one rank sends to another: those sent from here, or those received here.
struct direct_row {
    uint32_t count;
    uint32_t begun; // Queued here, or begun to arrive.
    uint32_t done; // Taken by the link, or arrived whole.
    uint32_t granted; // Pieces below may be sent; both sides know.
};

// A member, as this rank sees it.
struct direct_member {
    struct peer_link *peer; // NULL: the member is this rank.
    struct direct_row inputs_out;
    struct direct_row inputs_in;
    struct direct_row finals_out;
    struct direct_row finals_in;
    struct ring_span owned; // Reductions: the elements that the member owns.
    uint64_t piece; // Elements of a piece of them.
    // Sums of a piece that one input has, one behind the other: 1, or the blocks of the member.
    uint32_t blocks;
    const struct collective_part *send; // NULL: none.
    const struct collective_part *receive; // NULL: none.
    bool paced; // Exchange: true if the one part between the two ranks is short (ahead.h).
    bool waits; // True if this rank's part is paced, and may not be sent yet.
    bool asks; // True if the member's part is paced and announced, and this rank will ask for it.
    bool announced; // True if this rank has announced its part, or need not.
    bool offered; // True if the announcement had the address of the part.
    bool heard; // True if the member has announced its part.
    bool
        counted; // True if this rank has granted the member's part: it counts in direct_run.grants.
    uint64_t offer; // The address of the member's part in its memory. 0: none, or it was read.
    uint64_t pulled; // Bytes of it that were read.
    // Inputs of the member for own piece i, in entry i modulo the window.
    uint8_t *inputs[DIRECT_WINDOW]; // NULL: zeros.
    uint64_t weights[DIRECT_WINDOW];
    bool sums[DIRECT_WINDOW]; // True if the input is multiplied by its weight already.
};

// A piece that this rank owns.
struct direct_sum {
    uint32_t inputs; // Number of inputs that have arrived.
    uint32_t sends_left; // Final frames that the link has not taken.
    uint64_t weight; // Total weight.
    uint8_t *block; // The final bytes, if they are not sent from user memory.
    bool empty; // True if no final bytes exist.
};

// The state of a launched flow: flow.part, until the flow is done.
struct direct_run {
    uint32_t count;
    uint32_t own; // The place of this rank among the members; DIRECT_NO_MEMBER in an exchange.
    uint32_t window;
    uint32_t base; // Own pieces below are complete: summed, and sent to all.
    uint32_t summed; // Own pieces below are final.
    uint32_t granting; // Exchange: the member that gets the next grant.
    uint32_t grants; // Exchange: grants whose parts have not arrived whole.
    uint32_t element_bytes; // Bytes of an element in the largest input or part of any member.
    // Exchange: the part that this rank sends to itself, and its place. NULL: copied, or none.
    const struct collective_part *kept_from;
    const struct collective_part *kept_to;
    uint64_t kept_bytes; // Number of its bytes that are copied.
    // True if nothing is left to queue for any member. An announcement and a failed read make it
    // false, because they make this rank ask for a part or grant it.
    bool fed;
    struct direct_sum sums[DIRECT_WINDOW]; // Own piece i is in entry i modulo the window.
    struct direct_member members[]; // [count], in the order of summation.
};

static inline bool direct_is_exchange(const struct flow *flow)
{
    return flow->collective->kind == COLLECTIVE_EXCHANGE;
}

// True if final bytes go to all members.
static inline bool direct_gathers(const struct flow *flow)
{
    return flow->collective->kind == COLLECTIVE_ALLREDUCE;
}

static inline bool direct_is_mean(const struct flow *flow)
{
    return !direct_is_exchange(flow) && flow->collective->op == REDUCE_MEAN;
}

// The dtype of elements in frames. Narrower final bytes mean that inputs travel narrow, too. Wider
// partial sums do not exist here: the owner adds in float32 anyway.
static inline enum dtype direct_dtype(const struct flow *flow)
{
    return flow->final;
}

// The same for inputs. Over a tree of leaves, sums travel as partial sums.
static inline enum dtype direct_input_dtype(const struct flow *flow)
{
    return flow->collective->tree ? flow->partial : flow->final;
}

static inline struct unit_range direct_units(const struct flow *flow, struct ring_span span)
{
    return units_met(flow->collective->unit_ends, flow->collective->unit_count, span);
}

// Returns the member with this link, DIRECT_NO_MEMBER if none has it.
uint32_t direct_member_of(const struct direct_run *run, const struct peer_link *peer);
// Returns piece `index` of the elements that a member owns.
static inline struct ring_span direct_span(const struct direct_member *member, uint32_t index)
{
    return direct_piece(member->owned, member->piece, index);
}

// True if a part of so many elements is sent without credit.
bool direct_is_eager(const struct flow *flow, uint64_t elements);

// Copies the next block of the part that this rank sends to itself. True if that was the last one.
bool direct_copy_own(struct flows *flows, const struct flow *flow, struct direct_run *run);
// A frame that only says something.
struct direct_word {
    enum direct_part part;
    uint32_t credit;
    uint64_t weight;
    uint64_t address; // 0: no payload.
};
// Queues it. False: no memory.
bool direct_say(struct flows *flows, const struct flow *flow, struct peer_link *peer,
                struct direct_word word);
// Called after something has arrived or was sent: adds what is complete, opens pieces, and ends the
// flow when all is done.
void direct_advance(struct flows *flows, struct flow *flow);

extern const struct way direct_way;

#endif
