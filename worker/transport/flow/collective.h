// SPDX-License-Identifier: Apache-2.0
//
// A collective as its caller describes it: the elements, the operation, the way of reducing, and
// where its memory is. The caller sets it before the launch; the driver thread owns it until it is
// done. Pure: types, no functions.

#ifndef WORKER_TRANSPORT_FLOW_COLLECTIVE_H
#define WORKER_TRANSPORT_FLOW_COLLECTIVE_H

#include "protos/types.h"
#include "worker/kernels/tree.h"
#include "worker/memory/extents.h"

#include <stdbool.h>
#include <stdint.h>

struct device;

enum collective_kind {
    COLLECTIVE_ALLREDUCE = 0,
    COLLECTIVE_BROADCAST = 1,
    // Parts go from rank to rank (struct collective_parts). By ALGORITHM_DIRECT or SHARED, as the
    // next.
    COLLECTIVE_EXCHANGE = 2,
    COLLECTIVE_REDUCE_SCATTER = 3, // Each member gets the reduction of the parts sent to it.
};

// Contiguous elements that go to one rank, or come from it.
struct collective_part {
    uint32_t rank; // Of the world. It may be this rank: the part is copied.
    // Aligned for the dtype. NULL only if there are no elements.
    void *memory;
    uint64_t elements;
    uint64_t offset; // By ALGORITHM_SHARED: the elements before the part in its sender's row.
};

#define COLLECTIVE_ROW_BYTES (32 * 1024) // The longest row.

// Who takes part in a collective by ALGORITHM_DIRECT, and with what. Borrowed until done().
//
// EXCHANGE: what `sends` names goes out, what `receives` names comes in. A pair of ranks either
// names each other's part on both sides, also one of no elements, or on neither; a rank is named at
// most once in each list. No send and no receive overlap, except that this rank's own two parts may
// be the same memory. Ranks that disagree about the elements of a part get the event `mismatch`.
//
// REDUCE_SCATTER: `sends` names every member, in the order of summation, with the elements that
// this member gets; the elements are equal on all members. receives[0] is the result of this rank,
// and may be the memory of this rank's own part.
//
// ALLREDUCE: `sends` names the members, in the order of summation. Only the ranks are used.
//
// By ALGORITHM_SHARED, EXCHANGE and REDUCE_SCATTER are of all ranks, and have rows. A rank's *row*
// is what the others read of it: its sends, each at its offset. Sends may lie at the same place;
// then they are the same memory.
struct collective_parts {
    const struct collective_part *sends; // [send_count]
    const struct collective_part *receives; // [receive_count]
    uint32_t send_count;
    uint32_t receive_count;
    uint64_t row; // Elements of the longest row of all ranks. Equal on all ranks.
};

// An allreduce by ALGORITHM_DIRECT, a mean whose inputs are sums over blocks of a tree of leaves
// (worker/kernels/tree.h). The extents only say where the result goes. input_is_sum is true, and
// the weight is that of all leaves of this rank. Borrowed until done().
struct collective_tree {
    uint32_t leaves; // Equal on all ranks.
    // [world size]: the leaves of each rank, in their order; some may be missing. Equal on all
    // ranks. NULL: those of tree_dealt.
    const struct tree_block *dealt;
    // This rank's blocks, in the order of leaves: all elements, of the dtype `partial`. Not read if
    // the weight is 0.
    const uint8_t *blocks[TREE_BLOCKS];
};

// The leaves of a rank of a world.
static inline struct tree_block collective_leaves(const struct collective_tree *tree,
                                                  uint32_t world_size, uint32_t rank)
{
    return tree->dealt ? tree->dealt[rank] : tree_dealt(tree->leaves, world_size, rank);
}

// A stream of the trainer that produces gradients: the event that must have happened before the
// gradients are read.
struct device_ready {
    void *event; // Recorded on the stream after the last gradient.
    void *stream; // The stream itself.
    uint64_t thread; // Whose stream it is (device_stream_thread).
    uint32_t parameter; // The parameter that was reported last, for diagnostics.
    bool pending; // True if the event was recorded for this collective.
};

// Events that must have happened before a result is written to parameters for which this rank
// reported no gradient: streams of the trainer may still write there. The trainer names these
// streams late, when it waits for results.
struct device_behind {
    // One event for each of this rank's devices. Borrowed until done(). NULL: not named yet.
    _Atomic(const struct device_ready *) ready;
};

// One of several replicas that a collective on devices reduces: each has the same elements and
// units, in its own memory. For a unit to which a replica does not contribute, `in` of its extents
// is NULL.
struct collective_replica {
    struct device *device; // The device whose memory the extents point to.
    const struct extent *extents; // [extent_count]
    uint32_t extent_count;
    const struct device_ready *ready; // [ready_count]: events of that device.
    uint32_t ready_count;
};

// Identifies a collective on all ranks, in every frame. Unique in its generation.
struct collective_tag {
    uint64_t step;
    // Hash of the plan, or of the name of a plain collective (one outside the plan).
    uint64_t space;
    uint32_t slot; // Index in the plan, or how often that name was used before.
};

static inline bool tag_equal(const struct collective_tag *a, const struct collective_tag *b)
{
    return a->step == b->step && a->space == b->space && a->slot == b->slot;
}

// The list for this tag of a hash table of `count` lists, a power of two.
static inline uint64_t tag_bucket(const struct collective_tag *tag, uint32_t count)
{
    uint64_t mixed = (tag->step * 0x9e3779b97f4a7c15u) ^ tag->space;
    mixed = (mixed ^ tag->slot) * 0xff51afd7ed558ccdu;
    return (mixed >> 40) % count;
}

struct collective {
    // Set by the caller before the launch, constant until done().
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root; // COLLECTIVE_BROADCAST: the rank whose bytes go to all.
    enum plan_algorithm algorithm; // Equal on all ranks. Broadcasts: RING or SHARED.
    struct collective_tag tag;
    uint64_t signature; // Hash of all that must be equal on all ranks; every frame carries it.
    const struct extent *extents; // Borrowed until done().
    uint32_t extent_count;
    uint64_t elements; // Sum over the extents. May be 0: done() comes in that case, too.
    uint64_t weight; // REDUCE_MEAN: number of samples in the input. 0: the input does not count.
    bool input_is_sum; // REDUCE_MEAN: true if the input is already multiplied by its weight.
    // With input_is_sum: true if the input counts even with weight 0, because it is a sum over
    // several ranks that report their weights themselves.
    bool input_counts;
    // Dtypes of sums and means in frames, if other than `dtype`: docs/numbers.md. Equal on all
    // ranks. Allowed: float32 with both bfloat16, and a 16-bit float with partial float32.
    // DTYPE_NONE: dtype.
    enum dtype partial; // Dtype of partial sums.
    enum dtype final; // Dtype of final bytes.
    // float16 without `partial`: contributions are multiplied by 2^exponent. 0: they are not.
    int exponent;
    // Units (worker/memory/units.h): the parameters in this collective. COLLECTIVE_ALLREDUCE only;
    // equal on all ranks.
    const uint64_t *unit_ends; // [unit_count], borrowed until done().
    uint32_t unit_count; // 0: no units, all outputs are written.
    // The members and their parts: ALGORITHM_DIRECT, and SHARED with rows. EXCHANGE and
    // REDUCE_SCATTER have no extents, and `elements` is 0. NULL: all ranks, an allreduce.
    const struct collective_parts *parts;
    const struct collective_tree *tree; // NULL: the inputs are in the extents.
    void *context; // For the caller; the transport does not use it.
    // Where the memory is. on_devices is equal on all ranks and part of the signature: every rank
    // that has a device keeps the memory on the device, and where NCCL carries the collective all
    // ranks launch in one order. If false, a rank may still have its memory on its device; other
    // ranks do not notice.
    bool on_devices;
    struct device *device; // The device whose memory the extents point to. NULL: host memory.
    const struct device_ready *ready; // [ready_count], borrowed until done().
    uint32_t ready_count;
    // Borrowed until done(). Where this rank has no input, the result is written to the device only
    // after these events are named and have happened; the rest of the collective does not wait for
    // them. NULL: nothing waits.
    const struct device_behind *behind;
    // How many elements, from the first, may be read and written. The number grows up to
    // `elements`; the caller calls flow_landed after each change. Set only if flow_follows returns
    // true (worker/transport/flow/flow.h). NULL: all elements.
    const uint64_t *landed;
    // Replicas on this rank's devices, including the first. Their inputs are added up from the
    // first to the last, divided by replica_divisor, and the sum travels; all replicas get the
    // result. The extents above then only say, by NULL, where no replica has an input.
    const struct collective_replica *replicas; // [replica_count], borrowed until done().
    uint32_t replica_count; // 0: no replicas, the extents above are the memory.
    uint64_t replica_divisor;

    // [units_words(unit_count)], borrowed until done(). In: the units for which this rank has an
    // input; the inputs of other units are NULL. Out: the units for which some rank has an input.
    // Between launch and done() the transport may already set bits of other ranks. Bits beyond the
    // last unit are 0.
    uint64_t *used;

    // Results, set before done().
    // REDUCE_MEAN: total weight. 0: no rank contributed, nothing is written. In a REDUCE_SCATTER
    // also 0 on a rank whose part has no elements.
    uint64_t weight_total;
    uint64_t first_sent_us; // clock_now_us() when the first byte was given to a link; 0: none was.
    uint64_t last_received_us;
    // Since when a short part of this rank waits until its receiver, which is behind, begins its
    // receive, and no bytes have moved between the two (direct/ahead.c), by clock_coarse_ms; 0:
    // none waits. It may lie ahead of the present by some round trips. Any thread may read it.
    _Atomic uint64_t held_ms;

    void *state; // For the transport while the collective is launched, else NULL.
};

#endif
