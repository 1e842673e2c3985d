// SPDX-License-Identifier: Apache-2.0
//
// What a driver needs to know before it stops driving the transport: whether anything is in flight,
// for how long nothing is due, and how to sleep without owning the transport. A driver that keeps
// driving waits in wait.c instead. Driver, except transport_doze.

#include "worker/transport/idle.h"

#include "base/clock.h"
#include "worker/transport/deaths.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/peers.h"
#include "worker/transport/form.h"
#include "worker/transport/state.h"
#include "worker/transport/wait.h"

#include <poll.h>

void transport_own(struct transport *transport)
{
    thread_own(&transport->flows.thread);
}

void transport_disown(struct transport *transport)
{
    thread_assert(&transport->flows.thread);
    thread_disown(&transport->flows.thread);
}

bool transport_idle(const struct transport *transport)
{
    thread_assert(&transport->flows.thread);
    if (!list_empty(&transport->flows.active) || !list_empty(&transport->flows.local) ||
        !list_empty(&transport->flows.done) || !list_empty(&transport->flows.waves.joined) ||
        !list_empty(&transport->flows.waves.done) || !devices_idle(&transport->flows))
        return false;
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        const struct peer_link *peer = transport->flows.links.all[i];
        if (peer->stream.link && !stream_idle(&peer->stream))
            return false;
    }
    return true;
}

int transport_rest(struct transport *transport)
{
    const uint64_t now_ms = clock_now_ms();
    uint64_t until = form_deadline(transport);
    thread_assert(&transport->flows.thread);
    if (peers_readable(&transport->flows) || until <= now_ms || !wait_leave_alone(transport))
        return 0;
    if (until - now_ms > deaths_check_ms(transport))
        return (int)deaths_check_ms(transport);
    return (int)(until - now_ms);
}

void transport_doze(const struct transport *transport, int bell, int timeout_ms)
{
    struct pollfd watched[] = {{.fd = bell, .events = POLLIN},
                               {.fd = transport->descriptors.epoll, .events = POLLIN}};
    (void)poll(watched, sizeof(watched) / sizeof(watched[0]), timeout_ms);
}
