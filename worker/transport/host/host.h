// SPDX-License-Identifier: Apache-2.0
//
// What the files of collectives in memory share: host.c (the board's life, launches,
// ends), sequence.c (the leader: from joins to runs), shots.c (small payloads,
// without a run), exchange.c (the short way of a shot that its caller waits for),
// pieces.c (runs through slots, and their arithmetic), registered.c (runs in
// the ranks' memory itself, and how mates come to have it) and spread.c (which rank waits
// on which core). Nobody else includes it. The words are those of board.h. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_HOST_H
#define WORKER_TRANSPORT_HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/kernels/kernels.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/host/board.h"
#include "worker/transport/host/duel.h"
#include "worker/transport/host/rows.h"

#define FILL_CLASSES 8 // Of runs, by their size.
#define SEQUENCE_BUCKETS 256 // A power of two.

struct two_level;

// A run that this rank has seen.
struct shared_run {
    struct flow *flow; // NULL: it is done here.
    uint64_t first; // Of its pieces, over all runs.
    uint64_t pieces; // 0: it was done at sight.
    uint64_t piece_elements; // But for the last one.
    uint64_t weight; // Of all ranks.
    uint64_t factors[LOCKSTEP_MAX_MATES];
    bool scales; // Some factor is neither 0 nor 1.
    bool streams; // Slots are filled past the caches: fill.c.
    uint32_t task; // The leader: of a duel between two ways to fill slots.
    uint64_t worked_ns; // On its pieces, where that is asked for.
    bool partial; // What is summed here is not all: it goes on between hosts.
    uint64_t total; // Of a partial one: the weight of all hosts, as far as it is known.
    bool registered;
    uint64_t ordinal; // Of the registered ones.
    struct rows memory[LOCKSTEP_MAX_MATES]; // By seat.
};

// Runs in registered memory.
struct registered {
    uint64_t seen; // Runs, ever.
    uint64_t stored; // This rank's slice of so many is in the memory of all.
    uint64_t blocks; // Summed, ever.
    uint64_t done; // Elements of the slice that are stored, of the run at the cursor.
    uint64_t run; // The cursors: runs in front of them are none, or are stored here, ...
    uint64_t finish; // ... or are done here.
    bool stopped; // A mate has revoked its memory: no more is written.
    uint32_t ended; // Bits, by seat: its link has ended, so it writes no more.
    uint32_t news; // Of this rank's regions, when they were last looked at.
    bool again; // A link had no room for one.
    uint64_t mapped_heard[LOCKSTEP_MAX_MATES]; // By seat: of what it says it has mapped.
    struct row (*rows)[BOARD_ROWS]; // [seats * BOARD_ROW_BLOCKS]: of what is in their blocks.
    uint32_t taken[LOCKSTEP_MAX_MATES]; // Bits, by seat: blocks of unfinished runs.
    struct rows joined[BOARD_RECORDS]; // This rank's memory, by record.
};

// Where one stage of the pipeline is.
struct shared_cursor {
    uint64_t run; // Runs in front of it have no piece left for this stage.
    uint64_t piece;
};

// Joins of one tag: at the leader, and of shots everywhere.
struct match {
    struct list bucket; // In sequence.matches.
    struct list ready; // In sequence.ready when all have joined.
    struct collective_tag tag;
    uint64_t signature; // Of the first one.
    uint64_t shape;
    uint32_t first; // Its seat.
    uint32_t differs; // The first seat that joined it otherwise; BOARD_NONE: none.
    uint32_t count;
    uint32_t records[LOCKSTEP_MAX_MATES];
    uint32_t shots; // Bits, by seat: that record is a shot.
    // With two levels: what the leader of the host behind this one has said.
    bool heard;
    uint64_t heard_signature;
    uint64_t heard_shape;
    bool foreign; // It was not what has been joined here.
    bool told; // What is known here was passed on.
};

struct sequence {
    uint64_t consumed[LOCKSTEP_MAX_MATES]; // Joins, by seat. The leader.
    uint32_t held[LOCKSTEP_MAX_MATES]; // By seat: of those, records that no run has given back.
    uint64_t runs; // Appended. The leader.
    uint32_t expected; // Matches that only another host has joined.
    struct list matches[SEQUENCE_BUCKETS];
    struct list ready;
    struct scratch pool; // struct match
};

// Shots of this rank, and what it knows of those of others.
struct shots {
    uint64_t most_bytes; // Of a payload: the same on all ranks.
    uint64_t announced;
    uint32_t uses[BOARD_RECORDS];
    uint32_t payloads[BOARD_RECORDS]; // As in the records; BOARD_NONE: it is no shot now.
    uint32_t spent[BOARD_RECORDS]; // Records that are done here, and that mates may still read.
    uint32_t spent_count;
    bool spent_block; // One of them has a block.
    uint32_t blocks[BOARD_SHOT_BLOCKS]; // At rest.
    uint32_t block_count;
    bool starves; // As it was told to the mates.
    uint64_t taken[LOCKSTEP_MAX_MATES]; // By seat.
    uint32_t starving; // Bits, by seat, as they were last seen.
    uint32_t exchanged; // Since shots were last taken the long way.
    uint32_t tried; // A record that was announced and is to be launched now; BOARD_NONE.
    // By seat: records that have been announced and were not read.
    uint64_t held[LOCKSTEP_MAX_MATES][BOARD_RECORDS / 64];
    _Alignas(64) uint8_t result[BOARD_SHOT_BYTES];
};

static_assert(BOARD_RECORDS % 64 == 0, "a bit for each");

// How slots are filled. The leader.
struct fill {
    struct duel duels[FILL_CLASSES];
    uint32_t tasks[BOARD_RUNS];
};

// Where ranks share cores: spread.c.
struct spread {
    uint32_t waits;
    uint32_t looks; // In a row that found this rank to be the one that has to leave its core.
    uint64_t next_ms; // When it may move again.
};

struct shared {
    struct flows *flows;
    struct board board;
    uint32_t seat; // Of this rank.
    uint32_t seats;
    struct peer_link *mates[LOCKSTEP_MAX_MATES]; // By seat; NULL: this rank.
    uint32_t proven; // Mates whose links stand.
    bool settled;
    bool stands;
    bool passed[LOCKSTEP_MAX_MATES]; // The leader: the board is on its way to that seat.
    int fd; // The leader's, until all have it; -1.
    uint64_t deadline_ms; // When this rank goes without.
    // launches
    struct flow *joined[BOARD_RECORDS]; // By record.
    uint32_t records[BOARD_RECORDS]; // At rest.
    uint32_t record_count;
    uint32_t blocks[BOARD_WIDE_BLOCKS]; // At rest.
    uint32_t block_count;
    uint32_t wide[BOARD_RECORDS]; // By record: its block; BOARD_NONE: it has none.
    uint64_t joins;
    struct list waiting; // Flows without a record, by their feed.
    // runs
    uint64_t runs_seen;
    uint64_t runs_done; // All in front of it are.
    uint64_t pieces; // Of all runs seen.
    struct shared_cursor in;
    struct shared_cursor reduce;
    struct shared_cursor out;
    struct shared_run runs[BOARD_RUNS];
    struct registered registered;
    struct sequence sequence;
    struct shots shots;
    struct fill fill;
    struct spread spread;
    struct two_level *two_level; // NULL: all ranks are on this host.
};

static inline struct board_seat *shared_seat(const struct shared *shared, uint32_t seat)
{
    return &shared->board.head->seat[seat];
}

static inline struct shared_run *shared_run(struct shared *shared, uint64_t run)
{
    return &shared->runs[run % BOARD_RUNS];
}

// ---- host.c -------------------------------------------------------------------------------------

// Something on the board has changed that mates may wait for.
void shared_tell(struct shared *shared);
// The run is complete here.
void shared_run_done(struct shared *shared, struct shared_run *run);
// Fills a record but for what it says of units and of memory.
void shared_describe(struct shared *shared, const struct collective *collective,
                     enum plan_algorithm algorithm, uint32_t index);
// The collective is; `weight` is that of all ranks.
void shared_flow_done(struct shared *shared, struct flow *flow, uint64_t weight);
// Gives the record of a flow back. The flow that joined with it; NULL: none did.
struct flow *shared_release(struct shared *shared, uint32_t record);
// By which this rank's inputs are to be multiplied.
uint64_t shared_factor(const struct collective *collective);
// Whether a collective with so much weight in all changes memory; its used bits are known.
bool shared_matters(const struct collective *collective, uint64_t weight);
// used |= own, of all units of the collective.
void shared_use(const struct collective *collective, const uint64_t *used);
// A mate has written what cannot be.
void shared_impossible(struct shared *shared, uint32_t seat, const char *text);
// This rank has no memory for what the mate in this seat has said.
void shared_lack(struct shared *shared, uint32_t seat);

// The generation begins: nothing is mapped. 0, or -1 without memory.
int shared_form(struct flows *flows);
// The link to a mate stands.
void shared_proven(struct peer_link *peer);
// Whether it is known if the group shares memory; and whether it does.
bool shared_settled(const struct flows *flows);
bool shared_stands(const struct flows *flows);
// When shared_work has to be called for that; UINT64_MAX: never.
uint64_t shared_deadline(const struct flows *flows);
// Does what can be done now, without waiting. Whether it did anything.
bool shared_work(struct flows *flows);
// Whether shared_work would do something. No system call.
bool shared_pending(const struct flows *flows);
// Collectives in memory of one host, as a way of reducing; two levels, too.
extern const struct way host_way;

#endif
