// SPDX-License-Identifier: Apache-2.0
//
// Collectives in memory that mates share: this file puts launches on the board, and takes runs from
// it. Setting up the board is in setup.c, making runs in sequence.c, shots in shots.c, and
// executing runs in pieces.c and registered.c. Engine thread.
//
// Nothing here waits. Work that is not possible yet is tried again when the board has changed; a
// rank that changes the board wakes sleeping mates (link_ops.wake).

#include "worker/transport/host/host.h"

#include "worker/transport/flow/flow.h"
#include "worker/transport/host/exchange.h"
#include "worker/transport/host/fill.h"
#include "worker/transport/host/finals.h"
#include "worker/transport/host/pieces.h"
#include "worker/transport/host/registered.h"
#include "worker/transport/host/sequence.h"
#include "worker/transport/host/setup.h"
#include "worker/transport/host/shots.h"
#include "worker/transport/host/two_level.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "worker/kernels/kernels.h"

#include <assert.h>
#include <string.h>

void host_tell(struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct peer_link *mate = shared->mates[i];
        if (mate && mate->stream.link && mate->stream.link->ops->wake)
            mate->stream.link->ops->wake(mate->stream.link);
    }
}

// Returns the peer of a seat. For this rank's own seat it returns another peer, because only a link
// can be lost.
static struct peer_link *host_mate(struct shared *shared, uint32_t seat)
{
    struct peer_link *mate = shared->mates[seat];
    if (!mate)
        mate = shared->mates[seat == 0 ? 1 : 0];
    return mate ? mate : shared->flows->ring.successor;
}

void host_impossible(struct shared *shared, uint32_t seat, const char *text)
{
    peer_lose_impossible(host_mate(shared, seat), text);
}

void host_lack(struct shared *shared, uint32_t seat)
{
    peer_lose(host_mate(shared, seat), peer_no_memory);
}

// ---- launching ----------------------------------------------------------------------------------

// Hash of all that decides how a run is cut and computed. It must be equal on all ranks, else no
// run is made.
static uint64_t host_shape(const struct collective *collective, enum plan_algorithm algorithm)
{
    const uint64_t words[] = {
        (uint64_t)collective->kind, (uint64_t)collective->dtype, (uint64_t)collective->op,
        collective->root,           (uint64_t)collective->final, host_elements(collective),
        (uint64_t)algorithm,        collective->unit_count,
    };
    return hash64(words, sizeof(words));
}

uint64_t host_factor(const struct collective *collective)
{
    if (!host_is_mean(collective))
        return 1;
    if (collective->input_counts)
        return 1;
    return collective->input_is_sum && collective->weight > 0 ? 1 : collective->weight;
}

void host_describe(struct shared *shared, const struct collective *collective,
                   enum plan_algorithm algorithm, uint32_t index)
{
    struct board_record *record = &host_seat(shared, shared->seat)->records[index];
    record->tag = collective->tag;
    record->signature = collective->signature;
    record->shape = host_shape(collective, algorithm);
    record->weight = host_is_mean(collective) ? collective->weight : 0;
    record->factor = host_factor(collective);
    record->block = BOARD_NONE;
}

// Fills the record of a join. True if the record is a shot.
static bool host_fill(struct shared *shared, const struct flow *flow, uint32_t index)
{
    struct board_record *record = &host_seat(shared, shared->seat)->records[index];
    const struct collective *collective = flow->collective;
    const uint32_t words = units_words(collective->unit_count);
    uint64_t *used = record->used;
    host_describe(shared, collective, flow->algorithm, index);
    if (words > BOARD_UNIT_WORDS) {
        const uint32_t block = shared->blocks[--shared->block_count];
        record->block = shared->wide[index] = block;
        used = host_seat(shared, shared->seat)->wide[block];
    }
    if (words > 0)
        memcpy(used, collective->used, words * sizeof(*used));
    registered_join(shared, flow, index);
    return shared->registered.joined[index].count == 0 && shots_fits(shared, flow) &&
           shots_fill(shared, flow, index);
}

// Joins a collective. False: it must wait for a free record or block.
static bool host_join(struct shared *shared, struct flow *flow)
{
    struct board_seat *seat = host_seat(shared, shared->seat);
    const bool wide = units_words(flow->collective->unit_count) > BOARD_UNIT_WORDS;
    if (!shots_refill(shared)) {
        shots_starve(shared, true);
        return false;
    }
    if (wide && shared->block_count == 0)
        return false;
    const uint32_t record = shared->records[--shared->record_count];
    shared->joined[record] = flow;
    shots_starve(shared, false);
    if (host_fill(shared, flow, record)) {
        shots_announce(shared, record, host_elements(flow->collective) * flow->map.element_bytes);
        return true;
    }
    seat->queue[shared->joins % BOARD_QUEUE] = record;
    board_publish(&seat->joined, ++shared->joins);
    return true;
}

// A collective that may be a shot cannot follow `landed`, because the payload of a shot is copied
// at the launch.
static bool host_follows(const struct flows *flows, const struct collective *collective)
{
    (void)flows;
    return collective->elements * dtype_size(collective->dtype) > BOARD_SHOT_BYTES;
}

static void host_launch(struct flows *flows, struct flow *flow)
{
    struct shared *shared = flows->shared;
    const struct collective *collective = flow->collective;
    assert(shared && shared->stands);
    flow->receives_left = 1; // Stays 1 until the run is done.
    // Results on the board have the dtype of memory, also when rounded to bfloat16.
    flow->final = collective->dtype;
    flow_meet_others(flows, flow);
    if (flow->mismatched)
        return;
    if (exchange_continues(shared, flow))
        return;
    if (!list_empty(&shared->waiting) || !host_join(shared, flow)) {
        list_push_back(&shared->waiting, &flow->feed);
        return;
    }
    host_tell(shared);
}

static bool host_join_waiting(struct shared *shared)
{
    bool any = false;
    while (!list_empty(&shared->waiting)) {
        struct flow *flow = list_entry(list_first(&shared->waiting), struct flow, feed);
        if (!host_join(shared, flow))
            break;
        list_remove(&flow->feed);
        any = true;
    }
    if (any)
        host_tell(shared);
    return any;
}

// ---- runs ---------------------------------------------------------------------------------------

struct flow *host_release(struct shared *shared, uint32_t record)
{
    struct flow *flow = shared->joined[record];
    if (!flow)
        return NULL;
    // Decided by the flow, not by the record: mates can write to the record.
    if (units_words(flow->collective->unit_count) > BOARD_UNIT_WORDS)
        shared->blocks[shared->block_count++] = shared->wide[record];
    shared->joined[record] = NULL;
    if (!shots_spend(shared, record))
        shared->records[shared->record_count++] = record;
    return flow;
}

void host_flow_done(struct shared *shared, struct flow *flow, uint64_t weight)
{
    flow->receives_left = 0;
    flow->collective->weight_total = weight;
    flow->collective->last_received_us = clock_now_us();
    if (flow->collective->first_sent_us == 0)
        flow->collective->first_sent_us = flow->collective->last_received_us;
    list_remove(&flow->turn);
    list_push_back(&shared->flows->done, &flow->turn);
}

void host_run_done(struct shared *shared, struct host_run *run)
{
    struct flow *flow = run->flow;
    run->flow = NULL;
    if (flow && !run->registered)
        fill_done(shared, run, flow);
    if (flow)
        host_flow_done(shared, flow, run->partial ? run->total : run->weight);
    const uint64_t before = shared->runs_done;
    while (shared->runs_done < shared->runs_seen && !host_run(shared, shared->runs_done)->flow)
        shared->runs_done++;
    if (shared->runs_done != before)
        board_publish(&host_seat(shared, shared->seat)->runs_done, shared->runs_done);
}

static void host_disagree(struct shared *shared, const struct board_run *from, struct flow *flow)
{
    const uint32_t one = from->one;
    const uint32_t other = from->other;
    if (one == BOARD_NONE && shared->two_level) {
        flow_mismatch(shared->flows, flow, other,
                      "its host has joined this collective with another signature");
        return;
    }
    const bool agrees_with_other = flow->collective->signature == from->weight;
    const uint32_t blamed = one == shared->seat || !agrees_with_other ? other : one;
    if (blamed >= shared->seats || blamed == shared->seat) {
        host_impossible(shared, 0, "sent a run of no mate");
        return;
    }
    flow_mismatch(shared->flows, flow, shared->mates[blamed]->rank,
                  "it has joined this collective with another signature");
}

void host_use(const struct collective *collective, const uint64_t *used)
{
    const uint32_t words = units_words(collective->unit_count);
    for (uint32_t w = 0; w < words; w++)
        collective->used[w] |= used[w];
    if (collective->unit_count % 64 != 0)
        collective->used[words - 1] &= ((uint64_t)1 << collective->unit_count % 64) - 1;
}

// Reads the weights and used bits of a run. Returns NULL, or what is impossible about the run.
static const char *host_read_run(struct shared *shared, const struct board_run *from,
                                 const struct flow *flow, struct host_run *run)
{
    const struct collective *collective = flow->collective;
    const bool mean = host_is_mean(collective);
    run->weight = from->weight;
    if (run->weight > LOCKSTEP_MAX_WEIGHT_SUM)
        return "sent a run whose weight is more than all ranks together can have";
    for (uint32_t i = 0; i < shared->seats; i++) {
        run->factors[i] = from->factors[i];
        run->scales |= run->factors[i] > 1;
        if (!mean && run->factors[i] != 1)
            return "sent a run with weights that it has no use for";
    }
    if (run->factors[shared->seat] != host_factor(collective))
        return "sent a run with another weight";
    const uint32_t words = units_words(collective->unit_count);
    const uint64_t *used = from->used;
    if (words > BOARD_UNIT_WORDS)
        used = shared->board.head->wide[shared->runs_seen % BOARD_RUNS];
    host_use(collective, used);
    return NULL;
}

bool host_matters(const struct collective *collective, uint64_t weight)
{
    const struct unit_range all = {0, collective->unit_count};
    if (host_elements(collective) == 0)
        return false;
    if (collective->kind == COLLECTIVE_BROADCAST)
        return true;
    return (collective->op != REDUCE_MEAN || weight > 0) &&
           units_usage(collective->used, all) != USAGE_NONE;
}

// Reads the next run, whose entry on the board is `from`, and begins it.
static void host_see(struct shared *shared, const struct board_run *from)
{
    struct host_run *run = host_run(shared, shared->runs_seen);
    struct board_run said;
    uint32_t seat = 0;
    board_take_run(&said, from, shared->seats);
    const uint32_t record = said.records[shared->seat];
    const uint32_t kind = said.kind;
    const char *text = board_check_run(&said, shared->seats);
    if (text) {
        host_impossible(shared, 0, text);
        return;
    }
    *run = (struct host_run){.first = shared->pieces, .partial = shared->two_level != NULL};
    struct flow *flow = record < BOARD_RECORDS ? host_release(shared, record) : NULL;
    if (kind == BOARD_RUN_MISMATCH) {
        if (flow)
            host_disagree(shared, &said, flow);
    } else if (!flow) {
        text = "sent a run of nothing";
    } else {
        text = host_read_run(shared, &said, flow, run);
        shots_run_seen(shared, &flow->tag);
    }
    const bool matters = !text && kind != BOARD_RUN_MISMATCH &&
                         ((run->partial && flow->collective->elements > 0) ||
                          host_matters(flow->collective, run->weight));
    run->registered = kind == BOARD_RUN_REGISTERED && matters;
    if (run->registered)
        text = registered_read(shared, &said, flow, run, &seat);
    else if (flow)
        registered_drop(shared, record);
    if (text) {
        host_impossible(shared, seat, text);
        return;
    }
    if (kind == BOARD_RUN_PIECES)
        fill_see(shared, run, &said);
    if (kind == BOARD_RUN_PIECES && matters)
        pieces_cut(shared, run, flow);
    if (run->registered)
        run->ordinal = shared->registered.seen++;
    shared->pieces += run->pieces;
    shared->runs_seen++;
    run->flow = kind == BOARD_RUN_MISMATCH ? NULL : flow;
    if (run->pieces == 0 && !run->registered)
        host_run_done(shared, run);
}

bool host_see_runs(struct shared *shared)
{
    const struct board_head *head = shared->board.head;
    const uint64_t runs = board_read(&head->runs);
    const uint64_t before = shared->runs_seen;
    if (runs < before || runs - shared->runs_done > BOARD_RUNS) {
        host_impossible(shared, 0, "sent more runs than there are places");
        return false;
    }
    while (shared->runs_seen < runs) {
        const uint64_t at = shared->runs_seen;
        host_see(shared, &head->run[at % BOARD_RUNS]);
        if (shared->runs_seen == at)
            break; // The run was impossible.
    }
    if (shared->runs_seen == before)
        return false;
    host_tell(shared);
    return true;
}

// ---- progress -----------------------------------------------------------------------------------

// True if a mate is about to be reported as lost: before that, all work that it has left on the
// board is done.
static bool host_loses(struct shared *shared)
{
    bool loses = false;
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct peer_link *mate = shared->mates[i];
        if (mate && mate->state == PEER_GONE && !mate->reported)
            shared->registered.ended |= 1u << i;
        loses = loses || (mate && (mate->lost || mate->left));
    }
    return loses;
}

static bool host_step(struct shared *shared)
{
    bool any = host_join_waiting(shared);
    for (uint32_t i = 0; shared->flows->regions && i < shared->seats; i++)
        host_take(shared, i);
    any |= shots_work(shared);
    any |= sequence_work(shared);
    any |= host_see_runs(shared);
    any |= registered_work(shared);
    any |= pieces_work(shared);
    return any;
}

bool host_work(struct flows *flows)
{
    struct shared *shared = flows->shared;
    if (!shared)
        return false;
    if (!shared->settled)
        host_negotiate(shared);
    if (!shared->stands)
        return false;
    const bool loses = host_loses(shared);
    const bool any = host_step(shared);
    while (any && loses && host_step(shared))
        ;
    return any;
}

// True if the first waiting flow can get a record now.
static bool host_may_join(const struct shared *shared)
{
    const struct flow *flow = list_entry(list_first(&shared->waiting), struct flow, feed);
    const bool wide = units_words(flow->collective->unit_count) > BOARD_UNIT_WORDS;
    return (shared->record_count > 0 || shots_may_refill(shared)) &&
           (!wide || shared->block_count > 0);
}

bool host_pending(const struct flows *flows)
{
    const struct shared *shared = flows->shared;
    if (shared && !shared->settled)
        return host_has_news(shared);
    if (!shared || !shared->stands)
        return false;
    return board_read(&shared->board.head->runs) != shared->runs_seen || shots_pending(shared) ||
           sequence_pending(shared) || pieces_pending(shared) || registered_pending(shared) ||
           (!list_empty(&shared->waiting) && host_may_join(shared));
}

bool host_leads(const struct flows *flows)
{
    const struct shared *shared = flows->shared;
    if (!shared || !shared->stands || shared->seats != flows->world.world_size)
        return false;
    const uint64_t own = shared->joins + shared->shots.announced;
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct board_seat *seat = host_seat(shared, i);
        const uint64_t shots =
            atomic_load_explicit(&seat->shots.last, memory_order_acquire) >> BOARD_SHOT_BITS;
        if (board_read(&seat->joined) + shots > own)
            return false;
    }
    return true;
}

// True if this rank still needs the mate. It does not need a mate for runs that the mate has done,
// because their data stays on the board after the mate has left.
static bool host_needs(struct flows *flows, const struct peer_link *peer)
{
    struct shared *shared = flows->shared;
    uint64_t done = UINT64_MAX;
    if (!shared || !shared->stands)
        return false;
    if (two_level_needs(shared, peer))
        return true;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (shared->mates[i] == peer)
            done = board_read(&host_seat(shared, i)->runs_done);
    }
    if (done == UINT64_MAX)
        return false;
    for (uint32_t i = 0; i < BOARD_RECORDS; i++) {
        if (shared->joined[i])
            return true;
    }
    if (!list_empty(&shared->waiting))
        return true;
    for (uint64_t run = shared->runs_done; run < shared->runs_seen; run++) {
        if (run >= done && shared->runs[run % BOARD_RUNS].flow)
            return true;
    }
    return false;
}

const struct way host_way = {
    .launch = host_launch,
    .follows = host_follows,
    .needs = host_needs,
    .finals = host_finals,
    .forget = host_forget,
};
