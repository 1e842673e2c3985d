// SPDX-License-Identifier: Apache-2.0
//
// The board: memory that all ranks of one host have mapped, through which their collectives run.
// This header has its layout, and how it is made, checked and mapped. host.c and the other files of
// the folder use it.
//
// The memory is anonymous, sealed against resizing and allocated before its use: no process can
// take pages away from a mate, no page access can fail later, and the kernel frees it when the last
// process has died.
//
// Words. A rank's place on the board is its *seat*. A rank that launches a collective *joins* it
// with a *record* in its seat. When all seats have joined a collective, the *leader* (seat 0)
// appends a *run*; all seats execute runs in their order. Large runs are cut into *pieces*,
// numbered over all runs; each seat has a row of *slots*, and piece p goes through slot p modulo
// their count. A small collective needs no run: its record is a *shot*, which holds the whole
// payload, and every seat that has read the shots of all seats computes the result itself.
//
// Ownership: only its rank writes to a seat, and only the leader writes runs. Counters are stored
// with release and loaded with acquire: writes before the store are visible after the load. Another
// process wrote all data that is read here, so each word is read once, and checked before it is
// used as an index, an offset or a length.

#ifndef WORKER_TRANSPORT_HOST_BOARD_H
#define WORKER_TRANSPORT_HOST_BOARD_H

#include "protos/limits.h"
#include "worker/transport/flow/collective.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_MAGIC UINT64_C(0x6c6f636b62643031)
#define BOARD_LINE 128 // Two cache lines: processors fetch them in pairs.
// Records of a seat: as many collectives as a rank may launch before its mates do.
#define BOARD_RECORDS 640
#define BOARD_QUEUE 1024 // A power of two.
#define BOARD_RUNS 64 // Runs in flight. A power of two.
#define BOARD_TINY_BYTES 1024 // The largest payload of a shot inside its record.
#define BOARD_SHOT_BYTES (32 * 1024) // The largest payload of a shot in a block of its seat.
#define BOARD_SHOT_BLOCKS 8
#define BOARD_TINY BOARD_SHOT_BLOCKS // In place of a block number: the payload is in the record.
#define BOARD_UNIT_WORDS 8 // Words of used bits inside a record and inside a run.
#define BOARD_WIDE_BLOCKS 16 // Wide blocks of a seat: for used bits that do not fit in a record.
#define BOARD_WIDE_WORDS (LOCKSTEP_BUCKET_PARAMETERS / 64)
#define BOARD_ROWS 512 // The most rows (runs of registered memory) of one collective.
#define BOARD_ROW_BLOCKS 16 // Row blocks of a seat: for collectives with several rows.
#define BOARD_SLOTS 3
// Bytes of a slot on one host; twice as many with two ranks. Two levels have another size.
#define BOARD_SLOT_BYTES (256 * 1024)
// Bytes that are summed at once in registered memory. Blocks of this size of two or three ranks fit
// in the first cache together; with 32 KiB, which do not, a sum takes one and a half times as long
// (docs/internals/data-plane.md).
#define BOARD_BLOCK_BYTES (8 * 1024)
#define BOARD_NEWS 256 // News of regions that a mate has not read yet. A power of two.
#define BOARD_NONE UINT32_MAX
#define BOARD_SHOT_BITS 16
#define BOARD_NOTICES 8 // Notices of a seat, one for each of its last shots. A power of two.
#define BOARD_NOTICE_WORDS 10 // Words of payload in a notice.

static_assert(BOARD_RECORDS >= LOCKSTEP_EARLY_COLLECTIVES, "all that may be early can be joined");
static_assert(BOARD_QUEUE > BOARD_RECORDS, "what is queued fits");
static_assert(BOARD_ROW_BLOCKS > 2 * LOCKSTEP_WINDOW - 1, "any slot that may be early has a block");
static_assert(BOARD_RECORDS <= 1 << BOARD_SHOT_BITS, "a record's number fits");

// A run of elements in registered memory.
struct board_row {
    uint64_t offset; // Offset in the region, in bytes.
    uint64_t elements;
    uint32_t region; // The number of the region on the rank that owns it.
};

// Where the inputs and outputs of one rank are, in the order of the elements.
struct board_memory {
    uint32_t rows; // Number of rows. 0: some of the memory is not registered.
    // Not 0 if the mean over this rank alone is not its input: the input is a sum of samples.
    uint32_t sums;
    // With several rows: the row block of the seat that lists them. Constant until its rank has
    // done the run; by then all mates have read it.
    uint32_t block;
    struct board_row row; // With one row: that row.
};

// One collective of one rank. Constant from the join until its rank has seen the run; a shot is
// constant until all mates have read it. The smallest shots fit in its first two cache lines.
struct board_record {
    _Alignas(BOARD_LINE) struct collective_tag tag;
    uint64_t signature;
    uint64_t shape; // Hash of all that decides how the collective is cut.
    uint64_t weight;
    uint64_t factor; // Factor of the inputs; 0: this rank contributes nothing.
    uint32_t use; // Number of times that the record has been a shot.
    uint32_t payload; // A shot's payload: number of a block of its seat, or BOARD_TINY.
    uint8_t tiny[BOARD_TINY_BYTES];
    uint64_t used[BOARD_UNIT_WORDS];
    // The wide block of its seat with the used bits; BOARD_NONE: they are in `used`.
    uint32_t block;
    struct board_memory memory;
};
static_assert(offsetof(struct board_record, tiny) == 64, "the payload begins with a line");

enum board_run_kind {
    BOARD_RUN_PIECES = 1, // The run goes through the slots.
    BOARD_RUN_MISMATCH = 2, // The ranks with a record in this run disagree about the collective.
    BOARD_RUN_REGISTERED = 3, // The run works directly in the registered memory of all ranks.
};

struct board_run {
    uint32_t kind; // enum board_run_kind
    uint32_t streams; // BOARD_RUN_PIECES: not 0 if slots are filled past the caches.
    // By seat: its record. BOARD_NONE: the seat has no part in this run.
    uint32_t records[LOCKSTEP_MAX_MATES];
    // BOARD_RUN_MISMATCH: `one` and `other` are two seats that disagree. one BOARD_NONE: another
    // host disagrees, and `other` is a rank of it.
    uint32_t one;
    uint32_t other;
    uint64_t factors[LOCKSTEP_MAX_MATES];
    // Sum of the weights of all ranks. BOARD_RUN_MISMATCH: the signature of `other`.
    uint64_t weight;
    uint64_t used[BOARD_UNIT_WORDS];
    struct board_memory memory[LOCKSTEP_MAX_MATES]; // BOARD_RUN_REGISTERED: by seat.
};

struct board_counter {
    _Alignas(BOARD_LINE) _Atomic uint64_t value;
};

// What a rank publishes about its shots, in one cache line that its mates poll.
struct board_shots {
    // Total number of shots, and in the lower BOARD_SHOT_BITS the record of the last one. A mate
    // that has missed no shot need not read the queue.
    _Alignas(BOARD_LINE) _Atomic uint64_t last;
    _Atomic uint64_t starves; // 1: this rank waits for a record that all mates have read.
};

// All of one small shot in two cache lines, for a mate that waits for this shot: the line that the
// mate polls also has the first two words of the payload. A notice is overwritten after
// BOARD_NOTICES shots, read or not. So the reader reads `shot` before and after the rest, and uses
// the record instead if `shot` has changed. The other words are constant while `shot` is.
struct board_notice {
    // As board_shots.last; 0: the notice is being written.
    _Alignas(BOARD_LINE) _Atomic uint64_t shot;
    _Atomic uint64_t space; // tag.space. The step of the tag is 0.
    _Atomic uint64_t slot_use; // tag.slot in the lower half, the record's `use` in the upper half.
    _Atomic uint64_t signature;
    _Atomic uint64_t shape;
    _Atomic uint64_t bytes; // Lower half: size of the payload. Upper half: the record's `payload`.
    _Atomic uint64_t payload[BOARD_NOTICE_WORDS];
};
static_assert(sizeof(struct board_notice) == BOARD_LINE, "a notice is a pair of lines");

// A block of final bytes that its owner copies from its memory to that of all ranks. If the owner
// dies between `filled` and `spread`, each mate copies the block from the owner's memory itself.
// All elements of the owner's slice before the block are final in the memory of all ranks.
struct board_block {
    struct board_counter writing; // 1: the owner may be writing to the memory of mates.
    // Total number of filled blocks: the block described below is final in the owner's memory. 0:
    // it is being described or summed.
    struct board_counter filled;
    struct board_counter spread; // Total number of blocks that are in the memory of all ranks.
    _Atomic uint64_t first; // First element of the block in the run.
    _Atomic uint64_t count;
    _Atomic uint64_t run;
};

// A block, as a mate has read it.
struct board_place {
    bool filled; // True if the block is final in the owner's memory.
    bool spread; // True if the block is in the memory of all ranks.
    uint64_t run;
    uint64_t first;
    uint64_t count;
};

// A queue of region numbers, from one rank to one mate or to all mates.
struct board_news {
    struct board_counter said; // Total number of region numbers written.
    uint32_t number[BOARD_NEWS];
};

// With two levels: the weight and used bits of a seat's part of a piece, once all hosts have
// reduced it.
struct board_final {
    uint64_t weight; // Sum of the weights of all hosts.
    uint64_t used[BOARD_WIDE_WORDS]; // Used bits of the units that the part meets.
};

struct board_seat {
    struct board_counter mapped; // 1: the rank has mapped the board.
    struct board_counter joined; // Total number of records put into `queue`.
    struct board_shots shots;
    struct board_notice notices[BOARD_NOTICES]; // Shot s is in notice (s - 1) modulo BOARD_NOTICES.
    // Total numbers of pieces. copied_in: this rank's inputs are in its slot. reduced: its part is
    // final in its slot. copied_out: it has read all that it needs from all slots.
    struct board_counter copied_in;
    struct board_counter reduced;
    struct board_counter copied_out;
    struct board_counter runs_done;
    // Total number of registered runs whose slice of this rank is in the memory of all ranks.
    struct board_counter stored;
    struct board_counter revoked; // 1: mates must no longer write to this rank's memory.
    // Number of the core on which the rank waits, plus one; 0: not known.
    struct board_counter core;
    struct board_block block;
    // By seat: regions of that mate that this rank has mapped, or cannot map (REGION_UNMAPPED).
    struct board_news mapped_of[LOCKSTEP_MAX_MATES];
    struct board_news freed; // Regions of its own that this rank has freed.
    // By seat: number of freed regions of that mate that this rank has unmapped.
    struct board_counter freed_heard[LOCKSTEP_MAX_MATES];
    _Alignas(BOARD_LINE) struct board_final final[BOARD_SLOTS]; // By slot.
    // Joined records, in the order of their joins.
    _Alignas(BOARD_LINE) uint32_t queue[BOARD_QUEUE];
    // Records that are shots, in the order in which they were announced.
    _Alignas(BOARD_LINE) uint32_t shot[BOARD_QUEUE];
    // By seat and record of that mate: the `use` that this rank has read last.
    _Alignas(BOARD_LINE) _Atomic uint32_t read[LOCKSTEP_MAX_MATES][BOARD_RECORDS];
    _Alignas(BOARD_LINE) uint8_t payloads[BOARD_SHOT_BLOCKS][BOARD_SHOT_BYTES];
    _Alignas(BOARD_LINE) uint64_t wide[BOARD_WIDE_BLOCKS][BOARD_WIDE_WORDS];
    _Alignas(BOARD_LINE) struct board_row rows[BOARD_ROW_BLOCKS][BOARD_ROWS];
    _Alignas(BOARD_LINE) struct board_record records[BOARD_RECORDS];
};

enum board_verdict {
    BOARD_OPEN = 0,
    BOARD_STANDS = 1, // All ranks have mapped the board.
    BOARD_FALLEN = 2, // All ranks go on without a board.
};

struct board_head {
    uint64_t magic;
    uint64_t seats;
    // The largest payload of a shot. The leader sets it before mates map the board.
    uint64_t shot_bytes;
    struct board_counter verdict; // enum board_verdict
    struct board_counter runs; // Total number of appended runs.
    _Alignas(BOARD_LINE) struct board_run run[BOARD_RUNS];
    // Used bits of a run with more than BOARD_UNIT_WORDS words.
    _Alignas(BOARD_LINE) uint64_t wide[BOARD_RUNS][BOARD_WIDE_WORDS];
    struct board_seat seat[]; // [seats]. The slots follow, ordered by seat.
};

// This process's mapping of a board.
struct board {
    struct board_head *head; // NULL: not mapped.
    uint8_t *slots;
    uint64_t slot_bytes;
    uint64_t bytes;
    uint32_t seats;
};

// Returns the size of a board. slot_bytes: a multiple of a page, the same on all ranks.
uint64_t board_bytes(uint32_t seats, uint64_t slot_bytes);

// Makes and maps a board. Returns its descriptor, which the caller passes to the mates and then
// closes; or -1.
int board_make(struct board *board, uint32_t seats, uint64_t slot_bytes);
// Maps a board that the leader made. fd stays the caller's. Returns NULL, or what is wrong with the
// board.
const char *board_map(struct board *board, uint32_t seats, uint64_t slot_bytes, uint64_t bytes,
                      int fd);
void board_unmap(struct board *board);

static inline uint8_t *board_slot(const struct board *board, uint32_t seat, uint64_t piece)
{
    return board->slots + ((uint64_t)seat * BOARD_SLOTS + piece % BOARD_SLOTS) * board->slot_bytes;
}

static inline uint64_t board_read(const struct board_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_acquire);
}

static inline void board_publish(struct board_counter *counter, uint64_t value)
{
    atomic_store_explicit(&counter->value, value, memory_order_release);
}

// ---- what a mate has written --------------------------------------------------------------------
//
// Mates can change a word at any time. So each word is read once, into memory of this rank, and
// this copy is checked and used.

static inline uint32_t board_word(const uint32_t *word)
{
    return *(const volatile uint32_t *)word;
}

static inline uint64_t board_long(const uint64_t *word)
{
    return *(const volatile uint64_t *)word;
}

// Copies a record except its payload and used bits; copies a run for `seats` seats.
void board_take_record(struct board_record *to, const struct board_record *from);
void board_take_run(struct board_run *to, const struct board_run *from, uint32_t seats);

// Returns what is impossible about a copied record or run of any collective; NULL: nothing.
const char *board_check_record(const struct board_record *record, bool shot);
const char *board_check_run(const struct board_run *run, uint32_t seats);

// Describes a block that is not filled yet. Only the block's owner calls this.
void board_describe(struct board_block *block, uint64_t run, uint64_t first, uint64_t count);
// Reads a block description while its owner may go on to the next block. False: the description
// keeps changing. If the block is not filled, and its description is incomplete, then either `run`
// is that of an earlier block, which has been stored, or `first` is that of the block.
bool board_take_block(const struct board_block *from, struct board_place *to);

#endif
