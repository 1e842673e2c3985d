// SPDX-License-Identifier: Apache-2.0
//
// A collective as its caller describes it: the elements, the operation, the way of reducing, and
// where its memory is. The caller sets it before the launch; the driver thread owns it until it is
// done. Pure: types, no functions.

#ifndef WORKER_TRANSPORT_FLOW_COLLECTIVE_H
#define WORKER_TRANSPORT_FLOW_COLLECTIVE_H

#include "protos/types.h"
#include "worker/memory/extents.h"

#include <stdbool.h>
#include <stdint.h>

struct device;

enum collective_kind {
    COLLECTIVE_ALLREDUCE = 0,
    COLLECTIVE_BROADCAST = 1,
};

// Gradients that a stream of the trainer produces: what has to have happened before they are read.
struct device_ready {
    void *event; // Recorded on the stream behind the last of them.
    void *stream; // For a person.
    uint32_t parameter; // The one that was reported last, for a person.
    bool pending; // The event was recorded for this collective.
};

// What results must follow where a rank has reported nothing: no caller has named the streams that
// may still write there. The trainer names them late, when it waits for results.
struct device_behind {
    // One for each of this rank's devices. Borrowed until done(). NULL: not said yet.
    _Atomic(const struct device_ready *) ready;
};

// One of several replicas of what a collective on devices reduces: the same elements and units, in
// memory of its own. Of a unit that it does not contribute to, `in` is NULL.
struct collective_replica {
    struct device *device; // Extents are addresses of this device.
    const struct extent *extents; // [extent_count]
    uint32_t extent_count;
    const struct device_ready *ready; // [ready_count], events of that device.
    uint32_t ready_count;
};

// What pairs the frames of one collective across ranks. Unique in its generation.
struct collective_tag {
    uint64_t step;
    uint64_t space; // Hash of the plan, or of a plain collective's name.
    uint32_t slot; // Index in the plan, or the sequence number of that name.
};

struct collective {
    // Set by the caller before the launch, constant until done().
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root; // COLLECTIVE_BROADCAST: the rank whose bytes go to all.
    enum plan_algorithm algorithm; // Equal on all ranks. Broadcasts: RING or SHARED.
    struct collective_tag tag;
    uint64_t signature; // Hash of what must be equal on all ranks; carried by every frame.
    const struct extent *extents; // Borrowed until done().
    uint32_t extent_count;
    uint64_t elements; // Sum over the extents. May be 0: then done() comes all the same.
    uint64_t weight; // REDUCE_MEAN: samples behind the input. 0 contributes nothing.
    bool input_is_sum; // REDUCE_MEAN: the input is already w g; nothing is multiplied.
    bool input_counts; // Of an input_is_sum: it counts with weight 0, too. It is a sum over several
                       // ranks, whose weights they bring themselves.
    // How sums and means travel where that is not as they are: docs/numbers.md. Equal on all ranks.
    // float32 with both bfloat16; a 16-bit float with partial float32. DTYPE_NONE: dtype.
    enum dtype partial; // Dtype of partial sums.
    enum dtype final; // Dtype of final bytes.
    int exponent; // float16 without partial: contributions are multiplied by 2^exponent.
    // Units (worker/memory/units.h): the parameters inside. COLLECTIVE_ALLREDUCE only; equal on all
    // ranks.
    const uint64_t *unit_ends; // [unit_count], borrowed until done().
    uint32_t unit_count; // 0: no units, all outputs are written.
    void *context; // The caller's.
    // Where its memory is. on_devices: agreed, part of the signature; every rank that has a device
    // has it there, and where NCCL carries it all launch it in one order. Else a rank whose memory
    // is on its device is not noticed by the others.
    bool on_devices;
    struct device *device; // Extents are addresses of this device. NULL: memory of the host.
    const struct device_ready *ready; // [ready_count], borrowed until done().
    uint32_t ready_count;
    // Borrowed until done(). On a device nothing is written where there is no input before this is
    // said and has happened; the rest of the collective does not wait. NULL: before that, too.
    const struct device_behind *behind;
    // How many of its elements, from the first, may be read and written; it grows up to `elements`,
    // and flow_landed is told. Only where flow_follows says so (worker/transport/flow/flow.h).
    // NULL: all.
    const uint64_t *landed;
    // Replicas on this rank's devices, the first one too: what they contribute is added up, from
    // the first to the last, divided by replica_divisor, and travels; all of them get the result.
    // Of the extents above it only counts then what is NULL: no replica has an input.
    const struct collective_replica *replicas; // [replica_count], borrowed until done().
    uint32_t replica_count; // 0: there is only what the extents say.
    uint64_t replica_divisor;

    // [units_words(unit_count)], borrowed until done(). In: the units for which this rank has an
    // input; those of the others are NULL. Out: those for which some rank has one. Between launch
    // and done() the transport may set bits that it has learned. Bits behind the last unit are 0.
    uint64_t *used;

    // Results, set before done().
    uint64_t weight_total; // REDUCE_MEAN: 0 means that no rank contributed; memory is untouched.
    uint64_t first_sent_us; // clock_now_us() of the first byte handed to a link; 0: none.
    uint64_t last_received_us;

    void *state; // The transport's, while launched. NULL otherwise.
};

#endif
