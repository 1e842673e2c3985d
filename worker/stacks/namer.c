// SPDX-License-Identifier: Apache-2.0
//
// The thread works on copies, so a thread that hangs and returns late does not write into a later
// capture. The thread lives for one capture; there is no thread between captures.

#include "worker/stacks/namer.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "worker/stacks/symbols.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct namer {
    struct thread thread;
    bool started; // True if the thread was started and not joined. Watch thread only.

    struct mutex mutex;
    struct cond done;
    bool works; // guarded by mutex
    bool left; // guarded by mutex; true if the thread has to free the namer

    // Used by the thread while `works` is true, else by the watch thread.
    size_t count;
    struct stack_frame frames[NAMER_FRAMES];
    uintptr_t addresses[NAMER_FRAMES];
};

struct namer *namer_open(void)
{
    struct namer *namer = calloc(1, sizeof(*namer));
    if (!namer)
        return NULL;
    mutex_init(&namer->mutex);
    cond_init(&namer->done);
    return namer;
}

static void namer_free(struct namer *namer)
{
    cond_fini(&namer->done);
    mutex_fini(&namer->mutex);
    free(namer);
}

static void namer_run(void *argument)
{
    struct namer *namer = argument;
    symbols_name(namer->frames, namer->addresses, namer->count, true);
    mutex_lock(&namer->mutex);
    const bool left = namer->left;
    namer->works = false;
    cond_signal(&namer->done);
    mutex_unlock(&namer->mutex);
    if (left)
        namer_free(namer);
}

// Waits until the thread has ended, at most until deadline_ms. Returns false if the thread has not
// ended.
static bool namer_join(struct namer *namer, uint64_t deadline_ms)
{
    mutex_lock(&namer->mutex);
    while (namer->works && cond_wait_until(&namer->done, &namer->mutex, deadline_ms))
        ;
    const bool works = namer->works;
    mutex_unlock(&namer->mutex);
    if (!works && namer->started)
        thread_join(&namer->thread);
    namer->started &= works;
    return !works;
}

void namer_close(struct namer *namer)
{
    if (!namer)
        return;
    mutex_lock(&namer->mutex);
    const bool left = namer->works;
    namer->left = left;
    if (left)
        (void)pthread_detach(namer->thread.id);
    mutex_unlock(&namer->mutex);
    if (left)
        return;
    (void)namer_join(namer, COND_NO_DEADLINE);
    namer_free(namer);
}

void namer_name(struct namer *namer, struct stack_frame *frames, const uintptr_t *addresses,
                size_t count)
{
    assert(count <= NAMER_FRAMES);
    symbols_name(frames, addresses, count, false);
    if (!namer_join(namer, clock_now_ms()))
        return;
    namer->count = count;
    memcpy(namer->frames, frames, count * sizeof(frames[0]));
    memcpy(namer->addresses, addresses, count * sizeof(addresses[0]));
    namer->works = true;
    if (thread_start(&namer->thread, "lockstep-names", namer_run, namer) != 0) {
        namer->works = false;
        return;
    }
    namer->started = true;
    if (namer_join(namer, clock_now_ms() + NAMER_MS))
        memcpy(frames, namer->frames, count * sizeof(frames[0]));
}
