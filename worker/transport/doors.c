// SPDX-License-Identifier: Apache-2.0
//
// The listeners of a rank while links are made, and what the rank lacks for links of its own: no
// descriptor, no memory. A connection that waits keeps its listener readable, so a rank that cannot
// accept it would be woken for it again and again: the listeners rest for DOORS_REST_MS, and the
// connection waits in the kernel. A rank that can make no link for DOORS_LACK_MS gives up, says
// what it lacks, and blames no peer. Engine thread.

#include "worker/transport/doors.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/life.h"

#include <errno.h>
#include <string.h>

#define DOORS_REST_MS 100
#define DOORS_LACK_MS 2000 // For which a rank tries to make links that it lacks something for.

bool doors_is_lack(int number)
{
    return number == EMFILE || number == ENFILE || number == ENOMEM || number == ENOBUFS ||
           number == ENOSPC;
}

bool doors_lack(struct transport *transport, int number)
{
    if (!doors_is_lack(number))
        return false;
    if (transport->lack == 0)
        transport->lack_ms = clock_now_ms();
    transport->lack = number;
    return true;
}

void doors_have(struct transport *transport)
{
    transport->lack = 0;
}

bool doors_despair(const struct transport *transport, uint64_t now_ms)
{
    const uint64_t half_ms = transport->world.form_timeout_ms / 2;
    const uint64_t patience_ms = half_ms < DOORS_LACK_MS ? half_ms : DOORS_LACK_MS;
    return transport->lack != 0 && now_ms >= transport->lack_ms + patience_ms;
}

void doors_rest(struct transport *transport)
{
    if (transport->listen_ms != 0)
        return;
    transport->listen_ms = clock_now_ms() + DOORS_REST_MS;
    transport_unwatch(transport, transport->listener->fd);
    if (transport->mates)
        transport_unwatch(transport, transport->mates->fd);
}

bool doors_open(struct transport *transport)
{
    return transport_watch(transport, transport->listener->fd, &transport->listener_endpoint,
                           false) &&
           (!transport->mates ||
            transport_watch(transport, transport->mates->fd, &transport->mates_endpoint, false));
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
    transport->listen_ms = 0;
    doors_shut(transport, &transport->listener);
    doors_shut(transport, &transport->mates);
}

void doors_tick(struct transport *transport, uint64_t now_ms)
{
    if (transport->listen_ms == 0 || now_ms < transport->listen_ms)
        return;
    transport->listen_ms = 0;
    if (!doors_open(transport))
        doors_rest(transport);
}

uint64_t doors_deadline(const struct transport *transport)
{
    return transport->listen_ms != 0 ? transport->listen_ms : UINT64_MAX;
}

bool doors_report(struct transport *transport)
{
    char buffer[TRANSPORT_TEXT_BYTES];
    char reason[64];
    struct text text;
    if (transport->lack == 0)
        return false;
    text_init(&text, buffer, sizeof(buffer));
    text_append(&text, "this rank could not make its links: %s",
                strerror_r(transport->lack, reason, sizeof(reason)));
    if (transport->lack == EMFILE)
        text_append(&text, "; raise the limit on open files (ulimit -n)");
    if (transport->lack == ENFILE)
        text_append(&text, "; this host has no more (sysctl fs.file-max)");
    if (transport->events.peer_lost)
        transport->events.peer_lost(transport->events.context, transport->world.rank, LOSS_HERE,
                                    buffer);
    return true;
}
