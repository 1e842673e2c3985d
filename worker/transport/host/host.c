// SPDX-License-Identifier: Apache-2.0
//
// Collectives in memory that mates share: how the board comes to stand, how a launch gets on it and
// a run off it. What is between is in sequence.c, shots.c and
// pieces.c. Engine thread.
//
// Life of the board. When the links to all mates stand, the leader makes it and hands it to each;
// who has mapped it says so in it; when all have, the leader writes that it stands. Where a link
// cannot pass descriptors, or a mate cannot map it, the leader writes that it has fallen, and who
// hears nothing until its deadline goes without by itself. Ranks may differ in that: the
// coordinator is told by each, and nobody uses it unless it stands everywhere.
//
// Nothing here waits. What cannot be done is tried again when the board has changed; whoever
// changes it wakes the mates that sleep (link_ops.wake).

#include "worker/transport/host/host.h"

#include "worker/transport/flow/flow.h"
#include "worker/transport/host/exchange.h"
#include "worker/transport/host/fill.h"
#include "worker/transport/host/pieces.h"
#include "worker/transport/host/registered.h"
#include "worker/transport/host/sequence.h"
#include "worker/transport/host/shots.h"
#include "worker/transport/host/two_level.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SHARED_SETTLE_MS 3000 // Until a rank goes without.

void shared_tell(struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct peer_link *mate = shared->mates[i];
        if (mate && mate->stream.link && mate->stream.link->ops->wake)
            mate->stream.link->ops->wake(mate->stream.link);
    }
}

// Of this rank's own seat: some other one, for a loss is one of a link.
static struct peer_link *shared_mate(struct shared *shared, uint32_t seat)
{
    struct peer_link *mate = shared->mates[seat];
    if (!mate)
        mate = shared->mates[seat == 0 ? 1 : 0];
    return mate ? mate : shared->flows->ring.successor;
}

void shared_impossible(struct shared *shared, uint32_t seat, const char *text)
{
    peer_lose_impossible(shared_mate(shared, seat), text);
}

void shared_lack(struct shared *shared, uint32_t seat)
{
    peer_lose(shared_mate(shared, seat), peer_no_memory);
}

// ---- the board's life ---------------------------------------------------------------------------

// A board that fails must not use up the time in which the generation has to form.
static uint64_t shared_patience(uint64_t form_timeout_ms)
{
    return form_timeout_ms / 2 < SHARED_SETTLE_MS ? form_timeout_ms / 2 : SHARED_SETTLE_MS;
}

static bool shared_begin(struct flows *flows, struct shared *shared)
{
    const struct locality *locality = &flows->world.locality;
    shared->flows = flows;
    shared->seat = locality->local;
    shared->seats = locality->mate_count;
    shared->fd = -1;
    list_init(&shared->waiting);
    sequence_init(&shared->sequence);
    shots_init(shared);
    for (uint32_t i = 0; i < BOARD_RECORDS; i++)
        shared->records[shared->record_count++] = BOARD_RECORDS - 1 - i;
    for (uint32_t i = 0; i < BOARD_WIDE_BLOCKS; i++)
        shared->blocks[shared->block_count++] = i;
    shared->deadline_ms = clock_now_ms() + shared_patience(flows->world.form_timeout_ms);
    bool known = true;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i == shared->seat)
            continue;
        shared->mates[i] = peer_of_rank(flows, locality->mates[i]);
        known = known && shared->mates[i];
    }
    return known;
}

// A rank that is alone on its host has a board of its own where other hosts have several ranks.
static bool shared_meets_hosts(const struct transport_world *world)
{
    const struct locality *locality = &world->locality;
    return locality->mate_count == 1 && locality->hosts > 1 && locality->hosts < world->world_size;
}

int shared_form(struct flows *flows)
{
    const struct locality *locality = &flows->world.locality;
    assert(!flows->shared);
    if (locality->mate_count < 2 && !shared_meets_hosts(&flows->world))
        return 0;
    assert(locality->mate_count <= LOCKSTEP_MAX_MATES && locality->local < locality->mate_count);
    struct shared *shared = calloc(1, sizeof(*shared));
    if (!shared)
        return -1;
    flows->shared = shared;
    return shared_begin(flows, shared) && two_level_begin(shared) == 0 &&
                   registered_open(shared) == 0
               ? 0
               : -1;
}

static void shared_settle(struct shared *shared, bool stands)
{
    shared->settled = true;
    shared->stands = stands;
    if (stands)
        shots_begin(shared);
    if (stands)
        registered_begin(shared);
    if (shared->fd >= 0)
        (void)close(shared->fd);
    shared->fd = -1;
}

// The leader: it has fallen, or stands, for all that have mapped it.
static void shared_decide(struct shared *shared, bool stands)
{
    if (shared->board.head)
        board_publish(&shared->board.head->verdict, stands ? BOARD_STANDS : BOARD_FALLEN);
    shared_settle(shared, stands);
    shared_tell(shared);
}

static bool shared_can_pass(const struct peer_link *mate)
{
    return mate->stream.link && mate->stream.link->ops->pass && mate->stream.link->ops->wake;
}

void shared_proven(struct peer_link *peer)
{
    struct shared *shared = peer->flows->shared;
    if (!shared || shared->settled)
        return;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (shared->mates[i] != peer)
            continue;
        shared->proven++;
        if (shared_can_pass(peer))
            continue;
        if (shared->seat == 0)
            shared_decide(shared, false);
        else
            shared_settle(shared, false);
    }
}

// Two ranks gain from larger pieces up to the size of the second cache, more ranks share the last.
static uint64_t shared_slot_bytes(const struct shared *shared)
{
    if (shared->two_level)
        return two_level_slot_bytes(shared);
    return shared->seats == 2 ? 2 * BOARD_SLOT_BYTES : BOARD_SLOT_BYTES;
}

// Hands the board to who has not got it. False: that cannot be done.
static bool shared_pass(struct shared *shared)
{
    const struct link_note note = {.kind = LINK_NOTE_BOARD, .bytes = shared->board.bytes};
    for (uint32_t i = 1; i < shared->seats; i++) {
        struct link *link = shared->mates[i]->stream.link;
        if (shared->passed[i])
            continue;
        if (!link)
            return false;
        if (link->ops->pass(link, &note, shared->fd) == 0) {
            shared->passed[i] = true;
            link->ops->wake(link);
        } else if (errno != EAGAIN) {
            return false;
        }
    }
    return true;
}

// The leader has no memory for a board: the mates hear it by a note without one, and do not wait. A
// descriptor has to go with a note. Without one, and where it cannot be passed, they wait in vain.
static void shared_pass_nothing(struct shared *shared)
{
    const struct link_note note = {.kind = LINK_NOTE_BOARD, .bytes = 0};
    const int nothing = eventfd(0, EFD_CLOEXEC);
    for (uint32_t i = 1; nothing >= 0 && i < shared->seats; i++) {
        struct link *link = shared->mates[i]->stream.link;
        if (link && link->ops->pass(link, &note, nothing) == 0)
            link->ops->wake(link);
    }
    if (nothing >= 0)
        (void)close(nothing);
}

static bool shared_all_mapped(const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (board_read(&shared_seat(shared, i)->mapped) == 0)
            return false;
    }
    return true;
}

static void shared_lead(struct shared *shared)
{
    if (shared->proven < shared->seats - 1)
        return;
    if (shared->fd < 0) {
        shared->fd = board_make(&shared->board, shared->seats, shared_slot_bytes(shared));
        if (shared->fd < 0) {
            shared_pass_nothing(shared);
            shared_decide(shared, false);
            return;
        }
        shared->board.head->shot_bytes = shots_most_bytes(shared->flows);
        board_publish(&shared_seat(shared, 0)->mapped, 1);
    }
    if (!shared_pass(shared))
        shared_decide(shared, false);
    else if (shared_all_mapped(shared))
        shared_decide(shared, true);
}

// A mate has the board from the leader.
static void shared_map(struct shared *shared, const struct link_note *note, int fd)
{
    const char *text =
        board_map(&shared->board, shared->seats, shared_slot_bytes(shared), note->bytes, fd);
    (void)close(fd);
    if (text) {
        shared_settle(shared, false);
        return;
    }
    board_publish(&shared_seat(shared, shared->seat)->mapped, 1);
    shared_tell(shared);
}

// What a mate has passed: the leader the board, and then each its regions. Those may come before
// this rank knows that the board stands, and are taken when it does.
static void shared_take(struct shared *shared, uint32_t seat)
{
    struct link *link = shared->mates[seat] ? shared->mates[seat]->stream.link : NULL;
    struct link_note note;
    while (link && link->ops->take) {
        const int fd = link->ops->take(link, &note);
        if (fd < 0)
            return;
        if (note.kind == LINK_NOTE_BOARD && seat == 0 && !shared->board.head) {
            shared_map(shared, &note, fd);
            return;
        }
        if (note.kind == LINK_NOTE_REGION && shared->stands) {
            registered_take(shared, seat, &note, fd);
            continue;
        }
        (void)close(fd);
        shared_impossible(shared, seat, "passed a descriptor that nobody expects");
        return;
    }
}

static void shared_hear(struct shared *shared)
{
    if (!shared->board.head)
        shared_take(shared, 0);
    if (!shared->board.head || shared->settled)
        return;
    const uint64_t verdict = board_read(&shared->board.head->verdict);
    if (verdict != BOARD_OPEN)
        shared_settle(shared, verdict == BOARD_STANDS);
}

static void shared_negotiate(struct shared *shared)
{
    if (shared->seat == 0)
        shared_lead(shared);
    else if (shared->proven > 0)
        shared_hear(shared);
    if (!shared->settled && clock_now_ms() >= shared->deadline_ms) {
        if (shared->seat == 0)
            shared_decide(shared, false);
        else
            shared_settle(shared, false);
    }
}

bool shared_settled(const struct flows *flows)
{
    return !flows->shared || flows->shared->settled;
}

bool shared_stands(const struct flows *flows)
{
    return flows->shared && flows->shared->stands;
}

uint64_t shared_deadline(const struct flows *flows)
{
    const struct shared *shared = flows->shared;
    return shared && !shared->settled ? shared->deadline_ms : UINT64_MAX;
}

static void shared_forget(struct flows *flows)
{
    struct shared *shared = flows->shared;
    if (!shared)
        return;
    if (shared->fd >= 0)
        (void)close(shared->fd);
    registered_let_go(shared);
    board_unmap(&shared->board);
    sequence_fini(&shared->sequence);
    two_level_end(shared);
    registered_close(shared);
    free(shared);
    flows->shared = NULL;
}

// ---- launching ----------------------------------------------------------------------------------

// What decides how the bytes of a run are cut and computed: equal on all ranks, or none runs it.
static uint64_t shared_shape(const struct collective *collective, enum plan_algorithm algorithm)
{
    const uint64_t words[] = {
        (uint64_t)collective->kind, (uint64_t)collective->dtype, (uint64_t)collective->op,
        collective->root,           (uint64_t)collective->final, collective->elements,
        (uint64_t)algorithm,        collective->unit_count,
    };
    return hash64(words, sizeof(words));
}

uint64_t shared_factor(const struct collective *collective)
{
    if (collective->op != REDUCE_MEAN || collective->kind != COLLECTIVE_ALLREDUCE)
        return 1;
    if (collective->input_counts)
        return 1;
    return collective->input_is_sum && collective->weight > 0 ? 1 : collective->weight;
}

void shared_describe(struct shared *shared, const struct collective *collective,
                     enum plan_algorithm algorithm, uint32_t index)
{
    struct board_record *record = &shared_seat(shared, shared->seat)->records[index];
    const bool mean = collective->op == REDUCE_MEAN && collective->kind == COLLECTIVE_ALLREDUCE;
    record->tag = collective->tag;
    record->signature = collective->signature;
    record->shape = shared_shape(collective, algorithm);
    record->weight = mean ? collective->weight : 0;
    record->factor = shared_factor(collective);
    record->block = BOARD_NONE;
}

// Whether it becomes a shot.
static bool shared_fill(struct shared *shared, const struct flow *flow, uint32_t index)
{
    struct board_record *record = &shared_seat(shared, shared->seat)->records[index];
    const struct collective *collective = flow->collective;
    const uint32_t words = units_words(collective->unit_count);
    uint64_t *used = record->used;
    shared_describe(shared, collective, flow->algorithm, index);
    if (words > BOARD_UNIT_WORDS) {
        const uint32_t block = shared->blocks[--shared->block_count];
        record->block = shared->wide[index] = block;
        used = shared_seat(shared, shared->seat)->wide[block];
    }
    if (words > 0)
        memcpy(used, collective->used, words * sizeof(*used));
    registered_join(shared, flow, index);
    return shared->registered.joined[index].count == 0 && shots_fits(shared, flow) &&
           shots_fill(shared, flow, index);
}

// False: it has to wait for a record.
static bool shared_join(struct shared *shared, struct flow *flow)
{
    struct board_seat *seat = shared_seat(shared, shared->seat);
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
    if (shared_fill(shared, flow, record)) {
        shots_announce(shared, record, flow->collective->elements * flow->map.element_bytes);
        return true;
    }
    seat->queue[shared->joins % BOARD_QUEUE] = record;
    board_publish(&seat->joined, ++shared->joins);
    return true;
}

// Payloads of shots are taken at the launch.
static bool shared_follows(const struct flows *flows, const struct collective *collective)
{
    (void)flows;
    return collective->elements * dtype_size(collective->dtype) > BOARD_SHOT_BYTES;
}

static void shared_launch(struct flows *flows, struct flow *flow)
{
    struct shared *shared = flows->shared;
    const struct collective *collective = flow->collective;
    assert(shared && shared->stands);
    flow->receives_left = 1; // The run.
    flow->final = collective->dtype; // Rounded results are as wide as memory.
    flow_meet_others(flows, flow);
    if (flow->mismatched)
        return;
    if (exchange_continues(shared, flow))
        return;
    if (!list_empty(&shared->waiting) || !shared_join(shared, flow)) {
        list_push_back(&shared->waiting, &flow->feed);
        return;
    }
    shared_tell(shared);
}

static bool shared_join_waiting(struct shared *shared)
{
    bool any = false;
    while (!list_empty(&shared->waiting)) {
        struct flow *flow = list_entry(list_first(&shared->waiting), struct flow, feed);
        if (!shared_join(shared, flow))
            break;
        list_remove(&flow->feed);
        any = true;
    }
    if (any)
        shared_tell(shared);
    return any;
}

// ---- runs ---------------------------------------------------------------------------------------

struct flow *shared_release(struct shared *shared, uint32_t record)
{
    struct flow *flow = shared->joined[record];
    if (!flow)
        return NULL;
    // Not what the record says: mates can write there, too.
    if (units_words(flow->collective->unit_count) > BOARD_UNIT_WORDS)
        shared->blocks[shared->block_count++] = shared->wide[record];
    shared->joined[record] = NULL;
    if (!shots_spend(shared, record))
        shared->records[shared->record_count++] = record;
    return flow;
}

void shared_flow_done(struct shared *shared, struct flow *flow, uint64_t weight)
{
    flow->receives_left = 0;
    flow->collective->weight_total = weight;
    flow->collective->last_received_us = clock_now_us();
    if (flow->collective->first_sent_us == 0)
        flow->collective->first_sent_us = flow->collective->last_received_us;
    list_remove(&flow->turn);
    list_push_back(&shared->flows->done, &flow->turn);
}

void shared_run_done(struct shared *shared, struct shared_run *run)
{
    struct flow *flow = run->flow;
    run->flow = NULL;
    if (flow && !run->registered)
        fill_done(shared, run, flow);
    if (flow)
        shared_flow_done(shared, flow, run->partial ? run->total : run->weight);
    const uint64_t before = shared->runs_done;
    while (shared->runs_done < shared->runs_seen && !shared_run(shared, shared->runs_done)->flow)
        shared->runs_done++;
    if (shared->runs_done != before)
        board_publish(&shared_seat(shared, shared->seat)->runs_done, shared->runs_done);
}

static void shared_disagree(struct shared *shared, const struct board_run *from, struct flow *flow)
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
        shared_impossible(shared, 0, "sent a run of no mate");
        return;
    }
    flow_mismatch(shared->flows, flow, shared->mates[blamed]->rank,
                  "it has joined this collective with another signature");
}

void shared_use(const struct collective *collective, const uint64_t *used)
{
    const uint32_t words = units_words(collective->unit_count);
    for (uint32_t w = 0; w < words; w++)
        collective->used[w] |= used[w];
    if (collective->unit_count % 64 != 0)
        collective->used[words - 1] &= ((uint64_t)1 << collective->unit_count % 64) - 1;
}

// What this rank has to know of a run. NULL, or what is impossible about it.
static const char *shared_read_run(struct shared *shared, const struct board_run *from,
                                   const struct flow *flow, struct shared_run *run)
{
    const struct collective *collective = flow->collective;
    const bool mean = collective->kind == COLLECTIVE_ALLREDUCE && collective->op == REDUCE_MEAN;
    run->weight = from->weight;
    if (run->weight > LOCKSTEP_MAX_WEIGHT_SUM)
        return "sent a run whose weight is more than all ranks together can have";
    for (uint32_t i = 0; i < shared->seats; i++) {
        run->factors[i] = from->factors[i];
        run->scales |= run->factors[i] > 1;
        if (!mean && run->factors[i] != 1)
            return "sent a run with weights that it has no use for";
    }
    if (run->factors[shared->seat] != shared_factor(collective))
        return "sent a run with another weight";
    const uint32_t words = units_words(collective->unit_count);
    const uint64_t *used = from->used;
    if (words > BOARD_UNIT_WORDS)
        used = shared->board.head->wide[shared->runs_seen % BOARD_RUNS];
    shared_use(collective, used);
    return NULL;
}

bool shared_matters(const struct collective *collective, uint64_t weight)
{
    const struct unit_range all = {0, collective->unit_count};
    if (collective->elements == 0)
        return false;
    if (collective->kind == COLLECTIVE_BROADCAST)
        return true;
    return (collective->op != REDUCE_MEAN || weight > 0) &&
           units_usage(collective->used, all) != USAGE_NONE;
}

// Takes the next run, whose entry is `from`.
static void shared_see(struct shared *shared, const struct board_run *from)
{
    struct shared_run *run = shared_run(shared, shared->runs_seen);
    struct board_run said;
    uint32_t seat = 0;
    board_take_run(&said, from, shared->seats);
    const uint32_t record = said.records[shared->seat];
    const uint32_t kind = said.kind;
    const char *text = board_check_run(&said, shared->seats);
    if (text) {
        shared_impossible(shared, 0, text);
        return;
    }
    *run = (struct shared_run){.first = shared->pieces, .partial = shared->two_level != NULL};
    struct flow *flow = record < BOARD_RECORDS ? shared_release(shared, record) : NULL;
    if (kind == BOARD_RUN_MISMATCH) {
        if (flow)
            shared_disagree(shared, &said, flow);
    } else if (!flow) {
        text = "sent a run of nothing";
    } else {
        text = shared_read_run(shared, &said, flow, run);
        shots_run_seen(shared, &flow->tag);
    }
    const bool matters = !text && kind != BOARD_RUN_MISMATCH &&
                         ((run->partial && flow->collective->elements > 0) ||
                          shared_matters(flow->collective, run->weight));
    run->registered = kind == BOARD_RUN_REGISTERED && matters;
    if (run->registered)
        text = registered_read(shared, &said, flow, run, &seat);
    else if (flow)
        registered_drop(shared, record);
    if (text) {
        shared_impossible(shared, seat, text);
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
        shared_run_done(shared, run);
}

static bool shared_see_runs(struct shared *shared)
{
    const struct board_head *head = shared->board.head;
    const uint64_t runs = board_read(&head->runs);
    const uint64_t before = shared->runs_seen;
    if (runs < before || runs - shared->runs_done > BOARD_RUNS) {
        shared_impossible(shared, 0, "sent more runs than there are places");
        return false;
    }
    while (shared->runs_seen < runs) {
        const uint64_t at = shared->runs_seen;
        shared_see(shared, &head->run[at % BOARD_RUNS]);
        if (shared->runs_seen == at)
            break; // It is impossible.
    }
    if (shared->runs_seen == before)
        return false;
    shared_tell(shared);
    return true;
}

// ---- progress -----------------------------------------------------------------------------------

// Whether a mate is about to be reported: before that, what it has left is worked off.
static bool shared_loses(struct shared *shared)
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

static bool shared_step(struct shared *shared)
{
    bool any = shared_join_waiting(shared);
    for (uint32_t i = 0; shared->flows->regions && i < shared->seats; i++)
        shared_take(shared, i);
    any |= shots_work(shared);
    any |= sequence_work(shared);
    any |= shared_see_runs(shared);
    any |= registered_work(shared);
    any |= pieces_work(shared);
    return any;
}

bool shared_work(struct flows *flows)
{
    struct shared *shared = flows->shared;
    if (!shared)
        return false;
    if (!shared->settled)
        shared_negotiate(shared);
    if (!shared->stands)
        return false;
    const bool loses = shared_loses(shared);
    const bool any = shared_step(shared);
    while (any && loses && shared_step(shared))
        ;
    return any;
}

// Whether a mate has said on the board what the negotiation waits for.
static bool shared_has_news(const struct shared *shared)
{
    if (!shared->board.head)
        return false;
    return shared->seat == 0 ? shared_all_mapped(shared)
                             : board_read(&shared->board.head->verdict) != BOARD_OPEN;
}

// Whether what waits for a record finds one.
static bool shared_may_join(const struct shared *shared)
{
    const struct flow *flow = list_entry(list_first(&shared->waiting), struct flow, feed);
    const bool wide = units_words(flow->collective->unit_count) > BOARD_UNIT_WORDS;
    return (shared->record_count > 0 || shots_may_refill(shared)) &&
           (!wide || shared->block_count > 0);
}

bool shared_pending(const struct flows *flows)
{
    const struct shared *shared = flows->shared;
    if (shared && !shared->settled)
        return shared_has_news(shared);
    if (!shared || !shared->stands)
        return false;
    return board_read(&shared->board.head->runs) != shared->runs_seen || shots_pending(shared) ||
           sequence_pending(shared) || pieces_pending(shared) || registered_pending(shared) ||
           (!list_empty(&shared->waiting) && shared_may_join(shared));
}

// A mate has done all runs of which it may forget its part. What is on the board of those outlives
// it.
static bool shared_needs(struct flows *flows, const struct peer_link *peer)
{
    struct shared *shared = flows->shared;
    uint64_t done = UINT64_MAX;
    if (!shared || !shared->stands)
        return false;
    if (two_level_needs(shared, peer))
        return true;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (shared->mates[i] == peer)
            done = board_read(&shared_seat(shared, i)->runs_done);
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
    .launch = shared_launch,
    .follows = shared_follows,
    .needs = shared_needs,
    .forget = shared_forget,
};
