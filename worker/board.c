// SPDX-License-Identifier: Apache-2.0
//
// Memory for the collectives of one host: made, sealed, checked, mapped; see board.h. Any thread.

#include "worker/board.h"

#include "base/file_limit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOARD_PAGE 4096
#define BOARD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

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
    // A forked child has no part in it, and must not keep it alive.
    (void)madvise(memory, bytes, MADV_DONTFORK);
    *board = (struct board){.head = memory,
                            .slots = (uint8_t *)memory + board_slots_offset(seats),
                            .slot_bytes = slot_bytes,
                            .bytes = bytes,
                            .seats = seats};
    return true;
}

static bool board_fill(int fd, uint64_t bytes)
{
    struct file_limit limit;
    file_limit_begin(&limit);
    const bool filled = ftruncate(fd, (off_t)bytes) == 0 && fallocate(fd, 0, 0, (off_t)bytes) == 0;
    file_limit_end(&limit);
    return filled;
}

int board_make(struct board *board, uint32_t seats, uint64_t slot_bytes)
{
    const uint64_t bytes = board_bytes(seats, slot_bytes);
    const int fd = memfd_create("lockstep-board", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (board_fill(fd, bytes) && fcntl(fd, F_ADD_SEALS, BOARD_SEALS) == 0 &&
        board_map_memory(board, seats, slot_bytes, fd)) {
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
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & BOARD_SEALS) != BOARD_SEALS)
        return "it is not sealed";
    if (bytes != board_bytes(seats, slot_bytes) || fstat(fd, &stat) < 0 ||
        (uint64_t)stat.st_size != bytes)
        return "its size is wrong";
    if (!board_map_memory(board, seats, slot_bytes, fd))
        return "it cannot be mapped";
    if (board->head->magic == BOARD_MAGIC && board->head->seats == seats)
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
