// SPDX-License-Identifier: Apache-2.0
//
// The table of streams, open addressed by peer, and the records of workers. Runs inside
// coordinator_step.

#include "coordinator/table.h"

#include "coordinator/core.h"
#include "coordinator/job.h"

static uint32_t table_place(coordinator_peer peer)
{
    peer = (peer ^ peer >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    peer = (peer ^ peer >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(peer ^ peer >> 31) & (CORE_PEER_TABLE - 1);
}

uint32_t table_find(const struct coordinator *core, coordinator_peer peer)
{
    uint32_t place = table_place(peer);
    while (core->peers[place] != 0 && core->workers[core->peers[place] - 1].peer != peer)
        place = (place + 1) & (CORE_PEER_TABLE - 1);
    return place;
}

struct worker *table_worker(struct coordinator *core, coordinator_peer peer)
{
    const uint16_t entry = core->peers[table_find(core, peer)];
    return entry == 0 ? NULL : &core->workers[entry - 1];
}

// Removes an entry, and moves later entries up that could not be found across the gap.
static void table_forget(struct coordinator *core, coordinator_peer peer)
{
    const uint32_t mask = CORE_PEER_TABLE - 1;
    uint32_t gap = table_find(core, peer);
    core->peers[gap] = 0;
    for (uint32_t at = (gap + 1) & mask; core->peers[at] != 0; at = (at + 1) & mask) {
        const uint32_t home = table_place(core->workers[core->peers[at] - 1].peer);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue;
        core->peers[gap] = core->peers[at];
        core->peers[at] = 0;
        gap = at;
    }
}

uint16_t core_worker_index(const struct coordinator *core, const struct worker *worker)
{
    return (uint16_t)(worker - core->workers);
}

struct job *core_job_of(struct coordinator *core, const struct worker *worker)
{
    return &core->jobs[worker->job];
}

static struct worker *worker_take(struct coordinator *core)
{
    struct worker *worker = NULL;
    if (core->worker_free != CORE_NONE) {
        worker = &core->workers[core->worker_free];
        core->worker_free = worker->next_free;
    } else if (core->worker_top < LOCKSTEP_MAX_WORKERS) {
        worker = &core->workers[core->worker_top++];
    }
    return worker;
}

struct worker *core_worker_new(struct coordinator *core, coordinator_peer peer)
{
    struct worker *worker = worker_take(core);
    if (!worker)
        return NULL;
    memset(worker, 0, sizeof(*worker));
    worker->peer = peer;
    worker->connected = true;
    core->peers[table_find(core, peer)] = (uint16_t)(core_worker_index(core, worker) + 1);
    return worker;
}

struct worker *core_worker_absent(struct coordinator *core)
{
    struct worker *worker = worker_take(core);
    if (worker)
        memset(worker, 0, sizeof(*worker));
    return worker;
}

void core_workers_free(struct coordinator *core, const uint16_t *workers, uint32_t count)
{
    while (count-- > 0)
        core_worker_free(core, &core->workers[workers[count]]);
}

bool core_workers_absent(struct coordinator *core, uint32_t count, uint16_t *workers)
{
    for (uint32_t i = 0; i < count; i++) {
        struct worker *worker = core_worker_absent(core);
        while (!worker && job_recycle(core))
            worker = core_worker_absent(core);
        if (!worker) {
            core_workers_free(core, workers, i);
            return false;
        }
        worker->stage = STAGE_OUT; // Not free any more, and no member yet.
        workers[i] = core_worker_index(core, worker);
    }
    return true;
}

void core_reconnect(struct coordinator *core, struct worker *worker, coordinator_peer peer)
{
    worker->peer = peer;
    worker->connected = true;
    core->peers[table_find(core, peer)] = (uint16_t)(core_worker_index(core, worker) + 1);
    core_job_of(core, worker)->connected++;
}

void core_worker_free(struct coordinator *core, struct worker *worker)
{
    if (worker->connected)
        table_forget(core, worker->peer);
    worker->connected = false;
    worker->stage = STAGE_FREE;
    worker->next_free = core->worker_free;
    core->worker_free = core_worker_index(core, worker);
}

void core_disconnect(struct coordinator *core, struct worker *worker)
{
    if (!worker->connected)
        return;
    table_forget(core, worker->peer);
    worker->connected = false;
    if (worker->stage == STAGE_MEMBER)
        core_job_of(core, worker)->connected--;
}

void core_close(struct coordinator *core, struct worker *worker)
{
    const struct coordinator_action action = {.kind = ACTION_CLOSE, .peer = worker->peer};
    if (!worker->connected)
        return;
    core->sink.action(core->sink.context, &action);
    core_disconnect(core, worker);
}
