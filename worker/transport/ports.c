// SPDX-License-Identifier: Apache-2.0
//
// The data ports of other ranks; ports.h has the contract.
//
// The coordinator probes data ports, too (server/prober.c). It cannot do so if it has just started,
// because it does not know the addresses, or if it is away. A refusal counts only if this rank has
// reached the port before, because a firewall may refuse, too. So each port is reached once, when
// the first generation has formed. Connections carry no bytes.
//
// While the links of a later generation are made, no link of a rank can end, and the coordinator
// may be away. So the doubt that a freeze raises lasts until these links stand.

#include "worker/transport/ports.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/link/link.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/mates.h"
#include "worker/transport/state.h"

#include <errno.h>
#include <string.h>

#define PORTS_ATTEMPT_MS 1000 // How long an attempt may take.
#define PORTS_LATER_MS 10 // When PORTS_AT_ONCE attempts are under way.

static void ports_plan(struct ports *ports, struct port *port, uint64_t due_ms)
{
    port->due_ms = due_ms;
    if (due_ms < ports->due_ms)
        ports->due_ms = due_ms;
}

static void port_drop(struct transport *transport, struct port *port)
{
    if (!port->link)
        return;
    transport_unwatch(transport, port->link->fd);
    port->link->ops->close(port->link, false);
    port->link = NULL;
    transport->ports.open--;
}

void ports_close(struct transport *transport)
{
    for (uint32_t i = 0; i < transport->ports.count; i++)
        port_drop(transport, &transport->ports.all[i]);
    memset(&transport->ports, 0, sizeof(transport->ports));
    transport->ports.due_ms = UINT64_MAX;
}

// ---- a generation -------------------------------------------------------------------------------

static bool ports_has_pidfd(struct transport *transport, uint32_t rank)
{
    const struct mate_process *mate = mates_of_rank(&transport->flows.mates, rank);
    return mate && mate->process >= 0;
}

static void port_doubt(struct ports *ports, struct port *port, uint64_t due_ms)
{
    if (port->gone || port->doubted)
        return;
    port->doubted = true;
    if (!port->link)
        ports_plan(ports, port, due_ms);
}

// Addresses belong to sessions: what was known of an address in the last generation holds.
static void ports_add(struct transport *transport, const struct data_port *of, bool further,
                      const struct ports *last)
{
    struct ports *ports = &transport->ports;
    struct port *port = &ports->all[ports->count++];
    *port = (struct port){.endpoint = {ENDPOINT_PORT},
                          .rank = of->rank,
                          .further = further,
                          .due_ms = UINT64_MAX,
                          .pause_ms = further ? LOCKSTEP_PROBE_SOON_MS : LOCKSTEP_ACCUSED_PROBE_MS};
    text_copy(port->address, sizeof(port->address), of->address);
    for (uint32_t i = 0; i < last->count; i++) {
        if (strcmp(last->all[i].address, port->address) != 0)
            continue;
        port->reached = last->all[i].reached;
        port->gone = last->all[i].gone;
        ports->untold += port->gone;
        port_doubt(ports, port, clock_now_ms() + LOCKSTEP_PROBE_SOON_MS);
    }
}

void ports_form(struct transport *transport, const struct transport_world *world)
{
    struct ports last = transport->ports;
    ports_close(transport);
    if (!transport->flows.recovers || transport->kind != TRANSPORT_TCP)
        return;
    for (uint32_t i = 0; i < transport->flows.peer_count; i++) {
        struct data_port port = {.rank = transport->flows.peers[i].rank};
        text_copy(port.address, sizeof(port.address), transport->flows.peers[i].address);
        if (!ports_has_pidfd(transport, port.rank))
            ports_add(transport, &port, false, &last);
    }
    for (uint32_t i = 0; i < world->further_count; i++)
        ports_add(transport, &world->further[i], true, &last);
}

// ---- doubt --------------------------------------------------------------------------------------

// Doubts soon all ranks that have not left in order, or the further ones only.
static void ports_doubt_others(struct transport *transport, bool further_only)
{
    struct ports *ports = &transport->ports;
    const uint64_t due_ms = clock_now_ms() + LOCKSTEP_PROBE_SOON_MS;
    for (uint32_t i = 0; i < ports->count; i++) {
        const struct peer_link *peer = peer_of_rank(&transport->flows, ports->all[i].rank);
        if ((!further_only || ports->all[i].further) && (!peer || !peer->left || peer->frozen))
            port_doubt(ports, &ports->all[i], due_ms);
    }
}

void ports_doubt(struct transport *transport, uint32_t rank)
{
    struct ports *ports = &transport->ports;
    for (uint32_t i = 0; i < ports->count; i++)
        if (ports->all[i].rank == rank)
            port_doubt(ports, &ports->all[i], clock_now_ms());
    ports_doubt_others(transport, true);
}

void ports_doubt_all(struct transport *transport)
{
    ports_doubt_others(transport, false);
}

// ---- attempts -----------------------------------------------------------------------------------

// An attempt has ended; number: its errno, 0: the connection stands.
static void port_answered(struct transport *transport, struct port *port, int number)
{
    struct ports *ports = &transport->ports;
    port_drop(transport, port);
    port->reached = port->reached || number == 0;
    port->gone = port->reached && number == ECONNREFUSED;
    ports->untold += port->gone;
    port->due_ms = UINT64_MAX;
    if (port->gone || !port->doubted)
        return;
    ports_plan(ports, port, clock_now_ms() + port->pause_ms);
    port->pause_ms =
        2 * port->pause_ms < LOCKSTEP_PROBE_MS ? 2 * port->pause_ms : (uint64_t)LOCKSTEP_PROBE_MS;
}

static void port_look(struct transport *transport, struct port *port)
{
    const int connected = port->link->ops->connected(port->link);
    if (connected != 0)
        port_answered(transport, port, connected < 0 ? errno : 0);
}

static void port_ask(struct transport *transport, struct port *port, uint64_t now_ms)
{
    char text[TRANSPORT_TEXT_BYTES];
    if (transport->ports.open == PORTS_AT_ONCE) {
        ports_plan(&transport->ports, port, now_ms + PORTS_LATER_MS);
        return;
    }
    errno = 0;
    struct link *link = link_connect(port->address, 0, text, sizeof(text));
    if (!link) {
        port_answered(transport, port, errno != 0 ? errno : EINVAL);
        return;
    }
    port->link = link;
    transport->ports.open++;
    ports_plan(&transport->ports, port, now_ms + PORTS_ATTEMPT_MS);
    if (transport_watch(transport, link->fd, &port->endpoint, true))
        port_look(transport, port);
    else
        port_answered(transport, port, EAGAIN);
}

void ports_event(struct transport *transport, struct port *port)
{
    if (port->link)
        port_look(transport, port);
}

// All links stand. An attempt that is under way ends by itself.
static void ports_meet(struct ports *ports, uint64_t now_ms)
{
    ports->met = true;
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = &ports->all[i];
        port->doubted = false;
        if (!port->link)
            ports_plan(ports, port, port->reached ? UINT64_MAX : now_ms);
    }
}

void ports_tick(struct transport *transport, uint64_t now_ms)
{
    struct ports *ports = &transport->ports;
    if (transport->flows.formed && !ports->met)
        ports_meet(ports, now_ms);
    if (now_ms < ports->due_ms)
        return;
    ports->due_ms = UINT64_MAX;
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = &ports->all[i];
        if (now_ms < port->due_ms)
            ports_plan(ports, port, port->due_ms);
        else if (port->link)
            port_answered(transport, port, ETIMEDOUT);
        else
            port_ask(transport, port, now_ms);
    }
}

uint64_t ports_deadline(const struct transport *transport)
{
    return transport->ports.due_ms;
}

bool ports_report(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    struct ports *ports = &transport->ports;
    for (uint32_t i = 0; ports->untold > 0 && i < ports->count; i++) {
        struct port *port = &ports->all[i];
        if (!port->gone || port->told)
            continue;
        port->told = true;
        ports->untold--;
        if (events->port_closed)
            events->port_closed(events->context, port->rank);
        return true;
    }
    return false;
}
