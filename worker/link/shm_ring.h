// SPDX-License-Identifier: Apache-2.0
//
// A pipe of bytes between two processes, in memory that both have mapped: one writer, one reader, a
// ring of SHM_RING_BYTES, and two counts that only grow. The ring passes no descriptors and blocks
// no thread; shm.c does both.
//
// A side does not trust what the other process writes. Each side keeps its own count and the last
// count of the other side in private memory. The other side's count is impossible if it goes back,
// or if it would mean more bytes in the ring than fit. So copies stay inside the ring, whatever the
// other process does. The bytes themselves may change during a copy; stream.c decodes its own copy
// of them.
//
// Memory order: the writer copies bytes in, then publishes `written` with release; the reader loads
// `written` with acquire, then copies the bytes out. The reader publishes `read` with release after
// that copy; the writer loads `read` with acquire, then overwrites the bytes.
//
// Thread: each end has one owner thread; the two ends may be in different processes.

#ifndef WORKER_LINK_SHM_RING_H
#define WORKER_LINK_SHM_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A power of two. The ring is larger than the private caches of a core: bytes that have moved to
// the shared cache are read two to three times as fast as bytes in another core's private cache.
#define SHM_RING_BYTES (1024 * 1024)
// Bytes that a side copies before it tells the other side. The other side works on one piece while
// this side copies the next piece.
#define SHM_PIECE_BYTES (64 * 1024)
// A writer that found no room goes on when this many bytes are free. That makes copies fewer and
// longer, and wake-ups fewer.
#define SHM_ROOM_BYTES (SHM_RING_BYTES / 4)
// Two cache lines, because the hardware fetches lines in pairs.
#define SHM_LINE_BYTES 128

static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
              "atomics between processes have no lock");

enum shm_end {
    SHM_OPEN = 0,
    SHM_SHUT = 1, // The writer writes no more bytes.
    SHM_RESET = 2, // The writer broke the connection.
};

enum shm_asleep {
    SHM_AWAKE = 0,
    SHM_ASLEEP = 1, // The side sleeps until there are bytes, an end, or another change in memory.
    SHM_ASLEEP_FULL = 2, // The side sleeps until any of these, or until there is room to write.
};

// One direction of a link. Neither process trusts what the other process writes here.
struct shm_direction {
    // written by the writer
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t written; // Bytes written so far.
    _Atomic uint32_t end; // enum shm_end
    // written by the reader
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t read; // Bytes read so far.
};

// What one side tells the other side besides bytes.
struct shm_side {
    // enum shm_asleep; the other side clears it when it wakes this side.
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t asleep;
    _Alignas(
        SHM_LINE_BYTES) _Atomic uint64_t passed; // Descriptors that this side has passed so far.
    _Atomic uint64_t taken; // Descriptors of the other side that this side has taken so far.
    // Where a copy of `probe` lies in this side's process, for shm_pull.c; 0: nowhere. Set before
    // the first byte is written.
    _Alignas(SHM_LINE_BYTES) _Atomic uint64_t probe_address;
    _Atomic uint64_t probe; // A random number.
};

// The memory of a link. Index 0 belongs to the side that made the memory: the direction that it
// writes, and its own struct shm_side. Index 1 belongs to the other side.
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
    uint64_t published; // The part of `written` that the reader can see.
    uint64_t read; // The reader's count, as last loaded and checked.
    // True once the reader's count was impossible; later values of the count are ignored.
    bool impossible;
};

// The reader's end, in private memory.
struct shm_reader {
    struct shm_direction *shared;
    const uint8_t *bytes;
    uint64_t read;
    uint64_t published;
    uint64_t written; // The writer's count, as last loaded and checked.
    // True once the writer's count was impossible; later values of the count are ignored.
    bool impossible;
};

void shm_ring_writer_init(struct shm_writer *writer, struct shm_memory *memory, int index);
void shm_ring_reader_init(struct shm_reader *reader, struct shm_memory *memory, int index);

// Copies in as many bytes as fit, and does not tell the reader. Returns false if the reader's count
// is impossible.
bool shm_ring_put(struct shm_writer *writer, const uint8_t *bytes, size_t size, size_t *done);
void shm_ring_publish_written(struct shm_writer *writer);
// Sets *room to the free bytes. Returns false if the reader's count is impossible.
bool shm_ring_look_room(struct shm_writer *writer, size_t *room);

// Copies out the bytes that are there, and does not tell the writer. Returns false if the writer's
// count is impossible and nothing was copied; bytes that were checked before are still copied out.
bool shm_ring_get(struct shm_reader *reader, uint8_t *bytes, size_t size, size_t *done);
void shm_ring_publish_read(struct shm_reader *reader);
// Sets *available to the bytes in the ring. Returns false if the writer's count is impossible.
bool shm_ring_look_bytes(struct shm_reader *reader, size_t *available);

#endif
