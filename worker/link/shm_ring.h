// SPDX-License-Identifier: Apache-2.0
//
// A pipe of bytes between two processes in memory that both have mapped: one writer, one reader, a
// ring of SHM_RING_BYTES, and two counts that only grow. It knows no descriptors and nobody sleeps
// in it: shm.c does both.
//
// What the other process wrote is not believed. Each side keeps its own count and the other's last
// one in private memory; a count of the other side that goes back, or says that more is in the ring
// than fits, is impossible. So whatever the other process does, copies stay inside the ring. The
// bytes themselves may change while they are copied: what reads them afterwards (stream.c) decodes
// its own copy.
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

// A power of two. Larger than what a core keeps to itself: bytes that have gone on to the cache
// that cores share are read two to three times as fast as those another core still has.
#define SHM_RING_BYTES (1024 * 1024)
// So much is copied before the other side is told: it works on one piece while the next is copied.
#define SHM_PIECE_BYTES (64 * 1024)
// A writer that found no room goes on when so much is free: fewer, longer copies, fewer wake-ups.
#define SHM_ROOM_BYTES (SHM_RING_BYTES / 4)
// Two lines: the hardware fetches them in pairs.
#define SHM_LINE_BYTES 128

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
              "atomics between processes have no lock");

enum shm_end {
    SHM_OPEN = 0,
    SHM_SHUT = 1, // No more is written.
    SHM_RESET = 2, // The writer broke the connection.
};

enum shm_asleep {
    SHM_AWAKE = 0,
    SHM_ASLEEP = 1, // Wants to be told of bytes, ends and changes in memory.
    SHM_ASLEEP_FULL = 2, // And of room.
};

// One direction. Of whichever process: never trusted by the other.
struct shm_direction {
    // written by the writer
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t written; // Bytes so far.
    _Atomic uint32_t end; // enum shm_end
    // written by the reader
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t read; // Bytes so far.
};

// What one side says to the other besides.
struct shm_side {
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t asleep; // enum shm_asleep; cleared by who wakes it.
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t passed; // Descriptors it has passed so far.
    _Atomic uint64_t taken; // Descriptors of the other side it has taken.
};

// The memory of a link. Index 0: of the side that made it, what it writes and what it says.
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
    uint64_t published; // Of them, the reader knows.
    uint64_t read; // The reader's count, as last seen.
    bool impossible; // It was, once: nothing more is believed.
};

// The reader's end, in private memory.
struct shm_reader {
    struct shm_direction *shared;
    const uint8_t *bytes;
    uint64_t read;
    uint64_t published;
    uint64_t written; // The writer's count, as last seen.
    bool impossible; // It was, once: nothing more is believed.
};

void shm_ring_writer_init(struct shm_writer *writer, struct shm_memory *memory, int index);
void shm_ring_reader_init(struct shm_reader *reader, struct shm_memory *memory, int index);

// Copies in what fits, without telling the reader. False: the reader's count is impossible.
bool shm_ring_put(struct shm_writer *writer, const uint8_t *bytes, size_t size, size_t *done);
void shm_ring_publish_written(struct shm_writer *writer);
// Looks how much room there is. False: impossible.
bool shm_ring_look_room(struct shm_writer *writer, size_t *room);

// Copies out what is there, without telling the writer. False: the writer's count is impossible;
// what had been seen before is still given out.
bool shm_ring_get(struct shm_reader *reader, uint8_t *bytes, size_t size, size_t *done);
void shm_ring_publish_read(struct shm_reader *reader);
// Looks how much there is. False: impossible.
bool shm_ring_look_bytes(struct shm_reader *reader, size_t *available);

#endif
