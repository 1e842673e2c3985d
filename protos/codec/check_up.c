// SPDX-License-Identifier: Apache-2.0
//
// The bounds of workers' messages; check_up.h has the contract. No state. Any thread.

#include "protos/codec/check_up.h"

#include "protos/codec/await.h"
#include "protos/codec/check.h"
#include "protos/codec/codec.h"
#include "protos/codec/internal.h"
#include "protos/codec/recovery.h"

static void check_start(const struct up_start *start, struct codec_fault *fault)
{
    codec_check_number(start->item_count, LOCKSTEP_MAX_ITEMS, "a manifest has too many items",
                       fault);
    codec_check_rank(start->root, fault);
}

static void check_resume(const struct up_resume *resume, struct codec_fault *fault)
{
    codec_check_rank(resume->rank, fault);
    codec_check_number(resume->world_size, LOCKSTEP_MAX_WORLD,
                       "a world is above LOCKSTEP_MAX_WORLD", fault);
    codec_check_algorithm(resume->tuning.wish, fault);
    check_start(&resume->start, fault);
    codec_check_chain(resume->chain, resume->chain_count, fault);
}

static void check_hello(const struct up_hello *hello, struct codec_fault *fault)
{
    codec_check_text(hello->job, sizeof(hello->job), fault);
    codec_check_text(hello->host_id, sizeof(hello->host_id), fault);
    codec_check_text(hello->host, sizeof(hello->host), fault);
    codec_check_text(hello->address, sizeof(hello->address), fault);
    codec_check_number((uint32_t)hello->on_failure, FAILURE_CONTINUE, "a failure policy is unknown",
                       fault);
    codec_check_text(hello->device, sizeof(hello->device), fault);
    codec_check_text(hello->gpu.nccl_missing, sizeof(hello->gpu.nccl_missing), fault);
    codec_check_text(hello->gpu_problem, sizeof(hello->gpu_problem), fault);
    if (hello->resumes)
        check_resume(&hello->resume, fault);
}

static void check_manifest_item(const struct manifest_item *item, struct codec_fault *fault)
{
    if ((uint32_t)item->kind < MANIFEST_SESSION || (uint32_t)item->kind > MANIFEST_BUFFER)
        codec_fault_set(fault, CODEC_INVALID, "the kind of a manifest item is missing or unknown");
    codec_check_module(item->module, fault);
    codec_check_dtype(item->dtype, fault);
    codec_check_count(item->dims, LOCKSTEP_MAX_DIMS, "a tensor has too many dimensions", fault);
    codec_check_text(item->name, sizeof(item->name), fault);
    codec_check_text(item->value, sizeof(item->value), fault);
}

static void check_manifest_part(const struct up_manifest_part *part, struct codec_fault *fault)
{
    codec_check_count(part->count, LOCKSTEP_MANIFEST_PART, "too many manifest items in a part",
                      fault);
    codec_check_part(part->first, part->count, LOCKSTEP_MAX_ITEMS, "a manifest has too many items",
                     fault);
    for (uint32_t i = 0; i < part->count && fault->status == CODEC_OK; i++)
        check_manifest_item(&part->items[i], fault);
}

static void check_ready(const struct up_ready *ready, struct codec_fault *fault)
{
    codec_check_slot(&ready->slot, fault);
    codec_check_dtype(ready->dtype, fault);
    codec_check_number(ready->granted, LOCKSTEP_MAX_SLOTS, "a step is above LOCKSTEP_MAX_SLOTS",
                       fault);
    codec_check_number(ready->grants, LOCKSTEP_MAX_SLOTS, "a step is above LOCKSTEP_MAX_SLOTS",
                       fault);
}

static void check_wait(const struct up_wait *wait, struct codec_fault *fault)
{
    codec_check_slot(&wait->slot, fault);
    codec_check_count(wait->also_count, LOCKSTEP_MAX_WAITS - 1, "too many waits of a worker",
                      fault);
    for (uint32_t i = 0; i < wait->also_count && fault->status == CODEC_OK; i++)
        codec_check_slot(&wait->also[i], fault);
}

static void check_letter(char letter, struct codec_fault *fault)
{
    if (!(letter >= 'A' && letter <= 'Z') && !(letter >= 'a' && letter <= 'z'))
        codec_fault_set(fault, CODEC_INVALID, "the state of a process is no letter");
}

static void check_place(const struct place *place, struct codec_fault *fault)
{
    codec_check_number(place->count, LOCKSTEP_MAX_SLOTS, "a step is above LOCKSTEP_MAX_SLOTS",
                       fault);
    codec_check_number(place->position, (uint64_t)place->count + 1,
                       "a position lies outside its step", fault);
    if (place->position < place->count)
        codec_check_slot(&place->slot, fault);
    codec_check_number((uint32_t)place->api, API_CLOSE, "a function of the library is unknown",
                       fault);
    codec_check_number(place->module, LOCKSTEP_MAX_MODULES,
                       "a module is above LOCKSTEP_MAX_MODULES", fault);
    codec_check_call(place->call, fault);
}

static void check_numbers(const struct up_heartbeat *heartbeat, struct codec_fault *fault)
{
    codec_check_count(heartbeat->metric_count, LOCKSTEP_MAX_METRICS, "too many metrics", fault);
    for (uint32_t i = 0; i < heartbeat->metric_count && fault->status == CODEC_OK; i++) {
        const struct metric_state *metric = &heartbeat->metrics[i];
        codec_check_text(metric->name, sizeof(metric->name), fault);
        codec_check_number(metric->kind - METRIC_SUM, METRIC_MAX - METRIC_SUM,
                           "the kind of a metric is unknown", fault);
    }
    codec_check_count(heartbeat->counter_count, LOCKSTEP_MAX_COUNTERS, "too many counters", fault);
    for (uint32_t i = 0; i < heartbeat->counter_count && fault->status == CODEC_OK; i++)
        codec_check_text(heartbeat->counters[i].name, sizeof(heartbeat->counters[i].name), fault);
}

static void check_heartbeat(const struct up_heartbeat *heartbeat, struct codec_fault *fault)
{
    codec_check_number((uint32_t)heartbeat->activity, ACTIVITY_PAUSED, "an activity is unknown",
                       fault);
    codec_check_text(heartbeat->mark, sizeof(heartbeat->mark), fault);
    codec_check_text(heartbeat->sleeps, sizeof(heartbeat->sleeps), fault);
    codec_check_text(heartbeat->failure, sizeof(heartbeat->failure), fault);
    check_place(&heartbeat->place, fault);
    codec_check_number(heartbeat->flags, PLACE_FLAGS, "a flag of a place is unknown", fault);
    codec_check_number((uint32_t)heartbeat->held, DEVICE_HOLD_NCCL,
                       "what a device is waited for is unknown", fault);
    codec_check_count(heartbeat->link_count, LOCKSTEP_LINKS_NAMED, "too many links", fault);
    for (uint32_t i = 0; i < heartbeat->link_count && fault->status == CODEC_OK; i++)
        codec_check_rank(heartbeat->links[i].rank, fault);
    codec_check_count(heartbeat->mate_count, LOCKSTEP_MATES_NAMED, "too many mates", fault);
    for (uint32_t i = 0; i < heartbeat->mate_count && fault->status == CODEC_OK; i++) {
        codec_check_rank(heartbeat->mates[i].rank, fault);
        check_letter(heartbeat->mates[i].state, fault);
    }
    codec_check_await(&heartbeat->await, fault);
    codec_check_text(heartbeat->collective, sizeof(heartbeat->collective), fault);
    codec_check_text(heartbeat->collective_detail, sizeof(heartbeat->collective_detail), fault);
    codec_check_count(heartbeat->overdue_count, LOCKSTEP_OVERDUE_NAMED,
                      "too many overdue collectives", fault);
    check_numbers(heartbeat, fault);
}

// The named calls must be in the order of their positions, and `lacks` must contain each position.
static void check_lacking(const struct up_blocked *blocked, struct codec_fault *fault)
{
    uint64_t lowest = 0;
    for (uint32_t i = 0; i < blocked->lack_count && fault->status == CODEC_OK; i++) {
        const uint32_t position = blocked->lacking[i].position;
        if (position < lowest || position >= LOCKSTEP_MAX_SLOTS ||
            !slot_set_has(&blocked->lacks, position))
            codec_fault_set(fault, CODEC_INVALID, "the calls of a blocked worker are no lacks");
        lowest = (uint64_t)position + 1;
        codec_check_call_id(&blocked->lacking[i].call, fault);
    }
}

static void check_blocked(const struct up_blocked *blocked, struct codec_fault *fault)
{
    codec_check_count(blocked->wait_count, LOCKSTEP_MAX_WAITS, "too many waits of a worker", fault);
    for (uint32_t i = 0; i < blocked->wait_count && fault->status == CODEC_OK; i++)
        codec_check_call_id(&blocked->waits[i].call, fault);
    codec_check_count(blocked->lack_count, LOCKSTEP_LACKS_NAMED, "too many lacks of a worker",
                      fault);
    check_lacking(blocked, fault);
}

static void check_replan(const struct up_replan *replan, struct codec_fault *fault)
{
    codec_check_count(replan->call_count, LOCKSTEP_REPLAN_CALLS, "too many calls of a plan", fault);
    for (uint32_t i = 0; i < replan->call_count && fault->status == CODEC_OK; i++)
        codec_check_call_id(&replan->calls[i], fault);
}

static void check_reach(const struct up_reach *reach, struct codec_fault *fault)
{
    codec_check_count(reach->count, LOCKSTEP_REACH_RANKS, "too many ranks to reach", fault);
    if (reach->count == 0)
        codec_fault_set(fault, CODEC_INVALID, "a worker asks for the address of no rank");
    for (uint32_t i = 0; i < reach->count && fault->status == CODEC_OK; i++)
        codec_check_rank(reach->ranks[i], fault);
}

static void check_modules(const struct up_modules *modules, struct codec_fault *fault)
{
    codec_check_number(modules->total, LOCKSTEP_MAX_MODULES,
                       "modules are above LOCKSTEP_MAX_MODULES", fault);
    codec_check_count(modules->count, LOCKSTEP_NAMES_PART, "too many names of modules in a part",
                      fault);
    codec_check_part(modules->first, modules->count, modules->total,
                     "a part lies outside the modules", fault);
    for (uint32_t i = 0; i < modules->count && fault->status == CODEC_OK; i++) {
        codec_check_text(modules->names[i], sizeof(modules->names[i]), fault);
        codec_check_text(modules->groups[i], sizeof(modules->groups[i]), fault);
    }
    if ((modules->absent & ~modules->grouped) != 0)
        codec_fault_set(fault, CODEC_INVALID, "a module without a group is on all ranks");
}

// ---- Answers ---------------------------------------------------------------------------------

static void check_answer_place(const struct answer_place *place, struct codec_fault *fault)
{
    codec_check_text(place->phase, sizeof(place->phase), fault);
    codec_check_text(place->doing, sizeof(place->doing), fault);
    codec_check_count(place->missing_count, LOCKSTEP_MISSING_NAMED, "too many missing gradients",
                      fault);
    if (place->missing_count > place->missing_total)
        codec_fault_set(fault, CODEC_INVALID, "more gradients are named than are missing");
    for (uint32_t i = 0; i < place->missing_count && fault->status == CODEC_OK; i++)
        codec_check_text(place->missing[i], sizeof(place->missing[i]), fault);
    codec_check_text(place->awaited, sizeof(place->awaited), fault);
}

static void check_answer_threads(const struct answer_threads *threads, struct codec_fault *fault)
{
    codec_check_count(threads->count, LOCKSTEP_THREADS_PART, "too many threads in a part", fault);
    for (uint32_t i = 0; i < threads->count && fault->status == CODEC_OK; i++) {
        const struct stack_thread *thread = &threads->threads[i];
        codec_check_text(thread->name, sizeof(thread->name), fault);
        codec_check_text(thread->wchan, sizeof(thread->wchan), fault);
        if (thread->state != '\0')
            check_letter(thread->state, fault);
        codec_check_number((uint32_t)thread->how, STACK_NOT_ASKED,
                           "how a stack was taken is unknown", fault);
        codec_check_number((uint32_t)thread->awaits, AWAITS_END,
                           "what a thread waits for is unknown", fault);
        codec_check_text(thread->owner_name, sizeof(thread->owner_name), fault);
    }
}

static void check_answer_frames(const struct answer_frames *frames, struct codec_fault *fault)
{
    codec_check_count(frames->count, LOCKSTEP_FRAMES_PART, "too many frames in a part", fault);
    for (uint32_t i = 0; i < frames->count && fault->status == CODEC_OK; i++) {
        const struct stack_frame *frame = &frames->frames[i];
        codec_check_number(frame->thread, LOCKSTEP_STACK_THREADS - 1,
                           "a thread is above LOCKSTEP_STACK_THREADS", fault);
        codec_check_text(frame->object, sizeof(frame->object), fault);
        codec_check_text(frame->symbol, sizeof(frame->symbol), fault);
    }
}

static void check_answer(const struct up_answer *answer, struct codec_fault *fault)
{
    switch (answer->kind) {
    case ANSWER_PLACE:
        check_answer_place(&answer->u.place, fault);
        return;
    case ANSWER_THREADS:
        check_answer_threads(&answer->u.threads, fault);
        return;
    case ANSWER_FRAMES:
        check_answer_frames(&answer->u.frames, fault);
        return;
    case ANSWER_EVENTS:
        codec_check_count(answer->u.events.count, LOCKSTEP_EVENTS_PART, "too many events in a part",
                          fault);
        return;
    }
    codec_fault_set(fault, CODEC_INVALID, "the kind of an answer is missing or unknown");
}

static void check_fail(const struct up_fail *fail, struct codec_fault *fault)
{
    codec_check_halt_kind(fail->kind, fault);
    codec_check_text(fail->text, sizeof(fail->text), fault);
    codec_check_text(fail->name, sizeof(fail->name), fault);
    codec_check_text(fail->form, sizeof(fail->form), fault);
}

// ---- What a worker may say -------------------------------------------------------------------

void codec_check_up(const struct up_message *message, struct codec_fault *fault)
{
    switch (message->kind) {
    case UP_HELLO:
        check_hello(&message->u.hello, fault);
        return;
    case UP_START:
        check_start(&message->u.start, fault);
        return;
    case UP_MANIFEST_PART:
        check_manifest_part(&message->u.manifest_part, fault);
        return;
    case UP_READY:
        check_ready(&message->u.ready, fault);
        return;
    case UP_WAIT:
        check_wait(&message->u.wait, fault);
        return;
    case UP_LAYOUT_PART:
        codec_check_layout_part(&message->u.layout_part, fault);
        return;
    case UP_END:
        return;
    case UP_HEARTBEAT:
        check_heartbeat(&message->u.heartbeat, fault);
        return;
    case UP_FAIL:
        check_fail(&message->u.fail, fault);
        return;
    case UP_LOST:
        codec_check_rank(message->u.lost.rank, fault);
        codec_check_rank(message->u.lost.witness, fault);
        codec_check_number((uint32_t)message->u.lost.proof, PROOF_WORD, "a proof is unknown",
                           fault);
        codec_check_text(message->u.lost.text, sizeof(message->u.lost.text), fault);
        return;
    case UP_LEAVE:
        codec_check_text(message->u.leave.reason, sizeof(message->u.leave.reason), fault);
        codec_check_text(message->u.leave.cause, sizeof(message->u.leave.cause), fault);
        codec_check_number(message->u.leave.flags & ~(uint32_t)(REPORT_OPENED | REPORT_SKIPPED), 0,
                           "a leaver's wave is unknown", fault);
        codec_check_count(message->u.leave.word_count, LOCKSTEP_WAVE_BYTES / 8,
                          "too many words of a wave", fault);
        return;
    case UP_LINKS:
        codec_check_algorithm(message->u.links.wish, fault);
        return;
    case UP_BLOCKED:
        check_blocked(&message->u.blocked, fault);
        return;
    case UP_MODULES:
        check_modules(&message->u.modules, fault);
        return;
    case UP_ANSWER:
        check_answer(&message->u.answer, fault);
        return;
    case UP_REPLAN:
        check_replan(&message->u.replan, fault);
        return;
    case UP_REACH:
        check_reach(&message->u.reach, fault);
        return;
    case UP_RECORD_PART:
        codec_check_record(&message->u.record_part, true, fault);
        return;
    case UP_REPORT:
        codec_check_report(&message->u.report, fault);
        return;
    case UP_REFUSE:
        codec_check_refuse(&message->u.refuse, fault);
        return;
    case UP_NONE:
        break;
    }
    codec_fault_set(fault, CODEC_INVALID, "the kind of the message is missing or unknown");
}
