// SPDX-License-Identifier: Apache-2.0
//
// What the files of this wing share: the state of a host's group of ranks, and the functions of
// host.c. The README of the wing says what each file does. The words are those of board.h. Engine
// thread.

#ifndef WORKER_TRANSPORT_HOST_HOST_H
#define WORKER_TRANSPORT_HOST_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/kernels/kernels.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/host/board.h"
#include "worker/transport/host/rows.h"
#include "worker/transport/host/trial.h"

#define FILL_CLASSES 8 // Classes of runs, by size.
#define SEQUENCE_BUCKETS 256 // A power of two.

struct two_level;

// A run that this rank has seen.
struct host_run {
    struct flow *flow; // NULL once the run is done here.
    uint64_t first; // Number of its first piece, counted over all runs.
    uint64_t pieces; // 0: the run was done when it was seen.
    uint64_t piece_elements; // Elements of a piece; the last piece may have fewer.
    uint64_t weight; // Sum of the weights of all ranks.
    uint64_t factors[LOCKSTEP_MAX_MATES];
    bool scales; // True if some factor is neither 0 nor 1.
    bool streams; // True if slots are filled past the caches: fill.c.
    uint32_t task; // At the leader: its task in a trial of two ways to fill slots.
    uint64_t worked_ns; // Time spent on its pieces, if it is a task.
    bool partial; // True if this host has only a part of the sum: it goes on between hosts.
    uint64_t total; // Of a partial run: the weight of the hosts that are known so far.
    bool registered;
    uint64_t ordinal; // Its number among the registered runs.
    struct rows memory[LOCKSTEP_MAX_MATES]; // By seat.
};

// Runs in registered memory.
struct registered {
    uint64_t seen; // Registered runs seen since the board stands.
    uint64_t stored; // Runs whose slice of this rank is in the memory of all.
    uint64_t blocks; // Blocks summed since the board stands.
    uint64_t done; // Elements that are stored, of this rank's slice of the run at `run`.
    uint64_t run; // Every registered run in front of this one is stored here.
    uint64_t finish; // Every registered run in front of this one is done here.
    bool stopped; // True once a mate has revoked its memory: nothing more is written.
    uint32_t ended; // Bits, by seat: the mate's link has ended, so it writes nothing more.
    uint32_t news; // regions_news() at the last look at this rank's regions.
    bool again; // True if a link had no room for a region.
    uint64_t mapped_heard[LOCKSTEP_MAX_MATES]; // By seat: reports of mapped regions that were read.
    struct row (*rows)[BOARD_ROWS]; // [seats * BOARD_ROW_BLOCKS]: of what is in their blocks.
    uint32_t taken[LOCKSTEP_MAX_MATES]; // Bits, by seat: blocks of unfinished runs.
    struct rows joined[BOARD_RECORDS]; // This rank's memory, by record.
};

// Where one stage of the pipeline is.
struct host_cursor {
    uint64_t run; // Runs in front of it have no piece left for this stage.
    uint64_t piece;
};

// Joins of one tag: at the leader, and of shots everywhere.
struct match {
    struct list bucket; // In sequence.matches.
    struct list ready; // In sequence.ready when all have joined.
    struct collective_tag tag;
    uint64_t signature; // Of the first join.
    uint64_t shape; // Of the first join.
    uint32_t first; // Seat of the first join.
    uint32_t differs; // The first seat that joined it otherwise; BOARD_NONE: none.
    uint32_t count;
    uint32_t records[LOCKSTEP_MAX_MATES];
    uint32_t shots; // Bits, by seat: that record is a shot.
    // With two levels: what the leader of the host behind this one has said.
    bool heard; // True if it has said anything.
    uint64_t heard_signature;
    uint64_t heard_shape;
    bool foreign; // True if that differs from what was joined here.
    bool told; // True if what is known here was passed on.
};

struct sequence {
    uint64_t consumed[LOCKSTEP_MAX_MATES]; // At the leader, by seat: joins that were read.
    uint32_t held[LOCKSTEP_MAX_MATES]; // By seat: records of them that no run has given back.
    uint64_t runs; // At the leader: runs that were appended.
    uint32_t expected; // Number of matches that only another host has joined.
    struct list matches[SEQUENCE_BUCKETS];
    struct list ready;
    struct scratch pool; // struct match
};

// Shots of this rank, and what it knows of those of others.
struct shots {
    uint64_t most_bytes; // Largest payload of a shot: the same on all ranks.
    uint64_t announced; // Shots that this rank has announced.
    uint32_t uses[BOARD_RECORDS];
    uint32_t payloads[BOARD_RECORDS]; // As in the records; BOARD_NONE: it is no shot now.
    uint32_t spent[BOARD_RECORDS]; // Records that are done here, and that mates may still read.
    uint32_t spent_count;
    bool spent_block; // True if one of them has a block.
    uint32_t blocks[BOARD_SHOT_BLOCKS]; // Blocks that no shot uses.
    uint32_t block_count;
    bool starves; // What the mates were told: true if this rank lacks records.
    uint64_t taken[LOCKSTEP_MAX_MATES]; // By seat: shots of that mate that were read.
    uint32_t starving; // Bits, by seat: mates that lacked records at the last look.
    uint32_t exchanged; // Exchanges that were tried: every EXCHANGES_MOST-th goes the long way.
    uint32_t tried; // A record that was announced and is to be launched now; BOARD_NONE.
    // By seat: records that have been announced and were not read.
    uint64_t held[LOCKSTEP_MAX_MATES][BOARD_RECORDS / 64];
    _Alignas(64) uint8_t result[BOARD_SHOT_BYTES];
};

static_assert(BOARD_RECORDS % 64 == 0, "a bit for each");

// At the leader: how slots are filled.
struct fill {
    struct trial trials[FILL_CLASSES];
    uint32_t tasks[BOARD_RUNS];
};

// Where ranks share cores: spread.c.
struct spread {
    uint32_t waits;
    uint32_t looks; // Looks in a row after which this rank has to leave its core.
    uint64_t next_ms; // When it may move again.
};

struct shared {
    struct flows *flows;
    struct board board;
    uint32_t seat; // This rank's seat.
    uint32_t seats; // Ranks of this host.
    struct peer_link *mates[LOCKSTEP_MAX_MATES]; // By seat; NULL: this rank.
    uint32_t proven; // Number of mates whose links stand.
    bool settled; // True if it is known whether the board stands.
    bool stands; // True if the ranks of this host share memory.
    bool passed[LOCKSTEP_MAX_MATES]; // At the leader, by seat: the board is on its way there.
    int fd; // At the leader: the board's, until all have it. -1: none.
    uint64_t deadline_ms; // When this rank goes on without a board.
    // launches
    struct flow *joined[BOARD_RECORDS]; // By record: the flow that joined with it.
    uint32_t records[BOARD_RECORDS]; // Records that no flow uses.
    uint32_t record_count;
    uint32_t blocks[BOARD_WIDE_BLOCKS]; // Blocks that no record uses.
    uint32_t block_count;
    uint32_t wide[BOARD_RECORDS]; // By record: its block; BOARD_NONE: it has none.
    uint64_t joins;
    struct list waiting; // Flows without a record, by their feed.
    // runs
    uint64_t runs_seen;
    uint64_t runs_done; // Every run in front of this one is done here.
    uint64_t pieces; // Sum of the pieces of all runs seen.
    struct host_cursor in;
    struct host_cursor reduce;
    struct host_cursor out;
    struct host_run runs[BOARD_RUNS];
    struct registered registered;
    struct sequence sequence;
    struct shots shots;
    struct fill fill;
    struct spread spread;
    struct two_level *two_level; // NULL: all ranks are on this host.
};

static inline struct board_seat *host_seat(const struct shared *shared, uint32_t seat)
{
    return &shared->board.head->seat[seat];
}

static inline struct host_run *host_run(struct shared *shared, uint64_t run)
{
    return &shared->runs[run % BOARD_RUNS];
}

// ---- host.c -------------------------------------------------------------------------------------

// Something on the board has changed that mates may wait for.
void host_tell(struct shared *shared);
// The run is complete here.
void host_run_done(struct shared *shared, struct host_run *run);
// Fills a record but for what it says of units and of memory.
void host_describe(struct shared *shared, const struct collective *collective,
                   enum plan_algorithm algorithm, uint32_t index);
// The collective is complete here; `weight` is that of all ranks.
void host_flow_done(struct shared *shared, struct flow *flow, uint64_t weight);
// Gives a record back. Returns the flow that joined with it; NULL: none did.
struct flow *host_release(struct shared *shared, uint32_t record);
// Returns the factor that this rank's inputs are multiplied by.
uint64_t host_factor(const struct collective *collective);
// True if a collective changes memory, `weight` being that of all ranks. Its used bits are known.
bool host_matters(const struct collective *collective, uint64_t weight);
// used |= own, of all units of the collective.
void host_use(const struct collective *collective, const uint64_t *used);
// A mate has written what cannot be.
void host_impossible(struct shared *shared, uint32_t seat, const char *text);
// This rank has no memory for what the mate in this seat has said.
void host_lack(struct shared *shared, uint32_t seat);

// Does what can be done now, without waiting. True if it did anything.
bool host_work(struct flows *flows);
// True if host_work would do something. No system call.
bool host_pending(const struct flows *flows);
// Collectives in memory of one host, as a way of reducing; two levels, too.
extern const struct way host_way;

#endif
