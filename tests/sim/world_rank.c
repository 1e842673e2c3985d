// SPDX-License-Identifier: Apache-2.0
//
// A rank of a small world: what its order core decides, and its trainer; see world.h.

#include "tests/sim/world_inside.h"
#include "worker/order/header.h"
#include "worker/order/waits.h"

#include "protos/topology.h"

#include <inttypes.h>
#include <string.h>

// ---- What the order core decides ---------------------------------------------------------------

static struct world_made *made_find(struct world_rank *rank, const struct slot_id *id)
{
    for (uint32_t i = rank->made_count; i-- > 0;) {
        struct world_made *made = &rank->made[i];
        if (made->step == rank->step && made->module == id->module && made->call == id->call &&
            made->bucket == id->bucket)
            return made;
    }
    return NULL;
}

// Moves the contribution that travels by this slot, with what was deferred before, from one place
// to another.
void world_made_move(struct world_rank *rank, const struct slot_id *id, enum made_where from,
                     enum made_where to)
{
    const struct world_made *carrier = made_find(rank, id);
    for (uint32_t i = 0; carrier && i < rank->made_count; i++)
        if (rank->made[i].carrier == carrier - rank->made && rank->made[i].where == from)
            rank->made[i].where = (uint8_t)to;
}

static void order_launches(struct world *world, uint32_t r, const struct order_action *action)
{
    struct world_rank *rank = &world->state.ranks[r];
    const struct order_slot *slot = action->slot;
    world_say(world, "    rank %" PRIu32 " launches %c%" PRIu32 ".%" PRIu32 "%s", r,
              (char)('A' + slot->id.module), slot->id.call, slot->id.bucket,
              slot->zero ? ", zeros" : "");
    world_check_launch(world, r, action);
    if (world->fault[0] != '\0')
        return;
    struct world_launch *launch = &rank->launches[rank->launch_count++];
    memset(launch, 0, sizeof(*launch));
    launch->space = action->space;
    launch->module = (uint8_t)slot->id.module;
    launch->call = (uint8_t)slot->id.call;
    launch->bucket = (uint8_t)slot->id.bucket;
    launch->index = (uint8_t)action->index;
    launch->data = !slot->zero;
    if (launch->data)
        world_made_move(rank, &slot->id, MADE_READY, MADE_LAUNCHED);
}

static void order_says_header(struct world *world, uint32_t r, const struct step_header *header)
{
    const uint32_t successor = topology_successor(r, world->config.ranks);
    struct world_rank *rank = &world->state.ranks[successor];
    if (!world_lives(rank))
        return;
    if (world->config.prompt) {
        world->acts = successor;
        order_header_received(&world->orders[successor], header);
        world->acts = r;
        return;
    }
    if (rank->header_count == WORLD_HEADERS) {
        world_fault(world, "rank %" PRIu32 " has too many headers before it", successor);
        return;
    }
    struct step_header *kept = &rank->headers[rank->header_count++];
    memset(kept, 0, sizeof(*kept));
    kept->step = header->step;
    kept->phase = header->phase;
    kept->plan_number = header->plan_number;
    kept->plan_hash = header->plan_hash;
    kept->starts = header->starts;
    kept->opening = header->opening;
}

static void order_releases(struct world *world, uint32_t r, const struct order_action *action)
{
    struct world_rank *rank = &world->state.ranks[r];
    for (uint32_t t = 0; t < WORLD_THREADS; t++) {
        struct world_thread *thread = &rank->threads[t];
        const struct world_op *op = &world->program.rows[r][rank->step].threads[t].ops[thread->at];
        if (!thread->waits || op->module != action->call.module || op->call != action->call.call)
            continue;
        world_say(world, "    rank %" PRIu32 " has waited for %c%d%s", r, 'A' + op->module,
                  op->call,
                  action->release == RELEASE_FINAL      ? ""
                  : action->release == RELEASE_DEFERRED ? ", which counts later"
                                                        : " long enough");
        world_check_release(world, r, action);
        thread->waits = thread->withdrawn = false;
        thread->at++;
        return;
    }
    world_fault(world, "rank %" PRIu32 " releases a thread that does not wait", r);
}

static void order_settles(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    world_check_settled(world, r);
    rank->settled++;
    rank->step++;
    rank->begun = false;
    rank->launched_before = (uint8_t)(rank->launched_before + rank->launch_count);
    rank->launch_count = 0;
    memset(rank->launches, 0, sizeof(rank->launches));
    memset(rank->threads, 0, sizeof(rank->threads));
    rank->mode = rank->step == world->program.steps ? MODE_DONE : MODE_RUNS;
    if (rank->mode == MODE_DONE) {
        rank->down_count = 0;
        memset(rank->down, 0, sizeof(rank->down));
    }
}

void world_order_acts(void *context, const struct order_action *action)
{
    struct world *world = context;
    const uint32_t r = world->acts;
    struct world_rank *rank = &world->state.ranks[r];
    if (!world_lives(rank))
        return;
    switch (action->kind) {
    case ORDER_SEND:
        world_stream_up(world, r, action->up);
        break;
    case ORDER_HEADER:
        order_says_header(world, r, action->header);
        break;
    case ORDER_LAUNCH:
        order_launches(world, r, action);
        break;
    case ORDER_DEFER:
        world_say(world, "    rank %" PRIu32 " puts off %c%" PRIu32 ".%" PRIu32, r,
                  (char)('A' + action->deferred->module), action->deferred->call,
                  action->deferred->bucket);
        world_made_move(rank, action->deferred, MADE_READY, MADE_STASHED);
        break;
    case ORDER_RELEASE:
        order_releases(world, r, action);
        break;
    case ORDER_CLOSE:
        rank->close_joined = (uint8_t)action->step;
        rank->close = *action->close;
        break;
    case ORDER_COMMIT:
        rank->commit_joined = (uint8_t)action->step;
        break;
    case ORDER_SETTLED:
        order_settles(world, r);
        break;
    case ORDER_FAILED:
        world_rank_fails(world, r, action->halt, action->text);
        break;
    case ORDER_IMPOSSIBLE:
        world_fault(world, "rank %" PRIu32 " finds that rank %" PRIu32 " %s", r, action->rank,
                    action->text);
        break;
    case ORDER_OPEN:
    case ORDER_REDO:
        world_fault(world, "rank %" PRIu32 " joins an open wave or repeats a slot", r);
        break;
    }
}

// ---- The trainer -------------------------------------------------------------------------------

const struct world_part *world_part_of(const struct world *world, uint32_t r, uint32_t t)
{
    return &world->program.rows[r][world->state.ranks[r].step].threads[t];
}

// A thread that can take its next step.
bool world_trainer_can(const struct world *world, uint32_t r, uint32_t t)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const struct world_thread *thread = &rank->threads[t];
    if (rank->mode != MODE_RUNS || thread->waits)
        return false;
    const struct world_part *part = world_part_of(world, r, t);
    if (!rank->begun || thread->at == part->count)
        return !rank->begun && t == 0;
    if (part->ops[thread->at].kind != OP_END)
        return true;
    for (uint32_t other = 1; other < WORLD_THREADS; other++)
        if (rank->threads[other].at < world_part_of(world, r, other)->count)
            return false;
    return true;
}

static void trainer_begin(struct world *world, uint32_t r)
{
    struct world_rank *rank = &world->state.ranks[r];
    uint32_t buckets[LOCKSTEP_MAX_MODULES] = {0};
    for (uint32_t module = 0; module < WORLD_MODULES; module++)
        buckets[module] = world_buckets(&world->config, module);
    rank->begun = true;
    order_step_begun(&world->orders[r], rank->step + 1u,
                     world_phase(world->program.rows[r][rank->step].phase), buckets);
}

static void trainer_make(struct world *world, uint32_t r, const struct world_op *op)
{
    struct world_rank *rank = &world->state.ranks[r];
    const struct slot_id id = {.module = op->module, .call = op->call, .bucket = op->bucket};
    if (rank->made_count == WORLD_MADE) {
        world_fault(world, "rank %" PRIu32 " makes more than a world can follow", r);
        return;
    }
    struct world_made *made = &rank->made[rank->made_count];
    made->step = rank->step;
    made->module = op->module;
    made->call = op->call;
    made->bucket = op->bucket;
    made->where = MADE_READY;
    made->carrier = rank->made_count;
    for (uint32_t i = 0; i < rank->made_count; i++) {
        struct world_made *kept = &rank->made[i];
        if (kept->where != MADE_STASHED || kept->module != op->module || kept->bucket != op->bucket)
            continue;
        kept->where = MADE_READY;
        kept->carrier = rank->made_count;
    }
    rank->made_count++;
    order_slot_ready(&world->orders[r], id, DTYPE_FLOAT32, 10u + op->module);
}

void world_layouts(struct world *world, uint32_t r)
{
    for (uint32_t module = 0; module < WORLD_MODULES; module++) {
        const uint32_t buckets = world_buckets(&world->config, module);
        struct up_message message = {.kind = UP_LAYOUT_PART,
                                     .generation = world->orders[r].generation};
        struct layout_part *part = &message.u.layout_part;
        part->module = module;
        part->words[part->count++] = buckets;
        for (uint32_t i = 1; i <= buckets; i++)
            part->words[part->count++] = i;
        for (uint32_t i = 0; i < buckets; i++)
            part->words[part->count++] = i;
        part->total = part->count;
        world_stream_up(world, r, &message);
    }
}

static void trainer_end(struct world *world, uint32_t r)
{
    world->state.ranks[r].mode = MODE_ENDS;
    if (r == 0 && world->orders[r].learning)
        world_layouts(world, r);
    if (world_lives(&world->state.ranks[r]))
        order_step_ended(&world->orders[r]);
}

static void trainer_does(struct world *world, uint32_t r, uint32_t t)
{
    struct world_rank *rank = &world->state.ranks[r];
    struct order *order = &world->orders[r];
    struct world_thread *thread = &rank->threads[t];
    const struct world_op *op = &world_part_of(world, r, t)->ops[thread->at];
    const struct call_id call = {.module = op->module, .call = op->call};
    if (op->kind == OP_WAIT || op->kind == OP_TRY)
        thread->waits = true; // It goes on when it is released.
    else
        thread->at++;
    switch (op->kind) {
    case OP_BEGIN:
        trainer_begin(world, r);
        break;
    case OP_OPEN:
        if (world->config.wait_while_open)
            order_call_begun(order, call);
        break;
    case OP_MAKE:
        trainer_make(world, r, op);
        break;
    case OP_CLOSE:
        if (world->config.wait_while_open)
            order_call_ended(order, call);
        break;
    case OP_WAIT:
    case OP_TRY:
        order_wait_begun(order, call);
        break;
    case OP_END:
        trainer_end(world, r);
        break;
    }
}

// A call is begun together with its first bucket, unless the program begins it by itself, and ended
// with its last one: nothing is told to anybody between.
void world_trainer_steps(struct world *world, uint32_t r, uint32_t t)
{
    const struct world_rank *rank = &world->state.ranks[r];
    const struct world_part *part = world_part_of(world, r, t);
    const uint8_t step = rank->step;
    bool opens;
    do {
        opens = part->ops[rank->threads[t].at].kind == OP_OPEN;
        trainer_does(world, r, t);
        if (rank->mode != MODE_RUNS || rank->step != step || rank->threads[t].waits)
            return;
    } while ((opens && part->ops[rank->threads[t].at].kind == OP_MAKE) ||
             part->ops[rank->threads[t].at].kind == OP_CLOSE);
}
