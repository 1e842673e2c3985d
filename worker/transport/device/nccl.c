// SPDX-License-Identifier: Apache-2.0
//
// Collectives that NCCL reduces: every rank has a device, and all ranks launch in one order. The
// driver's thread.
//
// On DEVICE_REDUCE, all steps enqueued at once:
//
//   wait for the gradients -> pack -> allreduce of the row and of its header -> finish -> copy the
//   header to the host
//
// The header has one word for the weight, and one per unit: the number of ranks that have used it.
// The finish kernel reads from it the divisor and which units to write. The host reads it once the
// event has happened. If this rank has not reported all gradients of a bucket, the finish kernel
// may have to wait for the trainer (dependency.c): then the header is copied first, and tells the
// host whether that is so. In a job that goes on after a death the header is always copied first,
// and the finish kernel is enqueued on DEVICE_DELIVER when the host has seen that the sum is whole:
// from then on the result needs no other rank. In such a job NCCL gets a group only when the
// trainer's streams have made its gradients: ncclCommAbort ends kernels, but first waits until
// streams have come to them.
//
// Gradients stay unchanged until the finish kernel, which writes the whole bucket or nothing. It
// writes nothing if the communicator was aborted (`revoked` is set before that), because NCCL then
// leaves garbage. A bucket that is a single extent, unscaled, and used as a whole is sent directly,
// without packing.
//
// NCCL may enqueue a group from a thread of its own. Until it has, no other work may be enqueued on
// the stream after it, and no other group may be given to NCCL: flows wait in the order of their
// launch.

#include "worker/transport/device/nccl.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/device/dependency.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/inputs.h"
#include "worker/transport/device/offload.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/replicas.h"
#include "worker/transport/device/table_cache.h"

#include "base/clock.h"

#include <assert.h>
#include <string.h>

static enum dtype nccl_wire(const struct collective *collective)
{
    return collective->partial == DTYPE_NONE ? collective->dtype : collective->partial;
}

size_t nccl_row_bytes(const struct collective *collective)
{
    return collective->elements * dtype_size(nccl_wire(collective));
}

// The factor of the input; 0: the input is ignored.
static uint64_t nccl_factor(const struct collective *collective)
{
    if (collective->op != REDUCE_MEAN)
        return 1;
    return collective->weight > 0 && collective->input_is_sum ? 1 : collective->weight;
}

// True if NCCL can send the input unchanged from its memory. The sum of replicas is one row, so it
// can if no conversion is needed.
static bool nccl_is_view(const struct collective *collective)
{
    if (nccl_factor(collective) != 1 || nccl_wire(collective) != collective->dtype ||
        collective->exponent != 0)
        return false;
    if (collective->replica_count > 0)
        return true;
    return collective->extent_count == 1 && collective->extents[0].in &&
           units_usage(collective->used, (struct unit_range){0, collective->unit_count}) ==
               USAGE_ALL;
}

// ---- launching ----------------------------------------------------------------------------------

// Takes all memory that the flow needs, before any work starts. False: not free now.
static bool nccl_take(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    const size_t bytes = note_words(collective) * sizeof(uint64_t);
    if (!devices_take(devices, devices->device, &flow->note, MEMORY_PINNED, bytes) ||
        !devices_take(devices, devices->device, &flow->words, MEMORY_SCRATCH, bytes))
        return false;
    return collective->elements == 0 ||
           (devices_take(devices, devices->device, &flow->packed, MEMORY_SCRATCH,
                         nccl_row_bytes(collective)) &&
            replicas_hold_own(devices, flow) && replicas_take(devices, flow) &&
            replicas_take_sum(devices, flow, !nccl_is_view(collective)));
}

void nccl_write_note(const struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    uint64_t *note = nccl_note(flow);
    note[NOTE_DECISION] = DEVICE_UNDECIDED;
    note[NOTE_WEIGHT] = collective->op == REDUCE_MEAN ? collective->weight : 1;
    for (uint32_t unit = 0; unit < collective->unit_count; unit++)
        note[NOTE_UNITS + unit] = units_is_used(collective->used, unit);
}

int nccl_pack(struct devices *devices, struct device_flow *flow, enum dtype wire)
{
    const struct collective *collective = flow->collective;
    struct device_pack pack = {
        .packed = (void *)(uintptr_t)flow->packed->address,
        .weight = nccl_factor(collective),
        .exponent = collective->exponent,
        .dtype = (uint32_t)collective->dtype,
        .wire = (uint32_t)wire,
        .header_words = (uint32_t)note_words(collective),
        .header_from = (const uint64_t *)(uintptr_t)flow->note->address,
        .header_to = (uint64_t *)(uintptr_t)flow->words->address,
    };
    struct cached_table *cached = flow->sum_table ? flow->sum_table : flow->cached;
    if (table_cache_row(cached, DEVICE_REDUCE, &pack.row) < 0)
        return -1;
    return device_run(devices->device, DEVICE_REDUCE, DEVICE_KERNEL_PACK,
                      device_blocks(collective->elements), &pack);
}

int nccl_collect(struct devices *devices, struct device_flow *flow)
{
    return flow->sum ? replicas_collect(devices, flow, DEVICE_REDUCE, flow->sum)
                     : devices_await_ready(devices, flow, DEVICE_REDUCE);
}

// Enqueues the work before NCCL. *in: the row that NCCL is to send.
static int nccl_prepare(struct devices *devices, struct device_flow *flow, uint64_t *in)
{
    const struct collective *collective = flow->collective;
    const bool view = flow->packed && nccl_is_view(collective);
    if (nccl_collect(devices, flow) < 0)
        return -1;
    *in = view && flow->sum ? flow->sum->address
          : view            ? (uint64_t)(uintptr_t)collective->extents[0].in
          : flow->packed    ? flow->packed->address
                            : 0;
    if (flow->packed && !view)
        return nccl_pack(devices, flow, nccl_wire(collective));
    return device_transfer(devices->device, DEVICE_REDUCE, flow->words->address,
                           flow->note->address, note_words(collective) * sizeof(uint64_t));
}

static int nccl_begin(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    uint64_t in = 0;
    if (!nccl_take(devices, flow))
        return devices_broken(devices) ? -1 : 0;
    nccl_write_note(flow);
    if (nccl_prepare(devices, flow, &in) < 0)
        return -1;
    flow->collective->first_sent_us = clock_now_us();
    flow->stage = STAGE_TAKING;
    return communicator_allreduce(
        devices->communicator, in, flow->packed ? flow->packed->address : 0, collective->elements,
        nccl_wire(collective), flow->words->address + NOTE_WEIGHT * sizeof(uint64_t),
        note_words(collective) - NOTE_WEIGHT);
}

// Runs the finish kernel. The first replica decides whether to write; the others read that
// decision.
static int nccl_write(struct devices *devices, struct device_flow *flow, struct device *device,
                      enum device_stream stream, const struct device_row *row, uint64_t packed,
                      uint64_t words)
{
    const struct collective *collective = flow->collective;
    const uint64_t revoked =
        devices->revoked->address + devices->generation % DEVICE_REVOKED_WORDS * sizeof(uint32_t);
    struct device_finish finish = {
        .row = *row,
        .packed = (const void *)(uintptr_t)packed,
        .header = (const uint64_t *)(uintptr_t)(words + NOTE_WEIGHT * sizeof(uint64_t)),
        .revoked = (const uint32_t *)(uintptr_t)revoked,
        .decision = (uint32_t *)(uintptr_t)(words + NOTE_DECISION * sizeof(uint64_t)),
        .exponent = collective->exponent,
        .dtype = (uint32_t)collective->dtype,
        .wire = (uint32_t)nccl_wire(collective),
        .final =
            (uint32_t)(collective->final == DTYPE_NONE ? collective->dtype : collective->final),
        .divides = collective->op == REDUCE_MEAN,
    };
    return device_run(device, stream, DEVICE_KERNEL_FINISH, device_blocks(collective->elements),
                      &finish);
}

static int nccl_finish(struct devices *devices, struct device_flow *flow, enum device_stream stream)
{
    struct device_row row;
    if (table_cache_row(flow->cached, stream, &row) < 0)
        return -1;
    return nccl_write(devices, flow, devices->device, stream, &row, flow->packed->address,
                      flow->words->address);
}

static int nccl_copy_header(struct devices *devices, struct device_flow *flow)
{
    return device_transfer(devices->device, DEVICE_REDUCE, flow->note->address,
                           flow->words->address, note_words(flow->collective) * sizeof(uint64_t));
}

// Enqueues the delivery to the other replicas, after that of the first one on `stream`.
static int nccl_spread(struct devices *devices, struct device_flow *flow, enum device_stream stream)
{
    const struct collective *collective = flow->collective;
    const struct device_spread spread = {.row = flow->packed->address,
                                         .row_bytes = nccl_row_bytes(collective),
                                         .words = flow->words->address,
                                         .words_bytes = note_words(collective) * sizeof(uint64_t),
                                         .write = nccl_write};
    enum device_stream last;
    if (replicas_spread(devices, flow, stream, &spread, &last) < 0)
        return -1;
    return devices_enqueued(devices, flow, last);
}

static int nccl_deliver(struct devices *devices, struct device_flow *flow,
                        enum device_stream stream)
{
    if (nccl_finish(devices, flow, stream) < 0)
        return -1;
    flow->stage = STAGE_DELIVERING;
    return nccl_spread(devices, flow, stream);
}

static void nccl_read_note(const struct device_flow *flow)
{
    if (flow->collective->op == REDUCE_MEAN)
        flow->collective->weight_total = nccl_note(flow)[NOTE_WEIGHT];
    nccl_read_used(flow);
}

static int nccl_done(struct devices *devices, struct device_flow *flow)
{
    nccl_read_note(flow);
    flow->collective->last_received_us = clock_now_us();
    devices_done(devices, flow);
    return 0;
}

// Continues a held flow. summed: true once the sum and the header are complete. If the header shows
// that no result is written where this rank has no input, delivers at once. Otherwise delivers on
// DEVICE_BEHIND once the trainer has named the events to wait for.
static int nccl_deliver_held(struct devices *devices, struct device_flow *flow, bool summed)
{
    if (summed)
        nccl_read_note(flow);
    if (summed && !flow->packed)
        return nccl_done(devices, flow);
    if (summed && !dependency_matters(flow))
        return nccl_deliver(devices, flow, DEVICE_DELIVER);
    if (summed)
        offload_summed(flow);
    if (!dependency_is_known(flow) || (devices->flows->recovers && !summed))
        return 0;
    if (device_wait(devices->device, DEVICE_BEHIND, flow->event) < 0 ||
        dependency_wait(devices, flow) < 0)
        return -1;
    return nccl_deliver(devices, flow, DEVICE_BEHIND);
}

int nccl_come_back(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    if (dependency_wait(devices, flow) < 0 ||
        device_transfer(devices->device, DEVICE_BEHIND, flow->words->address, flow->note->address,
                        note_words(collective) * sizeof(uint64_t)) < 0 ||
        device_transfer(devices->device, DEVICE_BEHIND, flow->packed->address,
                        flow->pinned->address, nccl_row_bytes(collective)) < 0)
        return -1;
    return nccl_deliver(devices, flow, DEVICE_BEHIND);
}

// NCCL has taken the group: enqueues the work after it.
static int nccl_enqueue_rest(struct devices *devices, struct device_flow *flow)
{
    const bool held = devices->flows->recovers || (flow->packed && flow->collective->behind);
    if (device_record(devices->device, DEVICE_REDUCE, flow->sum_event) < 0)
        return -1;
    if (flow->packed && !held && nccl_finish(devices, flow, DEVICE_REDUCE) < 0)
        return -1;
    if (nccl_copy_header(devices, flow) < 0)
        return -1;
    flow->stage = held ? STAGE_HELD : STAGE_DELIVERING;
    return held || !flow->packed ? devices_enqueued(devices, flow, DEVICE_REDUCE)
                                 : nccl_spread(devices, flow, DEVICE_REDUCE);
}

// ---- going on -----------------------------------------------------------------------------------

bool nccl_waits_for_trainer(const struct devices *devices, const struct device_flow *flow)
{
    return devices->flows->recovers && device_flow_reduces(flow) && flow->stage == STAGE_WAITING &&
           !inputs_are_made(devices, flow);
}

static int nccl_go_on(struct devices *devices, struct device_flow *flow,
                      const struct nccl_part *part)
{
    const enum communicator_state state = communicator_poll(devices->communicator);
    if (state != COMMUNICATOR_STANDS)
        return state == COMMUNICATOR_BUSY ? 0 : -1;
    if (flow->stage == STAGE_TAKING)
        return part->rest(devices, flow);
    if (nccl_waits_for_trainer(devices, flow))
        return 0;
    flow->rings = false;
    if (part->begin(devices, flow) < 0)
        return -1;
    return flow->stage == STAGE_TAKING &&
                   communicator_poll(devices->communicator) == COMMUNICATOR_STANDS
               ? part->rest(devices, flow)
               : 0;
}

// True if the flow is the next one that NCCL gets.
static bool nccl_is_next(const struct devices *devices, const struct device_flow *flow)
{
    list_for_each (node, &devices->working) {
        const struct device_flow *before = list_entry(node, struct device_flow, turn);
        if (before == flow)
            return true;
        if (device_flow_reduces(before) && before->stage <= STAGE_TAKING)
            return false;
    }
    return true;
}

// Looks whether the sum is whole. What other ranks do to NCCL later does not matter to it.
static int nccl_look(struct devices *devices, struct device_flow *flow)
{
    const int happened = flow->whole ? 0 : device_happened(devices->device, flow->sum_event);
    if (happened > 0)
        flow->whole = nccl_is_sound(devices);
    return happened < 0 || (happened > 0 && !flow->whole) ? -1 : 0;
}

int nccl_advance(struct devices *devices, struct device_flow *flow, const struct nccl_part *part)
{
    if (flow->stage <= STAGE_TAKING)
        return nccl_is_next(devices, flow) ? nccl_go_on(devices, flow, part) : 0;
    const int happened = device_happened(devices->device, flow->event);
    return happened < 0 || nccl_look(devices, flow) < 0 ? -1 : happened;
}

// A communicator that another rank has aborted may have left garbage.
bool nccl_is_sound(struct devices *devices)
{
    return communicator_poll(devices->communicator) != COMMUNICATOR_BROKEN;
}

void nccl_read_used(const struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    const uint64_t *note = nccl_note(flow);
    for (uint32_t unit = 0; unit < collective->unit_count; unit++) {
        if (note[NOTE_UNITS + unit] > 0)
            units_set_used(collective->used, unit);
    }
}

int nccl_work(struct devices *devices, struct device_flow *flow)
{
    const struct nccl_part part = {nccl_begin, nccl_enqueue_rest};
    const int happened = nccl_advance(devices, flow, &part);
    if (happened < 0)
        return -1;
    if (flow->stage == STAGE_HELD)
        return nccl_deliver_held(devices, flow, happened > 0);
    if (happened > 0)
        return nccl_done(devices, flow);
    return 0;
}
