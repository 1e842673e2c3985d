// SPDX-License-Identifier: Apache-2.0
//
// What the files of collectives on devices share: devices.c (their life, the end),
// rendezvous.c (how a communicator comes to be), staged.c, by_nccl.c and
// mixed.c (the three ways), segments.c (how a row comes to the host and goes
// back), copies.c (several copies of gradients in this process), behind.c
// (results that come late), late.c (where they are until then) and cut.c (what
// kernels are told of a collective). Nobody else includes it. The driver's thread, between
// device_enter and device_leave.

#ifndef WORKER_TRANSPORT_DEVICE_PARTS_H
#define WORKER_TRANSPORT_DEVICE_PARTS_H

#include "worker/device/communicator.h"
#include "worker/device/device.h"
#include "worker/device/kernels.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/flow/flows.h"

#define DEVICE_CUTS 512 // Tables that are kept; a power of two.
#define DEVICE_REVOKED_WORDS 512
#define DEVICE_SEGMENTS 16 // Of a row, at most.

enum device_stage {
    STAGE_WAITING, // For its turn with NCCL, or for memory.
    STAGE_TAKING, // NCCL takes it.
    STAGE_COLLECTING, // Its input, or the sum of NCCL, is on the way to the host.
    STAGE_TRAVELLING, // A collective of the hosts carries it; some of it may still be on its way to
                      // the host, and some on its way back already.
    STAGE_HELD, // Its result is there, or NCCL has it, and may not be written yet.
    STAGE_LEAVING, // That is on the way to the host, because others need its place.
    STAGE_ASIDE, // It is there, and nothing is on the device.
    STAGE_DELIVERING, // All that it does on the device is enqueued.
    STAGE_DONE,
};

// The tables of a collective as kernels read them. They are kept, and the same ones serve the next
// collective of the same extents: in a steady state nothing is copied.
struct device_cut {
    const void *key; // The collective's array of extents. NULL: this place is free.
    struct device *device; // That reads it.
    uint32_t holders; // Flows that use it.
    uint32_t count; // Pieces.
    uint64_t elements;
    size_t bytes; // Of the table.
    struct device_block *host; // What `table` is copied from: pieces, then tiles.
    struct device_block *table;
    bool stale; // It was not copied yet.
};

// What one replica of a flow takes.
struct device_part {
    struct device *device; // NULL: there is none.
    struct device_cut *cut; // Its gradients.
    // On another device than the first:
    struct device_block *row; // What it contributes, and later what comes back.
    struct device_block *words; // What kernels are told of that.
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
    bool untold; // It is enqueued, and the event that says so has not been reported.
    bool awaits; // Forgotten, and a stream of the trainer had not made its input then.
    bool summed; // Nobody else has anything to do for it any more ...
    bool summed_untold; // ... and the event that says so has not been reported.
    void *event; // Of what was enqueued last.
    struct device_cut *cut; // NULL: no kernel is needed.
    struct device_block *packed; // On the device: the row as it travels. NULL: not needed.
    struct device_block *pinned; // STAGED, MIXED: the row on the host.
    struct device_block *note; // Pinned: what kernels are told, and what comes back.
    struct device_block *words; // NCCL, MIXED: the note, on the device.
    struct device_room *borrowed; // Some of these blocks are that one's. NULL: none.
    uint64_t shelf_at; // ASIDE: where on the shelf.
    // Replicas
    struct device_part parts[LOCKSTEP_MAX_REPLICAS]; // The first one's cut is the flow's.
    struct device_block *landing; // What one of them contributes, on the first device.
    // NCCL, MIXED: the sum of what they contribute, and where it is packed, its table.
    struct device_block *sum;
    struct extent sum_extent;
    struct device_cut *sum_cut;
    // STAGED, MIXED
    struct ring_span share; // What of the row this rank brings to the hosts; STAGED: all.
    struct collective host; // What the hosts run.
    struct extent *extents; // [extent_room]: its memory.
    uint32_t extent_room;
    // STAGED, MIXED, by segments
    struct segment_marks *marks; // NULL: there is one segment, or all have landed.
    uint32_t segment_count; // Of the way to the host. 0: nothing goes there.
    uint32_t segments_landed;
    uint64_t landed; // Elements of the row, from the first, that the hosts may use.
    bool returns; // What is final may go back while the rest travels.
    uint64_t returned; // Elements of the row, from the first, whose way back is enqueued.
};

// Blocks that no pool has, so that whoever needs them never waits for what is in flight.
struct device_room {
    struct device_block *packed;
    struct device_block *pinned;
    struct device_block *note;
    struct device_block *words;
    bool lent; // To one flow at a time.
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
    struct device *device; // NULL: other ranks may have one.
    struct device *all[LOCKSTEP_MAX_OWN_DEVICES]; // Of this rank, beginning with that one.
    uint32_t device_count;
    uint64_t abort_ms;
    uint64_t segment_bytes; // 0: as segments.c has it.
    // driver only
    enum devices_stage stage;
    char text[COMMUNICATOR_TEXT_BYTES]; // Of DEVICES_FAILED, and of `failed`.
    bool failed; // Nothing more comes of what was launched.
    bool failure_reported;
    struct communicator *communicator;
    struct device_block *revoked; // Pinned words; the generation's is not 0 when it was given up.
    uint32_t generation; // How many were formed here: the word.
    uint64_t left_ms; // Since when a peer has been gone that may have done its part. 0: none has.
    struct list working; // Launched; those of NCCL in the order of their launch.
    struct list done; // To be reported.
    struct list left; // Forgotten, and the device may still do what was enqueued.
    struct list idle; // With an event, and without a collective.
    uint64_t flow_count;
    struct list marks; // Which no flow has.
    // What is put aside, in memory of the host, until the trainer asks for it.
    uint8_t *shelf; // [shelf_bytes]
    uint64_t shelf_bytes;
    uint64_t shelf_end; // Where the next one goes.
    uint32_t shelf_count;
    struct device_room way_out; // Its pinned row only.
    struct device_room way_back;
    struct device_cut cuts[DEVICE_CUTS];
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

// Whether it waits for its turn with NCCL, or NCCL has not come to its end.
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

// ---- copies.c -----------------------------------------------------------------------------------

// How a result is written to gradients: the kernel that does it.
struct device_spread {
    uint64_t row; // Where the result is, as it travels; every device of this rank can copy it.
    size_t row_bytes;
    uint64_t words; // What the kernel is told. 0: nothing.
    size_t words_bytes;
    bool awaits; // Those who produce gradients have not been waited for.
    int (*write)(struct devices *devices, struct device_flow *flow, struct device *device,
                 enum device_stream stream, const struct device_row *row, uint64_t packed,
                 uint64_t words);
};

#endif
