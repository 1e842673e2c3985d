// SPDX-License-Identifier: Apache-2.0
//
// Finds the ranks that the others wait for: rules 2 to 5 at the head of stall.c, which also
// explains the words. Changes no state. Runs inside coordinator_step.

#include "coordinator/blame.h"

#include "base/bits.h"
#include "coordinator/awaited.h"
#include "coordinator/beat.h"
#include "coordinator/bounds.h"
#include "coordinator/core.h"

// ---- The picture -------------------------------------------------------------------------------

static bool blame_due(const struct coordinator *core, const struct job *job,
                      const struct worker *worker)
{
    struct stall_bound bound;
    if (beat_age(worker) <= core->config.stall_floor_ms) // No bound is lower.
        return false;
    bounds_of(core, job, worker, &bound);
    return beat_age(worker) > bound.bound_ms;
}

static bool blame_idle(const struct picture *picture, const struct worker *worker)
{
    const struct place *place = &worker->heartbeat.place;
    return beat_known(worker) && !place->waits && !place->done &&
           worker->heartbeat.settled == picture->settled && place->position == picture->position;
}

static bool blame_lower(const struct picture *picture, uint64_t settled, uint32_t position)
{
    return !picture->any || settled < picture->settled ||
           (settled == picture->settled && position < picture->position);
}

// Returns the next member from *index on that has not left, and that has reported its place or is
// silent; NULL: no more. Sets *index behind it.
static const struct worker *blame_next(const struct coordinator *core, const struct job *job,
                                       uint32_t *index)
{
    while (*index < job->count) {
        const struct worker *worker = &core->workers[job->workers[(*index)++]];
        if (!worker->left && (beat_known(worker) || beat_silent(core, worker)))
            return worker;
    }
    return NULL;
}

// True if NCCL has this rank's input and waits for another rank whose stream has not made its
// input. The trainer may then be outside the library, and wait there for its device.
static bool blame_waits_there(const struct picture *picture, const struct worker *worker)
{
    return picture->streams > 0 && worker->heartbeat.held == DEVICE_HOLD_NCCL;
}

// True if a member that is not silent waits for other ranks.
static bool blame_waits(const struct picture *picture, const struct worker *worker)
{
    return worker->heartbeat.place.waits || blame_waits_there(picture, worker);
}

static bool blame_same_await(const struct await *a, const struct await *b)
{
    return await_key_equal(&a->key, &b->key) && a->rooted == b->rooted && a->root == b->root &&
           memcmp(a->members, b->members, sizeof(a->members)) == 0;
}

// Notes the ranks that a waiting member needs. A member reports its wait at the second look of its
// watch, so a younger wait says nothing yet.
static void blame_note_await(const struct coordinator *core, const struct worker *worker,
                             struct picture *picture)
{
    const struct await *await = &worker->heartbeat.await;
    if (await->key.kind == AWAIT_NONE && worker->heartbeat.place.waits &&
        beat_age_now(worker, core->now) < core->config.heartbeat_ms) {
        picture->fresh = true;
        return;
    }
    for (uint32_t i = 0; i < picture->await_count; i++)
        if (blame_same_await(picture->awaits[i], await))
            return;
    if (picture->await_count < LOCKSTEP_MAX_AWAITED) {
        picture->awaits[picture->await_count++] = await;
        return;
    }
    for (uint32_t rank = 0; rank < LOCKSTEP_MAX_WORLD; rank++)
        if (awaited_concerns(await, rank))
            bits_add(picture->others, rank);
}

// True if a waiting member needs something of this rank that it has not done, or if no member
// waits: then all members are needed.
static bool blame_needed(const struct coordinator *core, const struct picture *picture,
                         const struct worker *worker)
{
    const bool silent = beat_silent(core, worker);
    if (picture->waiting == 0 || bits_has(picture->others, worker->rank))
        return true;
    for (uint32_t i = 0; i < picture->await_count; i++)
        if (awaited_concerns(picture->awaits[i], worker->rank) &&
            (silent || !awaited_begun(picture->awaits[i], worker)))
            return true;
    return false;
}

static void blame_count(const struct coordinator *core, const struct job *job,
                        const struct worker *worker, struct picture *picture)
{
    if (beat_silent(core, worker)) {
        picture->silent++;
    } else if (blame_waits(picture, worker)) {
        picture->waiting++;
        blame_note_await(core, worker, picture);
    } else {
        picture->busy += !blame_due(core, job, worker);
    }
}

static void blame_count_idle(const struct coordinator *core, const struct job *job,
                             struct picture *picture)
{
    const struct worker *worker;
    for (uint32_t next = 0; (worker = blame_next(core, job, &next));)
        picture->idle += !beat_silent(core, worker) && !blame_waits(picture, worker) &&
                         blame_idle(picture, worker) &&
                         (picture->fresh || blame_needed(core, picture, worker));
}

static void blame_sum(const struct worker *worker, struct picture *picture)
{
    const struct up_heartbeat *beat = &worker->heartbeat;
    picture->unknown--;
    picture->streams += beat->held == DEVICE_HOLD_STREAM;
    picture->moved += beat->settled + beat->place.plain;
    picture->traffic += beat->bytes_sent + beat->bytes_received;
}

static void blame_lowest(const struct worker *worker, struct picture *picture)
{
    const struct up_heartbeat *beat = &worker->heartbeat;
    if (!blame_lower(picture, beat->settled, beat->place.position))
        return;
    picture->any = true;
    picture->settled = beat->settled;
    picture->position = beat->place.position;
}

void blame_look(const struct coordinator *core, const struct job *job, struct picture *picture)
{
    const struct worker *worker;
    memset(picture, 0, sizeof(*picture));
    picture->unknown = job->count - job->left;
    for (uint32_t next = 0; (worker = blame_next(core, job, &next));)
        if (beat_known(worker)) {
            blame_sum(worker, picture);
            if (!beat_silent(core, worker))
                blame_lowest(worker, picture);
        }
    const bool nobody = !picture->any;
    for (uint32_t next = 0; nobody && (worker = blame_next(core, job, &next));)
        if (beat_known(worker))
            blame_lowest(worker, picture);
    for (uint32_t next = 0; (worker = blame_next(core, job, &next));)
        blame_count(core, job, worker, picture);
    blame_count_idle(core, job, picture);
}

// ---- Ranks in the way --------------------------------------------------------------------------

static void blame_add(struct found *found, const struct blame *blame)
{
    found->total++;
    if (found->count < LOCKSTEP_MAX_CULPRITS)
        found->blames[found->count++] = *blame;
}

static enum stall_kind blame_kind(const struct worker *worker)
{
    const struct place *place = &worker->heartbeat.place;
    if (worker->heartbeat.held == DEVICE_HOLD_STREAM)
        return STALL_DEVICE; // The trainer may wait for this stream, inside or outside the library.
    if (place->calls_open > 0)
        return STALL_IN_CALL;
    return place->inside ? STALL_UNKNOWN : STALL_OUTSIDE;
}

static bool blame_in_the_way(const struct coordinator *core, const struct picture *picture,
                             const struct worker *worker)
{
    return blame_idle(picture, worker) && !blame_waits_there(picture, worker) &&
           blame_needed(core, picture, worker);
}

// Rule 3. Returns true if this rank, which is not silent, is a culprit.
static bool blame_culprit(const struct coordinator *core, const struct job *job,
                          const struct picture *picture, const struct worker *worker)
{
    const bool needed = picture->waiting > 0 || (picture->busy == 0 && job->left == 0);
    return needed && !beat_silent(core, worker) && blame_in_the_way(core, picture, worker) &&
           worker->heard_ms > job->stall.progress_ms && blame_due(core, job, worker);
}

// True if a silent rank may hold up others: nothing has moved for a heartbeat, and some member
// waits or is a culprit.
static bool blame_standing(const struct coordinator *core, const struct job *job,
                           const struct picture *picture)
{
    const struct worker *worker;
    if (core->now - job->stall.progress_ms < core->config.heartbeat_ms)
        return false;
    for (uint32_t next = 0; (worker = blame_next(core, job, &next));)
        if (picture->waiting > 0 || blame_culprit(core, job, picture, worker))
            return true;
    return false;
}

// Rules 2 to 4. Adds the silent ranks and the idle ranks that are culprits, if these begin a stall
// or a stall is active.
static void blame_ranks(const struct coordinator *core, const struct job *job,
                        const struct picture *picture, struct found *found)
{
    const struct worker *worker;
    const bool standing = picture->silent > 0 && blame_standing(core, job, picture);
    bool begins = job->stall.active;
    uint32_t next = 0;
    while ((worker = blame_next(core, job, &next))) {
        const bool stopped = beat_stopped(core, worker, core->now);
        struct blame blame = {.rank = worker->rank};
        if (beat_silent(core, worker)) {
            if (!standing || !blame_needed(core, picture, worker))
                continue;
            blame.kind = stopped ? STALL_STOPPED : STALL_FROZEN;
            blame_add(found, &blame);
            begins =
                begins || stopped || blame_in_the_way(core, picture, worker) || picture->idle == 0;
        } else if (blame_culprit(core, job, picture, worker)) {
            blame.kind = blame_kind(worker);
            blame_add(found, &blame);
            begins = true;
        }
    }
    if (!begins)
        found->total = found->count = 0;
}

// ---- All members wait --------------------------------------------------------------------------

// Adds the members whose device waits for `hold`. If `all` is true, adds either all members or, if
// the device of one member does not wait for `hold`, none.
static void blame_devices(const struct coordinator *core, const struct job *job,
                          enum device_hold hold, bool all, struct found *found)
{
    const struct worker *worker;
    for (uint32_t next = 0; (worker = blame_next(core, job, &next));) {
        if (worker->heartbeat.held == hold) {
            blame_add(found, &(struct blame){.rank = worker->rank, .kind = STALL_DEVICE});
        } else if (all) {
            found->total = found->count = 0;
            return;
        }
    }
}

// Adds the first link on which bytes do not reach the other host.
static void blame_link(const struct coordinator *core, const struct job *job, struct found *found)
{
    const struct worker *worker;
    for (uint32_t next = 0; (worker = blame_next(core, job, &next));) {
        const struct up_heartbeat *beat = &worker->heartbeat;
        for (uint32_t i = 0; i < beat->link_count; i++) {
            const struct link_state *link = &beat->links[i];
            if (!beat_link_stands(job, worker, i) || link->unsent == 0 || link->reached)
                continue;
            blame_add(found, &(struct blame){worker->rank, STALL_LINK, link->rank, link->unsent});
            return;
        }
    }
}

bool blame_unexplained(const struct picture *picture)
{
    return picture->waiting > 0 && picture->idle == 0 && picture->silent == 0 &&
           picture->unknown == 0;
}

// Returns the time since which nothing has moved and no rank explains why.
static uint64_t blame_since(const struct stall *stall)
{
    uint64_t since = stall->progress_ms;
    if (stall->traffic_ms > since)
        since = stall->traffic_ms;
    return stall->excused_ms > since ? stall->excused_ms : since;
}

// Rule 5. Returns true if nothing moves though no rank is in the way. Then *found has the devices
// or the link that are blamed, or is empty.
static bool blame_nobody(const struct coordinator *core, const struct job *job,
                         const struct picture *picture, struct found *found)
{
    if (!blame_unexplained(picture) ||
        core->now - blame_since(&job->stall) <= bounds_of_links(core, job))
        return false;
    blame_devices(core, job, DEVICE_HOLD_STREAM, false, found);
    if (found->total == 0)
        blame_devices(core, job, DEVICE_HOLD_NCCL, true, found);
    if (found->total == 0)
        blame_link(core, job, found);
    return true;
}

// True if the waiting rank waits for one of the culprits, and is none.
static bool blame_is_behind(const struct coordinator *core, const struct job *job,
                            const struct worker *worker, const struct found *found)
{
    bool behind = false;
    for (uint32_t i = 0; i < found->count; i++) {
        const struct blame *blame = &found->blames[i];
        if (blame->rank == worker->rank)
            return false;
        behind = behind || awaited_culprit(&worker->heartbeat.await,
                                           &core->workers[job->workers[blame->rank]], blame->kind);
    }
    return behind;
}

uint32_t blame_waiting(const struct coordinator *core, const struct job *job,
                       const struct picture *picture, const struct found *found)
{
    const struct worker *worker;
    uint32_t count = 0;
    if (found->count == 0 || found->blames[0].kind == STALL_LINK)
        return picture->waiting;
    for (uint32_t next = 0; (worker = blame_next(core, job, &next));)
        count += !beat_silent(core, worker) && blame_waits(picture, worker) &&
                 blame_is_behind(core, job, worker, found);
    return count;
}

bool blame_find(const struct coordinator *core, const struct job *job,
                const struct picture *picture, struct found *found)
{
    blame_ranks(core, job, picture, found);
    return found->total > 0 || blame_nobody(core, job, picture, found);
}
