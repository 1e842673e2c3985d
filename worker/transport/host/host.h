// SPDX-License-Identifier: Apache-2.0
//
// What the files of this folder share: the state of the ranks of one host, and the functions of
// host.c. The README of the folder says what each file does. The words are those of board.h. Engine
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

#define FILL_CLASSES 8 // Size classes of runs.
#define SEQUENCE_BUCKETS 256 // A power of two.

struct two_level;

// A run that this rank has seen.
struct host_run {
    struct flow *flow; // NULL once the run is done here.
    uint64_t first; // Number of its first piece, counted over all runs.
    uint64_t pieces; // Number of its pieces. 0: it is registered, or has nothing to do here.
    uint64_t piece_elements; // Elements of a piece; the last piece may have fewer.
    uint64_t weight; // Sum of the weights of all ranks.
    uint64_t factors[LOCKSTEP_MAX_MATES];
    bool scales; // True if some factor is neither 0 nor 1.
    bool streams; // True if slots are filled past the caches: fill.c.
    uint32_t task; // At the leader: the task number of this run in a trial (fill.c).
    uint64_t worked_ns; // If it is a task: time spent on its pieces.
    bool partial; // True with two levels: the sum of this host is then reduced between hosts.
    uint64_t total; // Partial runs: the weight of all hosts, once a part is final.
    bool registered;
    // Registered runs: true if each block is announced before it is copied to the mates. False: one
    // loop stores to both ranks.
    bool announces;
    uint64_t ordinal; // Number of this run, counted over registered runs.
    struct rows memory[LOCKSTEP_MAX_MATES]; // By seat.
};

// How far a mate has come with its slices, as read behind the fence (fence.c).
struct fence_place {
    uint64_t stored; // Registered runs whose slice of the mate is final here.
    uint64_t run; // The run that the mate was working on.
    uint64_t end; // In that run: its elements up to this one are final here.
};

// Runs in registered memory.
struct registered {
    uint64_t seen; // Number of registered runs seen since the board stands.
    uint64_t stored; // Registered runs whose slice of this rank is in the memory of all ranks.
    uint64_t blocks; // Number of blocks summed since the board stands.
    uint64_t done; // In the run at `run`: elements of this rank's slice that are stored.
    uint64_t run; // Every registered run before this one is stored here.
    uint64_t finish; // Every registered run before this one is done here.
    bool stopped; // True once a mate has revoked its memory: nothing more is written.
    uint32_t ended; // One bit per seat: the mate's link has ended, so it writes nothing more.
    bool fenced; // True once no mate can write to this rank's memory.
    const char *unclear; // Why it is not known what mates have written; NULL: it is known.
    struct fence_place places[LOCKSTEP_MAX_MATES]; // By seat; valid if fenced.
    uint32_t news; // Value of regions_news() when new regions were passed last.
    bool again; // True if a link had no room for a region.
    uint64_t mapped_heard[LOCKSTEP_MAX_MATES]; // By seat: reports of mapped regions that were read.
    // [seats * BOARD_ROW_BLOCKS]: rows read from the row blocks of each seat.
    struct row (*rows)[BOARD_ROWS];
    // By seat, one bit per row block: an unfinished run uses it.
    uint32_t taken[LOCKSTEP_MAX_MATES];
    struct rows joined[BOARD_RECORDS]; // This rank's memory, by record.
};

// The position of one stage of the pipeline.
struct host_cursor {
    uint64_t run; // Runs before this one have no piece left for this stage.
    uint64_t piece;
};

// The joins of one tag: at the leader all joins, at other ranks only shots.
struct match {
    struct list bucket; // In sequence.matches.
    struct list ready; // In sequence.ready when all ranks have joined.
    struct collective_tag tag;
    uint64_t signature; // The signature in the first join.
    uint64_t shape; // The shape in the first join.
    uint32_t first; // Seat of the first join.
    // The first seat that joined with another signature or shape; BOARD_NONE: none.
    uint32_t differs;
    uint32_t count;
    uint32_t records[LOCKSTEP_MAX_MATES];
    uint32_t shots; // One bit per seat: its record is a shot.
    // With two levels: the RUN_JOINED frame of the next host's leader.
    bool heard; // True if that frame has arrived.
    uint64_t heard_signature;
    uint64_t heard_shape;
    bool foreign; // True if its signature or shape differs from that of this host.
    bool told; // True if this leader has passed the join on.
};

struct sequence {
    // At the leader, by seat: number of joins that were read.
    uint64_t consumed[LOCKSTEP_MAX_MATES];
    // By seat: number of joined records that no run has released yet.
    uint32_t held[LOCKSTEP_MAX_MATES];
    uint64_t runs; // At the leader: number of runs that were appended.
    uint32_t expected; // Number of matches that only another host has joined.
    struct list matches[SEQUENCE_BUCKETS];
    struct list ready;
    struct scratch pool; // struct match
};

// Shots of this rank, and what it knows about shots of its mates.
struct shots {
    uint64_t most_bytes; // Largest payload of a shot: the same on all ranks.
    uint64_t announced; // Number of shots that this rank has announced.
    uint32_t uses[BOARD_RECORDS];
    // By record: its `payload`; BOARD_NONE: the record is no shot now.
    uint32_t payloads[BOARD_RECORDS];
    // Records of shots that are done here and that mates may still read.
    uint32_t spent[BOARD_RECORDS];
    uint32_t spent_count;
    bool spent_block; // True if one of the spent records has a block.
    // [block_count] from first_block on, in a circle: the blocks that no shot uses.
    uint32_t blocks[BOARD_SHOT_BLOCKS];
    uint32_t first_block;
    uint32_t block_count;
    bool starves; // The published value of board_shots.starves: true if this rank lacks records.
    uint64_t taken[LOCKSTEP_MAX_MATES]; // By seat: number of shots of that mate that were read.
    uint32_t starving; // One bit per seat: the mate lacked records at the last look.
    uint32_t exchanged; // Number of exchanges tried: every EXCHANGES_MOST-th takes the normal path.
    // The record that a failed exchange has announced and that is launched next; BOARD_NONE: none.
    uint32_t tried;
    // By seat, one bit per record: announced, and not marked as read yet.
    uint64_t held[LOCKSTEP_MAX_MATES][BOARD_RECORDS / 64];
    _Alignas(64) uint8_t result[BOARD_SHOT_BYTES];
};

static_assert(BOARD_RECORDS % 64 == 0, "a bit for each");

// At the leader: the trials that choose how slots are filled (fill.c).
struct fill {
    struct trial trials[FILL_CLASSES];
    uint32_t tasks[BOARD_RUNS];
};

// How this rank moves between cores: spread.c.
struct spread {
    uint32_t waits;
    uint32_t looks; // Checks in a row that found that this rank must leave its core.
    uint64_t next_ms; // When this rank may move again, in ms.
};

struct shared {
    struct flows *flows;
    struct board board;
    uint32_t seat; // This rank's seat.
    uint32_t seats; // Ranks of this host.
    struct peer_link *mates[LOCKSTEP_MAX_MATES]; // By seat; NULL: this rank.
    uint32_t proven; // Number of mates whose links are proven.
    bool settled; // True once it is decided whether the ranks share memory.
    bool stands; // True if the ranks of this host share memory.
    // At the leader, by seat: true if the board was passed to this mate.
    bool passed[LOCKSTEP_MAX_MATES];
    int fd; // At the leader: the descriptor of the board, until all mates have it. -1: none.
    uint64_t deadline_ms; // When this rank goes on without a board, in ms.
    // launches
    struct flow *joined[BOARD_RECORDS]; // By record: the flow that joined with it; NULL: none.
    uint32_t records[BOARD_RECORDS]; // Records that no flow uses.
    uint32_t record_count;
    uint32_t blocks[BOARD_WIDE_BLOCKS]; // Wide blocks that no record uses.
    uint32_t block_count;
    // By record: its wide block; valid only if the flow has more than BOARD_UNIT_WORDS words of
    // used bits.
    uint32_t wide[BOARD_RECORDS];
    uint64_t joins;
    struct list waiting; // Flows that wait for a record, linked by flow.feed.
    // runs
    uint64_t runs_seen;
    uint64_t runs_done; // Every run before this one is done here.
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

// True if ranks read rows of each other: moves.c.
static inline bool host_moves(const struct collective *collective)
{
    return collective->kind == COLLECTIVE_EXCHANGE || collective->kind == COLLECTIVE_REDUCE_SCATTER;
}

// Number of elements that lie together on the board: all, or those of the longest row.
static inline uint64_t host_elements(const struct collective *collective)
{
    return host_moves(collective) ? collective->parts->row : collective->elements;
}

static inline bool host_is_mean(const struct collective *collective)
{
    return collective->op == REDUCE_MEAN && (collective->kind == COLLECTIVE_ALLREDUCE ||
                                             collective->kind == COLLECTIVE_REDUCE_SCATTER);
}

static inline uint32_t host_seat_of(const struct shared *shared, uint32_t rank)
{
    const struct locality *locality = &shared->flows->world.locality;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (locality->mates[i] == rank)
            return i;
    }
    return 0;
}

// ---- host.c -------------------------------------------------------------------------------------

// Wakes the mates: something on the board has changed that they may wait for.
void host_tell(struct shared *shared);
// Called when a run is complete here: completes its flow.
void host_run_done(struct shared *shared, struct host_run *run);
// Fills a record, except the fields about units and memory.
void host_describe(struct shared *shared, const struct collective *collective,
                   enum plan_algorithm algorithm, uint32_t index);
// Marks a collective as done; `weight` is the sum of all ranks.
void host_flow_done(struct shared *shared, struct flow *flow, uint64_t weight);
// Releases a record. Returns the flow that joined with it; NULL: none.
struct flow *host_release(struct shared *shared, uint32_t record);
// Returns the factor that this rank's inputs are multiplied by.
uint64_t host_factor(const struct collective *collective);
// True if a collective changes memory. `weight`: the sum of all ranks. The used bits must be final.
bool host_matters(const struct collective *collective, uint64_t weight);
// used |= own, of all units of the collective.
void host_use(const struct collective *collective, const uint64_t *used);
// Called when a mate has written something impossible: the mate is lost with this text.
void host_impossible(struct shared *shared, uint32_t seat, const char *text);
// Called when this rank has no memory for a join of this seat: loses the mate with peer_no_memory.
void host_lack(struct shared *shared, uint32_t seat);

// Does all work that is possible now, without waiting. True if it did anything.
bool host_work(struct flows *flows);
// Reads the runs that the leader has appended, and begins them. True if there were any.
bool host_see_runs(struct shared *shared);
// True if host_work would do something. No system call.
bool host_pending(const struct flows *flows);
// True if all ranks of the world share memory, and no mate has launched more than this rank.
bool host_leads(const struct flows *flows);
// The way of reducing in shared memory of one host, also with two levels.
extern const struct way host_way;

#endif
