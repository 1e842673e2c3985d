// SPDX-License-Identifier: Apache-2.0
//
// The descriptors that a transport has open: what epoll watches, and which of them a forked child
// closes. Engine thread, except transport_forked.

#include "worker/transport/descriptors.h"

#include "worker/transport/doors.h"
#include "worker/transport/state.h"

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

void transport_register(struct transport *transport, int fd)
{
    for (size_t i = 0; i < DESCRIPTORS_MOST; i++) {
        int free_place = -1;
        if (atomic_compare_exchange_strong(&transport->descriptors.open[i], &free_place, fd))
            return;
    }
    assert(false && "more descriptors than peers, guests and four");
}

static void transport_unregister(struct transport *transport, int fd)
{
    for (size_t i = 0; i < DESCRIPTORS_MOST; i++) {
        int expected = fd;
        if (atomic_compare_exchange_strong(&transport->descriptors.open[i], &expected, -1))
            return;
    }
}

bool transport_watch(struct transport *transport, int fd, struct endpoint *endpoint, bool link)
{
    struct epoll_event event = {.data.ptr = endpoint};
    event.events = link ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN;
    transport_register(transport, fd);
    const int added = epoll_ctl(transport->descriptors.epoll, EPOLL_CTL_ADD, fd, &event);
    if (added < 0)
        // Any other errno means that this process has closed a descriptor of the transport.
        (void)doors_lack(transport, errno);
    return added == 0;
}

void transport_unwatch(struct transport *transport, int fd)
{
    transport_unregister(transport, fd);
    (void)epoll_ctl(transport->descriptors.epoll, EPOLL_CTL_DEL, fd, NULL);
}

void transport_forked(struct transport *transport)
{
    for (size_t i = 0; i < DESCRIPTORS_MOST; i++) {
        const int fd = atomic_load(&transport->descriptors.open[i]);
        if (fd >= 0)
            (void)close(fd);
    }
}
