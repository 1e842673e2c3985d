// SPDX-License-Identifier: Apache-2.0
//
// Begins collectives of every kind: plain.h has the contract. Trainer threads.
//
// How a collective travels. ALLREDUCE, BROADCAST and BARRIER of all ranks are the collectives of
// the ways for the whole world. All others go by ALGORITHM_DIRECT, from member to member: the
// reductions as COLLECTIVE_ALLREDUCE or COLLECTIVE_REDUCE_SCATTER, the rest as COLLECTIVE_EXCHANGE
// of the parts that shape.c names. In shared memory small ones of all ranks go by ALGORITHM_SHARED.
// A collective that a member may complete without hearing from all members has a confirmation
// (work_confirm). A group of one member only copies.
//
// Names. The tag's space is the hash of the name, and of the group if there is one; so each group
// has names of its own. SEND and RECEIVE also have the tag, the source and the destination in it. A
// RECEIVE from any source gets the source later (anysource.c). Names of closed groups make room for
// new names.

#include "worker/session/plain.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"
#include "worker/session/anysource.h"
#include "worker/session/group.h"
#include "worker/session/session.h"
#include "worker/session/shape.h"
#include "worker/session/stage.h"
#include "worker/session/work.h"
#include "worker/session/world.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// A collective on its way from the description to the work.
struct plain {
    const struct lockstep_collective *what;
    struct lockstep_group *group;
    uint64_t changes; // Changes of the world when its ranks were looked at.
    uint32_t own; // This rank's place.
    uint32_t size; // Members.
    bool creates; // True if the members meet to make the group.
    uint32_t making; // How often they had made it before.
    bool library; // True if the library makes the collective, and not the trainer.
    bool attempt; // True if it belongs to an attempt of the library (attempt.h).
    bool asynchronous;
    bool local; // True if this rank is the only member.
    bool any; // True if it is a receive from any source.
    bool confirmed;
    struct shape shape;
    struct collective collective; // Without tag, extents and context.
    uint64_t space;
    // Of a send or receive: the ranks of the world, the sender first.
    uint32_t pair[2];
    // given to the work
    struct collective_part *part; // The parts of an exchange or a reduce-scatter; NULL: none.
    struct collective_parts parts;
    void *copy; // A copy of the output, for an all-to-all in place; NULL: none.
    struct stage *stage; // NULL: all memory is the host's.
    struct lent_range ranges[LENT_OF_WORK]; // What the collective borrows.
    uint32_t range_count;
};

// ---- Checks ------------------------------------------------------------------------------------

static bool plain_is_pair(lockstep_collective_kind kind)
{
    return kind == LOCKSTEP_SEND || kind == LOCKSTEP_RECEIVE;
}

// Sets the places. A collective that names ranks, or has a part for each of them, fails if the
// trainer does not know yet that they may have other numbers.
static int plain_place_locked(struct lockstep_session *session, struct plain *plain)
{
    const lockstep_collective_kind kind = plain->what->kind;
    const bool counts = kind != LOCKSTEP_ALLREDUCE && kind != LOCKSTEP_BARRIER;
    int status = 0;
    plain->attempt = plain->library && session->works.attempt.active;
    if (plain->library)
        status = attempt_check_locked(session);
    else if (counts)
        status = agreement_numbers_locked(session);
    if (!plain->creates)
        plain->changes = session->step.change.number;
    plain->own = plain->group ? plain->group->rank : session->world.rank;
    plain->size = plain->group ? plain->group->size : session->world.size;
    return status;
}

static int plain_check_any(const struct plain *plain)
{
    const struct lockstep_collective *what = plain->what;
    if (plain->any && plain->size > 1)
        return 0;
    return error_set(LOCKSTEP_E_INVALID, "%s '%s': %s", shape_name(what->kind), what->name,
                     plain->any ? "there is no other member to receive from"
                                : "LOCKSTEP_ANY_SOURCE is for receives; name the peer");
}

static int plain_check_members(const struct plain *plain)
{
    const struct lockstep_collective *what = plain->what;
    const bool pair = plain_is_pair(what->kind);
    const uint32_t place = pair ? what->peer : what->root;
    if (!pair && !shape_is_rooted(what->kind))
        return 0;
    if (pair && place == LOCKSTEP_ANY_SOURCE)
        return plain_check_any(plain);
    if (place >= plain->size)
        return error_set(LOCKSTEP_E_INVALID,
                         "%s '%s': there is no member %" PRIu32 " among %" PRIu32,
                         shape_name(what->kind), what->name, place, plain->size);
    if (pair && place == plain->own)
        return error_set(LOCKSTEP_E_INVALID, "%s '%s': the peer is this rank itself",
                         shape_name(what->kind), what->name);
    return 0;
}

static int plain_check_weight(const struct lockstep_collective *what)
{
    const bool mean = shape_reduces(what->kind) && what->op == LOCKSTEP_MEAN;
    if (!mean && what->weight != 1)
        return error_set(LOCKSTEP_E_INVALID,
                         "%s '%s': only LOCKSTEP_MEAN has a weight; begin with "
                         "LOCKSTEP_COLLECTIVE_INIT, which sets it to 1",
                         shape_name(what->kind), what->name);
    if (what->weight > LOCKSTEP_MAX_WEIGHT)
        return error_set(LOCKSTEP_E_INVALID, "%s '%s': its weight is above 2^%d",
                         shape_name(what->kind), what->name, LOCKSTEP_MAX_WEIGHT_BITS);
    return 0;
}

static struct collective plain_like(const struct lockstep_collective *what)
{
    const bool reduces = shape_reduces(what->kind);
    return (struct collective){.kind = reduces ? COLLECTIVE_ALLREDUCE : COLLECTIVE_BROADCAST,
                               .dtype = (enum dtype)what->dtype,
                               .op = reduces ? (enum reduce_op)what->op : REDUCE_SUM,
                               .weight = what->weight};
}

// Checks the description, and reads its shape.
static int plain_read(struct lockstep_session *session, struct plain *plain)
{
    const struct lockstep_collective *what = plain->what;
    const bool barrier = what->kind == LOCKSTEP_BARRIER;
    struct collective like = plain_like(what);
    if (barrier)
        like.dtype = DTYPE_INT32;
    mutex_lock(&session->mutex);
    int status = plain_place_locked(session, plain);
    if (status == 0 && !plain->library)
        status = work_check(session, what->name, 0, &like);
    const uint64_t most = status == 0 ? work_most(session, like.dtype) : 0;
    mutex_unlock(&session->mutex);
    plain->any = what->kind == LOCKSTEP_RECEIVE && what->peer == LOCKSTEP_ANY_SOURCE;
    plain->local = plain->size == 1;
    if (status == 0)
        status = plain_check_members(plain);
    if (status == 0)
        status = plain_check_weight(what);
    if (status < 0)
        return status;
    plain->collective = like;
    return shape_read(what, plain->own, plain->size, dtype_size(like.dtype), most, &plain->shape);
}

// ---- How it travels ----------------------------------------------------------------------------

// The place that a rank had when the group was made, or in the first world: so the k-th message of
// two ranks meets the k-th one although their numbers change.
static uint32_t plain_origin(const struct lockstep_session *session,
                             const struct lockstep_group *group, uint32_t place)
{
    if (place == LOCKSTEP_ANY_SOURCE)
        return place;
    return group ? group->origins[place] : session->world.origins[place];
}

uint64_t plain_pair_space(const struct lockstep_session *session, const char *name,
                          const struct lockstep_group *group, uint32_t tag, uint32_t from,
                          uint32_t to)
{
    const uint64_t identity[] = {
        hash64(name, strlen(name)),         group ? group->space : 0,        false, true, tag,
        plain_origin(session, group, from), plain_origin(session, group, to)};
    const uint64_t space = hash64(identity, sizeof(identity));
    return space == 0 ? 1 : space;
}

static uint64_t plain_space(const struct lockstep_session *session, const struct plain *plain)
{
    const struct lockstep_collective *what = plain->what;
    const struct lockstep_group *group = plain->group;
    const uint64_t name = hash64(what->name, strlen(what->name));
    if (what->kind == LOCKSTEP_SEND)
        return plain_pair_space(session, what->name, group, what->tag, plain->own, what->peer);
    if (what->kind == LOCKSTEP_RECEIVE)
        return plain_pair_space(session, what->name, group, what->tag, what->peer, plain->own);
    if (!group)
        return name == 0 ? 1 : name; // As lockstep_allreduce has it.
    const uint64_t identity[] = {name, group->space, plain->creates, 0, 0, 0, 0};
    const uint64_t space = hash64(identity, sizeof(identity));
    return space == 0 ? 1 : space;
}

// The ways for the whole world.
static void plain_by_world(struct lockstep_session *session, struct plain *plain)
{
    struct collective *collective = &plain->collective;
    const bool barrier = plain->what->kind == LOCKSTEP_BARRIER;
    const bool broadcast = plain->what->kind == LOCKSTEP_BROADCAST;
    collective->kind = broadcast ? COLLECTIVE_BROADCAST : COLLECTIVE_ALLREDUCE;
    collective->elements = barrier ? 1 : plain->what->count;
    collective->root = broadcast ? group_rank(plain->group, plain->what->root) : 0;
    collective->algorithm = world_algorithm(session, collective);
    collective->signature = work_signature(collective);
}

static void plain_by_members(struct plain *plain)
{
    struct collective *collective = &plain->collective;
    collective->kind = COLLECTIVE_ALLREDUCE;
    collective->elements = plain->what->kind == LOCKSTEP_BARRIER ? 1 : plain->what->count;
    collective->algorithm = ALGORITHM_DIRECT;
    collective->parts = &plain->group->everyone;
    collective->signature = work_signature(collective);
}

// The same on all ranks: each of them knows the longest row.
static enum plan_algorithm plain_algorithm(const struct lockstep_session *session,
                                           const struct plain *plain, bool whole)
{
    const struct collective like = {.dtype = plain->collective.dtype, .elements = plain->parts.row};
    if (!whole || plain->parts.row > COLLECTIVE_ROW_BYTES / plain->shape.element ||
        world_algorithm(session, &like) != ALGORITHM_SHARED)
        return ALGORITHM_DIRECT;
    return ALGORITHM_SHARED;
}

// Allocates the parts and fills them in. A failure if there is no memory.
static int plain_by_parts(const struct lockstep_session *session, struct plain *plain, bool whole)
{
    struct collective *collective = &plain->collective;
    struct shape *shape = &plain->shape;
    const uint32_t most = plain_is_pair(plain->what->kind) ? 1 : plain->size;
    const uint64_t bytes = shape->copies ? shape_part_elements(shape) * shape->element : 0;
    plain->part = calloc(2 * (size_t)most, sizeof(*plain->part));
    if (bytes > 0)
        plain->copy = malloc(bytes);
    if (!plain->part || (bytes > 0 && !plain->copy))
        return error_set(LOCKSTEP_E_SYSTEM, "collective '%s': no memory", plain->what->name);
    if (shape->copies) {
        shape->input.memory = plain->copy;
        shape->input.offsets = NULL; // The copy has no gaps.
    }
    shape_parts(shape, plain->group, plain->part, &plain->parts.send_count, plain->part + most,
                &plain->parts.receive_count);
    plain->parts.sends = plain->part;
    plain->parts.receives = plain->part + most;
    collective->kind =
        shape_reduces(plain->what->kind) ? COLLECTIVE_REDUCE_SCATTER : COLLECTIVE_EXCHANGE;
    plain->parts.row = shape_row(shape);
    collective->algorithm = plain_algorithm(session, plain, whole);
    collective->signature = shape_signature(shape, !plain->group ? 0 : plain->group->space);
    return 0;
}

static void plain_pair(struct plain *plain)
{
    const struct lockstep_collective *what = plain->what;
    const bool sends = what->kind == LOCKSTEP_SEND;
    plain->pair[!sends] = group_rank(plain->group, plain->own);
    plain->pair[sends] = plain->any ? plain->pair[!sends] : group_rank(plain->group, what->peer);
}

// 0, or LOCKSTEP_E_CHANGED if ranks may have other numbers now than in plain_place_locked.
static int plain_same_locked(struct lockstep_session *session, const struct plain *plain)
{
    return plain->attempt ? attempt_check_locked(session)
                          : agreement_same_locked(session, plain->changes);
}

static int plain_route_locked(struct lockstep_session *session, struct plain *plain)
{
    const lockstep_collective_kind kind = plain->what->kind;
    const bool whole = !plain->group || plain->group->whole;
    int status = plain_same_locked(session, plain);
    if (status < 0)
        return status;
    plain->space = plain_space(session, plain);
    plain->confirmed = !plain->local && (shape_needs_confirmation(&plain->shape) ||
                                         (plain_is_pair(kind) && agreement_is_on(session)));
    if (plain_is_pair(kind))
        plain_pair(plain);
    if (plain->local)
        return 0;
    if (whole &&
        (kind == LOCKSTEP_ALLREDUCE || kind == LOCKSTEP_BROADCAST || kind == LOCKSTEP_BARRIER)) {
        plain_by_world(session, plain);
        return 0;
    }
    if (!TUNING_HAS_DIRECT)
        return error_set(LOCKSTEP_E_UNSUPPORTED, "%s '%s': this version does not have it yet",
                         shape_name(kind), plain->what->name);
    if (kind == LOCKSTEP_ALLREDUCE || kind == LOCKSTEP_BARRIER) {
        plain_by_members(plain);
        return 0;
    }
    return plain_by_parts(session, plain, whole);
}

static int plain_route(struct lockstep_session *session, struct plain *plain)
{
    mutex_lock(&session->mutex);
    const int status = plain_route_locked(session, plain);
    mutex_unlock(&session->mutex);
    return status;
}

// ---- The work ----------------------------------------------------------------------------------

static struct lent_range plain_range(const struct shape_side *side, uint64_t element, bool written)
{
    const uintptr_t memory = (uintptr_t)side->memory;
    return (struct lent_range){.begin = memory + side->first * element,
                               .end = memory + side->end * element,
                               .written = written,
                               .gaps = side->form == SHAPE_PARTS && side->offsets};
}

// Writes the one or two ranges of memory that the collective borrows. Returns their number.
static uint32_t plain_ranges(const struct shape *shape, struct lent_range ranges[LENT_OF_WORK])
{
    const struct shape_side *input = &shape->input;
    const struct shape_side *output = &shape->output;
    uint32_t count = 0;
    if (input->first < input->end && !shape->copies)
        ranges[count++] = plain_range(input, shape->element, shape->in_place && !shape->reads);
    if (output->first >= output->end || shape->reads)
        return count;
    const struct lent_range range = plain_range(output, shape->element, true);
    if (!shape->in_place) {
        ranges[count++] = range;
        return count;
    }
    if (range.begin < ranges[0].begin)
        ranges[0].begin = range.begin;
    if (range.end > ranges[0].end)
        ranges[0].end = range.end;
    ranges[0].gaps = ranges[0].gaps || range.gaps;
    return count;
}

static void plain_extent(const struct plain *plain, struct lockstep_work *work)
{
    struct collective *collective = &work->collective;
    const bool barrier = plain->what->kind == LOCKSTEP_BARRIER;
    void *in = barrier ? (void *)&work->barrier : (void *)plain->shape.input.memory;
    void *out = barrier ? (void *)&work->barrier : (void *)plain->shape.output.memory;
    if (collective->kind != COLLECTIVE_ALLREDUCE && collective->kind != COLLECTIVE_BROADCAST)
        return;
    work->extent =
        (struct extent){.in = in ? in : out, .out = out, .elements = collective->elements};
    collective->extents = &work->extent;
    collective->extent_count = collective->elements == 0 ? 0 : 1;
}

// Fills in the work from the description.
static void plain_fill(struct plain *plain, struct lockstep_work *work,
                       const struct collective_tag *tag)
{
    const struct lockstep_collective *what = plain->what;
    work->state = WORK_IN_FLIGHT;
    work->begun_ms = clock_coarse_ms();
    work->asynchronous = plain->asynchronous;
    work->kind = what->kind;
    work->group = plain->group;
    work->creates = plain->creates;
    work->member = plain_is_pair(what->kind) ? what->peer : what->root;
    work->part = plain->part;
    work->copy = plain->copy;
    work->stage = plain->stage;
    work->parts = plain->parts;
    work->count = what->count;
    work->tag = what->tag;
    work->varies = what->input_counts || what->output_counts;
    work->passes = plain->any || (what->kind == LOCKSTEP_SEND && !plain->confirmed &&
                                  what->count * plain->shape.element <= LOCKSTEP_EAGER_BYTES);
    for (uint32_t i = 0; i < 2; i++)
        work->pair[i] = (struct collective_part){.rank = plain->pair[i]};
    work->both = (struct collective_parts){.sends = work->pair, .send_count = 2};
    work->sender = what->kind == LOCKSTEP_RECEIVE ? what->sender : NULL;
    if (work->sender)
        *work->sender = what->peer;
    work->confirmed = work->changed = work->lost = work->handed = false;
    text_copy(work->name, sizeof(work->name), what->name);
    work->collective = plain->collective;
    work->collective.tag = *tag;
    work->collective.context = work;
    if (plain->part)
        work->collective.parts = &work->parts;
    plain_extent(plain, work);
    work->agreement.attempt = plain->attempt;
    work->agreement.wanted =
        (!plain->library || plain->attempt) && !plain->local && agreement_is_on(work->session);
    if (work->agreement.wanted)
        agreement_make(work);
    if (plain->group)
        plain->group->works++;
}

static int plain_take_locked(struct lockstep_session *session, struct plain *plain,
                             struct lockstep_work **taken)
{
    const struct lent_range *ranges = plain->ranges;
    const uint32_t count = plain->range_count;
    struct collective_tag tag = {.step = 0};
    struct name_use *use;
    int status = plain_same_locked(session, plain);
    if (status < 0)
        return status;
    if (plain->any)
        names_make_room_locked(session);
    if (plain->creates)
        status = names_made_locked(session, plain->space, &use);
    else
        use = names_use_locked(session, plain->what->name, plain->group, plain->space);
    if (status < 0)
        return status;
    if (!use || (plain->any && !names_have_room_locked(session)))
        return LOCKSTEP_E_INVALID;
    tag = (struct collective_tag){.space = use->hash, .slot = use->uses};
    if (plain->attempt)
        attempt_tag_locked(session, &tag);
    if (session->works.outcomes.count > 0 &&
        agreement_outcome(&session->works.outcomes, tag.space, tag.slot) == OUTCOME_CHANGED) {
        if (plain->attempt)
            return attempt_failed();
        use->uses++;
        return agreement_error_locked(session, shape_name(plain->what->kind), plain->what->name);
    }
    for (uint32_t i = 0; i < count && status == 0; i++)
        status = lent_check_locked(session, plain->what->name, use->uses, &ranges[i]);
    if (status < 0)
        return status;
    struct lockstep_work *work = work_take_locked(session);
    if (!work)
        return LOCKSTEP_E_INVALID;
    for (uint32_t i = 0; i < count; i++)
        lent_add_locked(work, &ranges[i]);
    await_begun_locked(session);
    if (plain->creates)
        plain->making = use->uses;
    if (!plain->attempt)
        use->uses++;
    plain_fill(plain, work, &tag);
    session->works.unmatched_count += plain->any;
    if (plain->confirmed)
        work_confirm(work);
    *taken = work;
    return 0;
}

void plain_end_locked(struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    if (anysource_is(work))
        anysource_forget_locked(work);
    if (work->group)
        work->group->works--;
    free(work->part);
    free(work->copy);
    stage_free(work->stage);
    work->group = NULL;
    work->part = NULL;
    work->copy = NULL;
    work->stage = NULL;
    work->creates = false;
    work->passes = false;
    work->kind = (lockstep_collective_kind)0;
}

// Reads the description, brings memory of a device to the host, and chooses the way.
static int plain_prepare(struct lockstep_session *session, struct plain *plain)
{
    int status = plain_read(session, plain);
    if (status < 0)
        return status;
    plain->range_count = plain_ranges(&plain->shape, plain->ranges);
    // A mean writes nothing if all weights are 0.
    status = stage_begin(session, &plain->shape, plain->what->op == LOCKSTEP_MEAN, &plain->stage);
    return status < 0 ? status : plain_route(session, plain);
}

// This rank is the only member.
static void plain_complete(const struct plain *plain, struct lockstep_work *work)
{
    const struct shape *shape = &plain->shape;
    shape_copy_own(shape);
    if (shape_reduces(plain->what->kind))
        kernel_reduce_alone(work->collective.dtype, shape->output.memory, shape->output.own_count);
    work_end(work, false);
}

// Makes the work, and copies what has to be copied. The caller has to launch it, unless
// plain->local is true: then it is done.
static int plain_make(struct lockstep_session *session, struct plain *plain,
                      struct lockstep_work **made)
{
    int status = plain_prepare(session, plain);
    if (status == 0) {
        mutex_lock(&session->mutex);
        status = plain_take_locked(session, plain, made);
        mutex_unlock(&session->mutex);
    }
    if (status < 0) {
        free(plain->part);
        free(plain->copy);
        stage_free(plain->stage);
        return status;
    }
    if (plain->copy)
        shape_copy_parts(&plain->shape, plain->copy);
    if (plain->local)
        plain_complete(plain, *made);
    return 0;
}

static int plain_wait(struct lockstep_session *session, const struct plain *plain,
                      uint32_t timeout_ms, bool told, struct lockstep_work *work)
{
    const struct command command = {.kind = COMMAND_PLAIN, .work = work};
    mutex_lock(&session->mutex);
    const int status = work_await_locked(work, plain->local ? NULL : &command, timeout_ms, told);
    mutex_unlock(&session->mutex);
    return status;
}

// Makes the work, and hands it to the engine.
static int plain_post(struct lockstep_session *session, struct plain *plain,
                      struct lockstep_work **begun)
{
    const int status = plain_make(session, plain, begun);
    if (status == 0 && !plain->local)
        session_post(session, (struct command){.kind = COMMAND_PLAIN, .work = *begun});
    return status;
}

int plain_begin(struct lockstep_session *session, const struct lockstep_collective *what,
                struct lockstep_work **begun)
{
    struct plain plain = {.what = what, .group = what->group, .asynchronous = true};
    return plain_post(session, &plain, begun);
}

int plain_begin_library(struct lockstep_session *session, const struct lockstep_collective *what,
                        struct lockstep_work **begun)
{
    struct plain plain = {.what = what, .group = what->group, .library = true};
    return plain_post(session, &plain, begun);
}

int plain_call(struct lockstep_session *session, const struct lockstep_collective *what,
               uint32_t timeout_ms, bool told, struct lockstep_work **begun)
{
    struct plain plain = {.what = what, .group = what->group};
    const int status = plain_make(session, &plain, begun);
    return status < 0 ? status : plain_wait(session, &plain, timeout_ms, told, *begun);
}

int plain_meet(struct lockstep_group *group)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    struct lockstep_work *work;
    what.kind = LOCKSTEP_BARRIER;
    what.name = group->name;
    struct plain plain = {
        .what = &what, .group = group, .creates = true, .changes = group->changes};
    int status = plain_make(group->session, &plain, &work);
    if (status == 0)
        status = plain_wait(group->session, &plain, LOCKSTEP_WAIT_FOREVER, true, work);
    if (status == 0)
        group_number(group, plain.making);
    return status;
}
