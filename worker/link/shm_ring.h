// SPDX-License-Identifier: Apache-2.0
//
// A pipe of bytes between two processes in memory that both have mapped: one writer, one reader, a
// ring of SHM_RING_BYTES, and two counts that only grow. It knows no descriptors, and no thread
// sleeps in it: shm.c does both.
//
// A side does not trust what the other process writes. Each side keeps its own count and the last
// count of the other side in private memory. A count of the other side that goes back, or that says
// that more is in the ring than fits, is impossible. So copies stay inside the ring whatever the
// other process does. The bytes themselves may change while they are copied; stream.c decodes its
// own copy of them.
//
// Memory order: the writer copies bytes, then publishes `written` with release; the reader loads it
// with acquire, then copies. The reader copies out, then publishes `read` with release; the writer
// loads it with acquire, then overwrites.
//
// Thread: each end has its owner; the two ends need not share a process.

#ifndef WORKER_LINK_SHM_RING_H
#define WORKER_LINK_SHM_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A power of two. Larger than the private caches of a core: bytes that have moved to the shared
// cache are read two to three times as fast as bytes that another core still has.
#define SHM_RING_BYTES (1024 * 1024)
// Bytes that are copied before the other side is told, which works on one piece while this side
// copies the next.
#define SHM_PIECE_BYTES (64 * 1024)
// A writer that found no room goes on when this much is free. That makes copies fewer and longer,
// and wake-ups fewer.
#define SHM_ROOM_BYTES (SHM_RING_BYTES / 4)
// Two lines: the hardware fetches them in pairs.
#define SHM_LINE_BYTES 128

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
              "atomics between processes have no lock");

enum shm_end {
    SHM_OPEN = 0,
    SHM_SHUT = 1, // Nothing more is written.
    SHM_RESET = 2, // The writer broke the connection.
};

enum shm_asleep {
    SHM_AWAKE = 0,
    SHM_ASLEEP = 1, // Sleeps until there are bytes, an end or a change in memory.
    SHM_ASLEEP_FULL = 2, // Sleeps until there is any of these, or room.
};

// One direction. Neither process trusts what the other one wrote.
struct shm_direction {
    // written by the writer
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t written; // Bytes written so far.
    _Atomic uint32_t end; // enum shm_end
    // written by the reader
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t read; // Bytes read so far.
};

// What one side tells the other besides bytes.
struct shm_side {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t
        asleep; // enum shm_asleep; the side that wakes this one clears it.
    _Alignas(
        SHM_LINE_BYTES) _Atomic uint64_t passed; // Descriptors that this side has passed so far.
    _Atomic uint64_t taken; // Descriptors of the other side that this side has taken so far.
};

// The memory of a link. Index 0 belongs to the side that made the memory: the direction that it
// writes, and what it tells.
struct shm_memory {
    struct shm_direction directions[2];
    struct shm_side sides[2];
    _Alignas(4096) uint8_t bytes[2][SHM_RING_BYTES];
};

// The writer's end, in private memory.
struct shm_writer {
    struct shm_direction *shared;
    uint8_t *bytes;
    uint64_t written;
    uint64_t published; // The part of `written` that the reader was told.
    uint64_t read; // The reader's count, as last seen.
    bool impossible; // True once the other side's count was impossible: it is not read again.
};

// The reader's end, in private memory.
struct shm_reader {
    struct shm_direction *shared;
    const uint8_t *bytes;
    uint64_t read;
    uint64_t published;
    uint64_t written; // The writer's count, as last seen.
    bool impossible; // True once the other side's count was impossible: it is not read again.
};

void shm_ring_writer_init(struct shm_writer *writer, struct shm_memory *memory, int index);
void shm_ring_reader_init(struct shm_reader *reader, struct shm_memory *memory, int index);

// Copies in what fits, without telling the reader. False: the reader's count is impossible.
bool shm_ring_put(struct shm_writer *writer, const uint8_t *bytes, size_t size, size_t *done);
void shm_ring_publish_written(struct shm_writer *writer);
// Reads how much room there is. False: the reader's count is impossible.
bool shm_ring_look_room(struct shm_writer *writer, size_t *room);

// Copies out what is there, without telling the writer. False: the writer's count is impossible;
// bytes that were seen before are still copied out.
bool shm_ring_get(struct shm_reader *reader, uint8_t *bytes, size_t size, size_t *done);
void shm_ring_publish_read(struct shm_reader *reader);
// Reads how many bytes there are. False: the writer's count is impossible.
bool shm_ring_look_bytes(struct shm_reader *reader, size_t *available);

#endif
