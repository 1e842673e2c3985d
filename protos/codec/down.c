// SPDX-License-Identifier: Apache-2.0
//
// Messages from coordinator to worker: conversion between types.h and the generated structs, field
// by field. check_down.c has the bounds of the fields. No state. Any thread.
//
// `out` functions fill a zeroed generated struct from a checked plain one; `in` functions fill a
// zeroed plain struct, which is checked afterwards.

#include "protos/codec/down.h"

#include "protos/codec/await.h"
#include "protos/codec/check_down.h"
#include "protos/codec/codec.h"
#include "protos/codec/internal.h"
#include "protos/codec/recovery.h"
#include "protos/codec/resume.h"

#include "protos/control.pb.h"

#include <string.h>

#define DOWN_TAG(name, kind) static_assert(wire_Down_##name##_tag == (kind) + 1, "tag is kind + 1")

DOWN_TAG(welcome, DOWN_WELCOME);
DOWN_TAG(refused, DOWN_REFUSED);
DOWN_TAG(generation_start, DOWN_GENERATION);
DOWN_TAG(verified, DOWN_VERIFIED);
DOWN_TAG(manifest_request, DOWN_MANIFEST_REQUEST);
DOWN_TAG(grant, DOWN_GRANT);
DOWN_TAG(layout_part, DOWN_LAYOUT_PART);
DOWN_TAG(plan_part, DOWN_PLAN_PART);
DOWN_TAG(halt, DOWN_HALT);
DOWN_TAG(tuning, DOWN_TUNING);
DOWN_TAG(query, DOWN_QUERY);
DOWN_TAG(inspect, DOWN_INSPECT);
DOWN_TAG(addresses, DOWN_ADDRESSES);
DOWN_TAG(prepare, DOWN_PREPARE);
DOWN_TAG(record_part, DOWN_RECORD_PART);
DOWN_TAG(decision, DOWN_DECISION);
DOWN_TAG(excluded, DOWN_EXCLUDED);

// ---- Out -------------------------------------------------------------------------------------

static bool down_locality_out(wire_Locality *wire, const struct locality *locality)
{
    wire->host = locality->host;
    wire->hosts = locality->hosts;
    wire->mates_count = (pb_size_t)locality->mate_count;
    memcpy(wire->mates, locality->mates, locality->mate_count * sizeof(locality->mates[0]));
    wire->local = locality->local;
    wire->rings = locality->rings;
    wire->successor = locality->successor;
    wire->predecessor = locality->predecessor;
    wire->mate_pids_count = (pb_size_t)locality->mate_count;
    memcpy(wire->mate_pids, locality->mate_pids,
           locality->mate_count * sizeof(locality->mate_pids[0]));
    wire->mate_started_count = (pb_size_t)locality->mate_count;
    memcpy(wire->mate_started, locality->mate_started,
           locality->mate_count * sizeof(locality->mate_started[0]));
    return locality->hosts != 0;
}

static void down_peers_out(wire_Peer *wire, const struct peer *peers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        wire[i].rank = peers[i].rank;
        codec_text_out(wire[i].address, peers[i].address, sizeof(wire[i].address));
        codec_text_out(wire[i].host, peers[i].host, sizeof(wire[i].host));
    }
}

static void down_generation_out(wire_DownGeneration *wire, const struct down_generation *generation)
{
    wire->rank = generation->rank;
    wire->world_size = generation->world_size;
    wire->local_rank = generation->local_rank;
    wire->local_size = generation->local_size;
    wire->chunk_bytes = generation->chunk_bytes;
    wire->secret.size = sizeof(generation->secret);
    memcpy(wire->secret.bytes, generation->secret, sizeof(generation->secret));
    wire->peers_count = (pb_size_t)generation->peer_count;
    down_peers_out(wire->peers, generation->peers, generation->peer_count);
    wire->further_count = (pb_size_t)generation->further_count;
    for (uint32_t i = 0; i < generation->further_count; i++) {
        wire->further[i].rank = generation->further[i].rank;
        codec_text_out(wire->further[i].address, generation->further[i].address,
                       sizeof(wire->further[i].address));
    }
    wire->gpus_count =
        (pb_size_t)codec_words_out(wire->gpus, generation->gpus, LOCKSTEP_RANK_WORDS);
    wire->gpus_meet = generation->gpus_meet;
    wire->core_ranks = generation->core_ranks;
    wire->has_locality = down_locality_out(&wire->locality, &generation->locality);
}

static void down_plan_part_out(wire_DownPlanPart *wire, const struct down_plan_part *part)
{
    wire->number = part->number;
    wire->phase = part->phase;
    wire->hash = part->hash;
    wire->closes_step = part->closes_step;
    wire->step = part->step;
    wire->slot_total = part->slot_total;
    wire->slot_first = part->slot_first;
    wire->last = part->last;
    wire->strict = part->strict;
    wire->replaces = part->replaces;
    wire->slots_count = (pb_size_t)part->slot_count;
    for (uint32_t i = 0; i < part->slot_count; i++) {
        wire->slots[i].has_id = true;
        codec_slot_out(&wire->slots[i].id, &part->slots[i].id);
        wire->slots[i].algorithm = (wire_PlanAlgorithm)part->slots[i].algorithm;
    }
}

static void down_halt_out(wire_DownHalt *wire, const struct down_halt *halt)
{
    wire->step = halt->step;
    wire->kind = (wire_HaltKind)halt->kind;
    wire->has_rank = halt->has_rank;
    wire->rank = halt->rank;
    codec_text_out(wire->text, halt->text, sizeof(wire->text));
    codec_text_out(wire->cause, halt->cause, sizeof(wire->cause));
}

static void down_out(wire_Down *wire, const struct down_message *message)
{
    wire->has_generation = codec_generation_out(&wire->generation, &message->generation);
    wire->which_u = (pb_size_t)(message->kind + 1);
    switch (message->kind) {
    case DOWN_WELCOME:
        wire->u.welcome.version = message->u.welcome.version;
        wire->u.welcome.heartbeat_ms = message->u.welcome.heartbeat_ms;
        break;
    case DOWN_REFUSED:
        wire->u.refused.refusal = (wire_Refusal)message->u.refused.refusal;
        codec_text_out(wire->u.refused.text, message->u.refused.text, sizeof(wire->u.refused.text));
        break;
    case DOWN_GENERATION:
        down_generation_out(&wire->u.generation_start, &message->u.generation_start);
        break;
    case DOWN_MANIFEST_REQUEST:
        wire->u.manifest_request.first = message->u.manifest_request.first;
        wire->u.manifest_request.count = message->u.manifest_request.count;
        break;
    case DOWN_GRANT:
        wire->u.grant.step = message->u.grant.step;
        wire->u.grant.has_slot = true;
        codec_slot_out(&wire->u.grant.slot, &message->u.grant.slot);
        wire->u.grant.forced = message->u.grant.forced;
        break;
    case DOWN_LAYOUT_PART:
        codec_layout_out(&wire->u.layout_part, &message->u.layout_part);
        break;
    case DOWN_PLAN_PART:
        down_plan_part_out(&wire->u.plan_part, &message->u.plan_part);
        break;
    case DOWN_HALT:
        down_halt_out(&wire->u.halt, &message->u.halt);
        break;
    case DOWN_TUNING:
        codec_tuning_out(&wire->u.tuning, &message->u.tuning);
        break;
    case DOWN_QUERY:
        wire->u.query.step = message->u.query.step;
        wire->u.query.withdrawn = message->u.query.withdrawn;
        wire->u.query.form = message->u.query.form;
        wire->u.query.keys_count = (pb_size_t)message->u.query.key_count;
        codec_await_keys_out(wire->u.query.keys, message->u.query.keys, message->u.query.key_count);
        break;
    case DOWN_INSPECT:
        wire->u.inspect.id = message->u.inspect.id;
        wire->u.inspect.what = message->u.inspect.what;
        break;
    case DOWN_ADDRESSES:
        wire->u.addresses.peers_count = (pb_size_t)message->u.addresses.count;
        down_peers_out(wire->u.addresses.peers, message->u.addresses.peers,
                       message->u.addresses.count);
        break;
    case DOWN_PREPARE:
        codec_prepare_out(&wire->u.prepare, &message->u.prepare);
        break;
    case DOWN_RECORD_PART:
        codec_record_out(&wire->u.record_part, &message->u.record_part);
        break;
    case DOWN_DECISION:
        codec_decision_out(&wire->u.decision, &message->u.decision);
        break;
    case DOWN_EXCLUDED:
        codec_excluded_out(&wire->u.excluded, &message->u.excluded);
        break;
    case DOWN_VERIFIED:
        wire->u.verified.grouped = message->u.verified.grouped;
        break;
    case DOWN_NONE:
        break;
    }
}

// ---- In --------------------------------------------------------------------------------------

static void down_locality_in(struct locality *locality, const wire_Locality *wire,
                             struct codec_fault *fault)
{
    if (wire->mate_pids_count > wire->mates_count || wire->mate_started_count > wire->mates_count)
        codec_fault_set(fault, CODEC_INVALID, "there are more processes of mates than mates");
    locality->host = wire->host;
    locality->hosts = wire->hosts;
    locality->mate_count = wire->mates_count;
    memcpy(locality->mates, wire->mates, wire->mates_count * sizeof(wire->mates[0]));
    locality->local = wire->local;
    locality->rings = wire->rings;
    locality->successor = wire->successor;
    locality->predecessor = wire->predecessor;
    memcpy(locality->mate_pids, wire->mate_pids,
           wire->mate_pids_count * sizeof(wire->mate_pids[0]));
    memcpy(locality->mate_started, wire->mate_started,
           wire->mate_started_count * sizeof(wire->mate_started[0]));
}

static void down_peers_in(struct peer *peers, const wire_Peer *wire, uint32_t count,
                          struct codec_fault *fault)
{
    for (uint32_t i = 0; i < count; i++) {
        peers[i].rank = wire[i].rank;
        codec_text_in(peers[i].address, wire[i].address, sizeof(peers[i].address), fault);
        codec_text_in(peers[i].host, wire[i].host, sizeof(peers[i].host), fault);
    }
}

static void down_generation_in(struct down_generation *generation, const wire_DownGeneration *wire,
                               struct codec_fault *fault)
{
    generation->rank = wire->rank;
    generation->world_size = wire->world_size;
    generation->local_rank = wire->local_rank;
    generation->local_size = wire->local_size;
    generation->chunk_bytes = wire->chunk_bytes;
    codec_bytes_in(generation->secret, sizeof(generation->secret), wire->secret.bytes,
                   wire->secret.size, fault);
    generation->peer_count = wire->peers_count;
    down_peers_in(generation->peers, wire->peers, generation->peer_count, fault);
    generation->further_count = wire->further_count;
    for (uint32_t i = 0; i < generation->further_count; i++) {
        struct data_port *port = &generation->further[i];
        port->rank = wire->further[i].rank;
        codec_text_in(port->address, wire->further[i].address, sizeof(port->address), fault);
    }
    memcpy(generation->gpus, wire->gpus, wire->gpus_count * sizeof(wire->gpus[0]));
    generation->gpus_meet = wire->gpus_meet;
    generation->core_ranks = wire->core_ranks;
    if (wire->has_locality)
        down_locality_in(&generation->locality, &wire->locality, fault);
}

static void down_plan_part_in(struct down_plan_part *part, const wire_DownPlanPart *wire,
                              struct codec_fault *fault)
{
    part->number = wire->number;
    part->phase = wire->phase;
    part->hash = wire->hash;
    part->closes_step = wire->closes_step;
    part->step = wire->step;
    part->slot_total = wire->slot_total;
    part->slot_first = wire->slot_first;
    part->last = wire->last;
    part->strict = wire->strict;
    part->replaces = wire->replaces;
    part->slot_count = wire->slots_count;
    for (uint32_t i = 0; i < part->slot_count; i++) {
        codec_slot_in(&part->slots[i].id, &wire->slots[i].id, wire->slots[i].has_id, fault);
        part->slots[i].algorithm = (uint32_t)wire->slots[i].algorithm;
    }
}

static void down_halt_in(struct down_halt *halt, const wire_DownHalt *wire,
                         struct codec_fault *fault)
{
    halt->step = wire->step;
    halt->kind = (enum halt_kind)wire->kind;
    halt->has_rank = wire->has_rank;
    halt->rank = wire->rank;
    codec_text_in(halt->text, wire->text, sizeof(halt->text), fault);
    codec_text_in(halt->cause, wire->cause, sizeof(halt->cause), fault);
}

static void down_in(struct down_message *message, const wire_Down *wire, struct codec_fault *fault)
{
    codec_generation_in(&message->generation, &wire->generation, wire->has_generation);
    message->kind = wire->which_u == 0 ? DOWN_NONE : (enum down_kind)(wire->which_u - 1);
    switch (message->kind) {
    case DOWN_WELCOME:
        message->u.welcome.version = wire->u.welcome.version;
        message->u.welcome.heartbeat_ms = wire->u.welcome.heartbeat_ms;
        break;
    case DOWN_REFUSED:
        message->u.refused.refusal = (enum refusal)wire->u.refused.refusal;
        codec_text_in(message->u.refused.text, wire->u.refused.text,
                      sizeof(message->u.refused.text), fault);
        break;
    case DOWN_GENERATION:
        down_generation_in(&message->u.generation_start, &wire->u.generation_start, fault);
        break;
    case DOWN_MANIFEST_REQUEST:
        message->u.manifest_request.first = wire->u.manifest_request.first;
        message->u.manifest_request.count = wire->u.manifest_request.count;
        break;
    case DOWN_GRANT:
        message->u.grant.step = wire->u.grant.step;
        codec_slot_in(&message->u.grant.slot, &wire->u.grant.slot, wire->u.grant.has_slot, fault);
        message->u.grant.forced = wire->u.grant.forced;
        break;
    case DOWN_LAYOUT_PART:
        codec_layout_in(&message->u.layout_part, &wire->u.layout_part);
        break;
    case DOWN_PLAN_PART:
        down_plan_part_in(&message->u.plan_part, &wire->u.plan_part, fault);
        break;
    case DOWN_HALT:
        down_halt_in(&message->u.halt, &wire->u.halt, fault);
        break;
    case DOWN_TUNING:
        codec_tuning_in(&message->u.tuning, &wire->u.tuning);
        break;
    case DOWN_QUERY:
        message->u.query.step = wire->u.query.step;
        message->u.query.withdrawn = wire->u.query.withdrawn;
        message->u.query.form = wire->u.query.form;
        message->u.query.key_count = wire->u.query.keys_count;
        codec_await_keys_in(message->u.query.keys, wire->u.query.keys, wire->u.query.keys_count);
        break;
    case DOWN_INSPECT:
        message->u.inspect.id = wire->u.inspect.id;
        message->u.inspect.what = wire->u.inspect.what;
        break;
    case DOWN_ADDRESSES:
        message->u.addresses.count = wire->u.addresses.peers_count;
        down_peers_in(message->u.addresses.peers, wire->u.addresses.peers,
                      message->u.addresses.count, fault);
        break;
    case DOWN_PREPARE:
        codec_prepare_in(&message->u.prepare, &wire->u.prepare, fault);
        break;
    case DOWN_RECORD_PART:
        codec_record_in(&message->u.record_part, &wire->u.record_part);
        break;
    case DOWN_DECISION:
        codec_decision_in(&message->u.decision, &wire->u.decision, fault);
        break;
    case DOWN_EXCLUDED:
        codec_excluded_in(&message->u.excluded, &wire->u.excluded, fault);
        break;
    case DOWN_VERIFIED:
        message->u.verified.grouped = wire->u.verified.grouped;
        break;
    case DOWN_NONE:
        break;
    }
}

// ---- Whole messages --------------------------------------------------------------------------

enum codec_status codec_encode_down(const struct down_message *message, uint8_t *bytes,
                                    size_t capacity, size_t *size)
{
    struct codec_fault fault = {0};
    wire_Down wire;

    *size = 0;
    codec_check_down(message, &fault);
    if (fault.status != CODEC_OK)
        return fault.status;
    memset(&wire, 0, sizeof(wire));
    down_out(&wire, message);
    return codec_write(wire_Down_fields, &wire, bytes, capacity, size);
}

enum codec_status codec_decode_down(const uint8_t *bytes, size_t size, struct down_message *message,
                                    const char **detail)
{
    struct codec_fault fault = {0};
    wire_Down wire;

    memset(&wire, 0, sizeof(wire));
    memset(message, 0, sizeof(*message));
    codec_read(wire_Down_fields, &wire, bytes, size, &fault);
    if (fault.status == CODEC_OK)
        down_in(message, &wire, &fault);
    if (fault.status == CODEC_OK)
        codec_check_down(message, &fault);
    if (fault.status == CODEC_OK)
        return CODEC_OK;
    memset(message, 0, sizeof(*message));
    if (detail)
        *detail = fault.detail;
    return fault.status;
}
