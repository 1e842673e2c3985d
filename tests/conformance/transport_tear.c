// SPDX-License-Identifier: Apache-2.0
//
// Ranks that stop inside of a turn; see transport_tear.h.

#include "tests/conformance/transport_tear.h"

#include "worker/transport/idle.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>

static struct {
    struct transport *transport; // NULL: no rank is in a turn.
    uint8_t *page;
    volatile sig_atomic_t stopped;
    pthread_t thread;
    sem_t news; // The turn is over, or the rank has stopped.
    sem_t woken;
} tear;

static void tear_protect(bool protects)
{
    if (mprotect(tear.page, TEAR_PAGE_BYTES, protects ? PROT_READ : PROT_READ | PROT_WRITE) != 0)
        abort();
}

static void tear_stop(int number, siginfo_t *info, void *context)
{
    const uint8_t *at = info->si_addr;
    (void)number;
    (void)context;
    if (!tear.transport || tear.stopped != 0 || at < tear.page ||
        at >= tear.page + TEAR_PAGE_BYTES) {
        (void)signal(SIGSEGV, SIG_DFL);
        return;
    }
    tear.stopped = 1;
    (void)sem_post(&tear.news);
    while (sem_wait(&tear.woken) != 0)
        ;
}

static void *tear_drive(void *unused)
{
    (void)unused;
    transport_own(tear.transport);
    transport_progress(tear.transport, 0);
    transport_disown(tear.transport);
    (void)sem_post(&tear.news);
    return NULL;
}

static void tear_join(void)
{
    if (pthread_join(tear.thread, NULL) != 0)
        abort();
    transport_own(tear.transport);
    tear.transport = NULL;
}

bool tear_turn(struct transport *transport, uint8_t *page)
{
    static bool prepared;
    const struct sigaction action = {.sa_sigaction = tear_stop, .sa_flags = SA_SIGINFO};
    if (tear.transport)
        abort();
    // cmocka has a handler of its own in each test.
    if (sigaction(SIGSEGV, &action, NULL) != 0 ||
        (!prepared && (sem_init(&tear.news, 0, 0) != 0 || sem_init(&tear.woken, 0, 0) != 0)))
        abort();
    prepared = true;
    tear.transport = transport;
    tear.page = page;
    tear.stopped = 0;
    tear_protect(true);
    transport_disown(transport);
    if (pthread_create(&tear.thread, NULL, tear_drive, NULL) != 0)
        abort();
    while (sem_wait(&tear.news) != 0)
        ;
    tear_protect(false);
    if (tear.stopped != 0)
        return true;
    tear_join();
    return false;
}

void tear_wake(void)
{
    if (!tear.transport)
        return;
    (void)sem_post(&tear.woken);
    tear_join();
    while (sem_wait(&tear.news) != 0)
        ;
}

void tear_links(struct transport *transport)
{
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        const struct link *link = transport->flows.links.all[i]->stream.link;
        if (link)
            (void)shutdown(link->fd, SHUT_RDWR);
    }
}
