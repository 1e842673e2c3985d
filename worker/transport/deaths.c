// SPDX-License-Identifier: Apache-2.0
//
// Mates whose processes end; deaths.h has the contract.
//
// A process that ends closes its links first, so a link is lost a moment before its pidfd is
// readable: the loss is reported without the proof, and mate_gone follows. A mate that has left
// ends, too; that is no news. As long as the link of a mate that is gone still stands, what it sent
// before its end is read first.

#include "worker/transport/deaths.h"

#include "worker/support/process.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/mates.h"
#include "worker/transport/state.h"

#include <string.h>
#include <unistd.h>

#define CHECK_MS 1000
#define CHECK_SOON_MS 20

static void deaths_drop(struct transport *transport, int process)
{
    transport_unwatch(transport, process);
    (void)close(process);
}

void deaths_form(struct transport *transport)
{
    struct mates *mates = &transport->flows.mates;
    int dropped[LOCKSTEP_MAX_MATES];
    for (uint32_t i = 0; i < mates->count; i++)
        if (mates->all[i].process >= 0)
            transport_unwatch(transport, mates->all[i].process);
    const uint32_t drops = mates_form(mates, &transport->flows.world.locality, dropped);
    for (uint32_t i = 0; i < drops; i++)
        (void)close(dropped[i]);
    for (uint32_t i = 0; i < mates->count; i++) {
        struct mate_process *mate = &mates->all[i];
        if (mate->process >= 0 && !mate->gone)
            (void)transport_watch(transport, mate->process, &mate->endpoint, false);
    }
}

void deaths_close(struct transport *transport)
{
    struct mates *mates = &transport->flows.mates;
    for (uint32_t i = 0; i < mates->count; i++)
        if (mates->all[i].process >= 0)
            deaths_drop(transport, mates->all[i].process);
    memset(mates, 0, sizeof(*mates));
}

void deaths_event(struct transport *transport, struct mate_process *mate)
{
    if (mate->gone || !process_is_gone(mate->process))
        return;
    mate->gone = true;
    transport->flows.mates.untold++;
    transport_unwatch(transport, mate->process);
}

uint64_t deaths_check_ms(const struct transport *transport)
{
    return transport->flows.mates.untold > 0 ? CHECK_SOON_MS : CHECK_MS;
}

// A mate's link is read before it is lost: from one check to the next, and to its end.
void deaths_check(struct transport *transport)
{
    struct mates *mates = &transport->flows.mates;
    for (uint32_t i = 0; mates->untold > 0 && i < mates->count; i++) {
        struct mate_process *mate = &mates->all[i];
        struct peer_link *peer = peer_of_rank(&transport->flows, mate->rank);
        if (!mate->gone || mate->told || !peer || peer->state != PEER_PROVEN || peer->left)
            continue;
        if (mate->checked && !peer->stream.readable)
            peer_lose(peer, "its process has ended");
        mate->checked = peer->stream.readable = true;
    }
}

static void deaths_told(struct mates *mates, struct mate_process *mate)
{
    mates->untold -= mate->gone && !mate->told;
    mate->told = true;
}

// True if the proof has to be reported now, by itself.
static bool deaths_is_news(struct transport *transport, struct mate_process *mate)
{
    const struct peer_link *peer = peer_of_rank(&transport->flows, mate->rank);
    if (!mate->gone || mate->told || (peer && peer->state == PEER_PROVEN && !peer->left) ||
        (peer && peer->lost && !peer->reported))
        return false; // It is no news, or its link ends soon.
    deaths_told(&transport->flows.mates, mate);
    return !peer || !peer->left;
}

bool deaths_report(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    struct mates *mates = &transport->flows.mates;
    for (uint32_t i = 0; mates->untold > 0 && i < mates->count; i++) {
        if (!deaths_is_news(transport, &mates->all[i]))
            continue;
        if (events->mate_gone)
            events->mate_gone(events->context, mates->all[i].rank);
        return true;
    }
    return false;
}

bool transport_take_death(struct transport *transport, uint32_t rank)
{
    struct mate_process *mate = mates_of_rank(&transport->flows.mates, rank);
    if (!mate || !mates_is_gone(&transport->flows.mates, rank))
        return false;
    deaths_told(&transport->flows.mates, mate);
    return true;
}
