// SPDX-License-Identifier: Apache-2.0
//
// Makes, seals, checks and maps the memory for the collectives of one host; see board.h. Any
// thread.

#include "worker/transport/host/board.h"

#include "base/memory_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOARD_PAGE 4096

static uint64_t board_slots_offset(uint32_t seats)
{
    const uint64_t end = sizeof(struct board_head) + seats * sizeof(struct board_seat);
    return (end + BOARD_PAGE - 1) / BOARD_PAGE * BOARD_PAGE;
}

uint64_t board_bytes(uint32_t seats, uint64_t slot_bytes)
{
    return board_slots_offset(seats) + seats * BOARD_SLOTS * slot_bytes;
}

static bool board_map_memory(struct board *board, uint32_t seats, uint64_t slot_bytes, int fd)
{
    const uint64_t bytes = board_bytes(seats, slot_bytes);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return false;
    // A forked child takes no part in collectives, and must not keep the memory alive.
    (void)madvise(memory, bytes, MADV_DONTFORK);
    *board = (struct board){.head = memory,
                            .slots = (uint8_t *)memory + board_slots_offset(seats),
                            .slot_bytes = slot_bytes,
                            .bytes = bytes,
                            .seats = seats};
    return true;
}

int board_make(struct board *board, uint32_t seats, uint64_t slot_bytes)
{
    const int fd = memory_file_make("lockstep-board", board_bytes(seats, slot_bytes));
    if (fd < 0)
        return -1;
    if (board_map_memory(board, seats, slot_bytes, fd)) {
        board->head->magic = BOARD_MAGIC;
        board->head->seats = seats;
        return fd;
    }
    (void)close(fd);
    return -1;
}

const char *board_map(struct board *board, uint32_t seats, uint64_t slot_bytes, uint64_t bytes,
                      int fd)
{
    struct stat stat;
    if (!memory_file_is_sealed(fd))
        return "it is not sealed";
    if (bytes != board_bytes(seats, slot_bytes) || fstat(fd, &stat) < 0 ||
        (uint64_t)stat.st_size != bytes)
        return "its size is wrong";
    // Access to a page that is not allocated yet is a bus error if the host has no memory left.
    if ((uint64_t)stat.st_blocks * 512 < bytes)
        return "it has holes";
    if (!board_map_memory(board, seats, slot_bytes, fd))
        return "it cannot be mapped";
    if (board_long(&board->head->magic) == BOARD_MAGIC && board_long(&board->head->seats) == seats)
        return NULL;
    board_unmap(board);
    return "its head is wrong";
}

void board_unmap(struct board *board)
{
    if (board->head)
        (void)munmap(board->head, board->bytes);
    *board = (struct board){.head = NULL};
}

// ---- what a mate has written --------------------------------------------------------------------

static void board_take_memory(struct board_memory *to, const struct board_memory *from)
{
    to->rows = board_word(&from->rows);
    to->sums = board_word(&from->sums);
    to->block = board_word(&from->block);
    to->row.offset = board_long(&from->row.offset);
    to->row.elements = board_long(&from->row.elements);
    to->row.region = board_word(&from->row.region);
}

void board_take_record(struct board_record *to, const struct board_record *from)
{
    to->tag.step = board_long(&from->tag.step);
    to->tag.space = board_long(&from->tag.space);
    to->tag.slot = board_word(&from->tag.slot);
    to->signature = board_long(&from->signature);
    to->shape = board_long(&from->shape);
    to->weight = board_long(&from->weight);
    to->factor = board_long(&from->factor);
    to->use = board_word(&from->use);
    to->payload = board_word(&from->payload);
    to->block = board_word(&from->block);
    board_take_memory(&to->memory, &from->memory);
}

void board_take_run(struct board_run *to, const struct board_run *from, uint32_t seats)
{
    to->kind = board_word(&from->kind);
    to->streams = board_word(&from->streams);
    to->one = board_word(&from->one);
    to->other = board_word(&from->other);
    to->weight = board_long(&from->weight);
    for (uint32_t i = 0; i < BOARD_UNIT_WORDS; i++)
        to->used[i] = board_long(&from->used[i]);
    for (uint32_t i = 0; i < seats; i++) {
        to->records[i] = board_word(&from->records[i]);
        to->factors[i] = board_long(&from->factors[i]);
        board_take_memory(&to->memory[i], &from->memory[i]);
    }
}

static const char *board_check_memory(const struct board_memory *memory)
{
    if (memory->rows > BOARD_ROWS || (memory->rows > 1 && memory->block >= BOARD_ROW_BLOCKS))
        return "sent memory that is not mapped here";
    return NULL;
}

const char *board_check_record(const struct board_record *record, bool shot)
{
    if (shot && record->payload > BOARD_TINY)
        return "sent a shot without a payload";
    if (record->block != BOARD_NONE && record->block >= BOARD_WIDE_BLOCKS)
        return "sent a join with used bits in no block";
    return board_check_memory(&record->memory);
}

static const char *board_check_mismatch(const struct board_run *run, uint32_t seats)
{
    // one BOARD_NONE: another host disagrees, and `other` is a rank of it.
    const bool foreign = run->one == BOARD_NONE && run->other < LOCKSTEP_MAX_WORLD;
    if (foreign || (run->one < seats && run->other < seats && run->one != run->other))
        return NULL;
    return "sent a run of no mate";
}

const char *board_check_run(const struct board_run *run, uint32_t seats)
{
    if (run->kind == BOARD_RUN_MISMATCH)
        return board_check_mismatch(run, seats);
    if (run->kind != BOARD_RUN_PIECES && run->kind != BOARD_RUN_REGISTERED)
        return "sent a run of nothing";
    for (uint32_t i = 0; i < seats; i++) {
        const char *wrong = board_check_memory(&run->memory[i]);
        if (run->records[i] >= BOARD_RECORDS)
            return "sent a run of nothing";
        if (run->kind != BOARD_RUN_REGISTERED)
            continue;
        if (wrong)
            return wrong;
        if (run->memory[i].rows == 0)
            return "sent a run of memory that is private";
    }
    return NULL;
}

// ---- a block that is on its way -----------------------------------------------------------------
//
// A sequence lock: `filled` is 0 while the words after it change. Each word is stored with release,
// so none is visible before that 0; and loaded with acquire, so a reader that has read a word of
// the next block sees that `filled` has changed. `run` is stored last and loaded first: the owner
// may die in between, and then its last block is of an earlier run, which has been stored.

// After memory is revoked a correct rank begins only a few more blocks.
#define BOARD_BLOCK_TRIES 64

void board_describe(struct board_block *block, uint64_t run, uint64_t first, uint64_t count)
{
    atomic_store_explicit(&block->filled.value, 0, memory_order_relaxed);
    atomic_store_explicit(&block->first, first, memory_order_release);
    atomic_store_explicit(&block->count, count, memory_order_release);
    atomic_store_explicit(&block->run, run, memory_order_release);
}

bool board_take_block(const struct board_block *from, struct board_place *to)
{
    for (uint32_t i = 0; i < BOARD_BLOCK_TRIES; i++) {
        const uint64_t filled = board_read(&from->filled);
        to->filled = filled != 0;
        to->spread = filled != 0 && filled == board_read(&from->spread);
        to->run = atomic_load_explicit(&from->run, memory_order_acquire);
        to->first = atomic_load_explicit(&from->first, memory_order_acquire);
        to->count = atomic_load_explicit(&from->count, memory_order_acquire);
        if (atomic_load_explicit(&from->filled.value, memory_order_relaxed) == filled)
            return true;
    }
    return false;
}
