// SPDX-License-Identifier: Apache-2.0
//
// The leader of a host turns the joins of all ranks into one order of runs. Ranks may launch
// collectives in different orders; the next collective that all of them have joined is the next run
// of all. A single writer decides, so no agreement and no lock are needed. Engine thread of the
// lowest rank.
//
// Every rank also keeps matches of shots here: the leader has all joins, other ranks only shots. So
// only the leader reports that ranks disagree, or makes a run if some records are no shots.

#include "worker/transport/host/sequence.h"

#include "worker/transport/host/fill.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/shots.h"
#include "worker/transport/host/two_level.h"

#include <string.h>

void sequence_init(struct sequence *sequence)
{
    for (uint32_t i = 0; i < SEQUENCE_BUCKETS; i++)
        list_init(&sequence->matches[i]);
    list_init(&sequence->ready);
    scratch_init(&sequence->pool, sizeof(struct match));
    scratch_reserve(&sequence->pool, LOCKSTEP_EARLY_COLLECTIVES);
}

void sequence_fini(struct sequence *sequence)
{
    scratch_fini(&sequence->pool);
}

// ---- joins --------------------------------------------------------------------------------------

static struct list *match_bucket(struct sequence *sequence, const struct collective_tag *tag)
{
    return &sequence->matches[tag_bucket(tag, SEQUENCE_BUCKETS)];
}

struct match *sequence_find(struct sequence *sequence, const struct collective_tag *tag)
{
    list_for_each (node, match_bucket(sequence, tag)) {
        struct match *match = list_entry(node, struct match, bucket);
        if (tag_equal(&match->tag, tag))
            return match;
    }
    return NULL;
}

static struct match *match_make(struct sequence *sequence, const struct collective_tag *tag)
{
    struct match *match = scratch_get(&sequence->pool);
    if (!match)
        return NULL;
    memset(match, 0, sizeof(*match));
    match->tag = *tag;
    match->differs = BOARD_NONE;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_MATES; i++)
        match->records[i] = BOARD_NONE;
    list_init(&match->ready);
    list_push_back(match_bucket(sequence, tag), &match->bucket);
    return match;
}

// Counts the records of joins as released, because their run is appended. Records of shots are
// released when they are read.
static void match_release(struct sequence *sequence, const struct match *match)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_MATES; i++)
        sequence->held[i] -= match->records[i] < BOARD_RECORDS && (match->shots >> i & 1) == 0;
}

void sequence_forget(struct sequence *sequence, struct match *match)
{
    match_release(sequence, match);
    list_remove(&match->bucket);
    list_remove(&match->ready);
    scratch_put(&sequence->pool, match);
}

static void match_begin(struct sequence *sequence, struct match *match, uint32_t seat,
                        const struct board_record *record)
{
    sequence->expected -= match->heard;
    match->signature = record->signature;
    match->shape = record->shape;
    match->first = seat;
}

struct match *sequence_join(struct shared *shared, uint32_t seat, uint32_t index, bool shot)
{
    struct sequence *sequence = &shared->sequence;
    if (index >= BOARD_RECORDS || (seat == shared->seat && !shared->joined[index])) {
        host_impossible(shared, seat, "sent a join without a record");
        return NULL;
    }
    struct board_record record;
    board_take_record(&record, &host_seat(shared, seat)->records[index]);
    const char *wrong = board_check_record(&record, shot);
    if (wrong) {
        host_impossible(shared, seat, wrong);
        return NULL;
    }
    struct match *match = sequence_find(sequence, &record.tag);
    if (!shot && sequence->held[seat] == BOARD_RECORDS) {
        host_impossible(shared, seat, "has joined more than it has records");
        return NULL;
    }
    if (!match)
        match = match_make(sequence, &record.tag);
    if (!match) {
        host_lack(shared, seat);
        return NULL;
    }
    if (match->records[seat] != BOARD_NONE) {
        host_impossible(shared, seat, "sent the same join twice");
        return NULL;
    }
    if (match->count == 0)
        match_begin(sequence, match, seat, &record);
    match->records[seat] = index;
    match->count++;
    match->shots |= (uint32_t)shot << seat;
    sequence->held[seat] += !shot;
    if ((record.signature != match->signature || record.shape != match->shape) &&
        match->differs == BOARD_NONE)
        match->differs = seat;
    return match;
}

void sequence_joined(struct shared *shared, struct match *match)
{
    if (shared->two_level && match->differs == BOARD_NONE) {
        two_level_joined(shared, match);
    } else if (match->differs != BOARD_NONE || match->count == shared->seats) {
        list_remove(&match->ready);
        list_push_back(&shared->sequence.ready, &match->ready);
    }
}

// Takes the next join of a seat.
static void sequence_take(struct shared *shared, uint32_t seat)
{
    struct sequence *sequence = &shared->sequence;
    const struct board_seat *from = host_seat(shared, seat);
    const uint32_t index = board_word(&from->queue[sequence->consumed[seat]++ % BOARD_QUEUE]);
    struct match *match = sequence_join(shared, seat, index, false);
    if (match)
        sequence_joined(shared, match);
}

struct match *sequence_expect(struct sequence *sequence, const struct collective_tag *tag)
{
    struct match *match = NULL;
    if (sequence->expected < LOCKSTEP_EARLY_COLLECTIVES)
        match = match_make(sequence, tag);
    sequence->expected += match != NULL;
    return match;
}

// ---- runs ---------------------------------------------------------------------------------------

static bool sequence_has_room(const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        const uint64_t done = board_read(&host_seat(shared, i)->runs_done);
        if (done > shared->sequence.runs || shared->sequence.runs - done >= BOARD_RUNS)
            return false;
    }
    return true;
}

// Called when there is no room: checks that no rank claims more runs than exist, and that none lags
// by more than BOARD_RUNS.
static void sequence_check_room(struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        const uint64_t done = board_read(&host_seat(shared, i)->runs_done);
        if (done > shared->sequence.runs || shared->sequence.runs - done > BOARD_RUNS)
            host_impossible(shared, i, "has done runs that there are not");
    }
}

static const struct board_record *match_record(const struct shared *shared,
                                               const struct match *match, uint32_t seat)
{
    return &host_seat(shared, seat)->records[match->records[seat]];
}

static void sequence_merge_used(const struct shared *shared, const struct match *match,
                                uint32_t words, uint64_t *used)
{
    memset(used, 0, words * sizeof(*used));
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct board_record *record = match_record(shared, match, i);
        const uint32_t block = board_word(&record->block);
        const uint64_t *own = record->used;
        if (words > BOARD_UNIT_WORDS)
            own = host_seat(shared, i)->wide[block < BOARD_WIDE_BLOCKS ? block : 0];
        for (uint32_t w = 0; w < words; w++)
            used[w] |= board_long(&own[w]);
    }
}

static void sequence_fill(struct shared *shared, const struct match *match, struct board_run *run,
                          uint64_t *wide)
{
    const struct flow *flow = shared->joined[match->records[shared->seat]];
    const struct collective *collective = flow->collective;
    const uint32_t words = units_words(collective->unit_count);
    bool registered = collective->kind == COLLECTIVE_ALLREDUCE;
    const bool mean = host_is_mean(collective);
    uint64_t weight = 0;
    for (uint32_t i = 0; i < shared->seats; i++) {
        struct board_record record;
        board_take_record(&record, match_record(shared, match, i));
        run->records[i] = match->records[i];
        // Sums have no weights, whatever the record says.
        run->factors[i] = mean ? record.factor : 1;
        if (record.weight > LOCKSTEP_MAX_WEIGHT)
            host_impossible(shared, i, "joined with a weight that no rank can have");
        weight += record.weight > LOCKSTEP_MAX_WEIGHT ? 0 : record.weight;
        run->memory[i] = record.memory;
        registered = registered && record.memory.rows > 0;
    }
    run->weight = weight;
    sequence_merge_used(shared, match, words, words > BOARD_UNIT_WORDS ? wide : run->used);
    registered = registered && !shared->two_level;
    run->kind = registered ? BOARD_RUN_REGISTERED : BOARD_RUN_PIECES;
    run->streams = !registered && fill_choose(shared, shared->sequence.runs,
                                              shared->joined[match->records[shared->seat]]);
}

// Fills a mismatch run for the ranks that have joined and have not been told yet.
static void sequence_fill_mismatch(struct shared *shared, struct match *match,
                                   struct board_run *run)
{
    match_release(&shared->sequence, match);
    run->kind = BOARD_RUN_MISMATCH;
    run->one = match->differs;
    run->other = match->first;
    run->weight = match->signature;
    if (match->foreign) {
        run->one = BOARD_NONE;
        run->other = shared->flows->hosts.successor->rank;
    }
    for (uint32_t i = 0; i < LOCKSTEP_MAX_MATES; i++) {
        run->records[i] = match->records[i];
        // The seat stays joined, and is not told a second time.
        if (match->records[i] < BOARD_RECORDS)
            match->records[i] = BOARD_RECORDS;
        else
            run->records[i] = BOARD_NONE;
    }
}

static void sequence_append(struct shared *shared, struct match *match)
{
    struct sequence *sequence = &shared->sequence;
    struct board_head *head = shared->board.head;
    const uint64_t at = sequence->runs % BOARD_RUNS;
    if (match->differs != BOARD_NONE || match->foreign) {
        sequence_fill_mismatch(shared, match, &head->run[at]);
        list_remove(&match->ready);
    } else {
        sequence_fill(shared, match, &head->run[at], head->wide[at]);
        if (shared->two_level)
            two_level_appended(shared, match);
        shots_read(shared, match);
        sequence_forget(sequence, match);
    }
    board_publish(&head->runs, ++sequence->runs);
}

bool sequence_work(struct shared *shared)
{
    struct sequence *sequence = &shared->sequence;
    bool any = false;
    if (shared->seat != 0)
        return false;
    for (uint32_t i = 0; i < shared->seats; i++) {
        const uint64_t joined = board_read(&host_seat(shared, i)->joined);
        if (joined - sequence->consumed[i] > BOARD_RECORDS && joined != sequence->consumed[i]) {
            host_impossible(shared, i, "sent more joins than it has records");
            continue;
        }
        while (sequence->consumed[i] < joined)
            sequence_take(shared, i);
    }
    while (!list_empty(&sequence->ready) && sequence_has_room(shared)) {
        sequence_append(shared, list_entry(list_first(&sequence->ready), struct match, ready));
        any = true;
    }
    if (!list_empty(&sequence->ready))
        sequence_check_room(shared);
    if (any)
        host_tell(shared);
    return any;
}

bool sequence_pending(const struct shared *shared)
{
    const struct sequence *sequence = &shared->sequence;
    for (uint32_t i = 0; shared->seat == 0 && i < shared->seats; i++) {
        if (board_read(&host_seat(shared, i)->joined) != sequence->consumed[i])
            return true;
    }
    return shared->seat == 0 && !list_empty(&sequence->ready) && sequence_has_room(shared);
}
