// SPDX-License-Identifier: Apache-2.0
//
// The ring of bytes between two processes; shm_ring.h also explains the memory order. Each end has
// one owner thread.

#include "worker/link/shm_ring.h"

#include <string.h>

void shm_ring_writer_init(struct shm_writer *writer, struct shm_memory *memory, int index)
{
    *writer =
        (struct shm_writer){.shared = &memory->directions[index], .bytes = memory->bytes[index]};
}

void shm_ring_reader_init(struct shm_reader *reader, struct shm_memory *memory, int index)
{
    *reader =
        (struct shm_reader){.shared = &memory->directions[index], .bytes = memory->bytes[index]};
}

// Returns the part of `size` bytes that lies before the end of the ring.
static size_t shm_before_end(uint64_t at, size_t size)
{
    const size_t rest = SHM_RING_BYTES - (size_t)(at % SHM_RING_BYTES);
    return size < rest ? size : rest;
}

// ---- the writer ---------------------------------------------------------------------------------

bool shm_ring_look_room(struct shm_writer *writer, size_t *room)
{
    // Loaded once: a second load could return another value than the one that was checked.
    const uint64_t read = atomic_load_explicit(&writer->shared->read, memory_order_acquire);
    *room = 0;
    if (read < writer->read || read > writer->published)
        writer->impossible = true;
    if (writer->impossible)
        return false;
    writer->read = read;
    *room = (size_t)(SHM_RING_BYTES - (writer->written - read));
    return true;
}

bool shm_ring_put(struct shm_writer *writer, const uint8_t *bytes, size_t size, size_t *done)
{
    size_t room = (size_t)(SHM_RING_BYTES - (writer->written - writer->read));
    *done = 0;
    if (room < size && !shm_ring_look_room(writer, &room))
        return false;
    if (size > room)
        size = room;
    const size_t first = shm_before_end(writer->written, size);
    memcpy(writer->bytes + writer->written % SHM_RING_BYTES, bytes, first);
    memcpy(writer->bytes, bytes + first, size - first);
    writer->written += size;
    *done = size;
    return true;
}

void shm_ring_publish_written(struct shm_writer *writer)
{
    if (writer->published == writer->written)
        return;
    writer->published = writer->written;
    atomic_store_explicit(&writer->shared->written, writer->written, memory_order_release);
}

// ---- the reader ---------------------------------------------------------------------------------

bool shm_ring_look_bytes(struct shm_reader *reader, size_t *available)
{
    const uint64_t written = atomic_load_explicit(&reader->shared->written, memory_order_acquire);
    *available = (size_t)(reader->written - reader->read);
    // The writer learns of room only from the published count, so the check uses that count.
    if (written < reader->written || written - reader->published > SHM_RING_BYTES)
        reader->impossible = true;
    if (reader->impossible)
        return false;
    reader->written = written;
    *available = (size_t)(written - reader->read);
    return true;
}

bool shm_ring_get(struct shm_reader *reader, uint8_t *bytes, size_t size, size_t *done)
{
    size_t available = (size_t)(reader->written - reader->read);
    bool possible = true;
    if (available < size)
        possible = shm_ring_look_bytes(reader, &available);
    if (size > available)
        size = available;
    const size_t first = shm_before_end(reader->read, size);
    memcpy(bytes, reader->bytes + reader->read % SHM_RING_BYTES, first);
    memcpy(bytes + first, reader->bytes, size - first);
    reader->read += size;
    *done = size;
    return possible || size > 0;
}

void shm_ring_publish_read(struct shm_reader *reader)
{
    if (reader->published == reader->read)
        return;
    reader->published = reader->read;
    atomic_store_explicit(&reader->shared->read, reader->read, memory_order_release);
}
