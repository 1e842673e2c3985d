// SPDX-License-Identifier: Apache-2.0
//
// The board: memory that all ranks of one host have mapped, through which their collectives go.
// Here is how it lies in memory, how it is made, checked and mapped. What is done with it is in
// host.c and its neighbours.
//
// It is anonymous, sealed against resizing and allocated before its use: nobody can pull pages away
// under a mate, none can fail later, and nothing is left when its last process has died.
//
// Words. A rank's place on the board is its *seat*. A collective that a rank has launched is
// *joined* with a *record* in its seat. When all seats have joined one, the *leader* (seat 0)
// appends a *run*; all seats execute runs in their order. Large runs are cut into *pieces*,
// numbered over all runs; each seat has a row of *slots*, and piece p goes through slot p modulo
// their count. A small one needs no run: it is a *shot*, a record with its whole payload, and every
// seat that has the shots of all computes the result for itself.
//
// Who writes what: a seat by its rank only, runs by the leader only. Counters are published with
// release and read with acquire; what is in front of them in the program is visible behind them.
// Whatever is read here was written by another process: it is read once, and checked before it is
// an index, an offset or a length.

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
// Records of a seat: whatever a rank may have launched before its mates have.
#define BOARD_RECORDS 576
#define BOARD_QUEUE 1024 // A power of two.
#define BOARD_RUNS 64 // In flight. A power of two.
#define BOARD_TINY_BYTES 1024 // Payloads up to so many ride in records, ...
#define BOARD_SHOT_BYTES (32 * 1024) // ... and those of other shots in blocks of their seat.
#define BOARD_SHOT_BLOCKS 8
#define BOARD_TINY BOARD_SHOT_BLOCKS // Instead of the number of one: the payload is in the record.
#define BOARD_UNIT_WORDS 8 // Used bits of so many words ride in the record and the run.
#define BOARD_WIDE_BLOCKS 16 // Blocks of a seat for the used bits of collectives with more units.
#define BOARD_WIDE_WORDS (LOCKSTEP_MAX_PARAMETERS / 64)
#define BOARD_ROWS 512 // Runs of registered memory in which a collective may lie.
#define BOARD_ROW_BLOCKS 16 // Blocks of a seat for collectives that lie in several rows.
#define BOARD_SLOTS 3
// On one host; two levels have their own. Twice as many for two ranks.
#define BOARD_SLOT_BYTES (256 * 1024)
// Summed at once where memory is registered. It stays in the first cache with the memory of two or
// three ranks: 32 KiB, which does not, takes one and a half times as long
// (docs/internals/data-plane.md).
#define BOARD_BLOCK_BYTES (8 * 1024)
#define BOARD_NEWS 256 // News of regions that were not read yet. A power of two.
#define BOARD_NONE UINT32_MAX
#define BOARD_SHOT_BITS 16
#define BOARD_NOTICES 8 // Notices of a seat: those of its last shots. A power of two.
#define BOARD_NOTICE_WORDS 10 // Words of payload in a notice.

static_assert(BOARD_RECORDS >= LOCKSTEP_EARLY_COLLECTIVES, "all that may be early can be joined");
static_assert(BOARD_QUEUE > BOARD_RECORDS, "what is queued fits");
static_assert(BOARD_ROW_BLOCKS > 2 * LOCKSTEP_WINDOW - 1, "any slot that may be early has a block");
static_assert(BOARD_RECORDS <= 1 << BOARD_SHOT_BITS, "a record's number fits");

// A run of elements in registered memory.
struct board_row {
    uint64_t offset; // Bytes in the region.
    uint64_t elements;
    uint32_t region; // The number that its maker has given it.
};

// Where the inputs and outputs of one rank lie, in the order of the elements.
struct board_memory {
    uint32_t rows; // 0: in private memory, some of them at least.
    uint32_t block; // Of its seat's row blocks, where there are several. Constant until its rank
                    // has done the run: then all have read it.
    struct board_row row; // The one, where there is one.
};

// One collective of one rank. Constant from its join until the rank has seen its run; of a shot
// until all have read it. What the fastest ones need is in its first two lines.
struct board_record {
    _Alignas(BOARD_LINE) struct collective_tag tag;
    uint64_t signature;
    uint64_t shape; // Hash of what decides how it is cut.
    uint64_t weight;
    uint64_t factor; // By which its inputs are to be multiplied; 0: it contributes nothing.
    uint32_t use; // How often the record has been a shot.
    uint32_t payload; // Of a shot: a block of its seat, or BOARD_TINY.
    uint8_t tiny[BOARD_TINY_BYTES];
    uint64_t used[BOARD_UNIT_WORDS];
    uint32_t block; // One of its seat's wide blocks; BOARD_NONE: used bits are here.
    struct board_memory memory;
};
static_assert(offsetof(struct board_record, tiny) == 64, "the payload begins with a line");

enum board_run_kind {
    BOARD_RUN_PIECES = 1, // Through the slots.
    BOARD_RUN_MISMATCH = 2, // The ranks that have a record in it disagree.
    BOARD_RUN_REGISTERED = 3, // In the memory of all ranks itself.
};

struct board_run {
    uint32_t kind; // enum board_run_kind
    uint32_t streams; // BOARD_RUN_PIECES, not 0: slots are filled past the caches.
    uint32_t records[LOCKSTEP_MAX_MATES]; // By seat; BOARD_NONE: it has no part in this run.
    uint32_t one; // BOARD_RUN_MISMATCH: two seats that disagree.
    uint32_t other;
    uint64_t factors[LOCKSTEP_MAX_MATES];
    uint64_t weight; // Sum of all ranks. BOARD_RUN_MISMATCH: the signature of `other`.
    uint64_t used[BOARD_UNIT_WORDS];
    struct board_memory memory[LOCKSTEP_MAX_MATES]; // BOARD_RUN_REGISTERED: by seat.
};

struct board_counter {
    _Alignas(BOARD_LINE) _Atomic uint64_t value;
};

// What a rank says of its shots. Its mates look at one line for it.
struct board_shots {
    // Shots, ever, in front of the record of the last one in BOARD_SHOT_BITS. Who has missed none
    // needs not look into the queue.
    _Alignas(BOARD_LINE) _Atomic uint64_t last;
    _Atomic uint64_t starves; // 1: it waits for a record that all have read.
};

// A shot in one place, for a mate that waits for just this one: the first two words of its payload
// are in the line that it looks at. It is written again after BOARD_NOTICES shots, whether anybody
// has read it or not: so its reader looks at `shot` before and after all else, and keeps to the
// record where that has changed. Constant while `shot` is.
struct board_notice {
    _Alignas(BOARD_LINE) _Atomic uint64_t shot; // As board_shots.last; 0: it is being written.
    _Atomic uint64_t space; // From the tag, whose step is 0.
    _Atomic uint64_t slot_use; // Its slot, and behind it in the upper half the record's use.
    _Atomic uint64_t signature;
    _Atomic uint64_t shape;
    _Atomic uint64_t
        bytes; // Size of the payload. In the upper half: where it is, as in the record.
    _Atomic uint64_t payload[BOARD_NOTICE_WORDS];
};
static_assert(sizeof(struct board_notice) == BOARD_LINE, "a notice is a pair of lines");

// A block of final bytes on its way from its owner's memory to that of all ranks. Whoever finds a
// dead mate between `filled` and `spread` takes it from there for itself.
struct board_block {
    struct board_counter writing; // 1: its rank may be writing to the memory of mates.
    // Blocks, ever: what is described below is final there. 0: it is being described or summed.
    struct board_counter filled;
    struct board_counter spread; // Blocks, ever: they are in the memory of all.
    _Atomic uint64_t run;
    _Atomic uint64_t first; // Elements of the run.
    _Atomic uint64_t count;
};

// A block that is filled, as a mate has read it.
struct board_filled {
    uint64_t run;
    uint64_t first;
    uint64_t count;
};

// Numbers of regions, from one rank to one mate or to all.
struct board_news {
    struct board_counter said; // Ever.
    uint32_t number[BOARD_NEWS];
};

// The final facts of a seat's part of a piece, where ranks of several hosts have met.
struct board_final {
    uint64_t weight; // Sum of all hosts.
    uint64_t used[BOARD_WIDE_WORDS]; // Used bits of the units that the part meets.
};

struct board_seat {
    struct board_counter mapped; // 1: its rank has mapped the board.
    struct board_counter joined; // Records in the queue, ever.
    struct board_shots shots;
    struct board_notice notices[BOARD_NOTICES]; // Shot s in notice s - 1 modulo their count.
    // Pieces, ever: this rank's inputs are in its slot; its part is final in its slot; what it
    // needs of all slots is read.
    struct board_counter copied_in;
    struct board_counter reduced;
    struct board_counter copied_out;
    struct board_counter runs_done;
    struct board_counter stored; // Registered runs, ever: its slice is in the memory of all.
    struct board_counter revoked; // 1: no rank may touch the memory of its rank any more.
    struct board_counter core; // On which it waits, and one; 0: not known.
    struct board_block block;
    struct board_news mapped_of[LOCKSTEP_MAX_MATES]; // By seat: regions of that mate, mapped here.
    struct board_news freed; // Regions of its own.
    struct board_counter freed_heard[LOCKSTEP_MAX_MATES]; // By seat: news of that mate, taken here.
    _Alignas(BOARD_LINE) struct board_final final[BOARD_SLOTS]; // By slot.
    _Alignas(BOARD_LINE) uint32_t queue[BOARD_QUEUE]; // Records, in the order of their join.
    _Alignas(BOARD_LINE) uint32_t shot[BOARD_QUEUE]; // Records that are shots.
    // By seat: the use of each record of that mate that was read here last.
    _Alignas(BOARD_LINE) _Atomic uint32_t read[LOCKSTEP_MAX_MATES][BOARD_RECORDS];
    _Alignas(BOARD_LINE) uint8_t payloads[BOARD_SHOT_BLOCKS][BOARD_SHOT_BYTES];
    _Alignas(BOARD_LINE) uint64_t wide[BOARD_WIDE_BLOCKS][BOARD_WIDE_WORDS];
    _Alignas(BOARD_LINE) struct board_row rows[BOARD_ROW_BLOCKS][BOARD_ROWS];
    _Alignas(BOARD_LINE) struct board_record records[BOARD_RECORDS];
};

enum board_verdict {
    BOARD_OPEN = 0,
    BOARD_STANDS = 1, // All have mapped it.
    BOARD_FALLEN = 2, // Everyone goes without.
};

struct board_head {
    uint64_t magic;
    uint64_t seats;
    uint64_t shot_bytes; // Payloads up to so many are shots. Set by the leader before it is mapped.
    struct board_counter verdict; // enum board_verdict
    struct board_counter runs; // Appended, ever.
    _Alignas(BOARD_LINE) struct board_run run[BOARD_RUNS];
    _Alignas(BOARD_LINE) uint64_t wide[BOARD_RUNS][BOARD_WIDE_WORDS]; // Used bits of a run.
    struct board_seat seat[]; // [seats]; behind them the slots, each seat's in a row.
};

// One mapping of it.
struct board {
    struct board_head *head; // NULL: not mapped.
    uint8_t *slots;
    uint64_t slot_bytes;
    uint64_t bytes;
    uint32_t seats;
};

// slot_bytes: a multiple of a page, the same on all ranks.
uint64_t board_bytes(uint32_t seats, uint64_t slot_bytes);

// Makes and maps one. The descriptor, to be handed to the mates and closed; or -1.
int board_make(struct board *board, uint32_t seats, uint64_t slot_bytes);
// Maps one that the leader made. fd stays the caller's. NULL, or what is wrong with it.
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
// Mates can change a word at any time. So each is read once, into memory of this rank, and what is
// checked there is what is used.

static inline uint32_t board_word(const uint32_t *word)
{
    return *(const volatile uint32_t *)word;
}

static inline uint64_t board_long(const uint64_t *word)
{
    return *(const volatile uint64_t *)word;
}

// All of a record but its payload and used bits; of a run what it says of so many seats.
void board_take_record(struct board_record *to, const struct board_record *from);
void board_take_run(struct board_run *to, const struct board_run *from, uint32_t seats);

// What is impossible about what was taken, whatever it is of; NULL: nothing.
const char *board_check_record(const struct board_record *record, bool shot);
const char *board_check_run(const struct board_run *run, uint32_t seats);

// Describes a block that is not filled yet. Its rank.
void board_describe(struct board_block *block, uint64_t run, uint64_t first, uint64_t count);
// Reads it while its rank may go on to the next one. False: there is none that was not spread, and
// as many blocks as were ever filled are in the memory of all.
bool board_take_block(const struct board_block *from, struct board_filled *to);

#endif
