// SPDX-License-Identifier: Apache-2.0
//
// Conversion between types.h and the generated structs, field by field, of messages that say where
// a worker is: the end of a heartbeat, blocked waits, new plans, names of modules, answers to an
// inspection. up.c converts the other messages of workers, check_up.c has the bounds of the fields.
// No state. Any thread.

#include "protos/codec/place.h"

#include "protos/codec/await.h"
#include "protos/codec/codec.h"
#include "protos/codec/internal.h"

#include "protos/control.pb.h"

#include <string.h>

#define ANSWER_TAG(name, kind) \
    static_assert(wire_UpAnswer_##name##_tag == (kind) + 3, "tag is kind + 3")

ANSWER_TAG(place, ANSWER_PLACE);
ANSWER_TAG(threads, ANSWER_THREADS);
ANSWER_TAG(frames, ANSWER_FRAMES);
ANSWER_TAG(events, ANSWER_EVENTS);

// ---- Sets --------------------------------------------------------------------------------------

// Returns the number of words to send.
static pb_size_t place_set_out(uint64_t *words, const struct slot_set *set)
{
    return (pb_size_t)codec_words_out(words, set->words, LOCKSTEP_SLOT_WORDS);
}

static void place_set_in(struct slot_set *set, const uint64_t *words, pb_size_t count)
{
    memcpy(set->words, words, count * sizeof(words[0]));
}

static void place_call_out(wire_CallId *wire, const struct call_id *call)
{
    wire->module = call->module;
    wire->call = call->call;
}

static void place_call_in(struct call_id *call, const wire_CallId *wire, bool present,
                          struct codec_fault *fault)
{
    if (!present)
        codec_fault_set(fault, CODEC_INVALID, "a call is missing");
    call->module = wire->module;
    call->call = wire->call;
}

// ---- Heartbeat ----------------------------------------------------------------------------------

static void place_out(wire_Place *wire, const struct place *place)
{
    wire->position = place->position;
    wire->count = place->count;
    wire->done = place->done;
    wire->open = place->open;
    wire->learning = place->learning;
    wire->waits = place->waits;
    wire->has_slot = place->position < place->count;
    if (wire->has_slot)
        codec_slot_out(&wire->slot, &place->slot);
    wire->api = (wire_ApiFunction)place->api;
    wire->inside = place->inside;
    wire->api_ms = place->api_ms;
    wire->module = place->module;
    wire->call = place->call;
    wire->calls_open = place->calls_open;
    wire->ready = place->ready;
    wire->gradients = place->gradients;
    wire->plain = place->plain;
    wire->usual_us = place->usual_us;
    wire->longest_us = place->longest_us;
    wire->waited_us = place->waited_us;
}

static void place_in(struct place *place, const wire_Place *wire, struct codec_fault *fault)
{
    place->position = wire->position;
    place->count = wire->count;
    place->done = wire->done;
    place->open = wire->open;
    place->learning = wire->learning;
    place->waits = wire->waits;
    if (wire->position < wire->count)
        codec_slot_in(&place->slot, &wire->slot, wire->has_slot, fault);
    else if (wire->has_slot)
        codec_fault_set(fault, CODEC_INVALID, "a place behind the last slot names a slot");
    place->api = (enum api_function)wire->api;
    place->inside = wire->inside;
    place->api_ms = wire->api_ms;
    place->module = wire->module;
    place->call = wire->call;
    place->calls_open = wire->calls_open;
    place->ready = wire->ready;
    place->gradients = wire->gradients;
    place->plain = wire->plain;
    place->usual_us = wire->usual_us;
    place->longest_us = wire->longest_us;
    place->waited_us = wire->waited_us;
}

static void numbers_out(wire_UpHeartbeat *wire, const struct up_heartbeat *heartbeat)
{
    wire->metrics_count = (pb_size_t)heartbeat->metric_count;
    for (uint32_t i = 0; i < heartbeat->metric_count; i++) {
        const struct metric_state *metric = &heartbeat->metrics[i];
        codec_text_out(wire->metrics[i].name, metric->name, sizeof(wire->metrics[i].name));
        wire->metrics[i].kind = metric->kind;
        wire->metrics[i].count = metric->count;
        wire->metrics[i].value = metric->value;
    }
    wire->counters_count = (pb_size_t)heartbeat->counter_count;
    for (uint32_t i = 0; i < heartbeat->counter_count; i++) {
        const struct counter_state *counter = &heartbeat->counters[i];
        codec_text_out(wire->counters[i].name, counter->name, sizeof(wire->counters[i].name));
        wire->counters[i].total = counter->total;
    }
}

static void numbers_in(struct up_heartbeat *heartbeat, const wire_UpHeartbeat *wire,
                       struct codec_fault *fault)
{
    heartbeat->metric_count = wire->metrics_count;
    for (uint32_t i = 0; i < heartbeat->metric_count; i++) {
        struct metric_state *metric = &heartbeat->metrics[i];
        codec_text_in(metric->name, wire->metrics[i].name, sizeof(metric->name), fault);
        metric->kind = wire->metrics[i].kind;
        metric->count = wire->metrics[i].count;
        metric->value = wire->metrics[i].value;
    }
    heartbeat->counter_count = wire->counters_count;
    for (uint32_t i = 0; i < heartbeat->counter_count; i++) {
        struct counter_state *counter = &heartbeat->counters[i];
        codec_text_in(counter->name, wire->counters[i].name, sizeof(counter->name), fault);
        counter->total = wire->counters[i].total;
    }
}

void codec_heartbeat_out(wire_UpHeartbeat *wire, const struct up_heartbeat *heartbeat)
{
    wire->has_place = true;
    place_out(&wire->place, &heartbeat->place);
    wire->flags = heartbeat->flags;
    wire->pause_ms = heartbeat->pause_ms;
    wire->held = (uint32_t)heartbeat->held;
    wire->links_count = (pb_size_t)heartbeat->link_count;
    for (uint32_t i = 0; i < heartbeat->link_count; i++) {
        const struct link_state *link = &heartbeat->links[i];
        wire->links[i] = (wire_LinkState){.rank = link->rank,
                                          .awaited = link->awaited,
                                          .unsent = link->unsent,
                                          .received = link->received,
                                          .still_ms = link->still_ms,
                                          .reached = link->reached};
    }
    wire->mates_count = (pb_size_t)heartbeat->mate_count;
    for (uint32_t i = 0; i < heartbeat->mate_count; i++) {
        wire->mates[i].rank = heartbeat->mates[i].rank;
        wire->mates[i].state = (uint8_t)heartbeat->mates[i].state;
        wire->mates[i].tracer = heartbeat->mates[i].tracer;
    }
    codec_text_out(wire->sleeps, heartbeat->sleeps, sizeof(wire->sleeps));
    codec_text_out(wire->failure, heartbeat->failure, sizeof(wire->failure));
    wire->has_await = codec_await_out(&wire->await, &heartbeat->await);
    codec_text_out(wire->collective, heartbeat->collective, sizeof(wire->collective));
    wire->collective_use = heartbeat->collective_use;
    codec_text_out(wire->collective_detail, heartbeat->collective_detail,
                   sizeof(wire->collective_detail));
    wire->overdue_count = (pb_size_t)heartbeat->overdue_count;
    for (uint32_t i = 0; i < heartbeat->overdue_count; i++) {
        wire->overdue[i].space = heartbeat->overdue[i].space;
        wire->overdue[i].use = heartbeat->overdue[i].use;
        wire->overdue[i].signature = heartbeat->overdue[i].signature;
    }
    numbers_out(wire, heartbeat);
}

void codec_heartbeat_in(struct up_heartbeat *heartbeat, const wire_UpHeartbeat *wire,
                        struct codec_fault *fault)
{
    if (wire->has_place)
        place_in(&heartbeat->place, &wire->place, fault);
    heartbeat->flags = wire->flags;
    heartbeat->pause_ms = wire->pause_ms;
    heartbeat->held = (enum device_hold)wire->held;
    heartbeat->link_count = wire->links_count;
    for (uint32_t i = 0; i < heartbeat->link_count; i++) {
        struct link_state *link = &heartbeat->links[i];
        link->rank = wire->links[i].rank;
        link->awaited = wire->links[i].awaited;
        link->unsent = wire->links[i].unsent;
        link->received = wire->links[i].received;
        link->still_ms = wire->links[i].still_ms;
        link->reached = wire->links[i].reached;
    }
    heartbeat->mate_count = wire->mates_count;
    for (uint32_t i = 0; i < heartbeat->mate_count; i++) {
        heartbeat->mates[i].rank = wire->mates[i].rank;
        heartbeat->mates[i].state = (char)wire->mates[i].state;
        heartbeat->mates[i].tracer = wire->mates[i].tracer;
    }
    codec_text_in(heartbeat->sleeps, wire->sleeps, sizeof(heartbeat->sleeps), fault);
    codec_text_in(heartbeat->failure, wire->failure, sizeof(heartbeat->failure), fault);
    if (wire->has_await)
        codec_await_in(&heartbeat->await, &wire->await, fault);
    codec_text_in(heartbeat->collective, wire->collective, sizeof(heartbeat->collective), fault);
    heartbeat->collective_use = wire->collective_use;
    codec_text_in(heartbeat->collective_detail, wire->collective_detail,
                  sizeof(heartbeat->collective_detail), fault);
    heartbeat->overdue_count = wire->overdue_count;
    for (uint32_t i = 0; i < heartbeat->overdue_count; i++)
        heartbeat->overdue[i] = (struct overdue){.space = wire->overdue[i].space,
                                                 .use = wire->overdue[i].use,
                                                 .signature = wire->overdue[i].signature};
    numbers_in(heartbeat, wire, fault);
}

// ---- Blocked trainers ---------------------------------------------------------------------------

void codec_blocked_out(wire_UpBlocked *wire, const struct up_blocked *blocked)
{
    wire->step = blocked->step;
    wire->space = blocked->space;
    wire->waits_count = (pb_size_t)blocked->wait_count;
    for (uint32_t i = 0; i < blocked->wait_count; i++) {
        wire->waits[i].has_call = true;
        place_call_out(&wire->waits[i].call, &blocked->waits[i].call);
        wire->waits[i].needs_count = place_set_out(wire->waits[i].needs, &blocked->waits[i].needs);
    }
    wire->lacks_count = place_set_out(wire->lacks, &blocked->lacks);
    wire->lacking_count = (pb_size_t)blocked->lack_count;
    for (uint32_t i = 0; i < blocked->lack_count; i++) {
        wire->lacking[i].position = blocked->lacking[i].position;
        wire->lacking[i].has_call = true;
        place_call_out(&wire->lacking[i].call, &blocked->lacking[i].call);
    }
}

void codec_blocked_in(struct up_blocked *blocked, const wire_UpBlocked *wire,
                      struct codec_fault *fault)
{
    blocked->step = wire->step;
    blocked->space = wire->space;
    blocked->wait_count = wire->waits_count;
    for (uint32_t i = 0; i < blocked->wait_count; i++) {
        const wire_BlockedWait *wait = &wire->waits[i];
        place_call_in(&blocked->waits[i].call, &wait->call, wait->has_call, fault);
        place_set_in(&blocked->waits[i].needs, wait->needs, wait->needs_count);
    }
    place_set_in(&blocked->lacks, wire->lacks, wire->lacks_count);
    blocked->lack_count = wire->lacking_count;
    for (uint32_t i = 0; i < blocked->lack_count; i++) {
        blocked->lacking[i].position = wire->lacking[i].position;
        place_call_in(&blocked->lacking[i].call, &wire->lacking[i].call, wire->lacking[i].has_call,
                      fault);
    }
}

// ---- What a plan should be ---------------------------------------------------------------------

void codec_replan_out(wire_UpReplan *wire, const struct up_replan *replan)
{
    wire->step = replan->step;
    wire->phase = replan->phase;
    wire->replaces = replan->replaces;
    wire->in_force = replan->in_force;
    wire->calls_count = (pb_size_t)replan->call_count;
    for (uint32_t i = 0; i < replan->call_count; i++) {
        wire->calls[i].module = replan->calls[i].module;
        wire->calls[i].call = replan->calls[i].call;
    }
}

void codec_replan_in(struct up_replan *replan, const wire_UpReplan *wire)
{
    replan->step = wire->step;
    replan->phase = wire->phase;
    replan->replaces = wire->replaces;
    replan->in_force = wire->in_force;
    replan->call_count = wire->calls_count;
    for (uint32_t i = 0; i < replan->call_count; i++) {
        replan->calls[i].module = wire->calls[i].module;
        replan->calls[i].call = wire->calls[i].call;
    }
}

// ---- Names of modules ---------------------------------------------------------------------------

void codec_modules_out(wire_UpModules *wire, const struct up_modules *modules)
{
    wire->total = modules->total;
    wire->first = modules->first;
    wire->names_count = (pb_size_t)modules->count;
    for (uint32_t i = 0; i < modules->count; i++)
        codec_text_out(wire->names[i], modules->names[i], sizeof(wire->names[i]));
    for (uint32_t i = 0; i < modules->count; i++) {
        codec_text_out(wire->groups[i], modules->groups[i], sizeof(wire->groups[i]));
        if (modules->groups[i][0] != '\0')
            wire->groups_count = wire->names_count;
    }
    wire->grouped = modules->grouped;
    wire->absent = modules->absent;
}

void codec_modules_in(struct up_modules *modules, const wire_UpModules *wire,
                      struct codec_fault *fault)
{
    modules->total = wire->total;
    modules->first = wire->first;
    modules->count = wire->names_count;
    for (uint32_t i = 0; i < modules->count; i++)
        codec_text_in(modules->names[i], wire->names[i], sizeof(modules->names[i]), fault);
    if (wire->groups_count != 0 && wire->groups_count != wire->names_count)
        codec_fault_set(fault, CODEC_INVALID, "there are other numbers of groups than of modules");
    for (uint32_t i = 0; i < wire->groups_count && i < modules->count; i++)
        codec_text_in(modules->groups[i], wire->groups[i], sizeof(modules->groups[i]), fault);
    modules->grouped = wire->grouped;
    modules->absent = wire->absent;
}

// ---- Answers ------------------------------------------------------------------------------------

static void answer_place_out(wire_AnswerPlace *wire, const struct answer_place *place)
{
    codec_text_out(wire->phase, place->phase, sizeof(wire->phase));
    codec_text_out(wire->doing, place->doing, sizeof(wire->doing));
    wire->missing_total = place->missing_total;
    wire->missing_count = (pb_size_t)place->missing_count;
    for (uint32_t i = 0; i < place->missing_count; i++)
        codec_text_out(wire->missing[i], place->missing[i], sizeof(wire->missing[i]));
    codec_text_out(wire->awaited, place->awaited, sizeof(wire->awaited));
    wire->stream = place->stream;
}

static void answer_place_in(struct answer_place *place, const wire_AnswerPlace *wire,
                            struct codec_fault *fault)
{
    codec_text_in(place->phase, wire->phase, sizeof(place->phase), fault);
    codec_text_in(place->doing, wire->doing, sizeof(place->doing), fault);
    place->missing_total = wire->missing_total;
    place->missing_count = wire->missing_count;
    for (uint32_t i = 0; i < place->missing_count; i++)
        codec_text_in(place->missing[i], wire->missing[i], sizeof(place->missing[i]), fault);
    codec_text_in(place->awaited, wire->awaited, sizeof(place->awaited), fault);
    place->stream = wire->stream;
}

static void answer_thread_out(wire_StackThread *wire, const struct stack_thread *thread)
{
    wire->tid = thread->tid;
    codec_text_out(wire->name, thread->name, sizeof(wire->name));
    wire->state = (uint8_t)thread->state;
    wire->trainer = thread->trainer;
    wire->syscall = thread->syscall;
    codec_text_out(wire->wchan, thread->wchan, sizeof(wire->wchan));
    wire->how = (wire_StackHow)thread->how;
    wire->awaits = (wire_StackAwaits)thread->awaits;
    wire->owner = thread->owner;
    codec_text_out(wire->owner_name, thread->owner_name, sizeof(wire->owner_name));
    wire->other = thread->other;
    wire->own = thread->own;
}

static void answer_thread_in(struct stack_thread *thread, const wire_StackThread *wire,
                             struct codec_fault *fault)
{
    thread->tid = wire->tid;
    codec_text_in(thread->name, wire->name, sizeof(thread->name), fault);
    thread->state = (char)wire->state;
    thread->trainer = wire->trainer;
    thread->syscall = wire->syscall;
    codec_text_in(thread->wchan, wire->wchan, sizeof(thread->wchan), fault);
    thread->how = (enum stack_how)wire->how;
    thread->awaits = (enum stack_awaits)wire->awaits;
    thread->owner = wire->owner;
    codec_text_in(thread->owner_name, wire->owner_name, sizeof(thread->owner_name), fault);
    thread->other = wire->other;
    thread->own = wire->own;
}

static void answer_frame_out(wire_StackFrame *wire, const struct stack_frame *frame)
{
    wire->thread = frame->thread;
    wire->python = frame->python;
    codec_text_out(wire->object, frame->object, sizeof(wire->object));
    codec_text_out(wire->symbol, frame->symbol, sizeof(wire->symbol));
    wire->offset = frame->offset;
    wire->library = frame->library;
    wire->guessed = frame->guessed;
}

static void answer_frame_in(struct stack_frame *frame, const wire_StackFrame *wire,
                            struct codec_fault *fault)
{
    frame->thread = wire->thread;
    frame->python = wire->python;
    codec_text_in(frame->object, wire->object, sizeof(frame->object), fault);
    codec_text_in(frame->symbol, wire->symbol, sizeof(frame->symbol), fault);
    frame->offset = wire->offset;
    frame->library = wire->library;
    frame->guessed = wire->guessed;
}

static void answer_events_out(wire_AnswerEvents *wire, const struct answer_events *events)
{
    wire->events_count = (pb_size_t)events->count;
    for (uint32_t i = 0; i < events->count; i++) {
        const struct trace_event *event = &events->events[i];
        wire->events[i] = (wire_TraceEvent){.time_ns = event->time_ns,
                                            .step = event->step,
                                            .value = event->value,
                                            .kind = event->kind,
                                            .thread = event->thread,
                                            .module = event->module,
                                            .call = event->call,
                                            .bucket = event->bucket};
    }
}

static void answer_events_in(struct answer_events *events, const wire_AnswerEvents *wire)
{
    events->count = wire->events_count;
    for (uint32_t i = 0; i < events->count; i++) {
        struct trace_event *event = &events->events[i];
        event->time_ns = wire->events[i].time_ns;
        event->step = wire->events[i].step;
        event->value = wire->events[i].value;
        event->kind = wire->events[i].kind;
        event->thread = wire->events[i].thread;
        event->module = wire->events[i].module;
        event->call = wire->events[i].call;
        event->bucket = wire->events[i].bucket;
    }
}

void codec_answer_out(wire_UpAnswer *wire, const struct up_answer *answer)
{
    wire->id = answer->id;
    wire->clock_ns = answer->clock_ns;
    wire->last = answer->last;
    wire->which_u = (pb_size_t)(answer->kind + 3);
    switch (answer->kind) {
    case ANSWER_PLACE:
        answer_place_out(&wire->u.place, &answer->u.place);
        break;
    case ANSWER_THREADS:
        wire->u.threads.threads_count = (pb_size_t)answer->u.threads.count;
        for (uint32_t i = 0; i < answer->u.threads.count; i++)
            answer_thread_out(&wire->u.threads.threads[i], &answer->u.threads.threads[i]);
        break;
    case ANSWER_FRAMES:
        wire->u.frames.frames_count = (pb_size_t)answer->u.frames.count;
        for (uint32_t i = 0; i < answer->u.frames.count; i++)
            answer_frame_out(&wire->u.frames.frames[i], &answer->u.frames.frames[i]);
        break;
    case ANSWER_EVENTS:
        answer_events_out(&wire->u.events, &answer->u.events);
        break;
    }
}

void codec_answer_in(struct up_answer *answer, const wire_UpAnswer *wire, struct codec_fault *fault)
{
    answer->id = wire->id;
    answer->clock_ns = wire->clock_ns;
    answer->last = wire->last;
    if (wire->which_u == 0) {
        codec_fault_set(fault, CODEC_INVALID, "the kind of an answer is missing or unknown");
        return;
    }
    answer->kind = (enum answer_kind)(wire->which_u - 3);
    switch (answer->kind) {
    case ANSWER_PLACE:
        answer_place_in(&answer->u.place, &wire->u.place, fault);
        break;
    case ANSWER_THREADS:
        answer->u.threads.count = wire->u.threads.threads_count;
        for (uint32_t i = 0; i < answer->u.threads.count; i++)
            answer_thread_in(&answer->u.threads.threads[i], &wire->u.threads.threads[i], fault);
        break;
    case ANSWER_FRAMES:
        answer->u.frames.count = wire->u.frames.frames_count;
        for (uint32_t i = 0; i < answer->u.frames.count; i++)
            answer_frame_in(&answer->u.frames.frames[i], &wire->u.frames.frames[i], fault);
        break;
    case ANSWER_EVENTS:
        answer_events_in(&answer->u.events, &wire->u.events);
        break;
    }
}
