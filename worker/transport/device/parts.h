// SPDX-License-Identifier: Apache-2.0
//
// What the files of collectives on devices share: devices.c (their life, the end),
// meet.c (how a communicator comes to be), staged.c, by_nccl.c and
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
    struct transport *transport;
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

// ---- cut.c --------------------------------------------------------------------------------------

// Finds or makes the table of a collective's extents, on one of this rank's devices, which they are
// addresses of. NULL: there is no memory for it now.
struct device_cut *device_cut_hold(struct devices *devices, struct device *device,
                                   const struct collective *collective);
// Its pieces, as the host has them: [cut->count + 1].
const struct device_piece *device_cut_pieces(const struct device_cut *cut);
// The row of a table that is held, for kernels on that stream of its device. 0 or -1.
int device_cut_row(struct device_cut *cut, enum device_stream stream, struct device_row *row);
void device_cut_release(struct device_cut **cut);
// Makes room on a device for rows of so many pieces and elements; NULL memory: -1.
int device_cut_reserve(struct devices *devices, struct device *device, uint32_t pieces,
                       uint64_t elements, uint32_t count);
void device_cut_fini(struct devices *devices);

// ---- behind.c -----------------------------------------------------------------------------------

// What the result of the flow has to come behind was said, or it has to come behind nothing.
bool device_behind_is_said(const struct device_flow *flow);
// Whether something is written where this rank has no input. Its used bits are those of all ranks.
bool device_behind_matters(const struct device_flow *flow);
// What was said has to happen before what DEVICE_BEHIND is given from now on. 0 or -1.
int device_behind_wait(struct devices *devices, const struct device_flow *flow);
// That of a flow which only waits for it; NULL: it has happened.
const struct device_ready *device_behind_awaited(const struct devices *devices,
                                                 const struct device_flow *flow);

// ---- late.c -------------------------------------------------------------------------------------

// The flow is held and summed.
void device_aside_summed(struct device_flow *flow);
// Puts one that is held aside, so that others have what it held. False: nothing is free by that, or
// not yet.
bool device_aside_make_room(struct devices *devices);
// Whether one that was held will give back what it has, and waits for no other rank.
bool device_aside_is_leaving(const struct devices *devices);
// Goes on with a flow that is put aside. 0, or -1 when the device has failed.
int device_aside_work(struct devices *devices, struct device_flow *flow);
// The flow gives back what it has borrowed.
void device_aside_release(struct device_flow *flow);
// No flow is asked for any more.
void device_aside_forget(struct devices *devices);
void device_aside_fini(struct devices *devices);

// ---- devices.c ----------------------------------------------------------------------------------

// A block, unless *block is one already. False: there is none now. It comes when NCCL has nothing
// in flight here, because more memory may be had only when the device is at rest, and NCCL may wait
// for a rank that has died. Or the device has failed.
bool devices_take(struct devices *devices, struct device *device, struct device_block **block,
                  enum device_memory kind, size_t bytes);
void devices_give(struct device *device, struct device_block **block);
// The device has nothing more to do with what the flow holds there.
void devices_give_all(struct devices *devices, struct device_flow *flow);
// Makes idle flows until there are `count` in all. 0 or -1.
int devices_reserve_flows(struct devices *devices, uint64_t count);
// One of this rank's devices has failed: the first of them that has. NULL: none.
struct device *devices_broken(const struct devices *devices);
// All that the flow does on the device is enqueued on the stream. 0 or -1.
int devices_enqueued(struct devices *devices, struct device_flow *flow, enum device_stream stream);
// Waits on the stream for those who produce the collective's gradients. 0 or -1.
int devices_await_ready(struct devices *devices, const struct device_flow *flow,
                        enum device_stream stream);
// The same for one device and its events.
int devices_await(struct device *device, enum device_stream stream,
                  const struct device_ready *ready, uint32_t count);
// The collective is its caller's again, but for the event.
void devices_done(struct devices *devices, struct device_flow *flow);

// ---- meet.c -------------------------------------------------------------------------------------

// Goes on with forming: between the links' standing and the event that says so. Also on a rank
// without a device.
void naming_work(struct transport *transport);
// This rank's place among those with a device.
uint32_t naming_place(const struct transport_world *world);
// Tells NCCL of the memory that it will be given, once it has a communicator.
void naming_register(struct devices *devices);

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

void nccl_write_note(const struct device_flow *flow);
// The units that some rank has used, from the note that has come back.
void nccl_read_used(const struct device_flow *flow);
// What NCCL is to send is there: the gradients, or the sum of replicas. On DEVICE_REDUCE. 0 or -1.
int nccl_collect(struct devices *devices, struct device_flow *flow);
// The row and the note go into the scratch of the flow, on DEVICE_REDUCE. 0 or -1.
int nccl_pack(struct devices *devices, struct device_flow *flow, enum dtype wire);

// What a flow gives to NCCL: begin takes memory and gives it to NCCL (STAGE_TAKING), or leaves it
// waiting; rest enqueues what comes behind.
struct nccl_part {
    int (*begin)(struct devices *devices, struct device_flow *flow);
    int (*rest)(struct devices *devices, struct device_flow *flow);
};
// Flows are given to NCCL in the order of their launch. 1: what was enqueued behind has happened,
// and NCCL had no error before; 0: not yet; -1.
int nccl_advance(struct devices *devices, struct device_flow *flow, const struct nccl_part *part);
// NCCL has said nothing that makes what has happened garbage.
bool nccl_is_sound(struct devices *devices);

// ---- segments.c ---------------------------------------------------------------------------------

// Events for so many more rows of so many bytes at most, where these are several segments. 0 or -1.
int segments_reserve(struct devices *devices, uint32_t rows, uint64_t bytes);
void segments_release(struct devices *devices, struct device_flow *flow);
void segments_fini(struct devices *devices);
// Nothing of the flow goes to the host.
void segments_none(struct device_flow *flow);
// Enqueues the copies of the flow's share, which begins at `from`, to its row on the host; they are
// the last that it does on the stream (STAGE_COLLECTING). 0 or -1.
int segments_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     uint64_t from);
// Whether more has landed since: 1 or 0; -1. flow->landed says how much.
int segments_look(struct devices *devices, struct device_flow *flow);
static inline bool segments_are_whole(const struct device_flow *flow)
{
    return flow->segments_landed == flow->segment_count;
}
// Whether the hosts can begin with what has landed.
bool segments_may_travel(const struct devices *devices, const struct device_flow *flow);
// Enqueues the way back, to the row on the device, of what has become final, on DEVICE_DELIVER; ...
int segments_return(struct devices *devices, struct device_flow *flow);
// ... of all the rest, which is final, on that stream. 0 or -1.
int segments_return_rest(struct devices *devices, struct device_flow *flow,
                         enum device_stream stream);
// Whether the device may still copy something of a flow that travels; ...
bool segments_are_under_way(const struct device_flow *flow);
// ... what DEVICE_DELIVER is given from now on comes behind all of that. 0 or -1.
int segments_gather(struct devices *devices, struct device_flow *flow);

// ---- copies.c -----------------------------------------------------------------------------------

// The table of the flow's own gradients; with replicas, those of the first one. False: no memory
// now.
bool replicas_hold_own(struct devices *devices, struct device_flow *flow);
// Takes what the further replicas need. True without any. False: there is no memory for it now.
bool replicas_take(struct devices *devices, struct device_flow *flow);
// Only what is needed to write a result to them.
bool replicas_take_parts(struct devices *devices, struct device_flow *flow);
// And where NCCL sends their sum; packs: as another row than that.
bool replicas_take_sum(struct devices *devices, struct device_flow *flow, bool packs);
// Adds up what the replicas contribute in a row of the first device: enqueued on that stream of it,
// behind those who produce it. 0 or -1.
int replicas_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     const struct device_block *sum);

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
// Writes a result to the further replicas, too, behind what is enqueued on that stream. *last is
// the stream on which all of that has an end. 0 or -1.
int replicas_spread(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                    const struct device_spread *spread, enum device_stream *last);
// The devices have nothing more to do with it.
void replicas_release(struct devices *devices, struct device_flow *flow);

// ---- the ways: begin, go on when the event has happened. 0, or -1 when the device has failed ----

int staged_work(struct devices *devices, struct device_flow *flow);
// The input of the flow's share is in the row on the host.
int staged_travel(struct devices *devices, struct device_flow *flow);
int staged_travelled(struct devices *devices, struct device_flow *flow);
uint64_t staged_bytes(const struct collective *collective); // Of the row on the host.
// Its result, which has come to the host, goes to the device as soon as it may.
int staged_deliver(struct devices *devices, struct device_flow *flow);

int nccl_work(struct devices *devices, struct device_flow *flow);
size_t nccl_row_bytes(const struct collective *collective); // As it travels.
// Its sum and its note, which were put aside, are in pinned memory again, and may be written.
int nccl_come_back(struct devices *devices, struct device_flow *flow);

// Until the hosts have it: then it goes on as a staged one.
int mixed_work(struct devices *devices, struct device_flow *flow);
// How much longer than its elements a row has to be.
uint64_t mixed_spare_bytes(const struct transport_world *world);

#endif
