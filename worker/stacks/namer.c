// SPDX-License-Identifier: Apache-2.0
//
// The thread works on copies, so a thread that hangs and returns late does not write into a later
// capture. The thread lives as long as the namer: to start one needs a lock that the loader holds
// while it reads the file of a library, and the trainer may hang there.

#include "worker/stacks/namer.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "worker/stacks/symbols.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct namer {
    // set at open, then constant
    struct thread thread;

    // guarded by mutex
    struct mutex mutex;
    struct cond wanted; // Signalled when `works` or `stop` becomes true. The thread waits for it.
    struct cond done; // Signalled when tid is set, and when `works` becomes false.
    uint32_t tid; // Kernel id of the thread; 0: the thread has not begun.
    bool works;
    bool stop; // True if the thread has to end.
    bool left; // True if the thread has to free the namer.

    // Used by the thread while `works` is true, else by the watch thread.
    size_t count;
    struct stack_frame frames[NAMER_FRAMES];
    uintptr_t addresses[NAMER_FRAMES];
};

static void namer_free(struct namer *namer)
{
    cond_fini(&namer->wanted);
    cond_fini(&namer->done);
    mutex_fini(&namer->mutex);
    free(namer);
}

// Waits until there are frames without names. Returns false if the thread has to end.
static bool namer_await(struct namer *namer)
{
    mutex_lock(&namer->mutex);
    while (!namer->works && !namer->stop)
        cond_wait(&namer->wanted, &namer->mutex);
    const bool works = namer->works;
    mutex_unlock(&namer->mutex);
    return works;
}

static void namer_run(void *argument)
{
    struct namer *namer = argument;
    bool left = false;
    mutex_lock(&namer->mutex);
    namer->tid = (uint32_t)gettid();
    cond_signal(&namer->done);
    mutex_unlock(&namer->mutex);
    while (!left && namer_await(namer)) {
        symbols_name(namer->frames, namer->addresses, namer->count, true);
        mutex_lock(&namer->mutex);
        left = namer->left;
        namer->works = false;
        cond_signal(&namer->done);
        mutex_unlock(&namer->mutex);
    }
    if (left)
        namer_free(namer);
}

struct namer *namer_open(void)
{
    struct namer *namer = calloc(1, sizeof(*namer));
    if (!namer)
        return NULL;
    mutex_init(&namer->mutex);
    cond_init(&namer->wanted);
    cond_init(&namer->done);
    if (thread_start(&namer->thread, "lockstep-names", namer_run, namer) != 0) {
        namer_free(namer);
        return NULL;
    }
    mutex_lock(&namer->mutex);
    while (namer->tid == 0)
        cond_wait(&namer->done, &namer->mutex);
    mutex_unlock(&namer->mutex);
    return namer;
}

void namer_close(struct namer *namer)
{
    if (!namer)
        return;
    mutex_lock(&namer->mutex);
    const bool left = namer->works;
    namer->left = left;
    namer->stop = true;
    if (left)
        (void)pthread_detach(namer->thread.id);
    cond_signal(&namer->wanted);
    mutex_unlock(&namer->mutex);
    if (left)
        return;
    thread_join(&namer->thread);
    namer_free(namer);
}

uint32_t namer_tid(struct namer *namer)
{
    mutex_lock(&namer->mutex);
    const uint32_t tid = namer->tid;
    mutex_unlock(&namer->mutex);
    return tid;
}

void namer_name(struct namer *namer, struct stack_frame *frames, const uintptr_t *addresses,
                size_t count)
{
    assert(count <= NAMER_FRAMES);
    symbols_name(frames, addresses, count, false);
    const uint64_t deadline_ms = clock_now_ms() + NAMER_MS;
    mutex_lock(&namer->mutex);
    if (!namer->works) {
        namer->count = count;
        memcpy(namer->frames, frames, count * sizeof(frames[0]));
        memcpy(namer->addresses, addresses, count * sizeof(addresses[0]));
        namer->works = true;
        cond_signal(&namer->wanted);
        while (namer->works && cond_wait_until(&namer->done, &namer->mutex, deadline_ms))
            ;
        if (!namer->works)
            memcpy(frames, namer->frames, count * sizeof(frames[0]));
    }
    mutex_unlock(&namer->mutex);
}
