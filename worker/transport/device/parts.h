// SPDX-License-Identifier: Apache-2.0
//
// What the files of this wing share: the state of collectives on this rank's devices. The README of
// the wing says what each file does. The driver's thread, between device_enter and device_leave.

#ifndef WORKER_TRANSPORT_DEVICE_PARTS_H
#define WORKER_TRANSPORT_DEVICE_PARTS_H

#include "worker/device/communicator.h"
#include "worker/device/device.h"
#include "worker/device/kernels.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/flow/flows.h"

#define CACHED_TABLES 512 // Tables that are kept; a power of two.
#define DEVICE_REVOKED_WORDS 512
#define DEVICE_SEGMENTS 16 // Most segments of a row.

enum device_stage {
    STAGE_WAITING, // It waits for its turn with NCCL, or for memory.
    STAGE_TAKING, // NCCL takes it.
    STAGE_COLLECTING, // Its input, or NCCL's sum, is on the way to the host.
    STAGE_TRAVELLING, // A collective of the hosts carries it; some of it may still be on its way to
                      // the host, and some on its way back already.
    STAGE_HELD, // Its result is on the host or with NCCL, and may not be written yet.
    STAGE_OFFLOADING, // Its result is on the way to the host: others need its device memory.
    STAGE_OFFLOADED, // Its result is on the host, and it has no device memory.
    STAGE_DELIVERING, // All of its work on the device is enqueued.
    STAGE_DONE,
};

// The tables of a collective as kernels read them. They are kept, and the same ones serve the next
// collective of the same extents: in a steady state nothing is copied.
struct cached_table {
    const void *key; // The collective's array of extents. NULL: this entry is free.
    struct device *device; // The device that reads it.
    uint32_t holders; // Number of flows that use it.
    uint32_t count; // Number of pieces.
    uint64_t elements;
    size_t bytes; // Size of the table.
    struct device_block *host; // What `table` is copied from: pieces, then tiles.
    struct device_block *table;
    bool stale; // True until it is copied to the device.
};

// What one replica of a flow takes.
struct device_part {
    struct device *device; // NULL: there is no such replica.
    struct cached_table *cached; // The table of its gradients.
    // For a device other than the first:
    struct device_block *row; // Its contribution, and later the result.
    struct device_block *words; // What kernels are told of the result.
};

// Events behind the segments of a row, but for the last one: there it is the flow's.
struct segment_marks {
    struct list turn; // In struct devices, or in none while a flow has them.
    void *events[DEVICE_SEGMENTS - 1];
};

// A collective whose memory is on this device.
struct device_flow {
    struct list turn; // In one of the lists of struct devices.
    struct collective *collective;
    enum device_way way;
    enum device_stage stage;
    bool untold; // True if it is enqueued and enqueued() was not reported.
    bool awaits; // True if it was forgotten before a stream of the trainer had made its input.
    bool summed; // True once no other rank has anything to do for it.
    bool summed_untold; // True if it is summed and summed() was not reported.
    void *event; // Recorded behind the work that was enqueued last.
    struct cached_table *cached; // NULL: no kernel is needed.
    struct device_block *packed; // The row as it travels, on the device. NULL: not needed.
    struct device_block *pinned; // STAGED, MIXED: the row on the host.
    struct device_block *note; // What kernels are told, and what comes back. Pinned.
    struct device_block *words; // NCCL, MIXED: the note, on the device.
    struct device_room *borrowed; // Owner of some of these blocks. NULL: none.
    uint64_t shelf_at; // OFFLOADED: its place on the shelf.
    // Replicas
    struct device_part parts[LOCKSTEP_MAX_REPLICAS]; // The first one's table is the flow's.
    struct device_block *landing; // One replica's contribution, on the first device.
    // NCCL, MIXED: the sum of what they contribute, and where it is packed, its table.
    struct device_block *sum;
    struct extent sum_extent;
    struct cached_table *sum_table;
    // STAGED, MIXED
    struct ring_span share; // The part of the row that this rank brings to the hosts; STAGED: all.
    struct collective host; // The collective that the hosts run.
    struct extent *extents; // [extent_room]: memory of that collective.
    uint32_t extent_room;
    // STAGED, MIXED, by segments
    struct segment_marks *marks; // NULL: there is one segment, or all have landed.
    uint32_t segment_count; // Segments that go to the host. 0: nothing goes there.
    uint32_t segments_landed;
    uint64_t landed; // Elements of the row, from the first, that the hosts may use.
    bool returns; // True if final elements may go back while the rest travels.
    uint64_t returned; // Elements of the row, from the first, whose way back is enqueued.
};

// Blocks outside of all pools, so that a flow that needs them never waits for others in flight.
struct device_room {
    struct device_block *packed;
    struct device_block *pinned;
    struct device_block *note;
    struct device_block *words;
    bool lent; // True while a flow has them. One flow at a time.
};

enum devices_stage {
    DEVICES_IDLE, // No communicator is needed, or it is not known yet how to meet.
    DEVICES_JOINING, // The communicator forms.
    DEVICES_FORMED,
    DEVICES_FAILED,
};

struct devices {
    struct flows *flows;
    // set at transport_open, then constant
    struct device *device; // The first of this rank's devices.
    struct device *all[LOCKSTEP_MAX_OWN_DEVICES]; // All of them, beginning with that one.
    uint32_t device_count;
    uint64_t abort_ms;
    uint64_t segment_bytes; // 0: the default of segments.c.
    // driver only
    enum devices_stage stage;
    char text[COMMUNICATOR_TEXT_BYTES]; // Reason of DEVICES_FAILED, and of `failed`.
    bool failed; // True once a device or NCCL has failed: nothing launched completes.
    bool failure_reported;
    struct communicator *communicator;
    struct device_block *revoked; // Pinned words; the generation's is not 0 when it was given up.
    uint32_t generation; // Generations formed here; says which word of `revoked` is this one's.
    uint64_t left_ms; // When NCCL was first awaited although a peer had left. 0: not so.
    struct list working; // Launched; those of NCCL in the order of their launch.
    struct list done; // Complete, to be reported.
    struct list left; // Forgotten; the device may still do what was enqueued.
    struct list idle; // Flows with an event and without a collective.
    uint64_t flow_count;
    struct list marks; // Marks that no flow has.
    // Results that are offloaded to memory of the host until the trainer asks for them.
    uint8_t *shelf; // [shelf_bytes]
    uint64_t shelf_bytes;
    uint64_t shelf_end; // Where the next result goes.
    uint32_t shelf_count; // Results on the shelf.
    struct device_room way_out; // Its pinned row only.
    struct device_room way_back;
    struct cached_table cached_tables[CACHED_TABLES];
    struct device_piece *pieces; // [piece_room]: of the collective that is being launched.
    uint32_t piece_room;
};

// ---- what NCCL is told besides the row ----------------------------------------------------------

// Words of a note: the decision of the finish kernel, the weight, the units.
#define NOTE_DECISION 0
#define NOTE_WEIGHT 1
#define NOTE_UNITS 2

static inline size_t note_words(const struct collective *collective)
{
    return NOTE_UNITS + (size_t)collective->unit_count;
}

static inline uint64_t *nccl_note(const struct device_flow *flow)
{
    return (uint64_t *)(void *)flow->note->host;
}

// True if it waits for its turn with NCCL, or NCCL has not come to its end.
static inline bool device_flow_reduces(const struct device_flow *flow)
{
    return (flow->way == DEVICE_WAY_NCCL && !flow->summed) ||
           (flow->way == DEVICE_WAY_MIXED && flow->stage <= STAGE_COLLECTING);
}

// What a flow gives to NCCL: begin takes memory and gives it to NCCL (STAGE_TAKING), or leaves it
// waiting; rest enqueues what comes behind.
struct nccl_part {
    int (*begin)(struct devices *devices, struct device_flow *flow);
    int (*rest)(struct devices *devices, struct device_flow *flow);
};

// ---- segments.c ---------------------------------------------------------------------------------

static inline bool segments_are_whole(const struct device_flow *flow)
{
    return flow->segments_landed == flow->segment_count;
}

// ---- replicas.c
// -----------------------------------------------------------------------------------

// How a result is written to gradients: the kernel that does it.
struct device_spread {
    uint64_t row; // Where the result is, as it travels; every device of this rank can copy it.
    size_t row_bytes;
    uint64_t words; // What the kernel is told. 0: nothing.
    size_t words_bytes;
    bool awaits; // True if the streams that produce gradients must be waited for.
    int (*write)(struct devices *devices, struct device_flow *flow, struct device *device,
                 enum device_stream stream, const struct device_row *row, uint64_t packed,
                 uint64_t words);
};

#endif
