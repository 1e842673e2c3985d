// SPDX-License-Identifier: Apache-2.0
//
// The board by itself: what is made can be mapped twice and is one memory; what is not a board is
// refused; nothing is left behind.

#include "worker/transport/host/board.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// Lines of /proc/self/maps that name a board.
static uint32_t mapped_boards(void)
{
    char line[512];
    uint32_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "lockstep-board") != NULL;
    (void)fclose(maps);
    return count;
}

static uint32_t open_descriptors(void)
{
    uint32_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    (void)closedir(directory);
    return count;
}

static void test_two_mappings_are_one_memory(void **state)
{
    (void)state;
    const uint32_t descriptors = open_descriptors();
    for (uint32_t seats = 2; seats <= LOCKSTEP_MAX_MATES; seats += 7) {
        struct board leader;
        struct board mate;
        const int fd = board_make(&leader, seats, BOARD_SLOT_BYTES);
        assert_true(fd >= 0);
        assert_null(
            board_map(&mate, seats, BOARD_SLOT_BYTES, board_bytes(seats, BOARD_SLOT_BYTES), fd));
        (void)close(fd);
        assert_ptr_not_equal(leader.head, mate.head);
        board_publish(&leader.head->seat[seats - 1].copied_in, 77);
        assert_int_equal(board_read(&mate.head->seat[seats - 1].copied_in), 77);
        uint8_t *last = board_slot(&leader, seats - 1, BOARD_SLOTS - 1) + BOARD_SLOT_BYTES - 1;
        *last = 0x5a;
        assert_int_equal(board_slot(&mate, seats - 1, BOARD_SLOTS - 1)[BOARD_SLOT_BYTES - 1], 0x5a);
        // The last slot ends where the board does.
        assert_ptr_equal(last + 1, (uint8_t *)leader.head + leader.bytes);
        assert_int_equal(mapped_boards(), 2);
        board_unmap(&leader);
        board_unmap(&mate);
    }
    assert_int_equal(mapped_boards(), 0);
    assert_int_equal(open_descriptors(), descriptors);
}

// Cache lines of different writers, and slots, do not meet.
static void layout_with(uint64_t slot_bytes)
{
    struct board board;
    const int fd = board_make(&board, 3, slot_bytes);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal((uintptr_t)&board.head->seat[1] % BOARD_LINE, 0);
    assert_int_equal((uintptr_t)board.slots % 4096, 0);
    assert_true((uint8_t *)&board.head->seat[3] <= board.slots);
    for (uint32_t seat = 0; seat < 3; seat++) {
        for (uint64_t piece = 0; piece < BOARD_SLOTS; piece++) {
            assert_ptr_equal(board_slot(&board, seat, piece),
                             board.slots + (seat * BOARD_SLOTS + piece) * slot_bytes);
            assert_ptr_equal(board_slot(&board, seat, piece),
                             board_slot(&board, seat, piece + 5 * BOARD_SLOTS));
        }
    }
    assert_ptr_equal(board_slot(&board, 2, BOARD_SLOTS - 1) + slot_bytes,
                     (uint8_t *)board.head + board.bytes);
    board_unmap(&board);
}

static void test_layout(void **state)
{
    (void)state;
    layout_with(BOARD_SLOT_BYTES);
    layout_with(3 * BOARD_SLOT_BYTES);
}

static int memory_of(uint64_t bytes, int seals)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int whole_memory_of(uint64_t bytes, int seals)
{
    const int fd = memory_of(bytes, seals);
    assert_int_equal(fallocate(fd, 0, 0, (off_t)bytes), 0);
    return fd;
}

static int memory_with_a_hole(uint64_t bytes, int seals)
{
    const int fd = whole_memory_of(bytes, seals);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096), 0);
    return fd;
}

static void refused(uint32_t seats, uint64_t bytes, int fd, const char *text)
{
    struct board board = {.head = NULL};
    assert_string_equal(board_map(&board, seats, BOARD_SLOT_BYTES, bytes, fd), text);
    assert_null(board.head);
    (void)close(fd);
}

static void test_what_is_no_board(void **state)
{
    (void)state;
    const uint64_t bytes = board_bytes(2, BOARD_SLOT_BYTES);
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const uint32_t descriptors = open_descriptors();
    refused(2, bytes, memory_of(bytes, 0), "it is not sealed");
    refused(2, bytes, memory_of(bytes, F_SEAL_SHRINK), "it is not sealed");
    refused(2, bytes, open("/dev/zero", O_RDWR | O_CLOEXEC), "it is not sealed");
    refused(2, bytes, memory_of(4096, seals), "its size is wrong");
    refused(2, 4096, memory_of(4096, seals), "its size is wrong");
    refused(3, bytes, memory_of(bytes, seals), "its size is wrong");
    refused(2, bytes, memory_of(bytes, seals), "it has holes");
    refused(2, bytes, memory_with_a_hole(bytes, seals), "it has holes");
    refused(2, bytes, whole_memory_of(bytes, seals), "its head is wrong");
    assert_int_equal(mapped_boards(), 0);
    assert_int_equal(open_descriptors(), descriptors);
}

// The size of a board cannot be changed, and a forked child does not inherit the mapping.
static void test_it_stays(void **state)
{
    (void)state;
    struct board board;
    const int fd = board_make(&board, 2, BOARD_SLOT_BYTES);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 4096), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, (off_t)board.bytes + 4096), -1);
    (void)close(fd);
    const pid_t child = fork();
    if (child == 0)
        _exit(mapped_boards() == 0 ? 0 : 1);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    board_unmap(&board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_mappings_are_one_memory),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_what_is_no_board),
        cmocka_unit_test(test_it_stays),
    };
    return cmocka_run_group_tests_name("board", tests, NULL, NULL);
}
