// SPDX-License-Identifier: Apache-2.0
//
// The scripted worker. One state machine, moved by messages and by a timer that stands for the
// trainer's own time.

#include "tests/sim/sim_script.h"

#include "protos/topology.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum stage {
    STAGE_JOINING, // lockstep_open
    STAGE_STARTING, // lockstep_start
    STAGE_TRAINER, // Between steps.
    STAGE_LEARNING, // Making slots.
    STAGE_BLOCKED, // The script is in call_wait and waits for a grant.
    STAGE_ENDED, // The script is in step_end of a learning step, and waits for its plan.
    STAGE_HEADER, // The script waits for the predecessor's header in a planned step.
    STAGE_SETTLING, // The script waits for the collective that stands for the rest of the step.
    STAGE_STUCK, // The worker has reported a disagreement, and waits for the verdict.
};

struct script_state {
    const struct script *script;
    struct script_options options;
    enum stage stage;
    uint64_t step; // The last step that was begun.
    uint64_t settled;
    uint32_t phase;
    bool planned[SCRIPT_PHASES];

    // Learning.
    uint32_t order[SCRIPT_SLOTS];
    uint32_t order_count;
    uint32_t made;
    bool granted[SCRIPT_SLOTS]; // By index into the phase's slots.
    uint32_t waits_for; // Index of the slot for which the script waits.

    struct step_note {
        uint64_t step;
        uint64_t phase;
    } headers[2]; // Headers of the predecessor, by step modulo 2.

    bool halt_held;
    struct down_halt halt;
    enum halt_kind verdict;
};

static const struct sim_model script_model;

static struct script_state *state_of(const struct sim_worker *worker)
{
    return worker->state;
}

static void think(struct sim_worker *worker)
{
    sim_timer(worker, 1 + sim_random(worker->sim, state_of(worker)->script->think_ms));
}

// ---- Ends ------------------------------------------------------------------------------------

static void go_again(struct sim_worker *worker, uint64_t delay_ms)
{
    const struct script_state *state = state_of(worker);
    struct script_options options = state->options;
    if (options.tries-- > 0)
        script_spawn(worker->sim, state->script, &options, delay_ms);
}

static void leave(struct sim_worker *worker, enum sim_end end)
{
    const struct script_state *state = state_of(worker);
    struct up_message message = {.kind = UP_LEAVE, .u.leave = {.settled = state->settled}};
    sim_send(worker, &message);
    sim_goodbye(worker, state->settled);
    sim_exit(worker, end);
}

// True if the verdict takes effect: a verdict of step s does when step s - 1 is settled here.
static bool halt_takes_effect(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    if (!state->halt_held || (state->halt.step != 0 && state->settled + 1 < state->halt.step))
        return false;
    state->verdict = state->halt.kind;
    leave(worker, SIM_HALTED);
    if (state->halt.kind == HALT_LOST && sim_chance(worker->sim, state->script->restart_percent))
        go_again(worker, 20 + sim_random(worker->sim, 100));
    return true;
}

static void halted(struct sim_worker *worker, const struct down_halt *halt)
{
    struct script_state *state = state_of(worker);
    if (!state->halt_held || halt->step < state->halt.step)
        state->halt = *halt;
    state->halt_held = true;
    halt_takes_effect(worker);
}

static void refused(struct sim_worker *worker, const struct down_refused *refusal)
{
    sim_exit(worker, SIM_REFUSED);
    if (refusal->refusal == REFUSAL_FULL)
        go_again(worker, 50 + sim_random(worker->sim, 100));
}

// ---- Joining and starting --------------------------------------------------------------------

static void script_started(struct sim_worker *worker)
{
    const struct script_state *state = state_of(worker);
    const struct script *script = state->script;
    struct up_hello hello = {
        .version = LOCKSTEP_PROTOCOL_VERSION,
        .pid = 1000 + worker->index,
        .world_min = script->world_min,
        .world_max = script->world_max,
        .window_ms = script->window_ms,
        .open_timeout_ms = script->open_timeout_ms,
        .has_rank_hint = state->options.has_hint,
        .rank_hint = state->options.hint,
    };
    memcpy(hello.uuid.bytes, &hello.pid, sizeof(hello.pid));
    memcpy(hello.job, script->job, sizeof(hello.job));
    snprintf(hello.host, sizeof(hello.host), "h%" PRIu32, worker->index % state->options.hosts);
    memcpy(hello.host_id, hello.host, sizeof(hello.host_id));
    snprintf(hello.address, sizeof(hello.address), "sim:%" PRIu32, worker->index);
    sim_connect(worker, &hello);
}

static uint32_t item_count(const struct script *script)
{
    return 1 + script->modules * 9;
}

static void manifest_item(const struct script_state *state, uint32_t index,
                          struct manifest_item *item)
{
    memset(item, 0, sizeof(*item));
    item->kind = index == 0 ? MANIFEST_SESSION : MANIFEST_PARAMETER;
    if (index > 0) {
        item->module = (index - 1) / 9;
        snprintf(item->name, sizeof(item->name), "p%" PRIu32, (index - 1) % 9);
        item->dtype = DTYPE_FLOAT32;
        item->dims = 1;
        item->shape[0] = 4;
        item->strides[0] = 1;
        if ((index - 1) % 9 == 0)
            item->kind = MANIFEST_MODULE;
    }
    if (index == state->options.wrong_item && index > 0)
        snprintf(item->value, sizeof(item->value), "differs=yes");
}

static void send_start(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    struct up_message message = {.kind = UP_START};
    message.u.start.manifest_hash = 77 + state->options.wrong_item;
    message.u.start.item_count = item_count(state->script);
    sim_send(worker, &message);
}

static void send_items(struct sim_worker *worker, const struct down_manifest_request *request)
{
    struct up_message message = {.kind = UP_MANIFEST_PART};
    message.u.manifest_part.first = request->first;
    message.u.manifest_part.count = request->count;
    for (uint32_t i = 0; i < request->count; i++)
        manifest_item(state_of(worker), request->first + i, &message.u.manifest_part.items[i]);
    sim_send(worker, &message);
}

// ---- Steps -----------------------------------------------------------------------------------

static void say_fail(struct sim_worker *worker, uint64_t step, uint64_t other)
{
    struct script_state *state = state_of(worker);
    struct up_message message = {.kind = UP_FAIL, .u.fail = {.step = step, .kind = HALT_PHASE}};
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "phase %" PRIu32 " here, phase %" PRIu64 " on its predecessor", state->phase, other);
    sim_send(worker, &message);
    state->stage = STAGE_STUCK;
}

// The collective that stands for all that ranks do together in a step after its order is known.
static void join_rest(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    const struct sim_key key = {.step = state->step, .space = state->phase};
    state->stage = STAGE_SETTLING;
    sim_join(worker, &key, NULL, 0);
}

// Looks at the predecessor's header of this step, if it is there.
static void look_at_header(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    const struct step_note *header = &state->headers[state->step % 2];
    if (state->stage == STAGE_STUCK || state->stage == STAGE_TRAINER ||
        state->stage == STAGE_SETTLING || header->step != state->step)
        return;
    if (header->phase != state->phase)
        say_fail(worker, state->step, header->phase);
    else if (state->stage == STAGE_HEADER)
        join_rest(worker);
}

static void script_data(struct sim_worker *worker, uint32_t from, const void *bytes, size_t size)
{
    struct script_state *state = state_of(worker);
    struct step_note header;
    (void)from;
    (void)size;
    memcpy(&header, bytes, sizeof(header));
    state->headers[header.step % 2] = header;
    if (header.step == state->step)
        look_at_header(worker);
}

static void shuffle(struct sim *sim, uint32_t *order, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t other = (uint32_t)sim_random(sim, i);
        const uint32_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

static void draw_order(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    const struct script *script = state->script;
    state->order_count = 0;
    state->made = 0;
    memset(state->granted, 0, sizeof(state->granted));
    for (uint32_t i = 0; i < script->slot_count[state->phase]; i++)
        if (!sim_chance(worker->sim, script->skip_percent))
            state->order[state->order_count++] = i;
    if (sim_chance(worker->sim, script->shuffle_percent))
        shuffle(worker->sim, state->order, state->order_count);
}

static void step_begin(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    const struct script *script = state->script;
    const uint32_t last =
        state->options.leaves_after != 0 ? state->options.leaves_after : script->steps;
    if (state->settled == last) {
        leave(worker, SIM_DONE);
        return;
    }
    state->step = state->settled + 1;
    state->phase = script->phase[state->step];
    if (state->options.wrong_phase_at == state->step)
        state->phase = (state->phase + 1) % SCRIPT_PHASES;
    const struct step_note header = {state->step, state->phase};
    if (worker->world_size > 1)
        sim_data(worker, topology_successor(worker->rank, worker->world_size), &header,
                 sizeof(header));
    else
        state->headers[state->step % 2] = header;
    state->stage = state->planned[state->phase] ? STAGE_HEADER : STAGE_LEARNING;
    if (state->stage == STAGE_LEARNING) {
        draw_order(worker);
        think(worker);
    }
    look_at_header(worker);
}

// ---- Learning --------------------------------------------------------------------------------

static void propose_layout(struct sim_worker *worker, uint32_t module)
{
    const uint32_t buckets = state_of(worker)->script->buckets[module];
    struct up_message message = {.kind = UP_LAYOUT_PART};
    struct layout_part *part = &message.u.layout_part;
    part->module = module;
    part->words[part->count++] = buckets;
    for (uint32_t i = 1; i <= buckets; i++)
        part->words[part->count++] = 2 * i;
    for (uint32_t i = 0; i < 2 * buckets; i++)
        part->words[part->count++] = i;
    part->total = part->count;
    sim_send(worker, &message);
}

static void make_slot(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    const uint32_t index = state->order[state->made++];
    struct up_message message = {.kind = UP_READY};
    message.u.ready.step = state->step;
    message.u.ready.phase = state->phase;
    message.u.ready.slot = state->script->slots[state->phase][index];
    message.u.ready.dtype = DTYPE_FLOAT32;
    message.u.ready.elements = 8 + state->options.wrong_elements;
    sim_send(worker, &message);
    if (state->granted[index] || !sim_chance(worker->sim, state->script->wait_percent)) {
        think(worker);
        return;
    }
    message = (struct up_message){
        .kind = UP_WAIT,
        .u.wait = {.step = state->step,
                   .phase = state->phase,
                   .slot = state->script->slots[state->phase][index]},
    };
    state->waits_for = index;
    state->stage = STAGE_BLOCKED;
    sim_send(worker, &message);
}

static void end_learning(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    struct up_message message = {.kind = UP_END};
    for (uint32_t i = 0; worker->rank == 0 && i < state->script->modules; i++)
        propose_layout(worker, i);
    message.u.end.step = state->step;
    message.u.end.phase = state->phase;
    state->stage = STAGE_ENDED;
    sim_send(worker, &message);
}

static void granted(struct sim_worker *worker, const struct down_grant *grant)
{
    struct script_state *state = state_of(worker);
    const struct script *script = state->script;
    for (uint32_t i = 0; i < script->slot_count[state->phase]; i++)
        if (memcmp(&script->slots[state->phase][i], &grant->slot, sizeof(grant->slot)) == 0)
            state->granted[i] = true;
    if (state->stage == STAGE_BLOCKED && state->granted[state->waits_for]) {
        state->stage = STAGE_LEARNING;
        think(worker);
    }
}

static void planned(struct sim_worker *worker, const struct down_plan_part *part)
{
    struct script_state *state = state_of(worker);
    if (!part->last)
        return;
    if (part->step != state->step || part->phase != state->phase)
        sim_fail(worker->sim, "%s gets a plan of step %" PRIu64 " in step %" PRIu64,
                 sim_name(worker), part->step, state->step);
    if (state->stage == STAGE_STUCK)
        return;
    if (state->stage != STAGE_ENDED)
        sim_fail(worker->sim, "%s gets a plan before it has ended the step", sim_name(worker));
    for (uint32_t i = 0; i < state->script->slot_count[state->phase]; i++)
        if (state->granted[i] == false && state->script->skip_percent == 0)
            sim_fail(worker->sim, "%s gets a plan before every slot was granted", sim_name(worker));
    state->planned[state->phase] = true;
    join_rest(worker);
}

// ---- The model -------------------------------------------------------------------------------

static void script_timer(struct sim_worker *worker)
{
    struct script_state *state = state_of(worker);
    if (state->stage == STAGE_STARTING)
        send_start(worker);
    else if (state->stage == STAGE_TRAINER)
        step_begin(worker);
    else if (state->stage == STAGE_LEARNING && state->made < state->order_count)
        make_slot(worker);
    else if (state->stage == STAGE_LEARNING)
        end_learning(worker);
}

static void script_received(struct sim_worker *worker, const struct down_message *message)
{
    struct script_state *state = state_of(worker);
    switch (message->kind) {
    case DOWN_REFUSED:
        refused(worker, &message->u.refused);
        return;
    case DOWN_GENERATION:
        state->stage = STAGE_STARTING;
        think(worker);
        return;
    case DOWN_VERIFIED:
        state->stage = STAGE_TRAINER;
        think(worker);
        return;
    case DOWN_MANIFEST_REQUEST:
        send_items(worker, &message->u.manifest_request);
        return;
    case DOWN_GRANT:
        granted(worker, &message->u.grant);
        return;
    case DOWN_PLAN_PART:
        planned(worker, &message->u.plan_part);
        return;
    case DOWN_HALT:
        halted(worker, &message->u.halt);
        return;
    case DOWN_NONE:
    case DOWN_WELCOME:
    case DOWN_TUNING:
    case DOWN_QUERY:
    case DOWN_INSPECT:
    case DOWN_PREPARE:
    case DOWN_RECORD_PART:
    case DOWN_DECISION:
    case DOWN_EXCLUDED:
    case DOWN_ADDRESSES:
    case DOWN_LAYOUT_PART:
        return;
    }
}

static void script_disconnected(struct sim_worker *worker)
{
    sim_exit(worker, SIM_HALTED);
}

static void script_collective(struct sim_worker *worker, const struct sim_key *key,
                              const void *payload)
{
    struct script_state *state = state_of(worker);
    (void)payload;
    if (key->step != state->step || key->space != state->phase)
        sim_fail(worker->sim, "%s settles a step that it is not in", sim_name(worker));
    state->settled = state->step;
    state->stage = STAGE_TRAINER;
    if (!halt_takes_effect(worker))
        think(worker);
}

static void script_peer_gone(struct sim_worker *worker, uint32_t rank, bool left, uint64_t settled)
{
    const struct script_state *state = state_of(worker);
    const uint64_t last =
        state->options.leaves_after != 0 ? state->options.leaves_after : state->script->steps;
    struct up_message message = {.kind = UP_LOST, .u.lost = {.rank = rank, .left = left}};
    if (state->script->deaf || (left && settled >= last))
        return; // Nothing more was wanted of it.
    message.u.lost.step = left && settled + 1 > state->step ? settled + 1 : state->step;
    snprintf(message.u.lost.text, sizeof(message.u.lost.text), "connection reset by peer");
    sim_send(worker, &message);
}

static void script_waits_for(const struct sim_worker *worker, char *text, size_t bytes)
{
    static const char *const names[] = {
        "the world", "lockstep_start", "its trainer", "its trainer in a learning step",
        "a grant",   "the plan",       "a header",    "the other ranks in step_end",
        "a verdict",
    };
    const struct script_state *state = state_of(worker);
    snprintf(text, bytes, "%s, step %" PRIu64 ", settled %" PRIu64 "%s", names[state->stage],
             state->step, state->settled, state->halt_held ? ", a halt is held" : "");
}

static const struct sim_model script_model = {
    .bytes = sizeof(struct script_state),
    .started = script_started,
    .received = script_received,
    .disconnected = script_disconnected,
    .timer = script_timer,
    .data = script_data,
    .collective = script_collective,
    .peer_gone = script_peer_gone,
    .waits_for = script_waits_for,
};

struct sim_worker *script_spawn(struct sim *sim, const struct script *script,
                                const struct script_options *options, uint64_t delay_ms)
{
    struct sim_worker *worker = sim_spawn(sim, &script_model, delay_ms);
    struct script_state *state = state_of(worker);
    state->script = script;
    state->options = *options;
    if (state->options.hosts == 0)
        state->options.hosts = 1;
    return worker;
}

enum halt_kind script_verdict(const struct sim_worker *worker)
{
    return state_of(worker)->verdict;
}

// ---- Programs --------------------------------------------------------------------------------

static void draw_phase(struct sim *sim, struct script *script, uint32_t phase)
{
    uint32_t count = 0;
    const uint32_t calls = (uint32_t)sim_random(sim, 4);
    for (uint32_t call = 0; call < calls; call++) {
        const uint32_t module = (uint32_t)sim_random(sim, script->modules);
        for (uint32_t bucket = 0; bucket < script->buckets[module]; bucket++) {
            const struct slot_id id = {module, call, bucket};
            script->slots[phase][count++] = id;
        }
    }
    script->slot_count[phase] = count;
}

void script_draw(struct sim *sim, struct script *script, uint32_t number, uint32_t world)
{
    memset(script, 0, sizeof(*script));
    snprintf(script->job, sizeof(script->job), "job%" PRIu32, number);
    script->world_min = world;
    script->world_max = world;
    script->open_timeout_ms = 3000;
    script->think_ms = 1 + (uint32_t)sim_random(sim, 30);
    script->modules = 1 + (uint32_t)sim_random(sim, SCRIPT_MODULES);
    for (uint32_t i = 0; i < script->modules; i++)
        script->buckets[i] = 1 + (uint32_t)sim_random(sim, 4);
    script->steps = 1 + (uint32_t)sim_random(sim, SCRIPT_STEPS);
    for (uint32_t step = 1; step <= script->steps; step++)
        script->phase[step] = (uint32_t)sim_random(sim, SCRIPT_PHASES);
    for (uint32_t phase = 0; phase < SCRIPT_PHASES; phase++)
        draw_phase(sim, script, phase);
    script->shuffle_percent = sim_chance(sim, 50) ? 50 : 0;
    script->skip_percent = sim_chance(sim, 30) ? 20 : 0;
}
