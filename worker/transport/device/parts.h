// SPDX-License-Identifier: Apache-2.0
//
// What the files of this folder share: the state of collectives on this rank's devices. The README
// of the folder says what each file does. The driver's thread, between device_enter and
// device_leave.

#ifndef WORKER_TRANSPORT_DEVICE_PARTS_H
#define WORKER_TRANSPORT_DEVICE_PARTS_H

#include "worker/device/communicator.h"
#include "worker/device/device.h"
#include "worker/device/kernels.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/flow/flows.h"

#define CACHED_TABLES 512 // Number of tables in the cache; a power of two.
#define DEVICE_REVOKED_WORDS 512
#define DEVICE_SEGMENTS 16 // Most segments of a row.

enum device_stage {
    STAGE_WAITING, // Waits for its turn with NCCL, or for memory.
    STAGE_TAKING, // NCCL is taking its group.
    STAGE_COLLECTING, // Its input, or NCCL's sum, is being copied to the host.
    // The hosts reduce it. Some segments may still be being copied to the host, and some back to
    // the device already.
    STAGE_TRAVELLING,
    // Its result is on the host, or in the row on the device, and may not be written to gradients
    // yet.
    STAGE_HELD,
    // Its result is being copied to the host, because other flows need its device memory.
    STAGE_OFFLOADING,
    STAGE_OFFLOADED, // Its result is on the shelf in host memory, and it has no device memory.
    STAGE_DELIVERING, // All its work on the device is enqueued.
    STAGE_DONE,
};

// The tables of a collective as kernels read them. They are kept for the next collective with the
// same extents, so that in a steady state no table is copied.
struct cached_table {
    const void *key; // The collective's array of extents. NULL: this entry is free.
    struct device *device; // The device that reads it.
    uint32_t holders; // Number of flows that use it.
    uint32_t count; // Number of pieces.
    uint64_t elements;
    size_t bytes; // Size of the table in bytes.
    struct device_block *host; // Pinned source of `table`: pieces, then tiles.
    struct device_block *table;
    bool stale; // True until it is copied to the device.
};

// Memory that one replica of a flow needs.
struct device_part {
    struct device *device; // The device of the replica. NULL: this entry is not used.
    struct cached_table *cached; // The table of the gradients of this replica.
    // For a device other than the first:
    struct device_block *row; // The contribution of the replica, and later the result.
    struct device_block *words; // The note or used bits that kernels read.
};

// Events recorded after the segments of a row, except the last segment, which has the event of the
// flow.
struct segment_events {
    struct list turn; // In devices.segment_events, or in no list while a flow uses the events.
    void *after[DEVICE_SEGMENTS - 1];
};

// A collective whose memory is on this device.
struct device_flow {
    struct list turn; // In one of the lists of struct devices.
    struct collective *collective;
    enum device_way way;
    enum device_stage stage;
    bool untold; // True if all work is enqueued and enqueued() is not reported yet.
    // True while the flow waits for the bell that inputs_ring has enqueued: the driver need not
    // look for its gradients.
    bool rings;
    // True if the flow was forgotten before a stream of the trainer had produced its input.
    bool awaits;
    bool summed; // True once the result needs no other rank any more.
    bool summed_untold; // True if summed() is not reported yet.
    void *event; // Event recorded after the work that was enqueued last.
    void *sum_event; // NCCL: event recorded after its group.
    // NCCL: True once the sum was seen here, and was no garbage. From then on the flow needs
    // neither other ranks nor NCCL.
    bool whole;
    struct cached_table *cached; // NULL: no kernel is needed.
    // The row on the device, in the dtype of the transfer. NULL: not needed.
    struct device_block *packed;
    // STAGED, MIXED: the row in pinned host memory. NCCL: only while the result is offloaded.
    struct device_block *pinned;
    struct device_block *note; // Pinned memory: the note (NCCL, MIXED) or the used bits (STAGED).
    struct device_block *words; // The copy of `note` on the device.
    struct device_room *borrowed; // The device_room that owns some of these blocks. NULL: none.
    uint64_t shelf_at; // STAGE_OFFLOADED: offset of the result on the shelf.
    // Replicas
    struct device_part parts[LOCKSTEP_MAX_REPLICAS]; // Replica 0 has the table `cached` above.
    struct device_block *landing; // The contribution of one replica, on the first device.
    // NCCL, MIXED: the sum of the replicas; if it has to be packed, also its extent and table.
    struct device_block *sum;
    struct extent sum_extent;
    struct cached_table *sum_table;
    // STAGED, MIXED
    struct ring_span share; // Part of the row that this rank contributes to `host`; STAGED: all.
    struct collective host; // The collective that the hosts run.
    struct extent *extents; // [extent_room]: the extents of `host`.
    uint32_t extent_room;
    // STAGED, MIXED, by segments
    struct segment_events *segment_events; // NULL: there is one segment, or all have landed.
    uint32_t segment_count; // Number of segments that are copied to the host. 0: none.
    uint32_t segments_landed;
    uint64_t landed; // Elements of the row, from the first, that the hosts may use.
    bool returns; // True if final elements may be copied back while the rest is being reduced.
    // Elements of the row, from the first, whose copy back to the device is enqueued.
    uint64_t returned;
};

// Blocks outside all pools, so that a flow that borrows them never waits for other flows.
struct device_room {
    struct device_block *packed;
    struct device_block *pinned;
    struct device_block *note;
    struct device_block *words;
    bool lent; // True while a flow borrows them. One flow at a time.
};

enum devices_stage {
    DEVICES_IDLE, // No communicator is needed, or its id is not known yet.
    DEVICES_JOINING, // The communicator is forming.
    DEVICES_FORMED,
    DEVICES_FAILED,
};

struct devices {
    struct flows *flows;
    // set at transport_open, then constant
    struct device *device; // The first of this rank's devices.
    // All devices of this rank; the first is `device`.
    struct device *all[LOCKSTEP_MAX_OWN_DEVICES];
    uint32_t device_count;
    uint64_t abort_ms;
    uint64_t segment_bytes; // 0: the default of segments.c.
    // driver only
    enum devices_stage stage;
    char text[COMMUNICATOR_TEXT_BYTES]; // Reason of DEVICES_FAILED, and of `failed`.
    // True once a device or NCCL has failed: no launched collective completes any more.
    bool failed;
    bool failure_reported;
    // When NCCL failed, in ms. 0: it has not failed, or that is reported at once.
    uint64_t failed_ms;
    struct communicator *communicator;
    // Pinned words, one per generation: not 0 if the generation was given up.
    struct device_block *revoked;
    // Number of generations formed here; modulo DEVICE_REVOKED_WORDS it selects the word of
    // `revoked`.
    uint32_t generation;
    // Since when NCCL is awaited although a peer has left, in ms. 0: that is not so.
    uint64_t left_ms;
    struct list working; // Launched flows, in the order of their launch.
    struct list done; // Complete flows that are not reported yet.
    struct list left; // Forgotten flows whose enqueued work may still run.
    struct list idle; // Flows without a collective, which keep their events for reuse.
    uint64_t flow_count;
    struct list segment_events; // Free ones.
    // The shelf: host memory for results that are offloaded until the trainer waits for them.
    uint8_t *shelf; // [shelf_bytes]
    uint64_t shelf_bytes;
    uint64_t shelf_end; // Offset of the next result on the shelf.
    uint32_t shelf_count; // Number of results on the shelf.
    struct device_room way_out; // Only its `pinned` is used.
    struct device_room way_back;
    struct cached_table cached_tables[CACHED_TABLES];
    struct device_piece *pieces; // [piece_room]: pieces of the collective that is being launched.
    uint32_t piece_room;
};

// ---- what NCCL is told besides the row ----------------------------------------------------------

// Indexes of the words of a note: the decision of the finish kernel, the weight, the first unit.
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

// True if the flow waits for its turn with NCCL, or NCCL has not finished its sum.
static inline bool device_flow_reduces(const struct device_flow *flow)
{
    return (flow->way == DEVICE_WAY_NCCL && !flow->summed) ||
           (flow->way == DEVICE_WAY_MIXED && flow->stage <= STAGE_COLLECTING);
}

// True if the result needs other ranks with a device.
static inline bool device_flow_needs_ranks(const struct device_flow *flow)
{
    return device_flow_reduces(flow) && !flow->whole;
}

// The two steps of a flow with NCCL. begin: takes memory and gives the group to NCCL
// (STAGE_TAKING), or leaves the flow waiting if memory is short. rest: enqueues the work after
// NCCL.
struct nccl_part {
    int (*begin)(struct devices *devices, struct device_flow *flow);
    int (*rest)(struct devices *devices, struct device_flow *flow);
};

// ---- segments.c ---------------------------------------------------------------------------------

static inline bool segments_are_whole(const struct device_flow *flow)
{
    return flow->segments_landed == flow->segment_count;
}

// ---- replicas.c --------------------------------------------------------------------------------

// A result, and the function that enqueues the kernel that writes it to gradients.
struct device_spread {
    // Address of the result in the dtype of the transfer; every device of this rank can copy from
    // it.
    uint64_t row;
    size_t row_bytes;
    uint64_t words; // Address of the note or used bits that the kernel reads. 0: none.
    size_t words_bytes;
    bool awaits; // True if the write must wait for the streams that produce the gradients.
    int (*write)(struct devices *devices, struct device_flow *flow, struct device *device,
                 enum device_stream stream, const struct device_row *row, uint64_t packed,
                 uint64_t words);
};

#endif
