// SPDX-License-Identifier: Apache-2.0
// Words of the shared board, which a mate has written. A word that passes its check is an index, an
// offset or a count within bounds.
//
// The input: the number of seats, a record, a run, a block and rows, as they are in memory.

#include "tests/fuzz/fuzz.h"
#include "worker/transport/host/board.h"
#include "worker/transport/host/rows.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGION_BYTES 65536
#define ELEMENTS 1000
#define ROWS 8

static uint8_t records[BOARD_RECORDS];
static uint8_t row_blocks[BOARD_ROW_BLOCKS];
static uint8_t wide_blocks[BOARD_WIDE_BLOCKS];
static uint8_t payloads[BOARD_TINY + 1];

static struct regions *regions_with_one(void)
{
    static struct regions *regions;
    if (regions)
        return regions;
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    regions = regions_open();
    FUZZ_CHECK(fd >= 0 && regions && ftruncate(fd, REGION_BYTES) == 0 &&
               fallocate(fd, 0, 0, REGION_BYTES) == 0 &&
               fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    regions_begin(regions, 0, 2);
    FUZZ_CHECK(!regions_map(regions, 1, 1, REGION_BYTES, fd));
    return regions;
}

static void use_memory(const struct board_memory *memory)
{
    FUZZ_CHECK(memory->rows <= BOARD_ROWS);
    if (memory->rows > 1)
        row_blocks[memory->block]++;
}

static void use_record(const struct board_record *from)
{
    struct board_record record;
    board_take_record(&record, from);
    if (board_check_record(&record, false))
        return;
    if (record.block != BOARD_NONE)
        wide_blocks[record.block]++;
    use_memory(&record.memory);
    if (!board_check_record(&record, true))
        payloads[record.payload]++;
}

static void use_run(const struct board_run *from, uint32_t seats)
{
    static uint8_t by_seat[LOCKSTEP_MAX_MATES];
    struct board_run run;
    board_take_run(&run, from, seats);
    if (board_check_run(&run, seats))
        return;
    if (run.kind == BOARD_RUN_MISMATCH) {
        if (run.one == BOARD_NONE)
            FUZZ_CHECK(run.other < LOCKSTEP_MAX_WORLD);
        else
            FUZZ_CHECK(run.one < seats && run.other < seats);
        return;
    }
    for (uint32_t i = 0; i < seats; i++) {
        records[run.records[i]]++;
        by_seat[i]++;
        if (run.kind == BOARD_RUN_REGISTERED)
            use_memory(&run.memory[i]);
    }
}

// Checks that rows which were accepted lie in mapped memory, with a place for each element.
static void use_rows(const struct board_row *said, uint32_t count)
{
    struct row list[ROWS] = {{NULL, 0}};
    struct rows found = {.count = count, .list = list};
    if (!rows_read(regions_with_one(), 1, said, count, ELEMENTS, sizeof(float), list))
        return;
    found.only = list[0];
    for (uint64_t at = 0, left = 0; at < ELEMENTS; at += left) {
        volatile float *memory = (float *)(void *)rows_at(&found, at, sizeof(float), &left);
        FUZZ_CHECK(left > 0 && left <= ELEMENTS - at);
        memory[0] = memory[left - 1];
    }
}

// Checks that an accepted block is the one that was described.
static void use_block(const struct board_block *block)
{
    struct board_place filled;
    if (!board_take_block(block, &filled) || !filled.filled || filled.spread)
        return;
    FUZZ_CHECK(board_read(&block->filled) != 0 && filled.run == block->run &&
               filled.first == block->first && filled.count == block->count);
}

// Copies the next bytes of the input to `to`, and zeros behind the end of the input.
static void take(const uint8_t **bytes, size_t *size, void *to, size_t most)
{
    const size_t count = *size < most ? *size : most;
    memcpy(to, *bytes, count);
    *bytes += count;
    *size -= count;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct board_record record;
    static struct board_run run;
    static struct board_block block;
    static struct board_row rows[ROWS];
    uint8_t seats = 0;
    memset(&record, 0, sizeof(record));
    memset(&run, 0, sizeof(run));
    memset(&block, 0, sizeof(block));
    memset(rows, 0, sizeof(rows));
    take(&bytes, &size, &seats, 1);
    take(&bytes, &size, &record, offsetof(struct board_record, tiny));
    take(&bytes, &size, &record.block, sizeof(record) - offsetof(struct board_record, block));
    take(&bytes, &size, &run, sizeof(run));
    take(&bytes, &size, &block, sizeof(block));
    take(&bytes, &size, rows, sizeof(rows));
    use_record(&record);
    use_run(&run, 1 + seats % LOCKSTEP_MAX_MATES);
    use_block(&block);
    use_rows(rows, 1 + seats / LOCKSTEP_MAX_MATES % ROWS);
    return 0;
}
