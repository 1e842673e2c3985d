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
    struct transport *transport;
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

// ---- sequence.c ---------------------------------------------------------------------------------

void sequence_init(struct sequence *sequence);
void sequence_fini(struct sequence *sequence);
// The leader: appends runs for what all have joined. Whether it did anything.
bool sequence_work(struct shared *shared);
// Whether somebody has joined something since.
bool sequence_pending(const struct shared *shared);
// A record of a seat is a join, and a shot. What is known of its tag now; NULL: it is impossible.
struct match *sequence_join(struct shared *shared, uint32_t seat, uint32_t index, bool shot);
// The leader: appends a run for it when all have joined it, or differ.
void sequence_joined(struct shared *shared, struct match *match);
void sequence_forget(struct sequence *sequence, struct match *match);
// What is known of a tag; NULL: nothing.
struct match *sequence_find(struct sequence *sequence, const struct collective_tag *tag);
// The same for a tag that nobody here has joined yet; NULL: they are too many.
struct match *sequence_expect(struct sequence *sequence, const struct collective_tag *tag);

// ---- shots.c ------------------------------------------------------------------------------------

void shots_init(struct shared *shared);
// Most bytes of a payload: what the leader decides for all, and, when the board stands, has
// decided.
uint64_t shots_most_bytes(const struct transport *transport);
void shots_begin(struct shared *shared);
// Whether a collective is small enough.
bool shots_fits(const struct shared *shared, const struct flow *flow);
// Puts a payload into the record or a block. False: there is none, so it becomes no shot.
bool shots_fill(struct shared *shared, const struct flow *flow, uint32_t index);
void shots_announce(struct shared *shared, uint32_t index, uint64_t bytes);
// The record is a shot from now on. Where its payload of so many bytes is to be put; NULL: there is
// no room, and it is none.
uint8_t *shots_load(struct shared *shared, uint32_t index, uint64_t bytes);
// Where a payload of so many bytes is; NULL: it cannot be there.
uint8_t *shots_place(const struct shared *shared, uint32_t seat, uint32_t index, uint32_t payload,
                     uint64_t bytes);
// The record is at rest when all have read it. False: it is no shot.
bool shots_spend(struct shared *shared, uint32_t index);
// Whether a record can be had; moves those that all have read to the ones at rest.
bool shots_refill(struct shared *shared);
// Whether shots_refill would find some.
bool shots_may_refill(const struct shared *shared);
// Tells the mates whether this rank waits for a record.
void shots_starve(struct shared *shared, bool starves);
// Takes shots and computes what all have joined. Whether it did anything.
bool shots_work(struct shared *shared);
bool shots_pending(const struct shared *shared);
// What all have joined becomes a run after all: their shots are read.
void shots_read(struct shared *shared, const struct match *match);
// A run of this tag was seen: no shots of it are waited for.
void shots_run_seen(struct shared *shared, const struct collective_tag *tag);

// ---- exchange.c ---------------------------------------------------------------------------------

// Writes the notice of the last shot that was announced; it has so many bytes.
void exchange_note(struct shared *shared, uint32_t index, uint64_t bytes);
// A flow is launched. Whether its shot was announced by an exchange before.
bool exchange_continues(struct shared *shared, struct flow *flow);

// ---- pieces.c -----------------------------------------------------------------------------------

// Cuts a run: piece_elements and pieces.
void pieces_cut(const struct shared *shared, struct shared_run *run, const struct flow *flow);
// One piece in each stage at most. Whether it did anything.
bool pieces_work(struct shared *shared);
bool pieces_pending(const struct shared *shared);
// This rank's inputs as they are, zeros where there are none. streams: past the caches.
void pieces_gather(const struct shared *shared, const struct flow *flow, struct ring_span span,
                   uint8_t *bytes, bool streams);
// How the final bytes come of what the sources hold; sources[seat] NULL: zeros. out = those bytes.
struct kernel_combination pieces_combination(const struct flow *flow, const struct shared_run *run,
                                             const void *const *sources, uint32_t count);
void pieces_combine(const struct flow *flow, const struct shared_run *run, void *out,
                    const void *const *sources, uint32_t count, uint64_t elements);
// Part `seat` of `seats` of a row of elements; nothing for seats behind the last.
struct ring_span pieces_part(struct ring_span whole, uint32_t seats, uint32_t seat);
// The elements of a piece.
struct ring_span pieces_span(const struct flow *flow, const struct shared_run *run, uint64_t piece);
// Where elements of a piece lie in a slot.
uint8_t *pieces_place(const struct shared *shared, const struct flow *flow, uint32_t seat,
                      uint64_t piece, struct ring_span whole, struct ring_span part);
// The seat of a broadcast's root.
uint32_t pieces_root(const struct shared *shared, const struct flow *flow);
// Final bytes to user memory.
void pieces_store(struct shared *shared, const struct flow *flow, struct ring_span span,
                  const uint8_t *bytes);

// ---- fill.c -------------------------------------------------------------------------------------

// The leader: whether the slots of this run are to be filled past the caches.
bool fill_choose(struct shared *shared, uint64_t run, const struct flow *flow);
// This rank sees the next run.
void fill_see(struct shared *shared, struct shared_run *run, const struct board_run *from);
// Around work on its pieces. fill_begin's result is for fill_end.
uint64_t fill_begin(const struct shared_run *run);
void fill_end(struct shared_run *run, uint64_t since_ns);
// It is done here.
void fill_done(struct shared *shared, struct shared_run *run, const struct flow *flow);

// ---- two_level.c --------------------------------------------------------------------------------

// 0, or -1 without memory.
int two_level_begin(struct shared *shared);
void two_level_end(struct shared *shared);
// The leader: all seats, or the host behind this one, have joined this.
void two_level_joined(struct shared *shared, struct match *match);
// The leader: its run was appended here.
void two_level_appended(struct shared *shared, const struct match *match);
// Whether anything is to come from that neighbour between hosts.
bool two_level_needs(struct shared *shared, const struct peer_link *peer);
// Parts of a piece; most bytes of a piece; and those of a slot of such a board.
uint32_t two_level_rings(const struct shared *shared);
uint64_t two_level_piece_bytes(const struct shared *shared, const struct flow *flow);
uint64_t two_level_slot_bytes(const struct shared *shared);
// The stages of a piece that differ: reducing, which publishes later, and copying out.
void two_level_reduce(struct shared *shared, struct shared_run *run, uint64_t piece);
void two_level_copy_out(struct shared *shared, struct shared_run *run, uint64_t piece);

// ---- registered.c -------------------------------------------------------------------------------

// 0, or -1 without memory.
int registered_open(struct shared *shared);
void registered_close(struct shared *shared);
// The board stands: this rank's regions go to its mates, and theirs come.
void registered_begin(struct shared *shared);
// A join says where its memory is, if the collective can run there.
void registered_join(struct shared *shared, const struct flow *flow, uint32_t record);
// The run of that record is none in registered memory.
void registered_drop(struct shared *shared, uint32_t record);
// Takes what a run says of the memory of all. `from` is this rank's copy, which was checked. NULL,
// or what is impossible about it; *seat: whose.
const char *registered_read(struct shared *shared, const struct board_run *from,
                            const struct flow *flow, struct shared_run *run, uint32_t *seat);
// A descriptor that a mate has passed, owned from now on.
void registered_take(struct shared *shared, uint32_t seat, const struct link_note *note, int fd);
// Some blocks of one run, and news of regions. Whether it did anything.
bool registered_work(struct shared *shared);
bool registered_pending(const struct shared *shared);
// Returns when no mate writes to this rank's memory any more.
void registered_let_go(struct shared *shared);

#endif
