// SPDX-License-Identifier: Apache-2.0
//
// Messages from worker to coordinator: conversion between types.h and the generated structs, field
// by field. place.c converts the place of a worker, check_up.c has the bounds of the fields. No
// state. Any thread.
//
// `out` functions fill a zeroed generated struct from a checked plain one; `in` functions fill a
// zeroed plain struct, which is checked afterwards.

#include "protos/codec/up.h"

#include "protos/codec/check_up.h"
#include "protos/codec/codec.h"
#include "protos/codec/internal.h"
#include "protos/codec/place.h"
#include "protos/codec/recovery.h"
#include "protos/codec/resume.h"

#include "protos/control.pb.h"

#include <string.h>

#define UP_TAG(name, kind) static_assert(wire_Up_##name##_tag == (kind) + 1, "tag is kind + 1")

UP_TAG(hello, UP_HELLO);
UP_TAG(start, UP_START);
UP_TAG(manifest_part, UP_MANIFEST_PART);
UP_TAG(ready, UP_READY);
UP_TAG(wait, UP_WAIT);
UP_TAG(layout_part, UP_LAYOUT_PART);
UP_TAG(end, UP_END);
UP_TAG(heartbeat, UP_HEARTBEAT);
UP_TAG(fail, UP_FAIL);
UP_TAG(lost, UP_LOST);
UP_TAG(leave, UP_LEAVE);
UP_TAG(links, UP_LINKS);
UP_TAG(blocked, UP_BLOCKED);
UP_TAG(modules, UP_MODULES);
UP_TAG(answer, UP_ANSWER);
UP_TAG(replan, UP_REPLAN);
UP_TAG(reach, UP_REACH);
UP_TAG(record_part, UP_RECORD_PART);
UP_TAG(report, UP_REPORT);
UP_TAG(refuse, UP_REFUSE);

// ---- Out -------------------------------------------------------------------------------------

static void up_gpu_out(wire_Gpu *wire, const struct gpu *gpu)
{
    wire->uuid.size = sizeof(gpu->uuid.bytes);
    memcpy(wire->uuid.bytes, gpu->uuid.bytes, sizeof(gpu->uuid.bytes));
    wire->capability = gpu->capability;
    wire->driver_version = gpu->driver_version;
    wire->nccl_version = gpu->nccl_version;
    codec_text_out(wire->nccl_missing, gpu->nccl_missing, sizeof(wire->nccl_missing));
}

static void up_hello_out(wire_UpHello *wire, const struct up_hello *hello)
{
    wire->version = hello->version;
    codec_text_out(wire->job, hello->job, sizeof(wire->job));
    wire->uuid.size = sizeof(hello->uuid.bytes);
    memcpy(wire->uuid.bytes, hello->uuid.bytes, sizeof(hello->uuid.bytes));
    codec_text_out(wire->host_id, hello->host_id, sizeof(wire->host_id));
    codec_text_out(wire->host, hello->host, sizeof(wire->host));
    codec_text_out(wire->address, hello->address, sizeof(wire->address));
    wire->pid = hello->pid;
    wire->world_min = hello->world_min;
    wire->world_max = hello->world_max;
    wire->window_ms = hello->window_ms;
    wire->has_rank_hint = hello->has_rank_hint;
    wire->rank_hint = hello->rank_hint;
    wire->open_timeout_ms = hello->open_timeout_ms;
    wire->on_failure = (wire_FailurePolicy)hello->on_failure;
    codec_text_out(wire->device, hello->device, sizeof(wire->device));
    wire->started = hello->started;
    wire->cores = hello->cores;
    wire->has_gpu = hello->has_gpu;
    if (hello->has_gpu)
        up_gpu_out(&wire->gpu, &hello->gpu);
    wire->further_gpus_count = (pb_size_t)hello->further_gpu_count;
    for (uint32_t i = 0; i < hello->further_gpu_count; i++) {
        wire->further_gpus[i].size = sizeof(hello->further_gpus[i].bytes);
        memcpy(wire->further_gpus[i].bytes, hello->further_gpus[i].bytes,
               sizeof(hello->further_gpus[i].bytes));
    }
    codec_text_out(wire->gpu_problem, hello->gpu_problem, sizeof(wire->gpu_problem));
    wire->elsewhere = hello->elsewhere;
    wire->virtual_ranks = hello->virtual_ranks;
    wire->has_resume = hello->resumes;
    if (hello->resumes)
        codec_resume_out(&wire->resume, &hello->resume);
}

static void up_manifest_item_out(wire_ManifestItem *wire, const struct manifest_item *item)
{
    wire->kind = (wire_ManifestKind)item->kind;
    wire->module = item->module;
    codec_text_out(wire->name, item->name, sizeof(wire->name));
    wire->dtype = (wire_Dtype)item->dtype;
    wire->flags = item->flags;
    wire->shape_count = (pb_size_t)item->dims;
    memcpy(wire->shape, item->shape, item->dims * sizeof(item->shape[0]));
    wire->strides_count = (pb_size_t)item->dims;
    memcpy(wire->strides, item->strides, item->dims * sizeof(item->strides[0]));
    codec_text_out(wire->value, item->value, sizeof(wire->value));
}

static void up_manifest_part_out(wire_UpManifestPart *wire, const struct up_manifest_part *part)
{
    wire->first = part->first;
    wire->items_count = (pb_size_t)part->count;
    for (uint32_t i = 0; i < part->count; i++)
        up_manifest_item_out(&wire->items[i], &part->items[i]);
}

static void up_ready_out(wire_UpReady *wire, const struct up_ready *ready)
{
    wire->step = ready->step;
    wire->phase = ready->phase;
    wire->has_slot = true;
    codec_slot_out(&wire->slot, &ready->slot);
    wire->dtype = (wire_Dtype)ready->dtype;
    wire->elements = ready->elements;
    wire->granted = ready->granted;
    wire->unmade = ready->unmade;
    wire->grants = ready->grants;
}

static void up_wait_out(wire_UpWait *wire, const struct up_wait *wait)
{
    wire->step = wait->step;
    wire->phase = wait->phase;
    wire->has_slot = true;
    codec_slot_out(&wire->slot, &wait->slot);
    wire->also_count = (pb_size_t)wait->also_count;
    for (uint32_t i = 0; i < wait->also_count; i++)
        codec_slot_out(&wire->also[i], &wait->also[i]);
}

static void up_heartbeat_out(wire_UpHeartbeat *wire, const struct up_heartbeat *heartbeat)
{
    wire->step = heartbeat->step;
    wire->settled = heartbeat->settled;
    wire->activity = (wire_WorkerActivity)heartbeat->activity;
    wire->since_ms = heartbeat->since_ms;
    codec_text_out(wire->mark, heartbeat->mark, sizeof(wire->mark));
    wire->bytes_sent = heartbeat->bytes_sent;
    wire->bytes_received = heartbeat->bytes_received;
    wire->has_totals = true;
    wire->totals = (wire_StepTotals){
        .steps = heartbeat->totals.steps,
        .bytes_copied = heartbeat->totals.bytes_copied,
        .in_flight_us = heartbeat->totals.in_flight_us,
        .overlap_us = heartbeat->totals.overlap_us,
        .exposed_us = heartbeat->totals.exposed_us,
        .zero_filled = heartbeat->totals.zero_filled,
        .unused = heartbeat->totals.unused,
    };
    codec_heartbeat_out(wire, heartbeat);
}

static void up_fail_out(wire_UpFail *wire, const struct up_fail *fail)
{
    wire->step = fail->step;
    wire->kind = (wire_HaltKind)fail->kind;
    codec_text_out(wire->text, fail->text, sizeof(wire->text));
    wire->space = fail->space;
    wire->use = fail->use;
    codec_text_out(wire->name, fail->name, sizeof(wire->name));
    codec_text_out(wire->form, fail->form, sizeof(wire->form));
}

static void up_lost_out(wire_UpLost *wire, const struct up_lost *lost)
{
    wire->rank = lost->rank;
    wire->left = lost->left;
    wire->silent = lost->silent;
    wire->impossible = lost->impossible;
    wire->proof = (wire_LossProof)lost->proof;
    wire->told = lost->told;
    wire->witness = lost->witness;
    wire->step = lost->step;
    codec_text_out(wire->text, lost->text, sizeof(wire->text));
}

static void up_links_out(wire_UpLinks *wire, const struct up_links *links)
{
    wire->shares = links->shares;
    wire->latency_ns = links->latency_ns;
    wire->bytes_per_s = links->bytes_per_s;
    wire->wish = (wire_PlanAlgorithm)links->wish;
    wire->sums_ranks = links->sums_ranks;
}

static void up_out(wire_Up *wire, const struct up_message *message)
{
    wire->has_generation = codec_generation_out(&wire->generation, &message->generation);
    wire->which_u = (pb_size_t)(message->kind + 1);
    switch (message->kind) {
    case UP_HELLO:
        up_hello_out(&wire->u.hello, &message->u.hello);
        break;
    case UP_START:
        codec_start_out(&wire->u.start, &message->u.start);
        break;
    case UP_MANIFEST_PART:
        up_manifest_part_out(&wire->u.manifest_part, &message->u.manifest_part);
        break;
    case UP_READY:
        up_ready_out(&wire->u.ready, &message->u.ready);
        break;
    case UP_WAIT:
        up_wait_out(&wire->u.wait, &message->u.wait);
        break;
    case UP_LAYOUT_PART:
        codec_layout_out(&wire->u.layout_part, &message->u.layout_part);
        break;
    case UP_END:
        wire->u.end.step = message->u.end.step;
        wire->u.end.phase = message->u.end.phase;
        wire->u.end.plan = message->u.end.plan;
        wire->u.end.plan_hash = message->u.end.plan_hash;
        break;
    case UP_HEARTBEAT:
        up_heartbeat_out(&wire->u.heartbeat, &message->u.heartbeat);
        break;
    case UP_FAIL:
        up_fail_out(&wire->u.fail, &message->u.fail);
        break;
    case UP_LOST:
        up_lost_out(&wire->u.lost, &message->u.lost);
        break;
    case UP_LEAVE:
        wire->u.leave.settled = message->u.leave.settled;
        codec_text_out(wire->u.leave.reason, message->u.leave.reason, sizeof(wire->u.leave.reason));
        codec_text_out(wire->u.leave.cause, message->u.leave.cause, sizeof(wire->u.leave.cause));
        wire->u.leave.flags = message->u.leave.flags;
        wire->u.leave.words_count = (pb_size_t)message->u.leave.word_count;
        memcpy(wire->u.leave.words, message->u.leave.words,
               message->u.leave.word_count * sizeof(message->u.leave.words[0]));
        break;
    case UP_LINKS:
        up_links_out(&wire->u.links, &message->u.links);
        break;
    case UP_BLOCKED:
        codec_blocked_out(&wire->u.blocked, &message->u.blocked);
        break;
    case UP_MODULES:
        codec_modules_out(&wire->u.modules, &message->u.modules);
        break;
    case UP_ANSWER:
        codec_answer_out(&wire->u.answer, &message->u.answer);
        break;
    case UP_REPLAN:
        codec_replan_out(&wire->u.replan, &message->u.replan);
        break;
    case UP_REACH:
        wire->u.reach.ranks_count = (pb_size_t)message->u.reach.count;
        memcpy(wire->u.reach.ranks, message->u.reach.ranks,
               message->u.reach.count * sizeof(message->u.reach.ranks[0]));
        break;
    case UP_RECORD_PART:
        codec_record_out(&wire->u.record_part, &message->u.record_part);
        break;
    case UP_REPORT:
        codec_report_out(&wire->u.report, &message->u.report);
        break;
    case UP_REFUSE:
        codec_refuse_out(&wire->u.refuse, &message->u.refuse);
        break;
    case UP_NONE:
        break;
    }
}

// ---- In --------------------------------------------------------------------------------------

static void up_gpu_in(struct gpu *gpu, const wire_Gpu *wire, struct codec_fault *fault)
{
    codec_bytes_in(gpu->uuid.bytes, sizeof(gpu->uuid.bytes), wire->uuid.bytes, wire->uuid.size,
                   fault);
    gpu->capability = wire->capability;
    gpu->driver_version = wire->driver_version;
    gpu->nccl_version = wire->nccl_version;
    codec_text_in(gpu->nccl_missing, wire->nccl_missing, sizeof(gpu->nccl_missing), fault);
}

static void up_hello_in(struct up_hello *hello, const wire_UpHello *wire, struct codec_fault *fault)
{
    hello->version = wire->version;
    codec_text_in(hello->job, wire->job, sizeof(hello->job), fault);
    codec_bytes_in(hello->uuid.bytes, sizeof(hello->uuid.bytes), wire->uuid.bytes, wire->uuid.size,
                   fault);
    codec_text_in(hello->host_id, wire->host_id, sizeof(hello->host_id), fault);
    codec_text_in(hello->host, wire->host, sizeof(hello->host), fault);
    codec_text_in(hello->address, wire->address, sizeof(hello->address), fault);
    hello->pid = wire->pid;
    hello->world_min = wire->world_min;
    hello->world_max = wire->world_max;
    hello->window_ms = wire->window_ms;
    hello->has_rank_hint = wire->has_rank_hint;
    hello->rank_hint = wire->rank_hint;
    hello->open_timeout_ms = wire->open_timeout_ms;
    hello->on_failure = (enum failure_policy)wire->on_failure;
    codec_text_in(hello->device, wire->device, sizeof(hello->device), fault);
    hello->started = wire->started;
    hello->cores = wire->cores;
    hello->has_gpu = wire->has_gpu;
    if (wire->has_gpu)
        up_gpu_in(&hello->gpu, &wire->gpu, fault);
    hello->further_gpu_count = wire->further_gpus_count;
    for (uint32_t i = 0; i < hello->further_gpu_count; i++)
        codec_bytes_in(hello->further_gpus[i].bytes, sizeof(hello->further_gpus[i].bytes),
                       wire->further_gpus[i].bytes, wire->further_gpus[i].size, fault);
    codec_text_in(hello->gpu_problem, wire->gpu_problem, sizeof(hello->gpu_problem), fault);
    hello->elsewhere = wire->elsewhere;
    hello->virtual_ranks = wire->virtual_ranks;
    hello->resumes = wire->has_resume;
    if (wire->has_resume)
        codec_resume_in(&hello->resume, &wire->resume);
}

static void up_manifest_item_in(struct manifest_item *item, const wire_ManifestItem *wire,
                                struct codec_fault *fault)
{
    if (wire->shape_count != wire->strides_count)
        codec_fault_set(fault, CODEC_INVALID, "a tensor's shape and strides differ in length");
    item->kind = (enum manifest_kind)wire->kind;
    item->module = wire->module;
    codec_text_in(item->name, wire->name, sizeof(item->name), fault);
    item->dtype = (enum dtype)wire->dtype;
    item->flags = wire->flags;
    item->dims = wire->shape_count;
    memcpy(item->shape, wire->shape, wire->shape_count * sizeof(item->shape[0]));
    memcpy(item->strides, wire->strides, wire->strides_count * sizeof(item->strides[0]));
    codec_text_in(item->value, wire->value, sizeof(item->value), fault);
}

static void up_manifest_part_in(struct up_manifest_part *part, const wire_UpManifestPart *wire,
                                struct codec_fault *fault)
{
    part->first = wire->first;
    part->count = wire->items_count;
    for (uint32_t i = 0; i < part->count; i++)
        up_manifest_item_in(&part->items[i], &wire->items[i], fault);
}

static void up_ready_in(struct up_ready *ready, const wire_UpReady *wire, struct codec_fault *fault)
{
    ready->step = wire->step;
    ready->phase = wire->phase;
    codec_slot_in(&ready->slot, &wire->slot, wire->has_slot, fault);
    ready->dtype = (enum dtype)wire->dtype;
    ready->elements = wire->elements;
    ready->granted = wire->granted;
    ready->unmade = wire->unmade;
    ready->grants = wire->grants;
}

static void up_wait_in(struct up_wait *wait, const wire_UpWait *wire, struct codec_fault *fault)
{
    wait->step = wire->step;
    wait->phase = wire->phase;
    codec_slot_in(&wait->slot, &wire->slot, wire->has_slot, fault);
    wait->also_count = wire->also_count;
    for (uint32_t i = 0; i < wait->also_count; i++)
        codec_slot_in(&wait->also[i], &wire->also[i], true, fault);
}

static void up_heartbeat_in(struct up_heartbeat *heartbeat, const wire_UpHeartbeat *wire,
                            struct codec_fault *fault)
{
    heartbeat->step = wire->step;
    heartbeat->settled = wire->settled;
    heartbeat->activity = (enum worker_activity)wire->activity;
    heartbeat->since_ms = wire->since_ms;
    codec_text_in(heartbeat->mark, wire->mark, sizeof(heartbeat->mark), fault);
    heartbeat->bytes_sent = wire->bytes_sent;
    heartbeat->bytes_received = wire->bytes_received;
    heartbeat->totals = (struct step_totals){
        .steps = wire->totals.steps,
        .bytes_copied = wire->totals.bytes_copied,
        .in_flight_us = wire->totals.in_flight_us,
        .overlap_us = wire->totals.overlap_us,
        .exposed_us = wire->totals.exposed_us,
        .zero_filled = wire->totals.zero_filled,
        .unused = wire->totals.unused,
    };
    codec_heartbeat_in(heartbeat, wire, fault);
}

static void up_fail_in(struct up_fail *fail, const wire_UpFail *wire, struct codec_fault *fault)
{
    fail->step = wire->step;
    fail->kind = (enum halt_kind)wire->kind;
    codec_text_in(fail->text, wire->text, sizeof(fail->text), fault);
    fail->space = wire->space;
    fail->use = wire->use;
    codec_text_in(fail->name, wire->name, sizeof(fail->name), fault);
    codec_text_in(fail->form, wire->form, sizeof(fail->form), fault);
}

static void up_lost_in(struct up_lost *lost, const wire_UpLost *wire, struct codec_fault *fault)
{
    lost->rank = wire->rank;
    lost->left = wire->left;
    lost->silent = wire->silent;
    lost->impossible = wire->impossible;
    lost->proof = (enum loss_proof)wire->proof;
    lost->told = wire->told;
    lost->witness = wire->witness;
    lost->step = wire->step;
    codec_text_in(lost->text, wire->text, sizeof(lost->text), fault);
}

static void up_links_in(struct up_links *links, const wire_UpLinks *wire)
{
    links->shares = wire->shares;
    links->latency_ns = wire->latency_ns;
    links->bytes_per_s = wire->bytes_per_s;
    links->wish = (uint32_t)wire->wish;
    links->sums_ranks = wire->sums_ranks;
}

static void up_in(struct up_message *message, const wire_Up *wire, struct codec_fault *fault)
{
    codec_generation_in(&message->generation, &wire->generation, wire->has_generation);
    message->kind = wire->which_u == 0 ? UP_NONE : (enum up_kind)(wire->which_u - 1);
    switch (message->kind) {
    case UP_HELLO:
        up_hello_in(&message->u.hello, &wire->u.hello, fault);
        break;
    case UP_START:
        codec_start_in(&message->u.start, &wire->u.start);
        break;
    case UP_MANIFEST_PART:
        up_manifest_part_in(&message->u.manifest_part, &wire->u.manifest_part, fault);
        break;
    case UP_READY:
        up_ready_in(&message->u.ready, &wire->u.ready, fault);
        break;
    case UP_WAIT:
        up_wait_in(&message->u.wait, &wire->u.wait, fault);
        break;
    case UP_LAYOUT_PART:
        codec_layout_in(&message->u.layout_part, &wire->u.layout_part);
        break;
    case UP_END:
        message->u.end.step = wire->u.end.step;
        message->u.end.phase = wire->u.end.phase;
        message->u.end.plan = wire->u.end.plan;
        message->u.end.plan_hash = wire->u.end.plan_hash;
        break;
    case UP_HEARTBEAT:
        up_heartbeat_in(&message->u.heartbeat, &wire->u.heartbeat, fault);
        break;
    case UP_FAIL:
        up_fail_in(&message->u.fail, &wire->u.fail, fault);
        break;
    case UP_LOST:
        up_lost_in(&message->u.lost, &wire->u.lost, fault);
        break;
    case UP_LEAVE:
        message->u.leave.settled = wire->u.leave.settled;
        codec_text_in(message->u.leave.reason, wire->u.leave.reason,
                      sizeof(message->u.leave.reason), fault);
        codec_text_in(message->u.leave.cause, wire->u.leave.cause, sizeof(message->u.leave.cause),
                      fault);
        message->u.leave.flags = wire->u.leave.flags;
        message->u.leave.word_count = wire->u.leave.words_count;
        memcpy(message->u.leave.words, wire->u.leave.words,
               message->u.leave.word_count * sizeof(message->u.leave.words[0]));
        break;
    case UP_LINKS:
        up_links_in(&message->u.links, &wire->u.links);
        break;
    case UP_BLOCKED:
        codec_blocked_in(&message->u.blocked, &wire->u.blocked, fault);
        break;
    case UP_MODULES:
        codec_modules_in(&message->u.modules, &wire->u.modules, fault);
        break;
    case UP_ANSWER:
        codec_answer_in(&message->u.answer, &wire->u.answer, fault);
        break;
    case UP_REPLAN:
        codec_replan_in(&message->u.replan, &wire->u.replan);
        break;
    case UP_REACH:
        message->u.reach.count = wire->u.reach.ranks_count;
        memcpy(message->u.reach.ranks, wire->u.reach.ranks,
               wire->u.reach.ranks_count * sizeof(wire->u.reach.ranks[0]));
        break;
    case UP_RECORD_PART:
        codec_record_in(&message->u.record_part, &wire->u.record_part);
        break;
    case UP_REPORT:
        codec_report_in(&message->u.report, &wire->u.report);
        break;
    case UP_REFUSE:
        codec_refuse_in(&message->u.refuse, &wire->u.refuse);
        break;
    case UP_NONE:
        break;
    }
}

// ---- Whole messages --------------------------------------------------------------------------

enum codec_status codec_encode_up(const struct up_message *message, uint8_t *bytes, size_t capacity,
                                  size_t *size)
{
    struct codec_fault fault = {0};
    wire_Up wire;

    *size = 0;
    codec_check_up(message, &fault);
    if (fault.status != CODEC_OK)
        return fault.status;
    memset(&wire, 0, sizeof(wire));
    up_out(&wire, message);
    return codec_write(wire_Up_fields, &wire, bytes, capacity, size);
}

enum codec_status codec_decode_up(const uint8_t *bytes, size_t size, struct up_message *message,
                                  const char **detail)
{
    struct codec_fault fault = {0};
    wire_Up wire;

    memset(&wire, 0, sizeof(wire));
    memset(message, 0, sizeof(*message));
    codec_read(wire_Up_fields, &wire, bytes, size, &fault);
    if (fault.status == CODEC_OK)
        up_in(message, &wire, &fault);
    if (fault.status == CODEC_OK)
        codec_check_up(message, &fault);
    if (fault.status == CODEC_OK)
        return CODEC_OK;
    memset(message, 0, sizeof(*message));
    if (detail)
        *detail = fault.detail;
    return fault.status;
}
