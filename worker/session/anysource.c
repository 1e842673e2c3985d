// SPDX-License-Identifier: Apache-2.0
//
// Receives from any source: anysource.h has the contract. The data plane knows nothing of them. A
// sender sends as to a named receive: a small message at once, a large one after its announcement
// and a grant. A small one whose sender is far ahead is announced, too. So each message has a frame
// that arrives without the receiver's help, and the transport keeps it as a collective that a peer
// has begun and that this rank has not launched. A receive from any source looks through these, in
// the order of their arrival. The first one that is the next message of its sender by the receive's
// name and tag becomes the receive's message: from then on the receive is a named one.
//
// Why it cannot deadlock: the sender's first frame waits for the link only, and this rank makes
// every link that it is the side to make. A receive that is matched is a named receive whose send
// has begun.
//
// A named receive takes the next message of its sender when it begins, before that message has
// arrived. So it goes before receives from any source that have no message yet.

#include "worker/session/anysource.h"

#include "worker/session/group.h"
#include "worker/session/plain.h"
#include "worker/session/session.h"
#include "worker/transport/farewell.h"
#include "worker/transport/further.h"

#include <assert.h>

struct anysource_search {
    struct lockstep_session *session;
    struct lockstep_work *matched; // NULL: none.
};

static uint32_t anysource_own(const struct lockstep_work *work)
{
    return work->group ? work->group->rank : work->session->world.rank;
}

static uint32_t anysource_size(const struct lockstep_work *work)
{
    return work->group ? work->group->size : work->session->world.size;
}

void anysource_forget_locked(struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    list_remove(&work->unmatched);
    work->session->works.unmatched_count--;
}

// True if the collective with this tag, which `rank` has begun, is the next message for the work
// from that rank.
static bool anysource_fits_locked(const struct lockstep_work *work, uint32_t rank,
                                  const struct collective_tag *tag)
{
    const uint32_t place = group_place(work->group, rank);
    return place < anysource_size(work) &&
           tag->space == plain_pair_space(work->session, work->name, work->group, work->tag, place,
                                          anysource_own(work)) &&
           tag->slot == names_uses_locked(work->session, tag->space);
}

// The work has its message: it becomes a receive from that rank.
static void anysource_name_locked(struct lockstep_work *work, uint32_t rank,
                                  const struct collective_tag *tag)
{
    anysource_forget_locked(work);
    struct name_use *use = names_use_locked(work->session, work->name, work->group, tag->space);
    assert(use); // Room for the name was kept.
    use->uses++;
    work->collective.tag = *tag;
    work->member = group_place(work->group, rank);
    work->part[1].rank = rank; // Its only receive.
    if (work->agreement.wanted) {
        const uint32_t missing = work->missing;
        work->pair[0].rank = rank;
        agreement_make(work);
        work_confirm(work);
        work->missing = missing;
    }
    if (work->sender)
        *work->sender = work->member;
}

static bool anysource_take_locked(void *context, uint32_t rank, const struct collective_tag *tag)
{
    struct anysource_search *search = context;
    list_for_each (node, &search->session->works.unmatched) {
        struct lockstep_work *work = list_entry(node, struct lockstep_work, unmatched);
        if (tag->step != 0 || !anysource_fits_locked(work, rank, tag))
            continue;
        anysource_name_locked(work, rank, tag);
        search->matched = work;
        return true;
    }
    return false;
}

// True if the member has closed its session. A member that freezes after a death comes back.
static bool anysource_has_left(const struct lockstep_work *work, uint32_t place)
{
    const struct farewell *said =
        transport_farewell(work->session->transport, group_rank(work->group, place));
    return said && said->kind != FAREWELL_FROZEN;
}

// If all other members have left, nobody can send: the first of them is lost.
static void anysource_check_left_locked(const struct lockstep_work *work)
{
    struct transport *transport = work->session->transport;
    const uint32_t own = anysource_own(work);
    for (uint32_t i = 0; i < anysource_size(work); i++)
        if (i != own && !anysource_has_left(work, i))
            return;
    transport_miss(transport, group_rank(work->group, own == 0));
}

// Returns the oldest receive for which a message is there. NULL: none.
static struct lockstep_work *anysource_next(struct lockstep_session *session)
{
    struct anysource_search search = {.session = session};
    mutex_lock(&session->mutex);
    // After a failure the works belong to the trainer.
    if (session->gate.failure == 0 && !session->works.unmatched_held &&
        !list_empty(&session->works.unmatched) &&
        !transport_arrivals(session->transport, anysource_take_locked, &search)) {
        list_for_each (node, &session->works.unmatched)
            anysource_check_left_locked(list_entry(node, struct lockstep_work, unmatched));
    }
    mutex_unlock(&session->mutex);
    return search.matched;
}

void anysource_match(struct lockstep_session *session)
{
    struct lockstep_work *work;
    while (!session->end.over && (work = anysource_next(session)))
        work_travel(work);
}

void anysource_release(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    session->works.unmatched_held = false;
    mutex_unlock(&session->mutex);
    anysource_match(session);
}

void anysource_queue_locked(struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    if (list_empty(&work->unmatched)) // Otherwise it began in a generation before.
        list_push_back(&work->session->works.unmatched, &work->unmatched);
}

void anysource_begin(struct lockstep_work *work)
{
    struct lockstep_session *session = work->session;
    for (uint32_t i = 0; i < anysource_size(work); i++)
        transport_want(session->transport, group_rank(work->group, i));
    mutex_lock(&session->mutex);
    anysource_queue_locked(work);
    mutex_unlock(&session->mutex);
    anysource_match(session);
}
