// SPDX-License-Identifier: Apache-2.0
//
// The simulated engine and its trainer; see sim_engine.h. Callbacks of the order core only note or
// send; what they bring about is handled in engine_progress, at the end of each event.

#include "tests/sim/sim_engine.h"

#include "worker/order/check.h"
#include "worker/order/header.h"
#include "worker/order/payloads.h"
#include "worker/order/plan.h"
#include "worker/order/waits.h"

#include "protos/topology.h"
#include "worker/transport/flow/wave.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum trainer_stage {
    TRAINER_OPENING, // lockstep_open
    TRAINER_STARTING, // About to call lockstep_start for the first time.
    TRAINER_STARTED, // The trainer is in lockstep_start.
    TRAINER_BETWEEN, // Between steps.
    TRAINER_BEGINNING, // In lockstep_step_begin, for the open wave.
    TRAINER_BACKWARD,
    TRAINER_ENDING, // The trainer is in lockstep_step_end.
    TRAINER_ABORTED, // In lockstep_close after lockstep_abort, for the answer.
    TRAINER_FAILED, // The trainer got the error, and will close its session.
    TRAINER_CLOSING, // The trainer has left its peers, but not the coordinator.
};

enum packet_kind {
    PACKET_HEADER,
    PACKET_WAVE,
};

struct packet {
    enum packet_kind kind;
    enum wave_kind wave;
    uint32_t round;
    uint64_t step;
    struct step_header header;
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
};

struct engine_wave {
    bool joined;
    bool sent; // True if the present move sends something.
    uint32_t move;
    uint64_t step;
    _Alignas(8) uint8_t payload[LOCKSTEP_WAVE_BYTES];
};

enum {
    ENGINE_ARRIVED = 32, // Messages of waves that may wait for their move.
    ENGINE_HALTS = 8
};

struct arrived_wave {
    uint32_t from;
    struct packet packet;
};

// The payload of the oracle for a slot: contributors, and fields that must be equal.
struct slot_payload {
    struct parts parts;
    struct slot_id id;
};

enum {
    ENGINE_QUEUE = 64
};

struct queued_slot {
    uint32_t index;
    struct sim_key key;
    struct slot_payload payload;
};

// The launches of a rank in this generation, if its data plane pairs by position. The operations
// run one after the other: the rank joins one only when the one before is final.
struct strict_queue {
    uint64_t launched;
    uint64_t final;
    struct queued_slot slots[ENGINE_QUEUE]; // By number of the launch, modulo ENGINE_QUEUE.
};

struct engine_state {
    const struct program *program;
    struct ledger *ledger;
    const struct engine_options *options;
    struct order order;

    // The trainer.
    enum trainer_stage stage;
    uint64_t step;
    uint64_t settled;
    uint32_t made; // Ready slots of the program that were made.
    struct calls_run run; // A run of calls, for programs of calls.
    struct open_wave opening; // This rank's payload of the open wave.
    uint64_t trainer_ms; // Time of the trainer's next action; UINT64_MAX: the trainer waits.
    uint64_t started_at; // The step after which the trainer called lockstep_start last.

    // The engine.
    bool over; // True if the links are closed.
    bool failed; // True if the session has failed. The trainer may not know it yet.
    bool starting; // True while the rank is in lockstep_start.
    bool aborted;
    bool control_gone;
    uint64_t deadline_ms; // Deadline of a verdict that is waited for; 0: none.
    struct down_halt lost_here;
    struct down_halt halts[ENGINE_HALTS]; // Halts that the coordinator has sent.
    uint32_t halt_count;
    struct program_sets sets;
    // True if the layout of the module's set in force is learned when this step has settled.
    bool agreed[PROGRAM_MODULES];

    // The data plane.
    uint32_t in_flight; // Slots launched and not final.
    struct strict_queue queue;
    uint64_t header_sent; // Step of the last header that was sent.
    uint64_t header_received;
    bool peer_left[PROGRAM_WORLD];
    bool peer_reported[PROGRAM_WORLD];
    struct engine_wave waves[WAVE_KINDS]; // By enum wave_kind.
    struct arrived_wave arrived[ENGINE_ARRIVED];
    uint32_t arrived_count;

    uint32_t actions;
    bool dying;
};

static const struct sim_model engine_model;

static struct engine_state *state_of(const struct sim_worker *worker)
{
    return worker->state;
}

static const struct program_step *program_of(const struct engine_state *state)
{
    return &state->program->at[state->options->rank][state->step];
}

static void think(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    state->trainer_ms = worker->sim->now_ms + 1 + sim_random(worker->sim, state->options->think_ms);
}

// ---- Failing ---------------------------------------------------------------------------------

static void session_fails(struct sim_worker *worker, enum session_end end, enum halt_kind verdict,
                          const char *text)
{
    struct engine_state *state = state_of(worker);
    if (state->failed)
        return;
    state->failed = true;
    state->deadline_ms = 0;
    sim_trace(worker->sim, "%s fails: %s", sim_name(worker), text);
    ledger_ended(state->ledger, state->options->rank, end, verdict, text);
    state->stage = TRAINER_FAILED;
    think(worker);
}

// A verdict other than a death ends the links with a goodbye, behind the last frames: another rank
// may need them to settle the step before the one that failed.
static void engine_fail(struct sim_worker *worker, enum session_end end, enum halt_kind verdict,
                        const char *text)
{
    struct engine_state *state = state_of(worker);
    if (state->over)
        return;
    state->over = true;
    state->deadline_ms = 0;
    if (verdict != HALT_NONE && verdict != HALT_LOST)
        sim_goodbye(worker, state->settled);
    else
        sim_reset(worker);
    session_fails(worker, end, verdict, text);
}

static void engine_send(struct sim_worker *worker, const struct up_message *message)
{
    struct engine_state *state = state_of(worker);
    if (state->control_gone) {
        engine_fail(worker, SESSION_UNREACHABLE, HALT_NONE,
                    "the coordinator is gone and is needed here");
        return;
    }
    if (worker->generation.number != 0)
        ledger_says(state->ledger, state->options->rank, message);
    sim_send(worker, message);
}

static void engine_report(struct sim_worker *worker, const struct up_message *message,
                          const struct down_halt *seen)
{
    struct engine_state *state = state_of(worker);
    if (state->deadline_ms != 0 || state->order.failed || state->over)
        return;
    state->lost_here = *seen;
    state->deadline_ms = worker->sim->now_ms + LOCKSTEP_HALT_GRACE_MS;
    if (state->control_gone)
        state->deadline_ms = worker->sim->now_ms;
    else
        engine_send(worker, message);
}

static void engine_hear_halt(struct sim_worker *worker, const struct down_halt *halt)
{
    struct engine_state *state = state_of(worker);
    if (state->halt_count == ENGINE_HALTS)
        sim_fail(worker->sim, "%s hears too many halts", sim_name(worker));
    state->halts[state->halt_count++] = *halt;
    order_halted(&state->order, halt);
}

static void engine_check_verdict(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    if (state->deadline_ms == 0 || worker->sim->now_ms < state->deadline_ms)
        return;
    state->deadline_ms = 0;
    sim_trace(worker->sim, "%s waits no longer for a verdict", sim_name(worker));
    if (!state->over)
        engine_hear_halt(worker, &state->lost_here);
}

// Finds the halt that was heard with this text. If several halts have the same text, it is the one
// of the lowest step.
static void engine_note_halt(struct sim_worker *worker, const struct order_action *action)
{
    struct engine_state *state = state_of(worker);
    const struct down_halt *found = NULL;
    for (uint32_t i = 0; i < state->halt_count; i++) {
        const struct down_halt *halt = &state->halts[i];
        if (halt->kind == action->halt && strcmp(halt->text, action->text) == 0 &&
            (!found || halt->step < found->step))
            found = halt;
    }
    if (!found)
        sim_fail(worker->sim, "%s fails by itself: %s", sim_name(worker), action->text);
    ledger_halted(state->ledger, state->options->rank, found->step,
                  memcmp(found, &state->lost_here, sizeof(*found)) == 0);
}

static void engine_unplanned(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    const struct close_wave *verdict = &state->order.verdict;
    char text[512];
    int used = snprintf(text, sizeof(text),
                        "step %" PRIu64 ": calls outside the plan:", state->order.step);
    for (uint32_t i = 0; i < verdict->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS; i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, " module %" PRIu32,
                         verdict->extras[i].module);
    if (verdict->extra_total > LOCKSTEP_MAX_EXTRA_CALLS)
        snprintf(text + used, sizeof(text) - (size_t)used, " and more");
    ledger_halted(state->ledger, state->options->rank, state->order.step, false);
    worker->agreed = true;
    session_fails(worker, SESSION_HALTED, HALT_UNPLANNED, text);
}

static void engine_failed(struct sim_worker *worker, const struct order_action *action)
{
    struct engine_state *state = state_of(worker);
    state->deadline_ms = 0;
    if (!action->text) { // The verdict of the close wave.
        engine_unplanned(worker);
        return;
    }
    if (state->aborted) {
        engine_fail(worker, SESSION_ABORTED, HALT_NONE, "this session was aborted");
        return;
    }
    engine_note_halt(worker, action);
    engine_fail(worker, SESSION_HALTED, action->halt, action->text);
}

// ---- The data plane --------------------------------------------------------------------------

static const char *wave_name(enum wave_kind kind)
{
    return kind == WAVE_OPEN ? "open" : kind == WAVE_CLOSE ? "close" : "commit";
}

static void data_header(struct sim_worker *worker, const struct step_header *header)
{
    struct packet packet;
    const uint32_t successor = topology_successor(worker->rank, worker->world_size);
    memset(&packet, 0, sizeof(packet));
    packet.kind = PACKET_HEADER;
    packet.header = *header;
    state_of(worker)->header_sent = header->step;
    sim_trace(worker->sim, "%s -> rank %" PRIu32 ": header of step %" PRIu64, sim_name(worker),
              successor, header->step);
    sim_data(worker, successor, &packet, sizeof(packet));
}

static void data_wave(struct sim_worker *worker, enum wave_kind kind, const struct wave_move *move)
{
    const struct engine_wave *wave = &state_of(worker)->waves[kind];
    struct packet packet;
    memset(&packet, 0, sizeof(packet));
    packet.kind = PACKET_WAVE;
    packet.wave = kind;
    packet.round = move->round;
    packet.step = wave->step;
    memcpy(packet.payload, wave->payload, sizeof(packet.payload));
    sim_trace(worker->sim, "%s -> rank %" PRIu32 ": %s wave of step %" PRIu64 ", round %" PRIu32,
              sim_name(worker), move->peer, wave_name(kind), wave->step, move->round);
    sim_data(worker, move->peer, &packet, sizeof(packet));
}

static struct arrived_wave *wave_arrived(struct engine_state *state, enum wave_kind kind,
                                         const struct wave_move *move)
{
    for (uint32_t i = 0; i < state->arrived_count; i++) {
        struct arrived_wave *at = &state->arrived[i];
        if (at->from == move->peer && at->packet.wave == kind && at->packet.round == move->round &&
            at->packet.step == state->waves[kind].step)
            return at;
    }
    return NULL;
}

// Checks the content of a wave message: a simulated rank sends only valid ones.
static void wave_check(struct sim_worker *worker, enum wave_kind kind, const struct wave_move *move,
                       const void *payload)
{
    static struct wave_bounds bounds;
    const struct engine_state *state = state_of(worker);
    const struct wave_origin origin = wave_origin(state->order.world_size, move);
    const char *wrong = NULL;
    bounds.module_count = PROGRAM_MODULES;
    for (uint32_t i = 0; i < PROGRAM_MODULES; i++) {
        bounds.parameters[i] = LOCKSTEP_MAX_PARAMETERS;
        bounds.calls[i] = LOCKSTEP_MAX_CALLS;
    }
    if (kind == WAVE_OPEN)
        wrong = order_open_check(NULL, &origin, payload, state->waves[kind].payload);
    else if (kind == WAVE_CLOSE)
        wrong = order_close_check(&bounds, &origin, payload, state->waves[kind].payload);
    else
        wrong = order_commit_check(&bounds, &origin, payload, state->waves[kind].payload);
    if (wrong)
        sim_fail(worker->sim, "%s finds the %s wave of rank %" PRIu32 " impossible: %s",
                 sim_name(worker), wave_name(kind), move->peer, wrong);
}

// Takes the message that the move receives. False: the message has not come yet.
static bool wave_take(struct sim_worker *worker, enum wave_kind kind, const struct wave_move *move)
{
    struct engine_state *state = state_of(worker);
    struct engine_wave *wave = &state->waves[kind];
    struct arrived_wave *arrived = wave_arrived(state, kind, move);
    if (!arrived)
        return false;
    wave_check(worker, kind, move, arrived->packet.payload);
    if (move->replaces)
        memcpy(wave->payload, arrived->packet.payload, sizeof(wave->payload));
    else if (kind == WAVE_OPEN)
        order_open_merge(wave->payload, arrived->packet.payload);
    else if (kind == WAVE_CLOSE)
        order_close_merge(wave->payload, arrived->packet.payload);
    else
        order_commit_merge(wave->payload, arrived->packet.payload);
    *arrived = state->arrived[--state->arrived_count];
    return true;
}

// Makes the moves that can be made now. True: the wave is complete.
static bool wave_advance(struct sim_worker *worker, enum wave_kind kind)
{
    struct engine_state *state = state_of(worker);
    struct engine_wave *wave = &state->waves[kind];
    while (wave->move < wave_moves(worker->rank, worker->world_size)) {
        const struct wave_move move = wave_move(worker->rank, worker->world_size, wave->move);
        if (move.sends && !wave->sent)
            data_wave(worker, kind, &move);
        wave->sent = true;
        if (move.receives && !wave_take(worker, kind, &move))
            return false;
        wave->sent = false;
        wave->move++;
    }
    return true;
}

static void wave_join(struct sim_worker *worker, enum wave_kind kind, uint64_t step,
                      const void *payload, size_t size)
{
    struct engine_wave *wave = &state_of(worker)->waves[kind];
    if (wave->joined)
        sim_fail(worker->sim, "%s joins a second %s wave", sim_name(worker), wave_name(kind));
    memset(wave, 0, sizeof(*wave));
    wave->joined = true;
    wave->step = step;
    memcpy(wave->payload, payload, size);
    sim_trace(worker->sim, "%s joins the %s wave of step %" PRIu64, sim_name(worker),
              wave_name(kind), step);
}

static bool wave_needs(struct sim_worker *worker, enum wave_kind kind, uint32_t peer)
{
    struct engine_state *state = state_of(worker);
    const struct engine_wave *wave = &state->waves[kind];
    for (uint32_t i = wave->move; wave->joined && i < wave_moves(worker->rank, worker->world_size);
         i++) {
        const struct wave_move move = wave_move(worker->rank, worker->world_size, i);
        if (move.peer == peer && (!move.receives || !wave_arrived(state, kind, &move)))
            return true;
    }
    return false;
}

static bool data_needs(struct sim_worker *worker, uint32_t peer)
{
    const struct engine_state *state = state_of(worker);
    const bool before = peer == topology_predecessor(worker->rank, worker->world_size);
    const bool after = peer == topology_successor(worker->rank, worker->world_size);
    // In a step without slots the header is all that is waited for.
    return ((before || after) && state->in_flight > 0) ||
           (before && state->header_received < state->header_sent) ||
           wave_needs(worker, WAVE_OPEN, peer) || wave_needs(worker, WAVE_CLOSE, peer) ||
           wave_needs(worker, WAVE_COMMIT, peer);
}

static void engine_peer_lost(struct sim_worker *worker, uint32_t rank, bool left)
{
    struct engine_state *state = state_of(worker);
    struct up_message message = {.kind = UP_LOST};
    struct down_halt seen = {.kind = left ? HALT_LEFT : HALT_LOST, .has_rank = true, .rank = rank};
    if (state->peer_reported[rank])
        return;
    state->peer_reported[rank] = true;
    message.u.lost.rank = rank;
    message.u.lost.left = left;
    message.u.lost.step = order_present_step(&state->order);
    snprintf(message.u.lost.text, sizeof(message.u.lost.text), "%s",
             left ? "it has left" : "connection reset by peer");
    snprintf(seen.text, sizeof(seen.text), "rank %" PRIu32 " %s", rank,
             left ? "left the job" : "was lost");
    engine_report(worker, &message, &seen);
}

static void data_check_left(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    for (uint32_t peer = 0; peer < worker->world_size && !state->over; peer++)
        if (state->peer_left[peer] && !state->peer_reported[peer] && data_needs(worker, peer))
            engine_peer_lost(worker, peer, true);
}

static bool engine_all_strict(const struct engine_state *state)
{
    const struct program *program = state->program;
    return program->has_calls && program->calls.strict == (1u << program->world) - 1;
}

// ---- What the core decides -------------------------------------------------------------------

// Slots are paired by tag, or, where all ranks are strict, by the number of their launch.
static struct sim_key engine_key(const struct engine_state *state,
                                 const struct order_action *action)
{
    const struct sim_key by_tag = {
        .number = action->index, .step = action->step, .space = action->space};
    const struct sim_key by_number = {.kind = 1, .number = (uint32_t)state->queue.launched};
    return engine_all_strict(state) ? by_number : by_tag;
}

static void engine_strict_join(struct sim_worker *worker)
{
    const struct strict_queue *queue = &state_of(worker)->queue;
    const struct queued_slot *slot = &queue->slots[queue->final % ENGINE_QUEUE];
    sim_join(worker, &slot->key, &slot->payload, sizeof(slot->payload));
}

static void engine_launch(struct sim_worker *worker, const struct order_action *action)
{
    struct engine_state *state = state_of(worker);
    const struct slot_id *id = &action->slot->id;
    const struct sim_key key = engine_key(state, action);
    struct slot_payload payload = {.id = *id};
    if (!action->slot->zero && state->program->has_calls)
        payload.parts = state->run.made[id->module][id->call][id->bucket];
    else if (!action->slot->zero)
        payload.parts.words[0] = UINT64_C(1) << worker->rank;
    sim_trace(worker->sim,
              "%s launches position %" PRIu32 " of step %" PRIu64 ": slot %" PRIu32 "#%" PRIu32
              ".%" PRIu32 "%s%s",
              sim_name(worker), action->index, action->step, id->module, id->call, id->bucket,
              action->slot->zero ? ", zeros" : "", action->slot->forfeited ? ", given up" : "");
    // R1: where slots pair by position, a step of another phase must not meet this one.
    if (state->order.options.strict && !state->order.learning && worker->world_size > 1 &&
        state->header_received < action->step)
        sim_fail(worker->sim, "%s launches before the header of its predecessor", sim_name(worker));
    ledger_launched(state->ledger, worker->rank, action);
    state->in_flight++;
    if (!state->order.options.strict) {
        sim_join(worker, &key, &payload, sizeof(payload));
        return;
    }
    state->queue.slots[state->queue.launched % ENGINE_QUEUE] =
        (struct queued_slot){action->index, key, payload};
    if (state->queue.launched++ == state->queue.final)
        engine_strict_join(worker);
}

static void engine_deferred(struct sim_worker *worker, const struct slot_id *id)
{
    sim_trace(worker->sim, "%s puts off slot %" PRIu32 "#%" PRIu32 ".%" PRIu32, sim_name(worker),
              id->module, id->call, id->bucket);
    calls_run_deferred(&state_of(worker)->run, id);
}

static void engine_released(struct sim_worker *worker, const struct order_action *action)
{
    static const char *const ends[] = {"it is final", "it counts later", "withdrawn"};
    struct engine_state *state = state_of(worker);
    sim_trace(worker->sim, "%s: the wait for call %" PRIu32 "#%" PRIu32 " is over, %s",
              sim_name(worker), action->call.module, action->call.call, ends[action->release]);
    if (!calls_run_released(&state->run, &action->call))
        sim_fail(worker->sim, "%s is released, but does not wait", sim_name(worker));
    think(worker);
}

static void engine_settled(struct sim_worker *worker, uint64_t step)
{
    struct engine_state *state = state_of(worker);
    for (uint32_t m = 0; m < state->program->modules; m++) {
        state->sets.learned[m][state->sets.in_force[m]] |= state->agreed[m];
        state->agreed[m] = false;
    }
    sim_trace(worker->sim, "%s has settled step %" PRIu64, sim_name(worker), step);
    ledger_settled(state->ledger, worker->rank, step);
    state->settled = step;
    if (state->stage == TRAINER_ENDING) {
        state->stage = TRAINER_BETWEEN;
        think(worker);
    }
}

static void engine_do(struct sim_worker *worker, const struct order_action *action)
{
    struct engine_state *state = state_of(worker);
    switch (action->kind) {
    case ORDER_SEND:
        engine_send(worker, action->up);
        break;
    case ORDER_OPEN:
        wave_join(worker, WAVE_OPEN, action->step, action->opening, sizeof(*action->opening));
        break;
    case ORDER_HEADER:
        data_header(worker, action->header);
        break;
    case ORDER_LAUNCH:
        engine_launch(worker, action);
        break;
    case ORDER_REDO:
        sim_fail(worker->sim, "%s repeats a slot", sim_name(worker));
    case ORDER_DEFER:
        engine_deferred(worker, action->deferred);
        break;
    case ORDER_RELEASE:
        engine_released(worker, action);
        break;
    case ORDER_CLOSE:
        wave_join(worker, WAVE_CLOSE, action->step, action->close, sizeof(*action->close));
        break;
    case ORDER_COMMIT:
        ledger_commits(state->ledger, worker->rank);
        wave_join(worker, WAVE_COMMIT, action->step, &program_of(state)->said,
                  sizeof(program_of(state)->said));
        break;
    case ORDER_SETTLED:
        engine_settled(worker, action->step);
        break;
    case ORDER_IMPOSSIBLE:
        sim_fail(worker->sim, "%s finds that rank %" PRIu32 " %s", sim_name(worker), action->rank,
                 action->text);
        break;
    case ORDER_FAILED:
        engine_failed(worker, action);
        break;
    }
}

static void engine_action(void *context, const struct order_action *action)
{
    struct sim_worker *worker = context;
    struct engine_state *state = state_of(worker);
    if (state->over || state->dying)
        return;
    if (++state->actions == state->options->dies_at) {
        state->dying = true;
        sim_crash_at(worker, worker->sim->now_ms);
        return;
    }
    engine_do(worker, action);
}

// ---- What follows from an event --------------------------------------------------------------

static void trainer_opened(struct sim_worker *worker, const struct open_wave *result);

static void wave_completed(struct sim_worker *worker, enum wave_kind kind)
{
    struct engine_state *state = state_of(worker);
    struct engine_wave *wave = &state->waves[kind];
    wave->joined = false;
    if (kind == WAVE_OPEN) {
        trainer_opened(worker, (const struct open_wave *)wave->payload);
    } else if (kind == WAVE_CLOSE) {
        ledger_closed(state->ledger, worker->rank, (const struct close_wave *)wave->payload);
        order_close_completed(&state->order, (const struct close_wave *)wave->payload);
    } else {
        ledger_committed(state->ledger, worker->rank, (const struct commit_wave *)wave->payload);
        order_commit_completed(&state->order);
    }
}

static void engine_waves(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    bool again = true;
    while (again && !state->over && !state->dying) {
        again = false;
        for (enum wave_kind kind = WAVE_CLOSE; kind < WAVE_KINDS && !state->over; kind++) {
            if (!state->waves[kind].joined || !wave_advance(worker, kind))
                continue;
            wave_completed(worker, kind);
            again = true;
        }
    }
}

static void engine_schedule(struct sim_worker *worker)
{
    const struct engine_state *state = state_of(worker);
    const uint64_t now_ms = worker->sim->now_ms;
    uint64_t due_ms = state->trainer_ms;
    if (state->deadline_ms != 0 && state->deadline_ms < due_ms)
        due_ms = state->deadline_ms;
    if (due_ms != UINT64_MAX)
        sim_timer(worker, due_ms > now_ms ? due_ms - now_ms : 0);
}

// The end of every event.
static void engine_progress(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    if (worker->end != SIM_RUNNING || state->dying)
        return;
    if (worker->generation.number != 0 && state->stage != TRAINER_CLOSING) {
        engine_waves(worker);
        data_check_left(worker);
        engine_check_verdict(worker);
        if (!state->dying)
            ledger_check(state->ledger, worker->rank);
    }
    engine_schedule(worker);
}

// ---- The trainer -----------------------------------------------------------------------------

static void trainer_close(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    if (!state->over && worker->generation.number != 0) {
        sim_trace(worker->sim, "%s says goodbye to its peers", sim_name(worker));
        sim_goodbye(worker, state->settled);
    }
    if (!state->failed)
        ledger_ended(state->ledger, state->options->rank, SESSION_LEFT, HALT_NONE, "");
    state->stage = TRAINER_CLOSING;
    think(worker);
}

static void trainer_exit(struct sim_worker *worker)
{
    const struct engine_state *state = state_of(worker);
    struct up_message message = {.kind = UP_LEAVE, .u.leave = {.settled = state->settled}};
    if (worker->generation.number != 0)
        sim_send(worker, &message);
    sim_exit(worker, state->failed ? SIM_HALTED : SIM_DONE);
}

static void trainer_start(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    struct up_message message = {.kind = UP_START, .u.start = {.manifest_hash = 7}};
    message.u.start.item_count = 1 + state->program->modules;
    message.u.start.settled = state->settled;
    message.u.start.zero_defer = state->order.options.zero_defer;
    message.u.start.strict = state->order.options.strict;
    state->starting = true;
    state->started_at = state->step;
    state->stage = TRAINER_STARTED;
    memset(&state->sets, 0, sizeof(state->sets));
    memset(state->agreed, 0, sizeof(state->agreed));
    order_start_begun(&state->order);
    engine_send(worker, &message);
}

static void trainer_step_begun(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    uint32_t buckets[LOCKSTEP_MAX_MODULES] = {0};
    state->step++;
    state->made = 0;
    state->stage = TRAINER_BACKWARD;
    think(worker);
    sim_trace(worker->sim, "%s begins step %" PRIu64 " in phase %" PRIu32, sim_name(worker),
              state->step, program_of(state)->phase);
    if (program_enter(state->program, &state->sets, program_of(state)->phase))
        order_forget_plans(&state->order);
    for (uint32_t m = 0; m < state->program->modules; m++)
        buckets[m] = program_buckets(state->program, &state->sets, m);
    calls_run_step(&state->run, (uint32_t)state->step);
    order_step_begun(&state->order, state->step, program_phase(program_of(state)->phase), buckets);
    ledger_step_begun(state->ledger, worker->rank);
}

// An exhausted rank learns its phase from the wave; the program knows it, too.
static void trainer_opened(struct sim_worker *worker, const struct open_wave *result)
{
    struct engine_state *state = state_of(worker);
    const uint64_t step = state->step + 1;
    char phase[LOCKSTEP_NAME_BYTES];
    sim_trace(worker->sim, "%s: in step %" PRIu64 " %" PRIu32 " ranks are exhausted",
              sim_name(worker), step, result->exhausted);
    if (program_finished(state->program, result->exhausted)) {
        ledger_no_step(state->ledger, worker->rank, step);
        trainer_close(worker);
        return;
    }
    ledger_opened(state->ledger, worker->rank, step, result);
    snprintf(phase, sizeof(phase), "%" PRIu32,
             state->program->at[state->options->rank][step].phase);
    if (state->opening.exhausted != 0 && strcmp(phase, result->phase) != 0)
        sim_fail(worker->sim, "%s is to run phase %s in step %" PRIu64, sim_name(worker),
                 result->phase, step);
    trainer_step_begun(worker);
}

static void trainer_step_open(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    const struct program *program = state->program;
    const uint32_t rank = state->options->rank;
    struct open_wave *opening = &state->opening;
    memset(opening, 0, sizeof(*opening));
    opening->exhausted = state->step >= program->data_of[rank];
    opening->first = opening->exhausted != 0 ? OPEN_NOBODY : rank;
    if (opening->exhausted == 0)
        snprintf(opening->phase, sizeof(opening->phase), "%" PRIu32,
                 program->at[rank][state->step + 1].phase);
    state->stage = TRAINER_BEGINNING;
    state->trainer_ms = UINT64_MAX;
    order_step_opening(&state->order, state->step + 1, opening);
}

static void trainer_step_begin(struct sim_worker *worker)
{
    const struct engine_state *state = state_of(worker);
    const struct program *program = state->program;
    const uint32_t rank = state->options->rank;
    const bool leaves = program->uneven == 0 || program->steps_of[rank] < program->steps;
    if (leaves && state->step == program->steps_of[rank] && !program->midway[rank])
        trainer_close(worker);
    else if (state->step > state->started_at && state->step == program->starts_after[rank])
        trainer_start(worker);
    else if (program->uneven != 0)
        trainer_step_open(worker);
    else
        trainer_step_begun(worker);
}

static void propose_layout(struct sim_worker *worker, uint32_t module)
{
    const struct engine_state *state = state_of(worker);
    const uint32_t buckets = state->program->buckets[module][state->sets.in_force[module]];
    struct up_message message = {.kind = UP_LAYOUT_PART};
    struct layout_part *part = &message.u.layout_part;
    part->module = module;
    part->words[part->count++] = buckets;
    for (uint32_t i = 1; i <= buckets; i++)
        part->words[part->count++] = i;
    for (uint32_t i = 0; i < buckets; i++)
        part->words[part->count++] = i;
    part->total = part->count;
    engine_send(worker, &message);
}

static void trainer_step_end(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    state->stage = TRAINER_ENDING;
    state->trainer_ms = UINT64_MAX;
    sim_trace(worker->sim, "%s ends step %" PRIu64, sim_name(worker), state->step);
    ledger_step_ended(state->ledger, worker->rank);
    for (uint32_t m = 0; state->order.learning && worker->rank == 0 && m < state->program->modules;
         m++)
        propose_layout(worker, m);
    if (!state->over)
        order_step_ended(&state->order);
}

static void trainer_abort(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    struct up_message message = {.kind = UP_FAIL, .u.fail = {.kind = HALT_LOST}};
    state->stage = TRAINER_ABORTED;
    state->trainer_ms = UINT64_MAX;
    state->aborted = true;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text), "aborted: nan");
    sim_trace(worker->sim, "%s aborts", sim_name(worker));
    if (state->control_gone) {
        engine_fail(worker, SESSION_ABORTED, HALT_NONE, "this session was aborted");
        return;
    }
    state->lost_here = (struct down_halt){.kind = HALT_LOST};
    state->deadline_ms = worker->sim->now_ms + LOCKSTEP_HALT_GRACE_MS;
    engine_send(worker, &message);
}

// Makes the next slot of the program. False: all slots were made.
static bool trainer_make_slot(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    const struct program_step *program = program_of(state);
    while (state->made < program->ready_count) {
        const struct slot_id id = program->ready[state->made++];
        if (id.bucket >= program_buckets(state->program, &state->sets, id.module))
            continue;
        sim_trace(worker->sim, "%s: slot %" PRIu32 "#0.%" PRIu32 " is ready", sim_name(worker),
                  id.module, id.bucket);
        order_slot_ready(&state->order, id, DTYPE_FLOAT32, 10 + id.bucket);
        return true;
    }
    return false;
}

static void trainer_do(struct sim_worker *worker, const struct calls_op *op)
{
    struct engine_state *state = state_of(worker);
    const struct slot_id *slot = &op->slot;
    const struct call_id call = {slot->module, slot->call};
    switch (op->kind) {
    case CALLS_BEGIN:
        order_call_begun(&state->order, call);
        break;
    case CALLS_READY:
        sim_trace(worker->sim, "%s: slot %" PRIu32 "#%" PRIu32 ".%" PRIu32 " is ready",
                  sim_name(worker), slot->module, slot->call, slot->bucket);
        calls_run_ready(&state->run, slot);
        order_slot_ready(&state->order, *slot, DTYPE_FLOAT32, 10 + slot->bucket);
        break;
    case CALLS_END:
        order_call_ended(&state->order, call);
        break;
    case CALLS_WAIT:
        sim_trace(worker->sim, "%s waits for call %" PRIu32 "#%" PRIu32, sim_name(worker),
                  slot->module, slot->call);
        order_wait_begun(&state->order, call);
        break;
    }
}

// Does one operation of a thread that can go on. Threads in a wait are woken by releases.
static void trainer_calls(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    const uint32_t threads = state->program->calls.threads;
    const uint32_t first = (uint32_t)sim_random(worker->sim, threads);
    const struct calls_op *op = NULL;
    if (calls_run_over(&state->run)) {
        trainer_step_end(worker);
        return;
    }
    for (uint32_t i = 0; i < threads && !op; i++)
        op = calls_run_next(&state->run, (first + i) % threads);
    if (!op)
        return;
    think(worker);
    if (!state->over)
        trainer_do(worker, op);
}

static void trainer_backward(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    const struct program *program = state->program;
    const uint32_t rank = state->options->rank;
    if (program->has_calls) {
        trainer_calls(worker);
        return;
    }
    think(worker);
    if (state->made < program_of(state)->ready_count / 2 && trainer_make_slot(worker))
        return;
    if (program->aborts_in[rank] == state->step)
        trainer_abort(worker);
    else if (program->midway[rank] && program->steps_of[rank] < state->step)
        trainer_close(worker);
    else if (!trainer_make_slot(worker))
        trainer_step_end(worker);
}

static void trainer_acts(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    state->trainer_ms = UINT64_MAX;
    switch (state->stage) {
    case TRAINER_STARTING:
        trainer_start(worker);
        break;
    case TRAINER_BETWEEN:
        trainer_step_begin(worker);
        break;
    case TRAINER_BACKWARD:
        trainer_backward(worker);
        break;
    case TRAINER_FAILED:
        trainer_close(worker);
        break;
    case TRAINER_CLOSING:
        trainer_exit(worker);
        break;
    case TRAINER_OPENING:
    case TRAINER_STARTED:
    case TRAINER_BEGINNING:
    case TRAINER_ENDING:
    case TRAINER_ABORTED:
        break;
    }
}

// ---- What the coordinator says ---------------------------------------------------------------

static void engine_generation(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    const struct calls *calls = &state->program->calls;
    const struct order_sink sink = {engine_action, worker};
    struct order_options options = calls->options;
    if (worker->rank != state->options->rank)
        sim_fail(worker->sim, "%s asked for rank %" PRIu32, sim_name(worker), state->options->rank);
    options.strict = (calls->strict >> worker->rank & 1) != 0;
    if (!state->program->has_calls)
        options = (struct order_options){.unplanned = UNPLANNED_FAIL};
    order_init(&state->order, worker->generation, worker->rank, worker->world_size, &options, sink);
    state->order.plans.room = state->program->plan_room;
    calls_run_begin(&state->run, calls, worker->rank);
    ledger_joined(state->ledger, worker->rank, &state->order, &state->run);
    state->stage = TRAINER_STARTING;
    think(worker);
}

static void engine_layout(struct sim_worker *worker, const struct layout_part *part)
{
    struct engine_state *state = state_of(worker);
    if (part->module >= state->program->modules || part->first != 0 ||
        part->words[0] != state->program->buckets[part->module][state->sets.in_force[part->module]])
        sim_fail(worker->sim, "%s gets another layout than rank 0 proposed", sim_name(worker));
    state->agreed[part->module] = true;
}

static void engine_heard(struct sim_worker *worker, const struct down_message *message)
{
    struct engine_state *state = state_of(worker);
    switch (message->kind) {
    case DOWN_GENERATION:
        engine_generation(worker);
        break;
    case DOWN_VERIFIED:
        state->starting = false;
        state->stage = TRAINER_BETWEEN;
        think(worker);
        break;
    case DOWN_GRANT:
        order_granted(&state->order, &message->u.grant);
        break;
    case DOWN_LAYOUT_PART:
        engine_layout(worker, &message->u.layout_part);
        break;
    case DOWN_PLAN_PART:
        order_plan_received(&state->order, &message->u.plan_part);
        break;
    case DOWN_QUERY:
        order_queried(&state->order, &message->u.query);
        break;
    case DOWN_PREPARE: // Only jobs that go on after a loss get these four: test_sim_crash.
    case DOWN_RECORD_PART:
    case DOWN_DECISION:
    case DOWN_EXCLUDED:
    case DOWN_INSPECT:
    case DOWN_ADDRESSES:
    case DOWN_TUNING: // The simulated data plane has no links to measure.
        break;
    case DOWN_HALT:
        engine_hear_halt(worker, &message->u.halt);
        break;
    case DOWN_REFUSED:
        engine_fail(worker, SESSION_UNREACHABLE, HALT_NONE, message->u.refused.text);
        break;
    case DOWN_MANIFEST_REQUEST:
        sim_fail(worker->sim, "%s is asked for its manifest", sim_name(worker));
    case DOWN_NONE:
    case DOWN_WELCOME:
        break;
    }
}

// ---- The model -------------------------------------------------------------------------------

static void engine_started(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    struct up_hello hello = {
        .version = LOCKSTEP_PROTOCOL_VERSION,
        .job = "j",
        .pid = 1000 + worker->index,
        .world_min = state->program->world,
        .world_max = state->program->world,
        .open_timeout_ms = 3000,
        .has_rank_hint = true,
        .rank_hint = state->options->rank,
    };
    memcpy(hello.uuid.bytes, &hello.pid, sizeof(hello.pid));
    snprintf(hello.host, sizeof(hello.host), "h%" PRIu32, state->options->rank);
    memcpy(hello.host_id, hello.host, sizeof(hello.host_id));
    snprintf(hello.address, sizeof(hello.address), "sim:%" PRIu32, worker->index);
    state->trainer_ms = UINT64_MAX;
    sim_connect(worker, &hello);
}

static void engine_received(struct sim_worker *worker, const struct down_message *message)
{
    const struct engine_state *state = state_of(worker);
    if (!state->failed && !state->dying && state->stage != TRAINER_CLOSING)
        engine_heard(worker, message);
    engine_progress(worker);
}

static void engine_disconnected(struct sim_worker *worker)
{
    struct engine_state *state = state_of(worker);
    state->control_gone = true;
    if (state->failed || state->dying || state->stage == TRAINER_CLOSING)
        return;
    sim_trace(worker->sim, "%s sees the end of its control stream", sim_name(worker));
    if (state->deadline_ms != 0)
        state->deadline_ms = worker->sim->now_ms;
    if (worker->generation.number == 0 || state->starting)
        engine_fail(worker, SESSION_UNREACHABLE, HALT_NONE, "the control stream ended");
    else if (state->order.open && state->order.learning)
        engine_fail(worker, SESSION_UNREACHABLE, HALT_NONE,
                    "the coordinator was lost while the order was being learned");
    else
        order_coordinator_lost(&state->order);
    engine_progress(worker);
}

static void engine_timer(struct sim_worker *worker)
{
    const struct engine_state *state = state_of(worker);
    if (state->dying)
        return;
    if (worker->sim->now_ms >= state->trainer_ms)
        trainer_acts(worker);
    engine_progress(worker);
}

static void engine_keep_wave(struct sim_worker *worker, uint32_t from, const struct packet *packet)
{
    struct engine_state *state = state_of(worker);
    if (state->arrived_count == ENGINE_ARRIVED)
        sim_fail(worker->sim, "%s must keep too many waves", sim_name(worker));
    for (uint32_t i = 0; i < state->arrived_count; i++) {
        const struct arrived_wave *at = &state->arrived[i];
        if (at->from == from && at->packet.wave == packet->wave &&
            at->packet.step == packet->step && at->packet.round == packet->round)
            sim_fail(worker->sim, "%s gets a round of a wave twice", sim_name(worker));
    }
    if (!wave_expects(worker->rank, worker->world_size, from, packet->round))
        sim_fail(worker->sim, "%s gets no round of its waves", sim_name(worker));
    state->arrived[state->arrived_count].from = from;
    state->arrived[state->arrived_count++].packet = *packet;
}

static void engine_data(struct sim_worker *worker, uint32_t from, const void *bytes, size_t size)
{
    struct engine_state *state = state_of(worker);
    struct packet packet;
    if (state->dying || size != sizeof(packet))
        return;
    memcpy(&packet, bytes, sizeof(packet));
    if (packet.kind == PACKET_WAVE) {
        engine_keep_wave(worker, from, &packet);
    } else {
        state->header_received = packet.header.step;
        order_header_received(&state->order, &packet.header);
    }
    engine_progress(worker);
}

static void engine_final(struct sim_worker *worker, uint32_t index, const struct parts *parts)
{
    struct engine_state *state = state_of(worker);
    sim_trace(worker->sim, "%s: position %" PRIu32 " of step %" PRIu64 " is final",
              sim_name(worker), index, state->order.step);
    state->in_flight--;
    ledger_final(state->ledger, worker->rank, index, parts);
    order_slot_final(&state->order, index);
}

static void engine_strict_final(struct sim_worker *worker, const struct parts *parts)
{
    struct strict_queue *queue = &state_of(worker)->queue;
    const uint32_t index = queue->slots[queue->final++ % ENGINE_QUEUE].index;
    if (queue->final < queue->launched)
        engine_strict_join(worker);
    engine_final(worker, index, parts);
}

static void engine_collective(struct sim_worker *worker, const struct sim_key *key,
                              const void *bytes)
{
    struct engine_state *state = state_of(worker);
    struct slot_payload payload;
    if (state->over || state->dying || state->stage == TRAINER_CLOSING)
        return;
    memcpy(&payload, bytes, sizeof(payload));
    if (payload.id.module == UINT32_MAX)
        sim_fail(worker->sim, "%s finishes what were different slots", sim_name(worker));
    if (!engine_all_strict(state) &&
        (key->step != state->order.step || key->space != state->order.space))
        sim_fail(worker->sim, "%s finishes a slot of a step that it is not in", sim_name(worker));
    if (state->order.options.strict)
        engine_strict_final(worker, &payload.parts);
    else
        engine_final(worker, key->number, &payload.parts);
    engine_progress(worker);
}

static void engine_peer_gone(struct sim_worker *worker, uint32_t rank, bool left, uint64_t settled)
{
    struct engine_state *state = state_of(worker);
    (void)settled;
    if (state->dying)
        return;
    state->peer_left[rank] = left;
    if (!left)
        engine_peer_lost(worker, rank, false);
    engine_progress(worker);
}

static void engine_merge(const struct sim_key *key, void *into, const void *from)
{
    struct slot_payload *a = into;
    const struct slot_payload *b = from;
    (void)key;
    // No verdict names this difference: no rank calls it what another rank does.
    if (memcmp(&a->id, &b->id, sizeof(a->id)) != 0)
        a->id.module = UINT32_MAX;
    parts_join(&a->parts, &b->parts);
}

static void engine_waits_for(const struct sim_worker *worker, char *text, size_t bytes)
{
    static const char *const names[] = {
        "the world",   "its trainer", "lockstep_start",    "its trainer", "step_begin",
        "its trainer", "step_end",    "an abort's answer", "its trainer", "its exit",
    };
    const struct engine_state *state = state_of(worker);
    const struct order *order = &state->order;
    snprintf(text, bytes,
             "%s, step %" PRIu64 "%s%s, settled %" PRIu64 ", lowest slot %" PRIu32 " of %" PRIu32
             "%s%s%s%s%s%s",
             names[state->stage], order->step, order->open ? " open" : "",
             order->learning ? " learning" : "", state->settled, order->low, order->slot_count,
             order->ended ? ", ended" : "", order->header_equal ? "" : ", no header",
             order->close_joined ? ", in close" : "", order->closed ? ", closed" : "",
             order->commit_joined ? ", in commit" : "", order->halt_held ? ", a halt is held" : "");
}

static const struct sim_model engine_model = {
    .bytes = sizeof(struct engine_state),
    .started = engine_started,
    .received = engine_received,
    .disconnected = engine_disconnected,
    .timer = engine_timer,
    .data = engine_data,
    .collective = engine_collective,
    .peer_gone = engine_peer_gone,
    .merge = engine_merge,
    .waits_for = engine_waits_for,
};

struct sim_worker *engine_spawn(struct sim *sim, const struct program *program,
                                struct ledger *ledger, const struct engine_options *options,
                                uint64_t delay_ms)
{
    struct sim_worker *worker = sim_spawn(sim, &engine_model, delay_ms);
    struct engine_state *state = state_of(worker);
    state->program = program;
    state->ledger = ledger;
    state->options = options;
    state->trainer_ms = UINT64_MAX;
    return worker;
}
