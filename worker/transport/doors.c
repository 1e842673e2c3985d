// SPDX-License-Identifier: Apache-2.0
//
// The listeners of a rank while links are made, and the resource (descriptors, memory) that the
// rank lacks to make links. A connection that waits keeps its listener readable, so epoll would
// wake a rank that cannot accept the connection again and again. Instead, epoll does not watch the
// listeners for DOORS_REST_MS, and the connection waits in the kernel. A rank that can make no link
// for DOORS_LACK_MS gives up, says what it lacks, and blames no peer. Engine thread.

#include "worker/transport/doors.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/state.h"

#include <errno.h>
#include <string.h>

#define DOORS_REST_MS 100
// How long a rank that lacks descriptors or memory still tries to make links.
#define DOORS_LACK_MS 2000

bool doors_is_lack(int number)
{
    return number == EMFILE || number == ENFILE || number == ENOMEM || number == ENOBUFS ||
           number == ENOSPC;
}

bool doors_lack(struct transport *transport, int number)
{
    if (!doors_is_lack(number))
        return false;
    if (transport->doors.lack == 0)
        transport->doors.lack_ms = clock_now_ms();
    transport->doors.lack = number;
    return true;
}

void doors_have(struct transport *transport)
{
    transport->doors.lack = 0;
}

uint64_t doors_despair_ms(const struct transport *transport)
{
    const uint64_t half_ms = transport->flows.world.form_timeout_ms / 2;
    const uint64_t patience_ms = half_ms < DOORS_LACK_MS ? half_ms : DOORS_LACK_MS;
    return transport->doors.lack != 0 ? transport->doors.lack_ms + patience_ms : UINT64_MAX;
}

bool doors_despair(const struct transport *transport, uint64_t now_ms)
{
    return now_ms >= doors_despair_ms(transport);
}

void doors_rest(struct transport *transport)
{
    if (transport->doors.listen_ms != 0)
        return;
    transport->doors.listen_ms = clock_now_ms() + DOORS_REST_MS;
    transport_unwatch(transport, transport->doors.listener->fd);
    if (transport->doors.mates)
        transport_unwatch(transport, transport->doors.mates->fd);
}

bool doors_open(struct transport *transport)
{
    return transport_watch(transport, transport->doors.listener->fd,
                           &transport->doors.listener_endpoint, false) &&
           (!transport->doors.mates || transport_watch(transport, transport->doors.mates->fd,
                                                       &transport->doors.mates_endpoint, false));
}

static void doors_shut(struct transport *transport, struct listener **listener)
{
    if (!*listener)
        return;
    transport_unwatch(transport, (*listener)->fd);
    (*listener)->ops->close(*listener);
    *listener = NULL;
}

void transport_close_doors(struct transport *transport)
{
    transport->doors.listen_ms = 0;
    doors_shut(transport, &transport->doors.listener);
    doors_shut(transport, &transport->doors.mates);
}

void transport_settle_doors(struct transport *transport)
{
    doors_shut(transport, &transport->doors.mates);
}

void doors_tick(struct transport *transport, uint64_t now_ms)
{
    if (transport->doors.listen_ms == 0 || now_ms < transport->doors.listen_ms)
        return;
    transport->doors.listen_ms = 0;
    if (!doors_open(transport))
        doors_rest(transport);
}

uint64_t doors_deadline(const struct transport *transport)
{
    return transport->doors.listen_ms != 0 ? transport->doors.listen_ms : UINT64_MAX;
}

void doors_text(const struct transport *transport, char *buffer, size_t bytes)
{
    char reason[64];
    struct text text;
    text_init(&text, buffer, bytes);
    text_append(&text, "this rank could not make its links: %s",
                strerror_r(transport->doors.lack, reason, sizeof(reason)));
    if (transport->doors.lack == EMFILE)
        text_append(&text, "; raise the limit on open files (ulimit -n)");
    if (transport->doors.lack == ENFILE)
        text_append(&text, "; this host has no more (sysctl fs.file-max)");
}

bool doors_report(struct transport *transport)
{
    char buffer[TRANSPORT_TEXT_BYTES];
    if (transport->doors.lack == 0)
        return false;
    doors_text(transport, buffer, sizeof(buffer));
    if (transport->flows.events.peer_lost)
        transport->flows.events.peer_lost(transport->flows.events.context,
                                          transport->flows.world.rank, LOSS_HERE, buffer);
    return true;
}
