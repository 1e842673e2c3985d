// SPDX-License-Identifier: Apache-2.0
//
// Control messages in one line of text. A slot is written module#call.bucket. Any thread.

#include "tests/support/describe.h"

#include "protos/tuning.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *halt_name(enum halt_kind kind)
{
    static const char *const names[] = {"none",      "manifest",   "phase",  "order",
                                        "unplanned", "collective", "lost",   "left",
                                        "protocol",  "layout",     "tuning", "limit"};
    return (size_t)kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "?";
}

static const char *refusal_name(enum refusal refusal)
{
    static const char *const names[] = {"none",    "version", "invalid",
                                        "timeout", "full",    "draining"};
    return (size_t)refusal < sizeof(names) / sizeof(names[0]) ? names[refusal] : "?";
}

static void describe_slot(char *text, size_t bytes, const char *what, uint64_t step,
                          const struct slot_id *slot)
{
    snprintf(text, bytes, "%s step %" PRIu64 " slot %" PRIu32 "#%" PRIu32 ".%" PRIu32, what, step,
             slot->module, slot->call, slot->bucket);
}

static void describe_layout(char *text, size_t bytes, const struct layout_part *part)
{
    snprintf(text, bytes,
             "layout of module %" PRIu32 ", words %" PRIu32 " to %" PRIu32 " of %" PRIu32,
             part->module, part->first, part->first + part->count, part->total);
}

static void describe_hello(char *text, size_t bytes, const struct up_hello *hello)
{
    int used = snprintf(text, bytes, "hello job %s world %" PRIu32, hello->job, hello->world_min);
    if (hello->world_max != hello->world_min)
        used += snprintf(text + used, bytes - (size_t)used, "..%" PRIu32, hello->world_max);
    used += snprintf(text + used, bytes - (size_t)used, " host %s", hello->host);
    if (hello->has_rank_hint)
        snprintf(text + used, bytes - (size_t)used, " hint %" PRIu32, hello->rank_hint);
}

static void describe_start(char *text, size_t bytes, const struct up_start *start)
{
    const int used = snprintf(text, bytes, "start hash %" PRIx64 " items %" PRIu32 " root %" PRIu32,
                              start->manifest_hash, start->item_count, start->root);
    if (start->settled != 0)
        snprintf(text + used, bytes - (size_t)used, " after step %" PRIu64, start->settled);
}

static void describe_wait(char *text, size_t bytes, const struct up_wait *wait)
{
    describe_slot(text, bytes, "wait", wait->step, &wait->slot);
    for (uint32_t i = 0; i < wait->also_count && i < LOCKSTEP_MAX_WAITS - 1; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, bytes - used, " and %" PRIu32 "#%" PRIu32 ".%" PRIu32,
                 wait->also[i].module, wait->also[i].call, wait->also[i].bucket);
    }
}

static void describe_calls(char *text, size_t bytes, const char *before, const struct call_id *call)
{
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s %" PRIu32 "#%" PRIu32, before, call->module,
             call->call);
}

static void describe_blocked(char *text, size_t bytes, const struct up_blocked *blocked)
{
    snprintf(text, bytes, "blocked step %" PRIu64 " by %" PRIu32 " waits", blocked->step,
             blocked->wait_count);
    for (uint32_t i = 0; i < blocked->wait_count && i < LOCKSTEP_MAX_WAITS; i++)
        describe_calls(text, bytes, i == 0 ? " for" : ",", &blocked->waits[i].call);
    for (uint32_t i = 0; i < blocked->lack_count && i < LOCKSTEP_LACKS_NAMED; i++)
        describe_calls(text, bytes, i == 0 ? ", lacks" : ",", &blocked->lacking[i].call);
}

static void describe_reach(char *text, size_t bytes, const struct up_reach *reach)
{
    int used = snprintf(text, bytes, "reach");
    for (uint32_t i = 0; i < reach->count && i < LOCKSTEP_REACH_RANKS && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, " %" PRIu32, reach->ranks[i]);
}

static void describe_replan(char *text, size_t bytes, const struct up_replan *replan)
{
    snprintf(text, bytes, "replan step %" PRIu64 " in place of %" PRIu64 ":", replan->step,
             replan->replaces);
    for (uint32_t i = 0; i < replan->call_count && i < LOCKSTEP_REPLAN_CALLS; i++)
        describe_calls(text, bytes, "", &replan->calls[i]);
}

static void describe_record(char *text, size_t bytes, const struct record_part *part)
{
    static const char *const names[] = {"none",  "runs",    "rows",    "used",  "final",
                                        "given", "opening", "closing", "commit"};
    int used =
        snprintf(text, bytes, "%s of %" PRIu32 " [",
                 (size_t)part->kind < sizeof(names) / sizeof(names[0]) ? names[part->kind] : "?",
                 part->position);
    const uint32_t most = sizeof(part->words) / sizeof(part->words[0]);
    for (uint32_t i = 0; i < part->count && i < most && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, "%s%" PRIu64, i == 0 ? "" : " ",
                         part->words[i]);
    if ((size_t)used < bytes)
        snprintf(text + used, bytes - (size_t)used, "]");
}

static void describe_ready(char *text, size_t bytes, const struct up_ready *ready)
{
    describe_slot(text, bytes, "ready", ready->step, &ready->slot);
    const size_t used = strlen(text);
    if (ready->granted > 0)
        snprintf(text + used, bytes - used, ", granted as %" PRIu32 " of %" PRIu32 "%s",
                 ready->granted, ready->grants, ready->unmade ? ", unmade" : "");
}

void describe_up(char *text, size_t bytes, const struct up_message *message)
{
    switch (message->kind) {
    case UP_HELLO:
        describe_hello(text, bytes, &message->u.hello);
        return;
    case UP_START:
        describe_start(text, bytes, &message->u.start);
        return;
    case UP_MANIFEST_PART:
        snprintf(text, bytes, "manifest items %" PRIu32 " to %" PRIu32,
                 message->u.manifest_part.first,
                 message->u.manifest_part.first + message->u.manifest_part.count);
        return;
    case UP_READY:
        describe_ready(text, bytes, &message->u.ready);
        return;
    case UP_WAIT:
        describe_wait(text, bytes, &message->u.wait);
        return;
    case UP_LAYOUT_PART:
        describe_layout(text, bytes, &message->u.layout_part);
        return;
    case UP_END:
        snprintf(text, bytes, "end step %" PRIu64, message->u.end.step);
        return;
    case UP_HEARTBEAT:
        snprintf(text, bytes, "heartbeat step %" PRIu64, message->u.heartbeat.step);
        return;
    case UP_FAIL:
        snprintf(text, bytes, "fail %s step %" PRIu64 ": %s", halt_name(message->u.fail.kind),
                 message->u.fail.step, message->u.fail.text);
        return;
    case UP_LOST:
        snprintf(text, bytes, "%s rank %" PRIu32 " step %" PRIu64 ": %s",
                 message->u.lost.left ? "left behind by" : "lost", message->u.lost.rank,
                 message->u.lost.step, message->u.lost.text);
        return;
    case UP_LEAVE:
        snprintf(text, bytes, "leave settled %" PRIu64 "%s", message->u.leave.settled,
                 message->u.leave.word_count > 0 ? ", with its last wave" : "");
        return;
    case UP_LINKS:
        snprintf(text, bytes, "links %s, %" PRIu64 " ns, %" PRIu64 " bytes/s, wish %s",
                 message->u.links.shares ? "shared" : "not shared", message->u.links.latency_ns,
                 message->u.links.bytes_per_s, tuning_name(message->u.links.wish));
        return;
    case UP_BLOCKED:
        describe_blocked(text, bytes, &message->u.blocked);
        return;
    case UP_MODULES:
        snprintf(text, bytes, "modules %" PRIu32 " to %" PRIu32 " of %" PRIu32,
                 message->u.modules.first, message->u.modules.first + message->u.modules.count,
                 message->u.modules.total);
        return;
    case UP_ANSWER:
        snprintf(text, bytes, "answer %" PRIu64 "%s", message->u.answer.id,
                 message->u.answer.last ? ", last" : "");
        return;
    case UP_REPLAN:
        describe_replan(text, bytes, &message->u.replan);
        return;
    case UP_REACH:
        describe_reach(text, bytes, &message->u.reach);
        return;
    case UP_RECORD_PART:
        describe_record(text, bytes, &message->u.record_part);
        return;
    case UP_REPORT:
        snprintf(text, bytes,
                 "report ballot %" PRIu64 ", settled %" PRIu64 ", step %" PRIu64 ", flags %" PRIu32,
                 message->u.report.ballot.number, message->u.report.settled, message->u.report.step,
                 message->u.report.flags);
        return;
    case UP_REFUSE:
        snprintf(text, bytes, "refuse, promised %" PRIu64, message->u.refuse.promised.number);
        return;
    case UP_NONE:
        break;
    }
    snprintf(text, bytes, "up message of kind %d", (int)message->kind);
}

static void describe_addresses(char *text, size_t bytes, const struct down_addresses *addresses)
{
    int used = snprintf(text, bytes, "addresses");
    for (uint32_t i = 0; i < addresses->count && (size_t)used < bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, " %" PRIu32 "@%s on %s",
                         addresses->peers[i].rank, addresses->peers[i].address,
                         addresses->peers[i].host);
}

static void describe_generation(char *text, size_t bytes, const struct down_message *message)
{
    const struct down_generation *start = &message->u.generation_start;
    int used = snprintf(text, bytes,
                        "generation %" PRIu64 ": rank %" PRIu32 " of %" PRIu32 ", local %" PRIu32
                        " of %" PRIu32 ", peers",
                        message->generation.number, start->rank, start->world_size,
                        start->local_rank, start->local_size);
    for (uint32_t i = 0; i < start->peer_count; i++)
        used += snprintf(text + used, bytes - (size_t)used, " %" PRIu32 "@%s", start->peers[i].rank,
                         start->peers[i].address);
    for (uint32_t rank = 0, count = 0; rank < start->world_size; rank++)
        if ((start->gpus[rank / 64] >> rank % 64 & 1) != 0)
            used += snprintf(text + used, bytes - (size_t)used, "%s %" PRIu32,
                             count++ == 0 ? ", gpus" : "", rank);
}

static void describe_plan(char *text, size_t bytes, const struct down_plan_part *part)
{
    int used = snprintf(text, bytes, "plan %" PRIu64 " %s %" PRIu64, part->number,
                        part->closes_step ? "closes step" : "replaces",
                        part->closes_step ? part->step : part->replaces);
    used += snprintf(text + used, bytes - (size_t)used,
                     ", slots %" PRIu32 " to %" PRIu32 " of %" PRIu32 "%s", part->slot_first,
                     part->slot_first + part->slot_count, part->slot_total,
                     part->last ? ", last:" : ":");
    for (uint32_t i = 0; i < part->slot_count && i < 12; i++)
        used +=
            snprintf(text + used, bytes - (size_t)used, " %" PRIu32 "#%" PRIu32 ".%" PRIu32,
                     part->slots[i].id.module, part->slots[i].id.call, part->slots[i].id.bucket);
    if (part->slot_count > 12)
        snprintf(text + used, bytes - (size_t)used, " ...");
}

void describe_down(char *text, size_t bytes, const struct down_message *message)
{
    switch (message->kind) {
    case DOWN_WELCOME:
        snprintf(text, bytes, "welcome");
        return;
    case DOWN_REFUSED:
        snprintf(text, bytes, "refused (%s): %s", refusal_name(message->u.refused.refusal),
                 message->u.refused.text);
        return;
    case DOWN_GENERATION:
        describe_generation(text, bytes, message);
        return;
    case DOWN_VERIFIED:
        snprintf(text, bytes, "verified");
        return;
    case DOWN_MANIFEST_REQUEST:
        snprintf(text, bytes, "request manifest items %" PRIu32 " to %" PRIu32,
                 message->u.manifest_request.first,
                 message->u.manifest_request.first + message->u.manifest_request.count);
        return;
    case DOWN_GRANT:
        describe_slot(text, bytes, message->u.grant.forced ? "forced grant" : "grant",
                      message->u.grant.step, &message->u.grant.slot);
        return;
    case DOWN_LAYOUT_PART:
        describe_layout(text, bytes, &message->u.layout_part);
        return;
    case DOWN_PLAN_PART:
        describe_plan(text, bytes, &message->u.plan_part);
        return;
    case DOWN_HALT:
        snprintf(text, bytes, "halt %s step %" PRIu64 ": %s", halt_name(message->u.halt.kind),
                 message->u.halt.step, message->u.halt.text);
        return;
    case DOWN_TUNING:
        snprintf(text, bytes, "tuning %s, %" PRIu64 " ns, %" PRIu64 " bytes/s, wish %s",
                 message->u.tuning.shares ? "shared" : "not shared", message->u.tuning.latency_ns,
                 message->u.tuning.bytes_per_s, tuning_name(message->u.tuning.wish));
        return;
    case DOWN_QUERY:
        snprintf(text, bytes, "query step %" PRIu64 "%s%s", message->u.query.step,
                 message->u.query.withdrawn ? ", withdrawn" : "",
                 message->u.query.form ? ", form" : "");
        return;
    case DOWN_INSPECT:
        snprintf(text, bytes, "inspect %" PRIu64 " what %" PRIu32, message->u.inspect.id,
                 message->u.inspect.what);
        return;
    case DOWN_ADDRESSES:
        describe_addresses(text, bytes, &message->u.addresses);
        return;
    case DOWN_PREPARE:
        snprintf(text, bytes, "prepare ballot %" PRIu64 ", suspects %" PRIx64 ": %s",
                 message->u.prepare.ballot.number, message->u.prepare.suspects[0],
                 message->u.prepare.text);
        return;
    case DOWN_RECORD_PART:
        describe_record(text, bytes, &message->u.record_part);
        return;
    case DOWN_DECISION:
        snprintf(text, bytes,
                 "decision ballot %" PRIu64 ", settled %" PRIu64 ", step %" PRIu64
                 ", flags %" PRIu32 ", removed %" PRIx64,
                 message->u.decision.ballot.number, message->u.decision.settled,
                 message->u.decision.step, message->u.decision.flags,
                 message->u.decision.removed[0]);
        return;
    case DOWN_EXCLUDED:
        snprintf(text, bytes, "excluded by ballot %" PRIu64 ": %s",
                 message->u.excluded.ballot.number, message->u.excluded.text);
        return;
    case DOWN_NONE:
        break;
    }
    snprintf(text, bytes, "down message of kind %d", (int)message->kind);
}
