// SPDX-License-Identifier: Apache-2.0
//
// Conformance: senders that are far ahead of their receivers. Short messages are complete for their
// sender up to a bound; further ones wait for the receiver, and no message is lost or changed. What
// the bound is for is in worker/transport/direct/ahead.c.

#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define MESSAGES 2000
#define AHEAD LOCKSTEP_SENDS_AHEAD
#define UNTOLD (MESSAGES % LOCKSTEP_SENDS_TOLD)
#define HELD 200 // Messages that are begun beyond the bound.
#define TAGS 3
#define REST_US 20000 // A sender that may go on would do so in this time.

static struct lockstep_collective message(lockstep_collective_kind kind, uint32_t peer,
                                          uint32_t tag, int32_t *value)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.kind = kind;
    what.name = "ahead";
    what.peer = peer;
    what.tag = tag;
    what.dtype = LOCKSTEP_INT32;
    what.count = 1;
    what.input = kind == LOCKSTEP_SEND ? value : NULL;
    what.output = kind == LOCKSTEP_SEND ? NULL : value;
    return what;
}

static void send_one(struct rank *rank, uint32_t peer, uint32_t tag, int32_t value)
{
    const struct lockstep_collective what = message(LOCKSTEP_SEND, peer, tag, &value);
    RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
}

static void receive_one(struct rank *rank, uint32_t peer, uint32_t tag, int32_t value)
{
    int32_t received = -1;
    const struct lockstep_collective what = message(LOCKSTEP_RECEIVE, peer, tag, &received);
    RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    RANK_EQUAL(rank, received, value);
}

// Waits until rank 0 has sent so many messages, and checks that it sends no more by itself.
static void wait_for_sends(struct rank *rank, atomic_uint *sent, uint32_t count)
{
    while (atomic_load(sent) < count)
        usleep(1000);
    usleep(REST_US);
    RANK_EQUAL(rank, atomic_load(sent), count);
}

// ---- Blocking sends ----------------------------------------------------------------------------

// Rank 0 sends to all others in turn. They receive when it can send no more, twice.
static void blocking_body(struct rank *rank)
{
    atomic_uint *sent = rank->context;
    for (int32_t round = 0; round < 2; round++) {
        rank_meet(rank);
        for (int32_t i = 0; rank->rank == 0 && i < MESSAGES; i++) {
            for (uint32_t peer = 1; peer < rank->world_size; peer++)
                send_one(rank, peer, 0, i * 2 + round);
            atomic_fetch_add(sent, 1);
        }
        // In the second round the sender does not know of the last messages that were taken.
        if (rank->rank != 0)
            wait_for_sends(rank, sent, round == 0 ? AHEAD : MESSAGES + AHEAD - UNTOLD);
        for (int32_t i = 0; rank->rank != 0 && i < MESSAGES; i++)
            receive_one(rank, 0, 0, i * 2 + round);
    }
}

static void blocking_sends(const struct setting *setting)
{
    atomic_uint sent = 0;
    ranks_run(setting, blocking_body, &sent);
}

// ---- Sends in flight, and other collectives ----------------------------------------------------

// The last messages have tags that no message before has.
static uint32_t tag_of(uint32_t index)
{
    return index < AHEAD + HELD / 2 ? 0 : 1 + index % (TAGS - 1);
}

static void between(struct rank *rank)
{
    float value = 1;
    RANK_OK(rank, lockstep_allreduce(rank->session, "between", &value, 1, LOCKSTEP_FLOAT32,
                                     LOCKSTEP_SUM, FOREVER));
    RANK_TRUE(rank, value == (float)rank->world_size);
}

static void begun_send(struct rank *rank)
{
    static int32_t values[AHEAD + HELD];
    lockstep_work *works[AHEAD + HELD];
    for (uint32_t i = 0; i < AHEAD + HELD; i++) {
        values[i] = (int32_t)i;
        const struct lockstep_collective what = message(LOCKSTEP_SEND, 1, tag_of(i), &values[i]);
        if (i >= HELD)
            RANK_OK(rank, lockstep_work_wait(works[i - HELD], FOREVER));
        RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[i]));
    }
    RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(works[AHEAD], 0));
    between(rank);
    for (uint32_t i = AHEAD; i < AHEAD + HELD; i++)
        RANK_OK(rank, lockstep_work_wait(works[i], FOREVER));
}

// Messages wait while all ranks run an allreduce. The receiver then begins with the tag of which
// most messages wait, in the order of their sends.
static void begun_body(struct rank *rank)
{
    if (rank->rank == 0)
        begun_send(rank);
    else
        between(rank);
    for (uint32_t tag = TAGS; rank->rank == 1 && tag-- > 0;)
        for (uint32_t i = 0; i < AHEAD + HELD; i++)
            if (tag_of(i) == tag)
                receive_one(rank, 0, tag, (int32_t)i);
}

static void begun_sends(const struct setting *setting)
{
    ranks_run(setting, begun_body, NULL);
}

// ---- Several senders, threads and tags ---------------------------------------------------------

// All others send to member 0 of a group that numbers the ranks from the last one on.
static void group_body(struct rank *rank)
{
    const uint32_t size = rank->world_size;
    uint32_t ranks[CLUSTER_MAX_WORLD];
    int32_t got[CLUSTER_MAX_WORLD] = {0};
    lockstep_group *group;
    for (uint32_t i = 0; i < size; i++)
        ranks[i] = size - 1 - i;
    RANK_OK(rank, lockstep_group_create(rank->session, ranks, size, "reversed", &group));
    const uint32_t place = size - 1 - rank->rank;
    int32_t value = 0;
    uint32_t sender = 0;
    struct lockstep_collective what =
        message(place == 0 ? LOCKSTEP_RECEIVE : LOCKSTEP_SEND, 0, 0, &value);
    what.group = group;
    for (; place != 0 && value < MESSAGES; value++)
        RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    if (place == 0)
        usleep(REST_US);
    what.peer = LOCKSTEP_ANY_SOURCE;
    what.sender = &sender;
    for (uint32_t i = 0; place == 0 && i < MESSAGES * (size - 1); i++) {
        RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
        RANK_TRUE(rank, sender > 0 && sender < size);
        RANK_EQUAL(rank, value, got[sender]++);
    }
    RANK_OK(rank, lockstep_group_close(group));
}

static void receives_from_any_source(const struct setting *setting)
{
    ranks_run(setting, group_body, NULL);
}

struct sender {
    struct rank *rank;
    uint32_t tag;
};

static void *send_all(void *context)
{
    const struct sender *sender = context;
    for (int32_t i = 0; i < MESSAGES; i++) {
        const struct lockstep_collective what = message(LOCKSTEP_SEND, 1, sender->tag, &i);
        if (lockstep_collective_run(sender->rank->session, &what, FOREVER) < 0)
            return context;
    }
    return NULL;
}

// Two threads of rank 0 are ahead. Rank 1 first receives all messages of one of them.
static void threads_body(struct rank *rank)
{
    struct sender senders[2] = {{rank, 0}, {rank, 1}};
    pthread_t threads[2];
    void *failed;
    for (uint32_t i = 0; rank->rank == 0 && i < 2; i++)
        RANK_EQUAL(rank, pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    if (rank->rank == 1)
        usleep(REST_US);
    for (uint32_t tag = 2; rank->rank == 1 && tag-- > 0;)
        for (int32_t i = 0; i < MESSAGES; i++)
            receive_one(rank, 0, tag, i);
    for (uint32_t i = 0; rank->rank == 0 && i < 2; i++) {
        RANK_EQUAL(rank, pthread_join(threads[i], &failed), 0);
        RANK_TRUE(rank, !failed);
    }
}

static void two_threads_that_send(const struct setting *setting)
{
    ranks_run(setting, threads_body, NULL);
}

// ---- How such a wait ends otherwise ------------------------------------------------------------

static void fill(struct rank *rank, uint32_t peer)
{
    for (int32_t i = 0; i < AHEAD; i++)
        send_one(rank, peer, 0, i);
}

static void count_body(struct rank *rank)
{
    int32_t values[4] = {0};
    struct lockstep_collective what =
        message(rank->rank == 0 ? LOCKSTEP_SEND : LOCKSTEP_RECEIVE, rank->rank == 0, 1, values);
    what.count = rank->rank == 0 ? 3 : 4;
    if (rank->rank == 0)
        fill(rank, 1);
    rank_meet(rank);
    if (rank->rank > 1)
        return;
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_collective_run(rank->session, &what, FOREVER));
    RANK_SAYS(rank, "receive from rank 0 with tag 1 with 4 elements");
}

static void another_count(const struct setting *setting)
{
    ranks_run(setting, count_body, NULL);
}

static void fail_to_send(struct rank *rank, int status, const char *text)
{
    int32_t value = 0;
    const struct lockstep_collective what = message(LOCKSTEP_SEND, 1, 0, &value);
    RANK_FAILS(rank, status, lockstep_collective_run(rank->session, &what, FOREVER));
    RANK_SAYS(rank, text);
}

static void closed_body(struct rank *rank)
{
    lockstep_session *session = rank->session;
    if (rank->rank == 0)
        fill(rank, 1);
    rank_meet(rank);
    if (rank->rank == 0) {
        fail_to_send(rank, LOCKSTEP_E_PEER_LOST, "rank 1");
        RANK_SAYS(rank, "closed its session while ");
    } else if (rank->rank == 1) {
        usleep(REST_US);
        rank->session = NULL;
        RANK_OK(rank, lockstep_close(session));
    }
}

static void aborted_body(struct rank *rank)
{
    if (rank->rank == 0)
        fill(rank, 1);
    rank_meet(rank);
    if (rank->rank == 0) {
        fail_to_send(rank, LOCKSTEP_E_PEER_LOST, "enough");
    } else if (rank->rank == 1) {
        usleep(REST_US);
        RANK_OK(rank, lockstep_abort(rank->session, "enough"));
    }
}

static void a_receiver_that_ends(const struct setting *setting)
{
    if (setting->transport == LOCKSTEP_TRANSPORT_LOOPBACK)
        skip(); // The test takes seconds, and loopback has the same code here as the other links.
    ranks_run(setting, closed_body, NULL);
    ranks_run(setting, aborted_body, NULL);
}

// Two ranks send more to each other than either receives meanwhile.
static void crossing_body(struct rank *rank)
{
    fill(rank, rank->rank == 0);
    int32_t value = 0;
    const struct lockstep_collective what = message(LOCKSTEP_SEND, rank->rank == 0, 0, &value);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_collective_run(rank->session, &what, FOREVER));
    RANK_SAYS(rank, "rank 0 waits in lockstep_collective_run 'ahead' (use 513, send to rank 1)");
    RANK_SAYS(rank, "rank 1 waits in lockstep_collective_run 'ahead' (use 513, send to rank 0)");
}

static void sends_that_wait_for_each_other(const struct setting *setting)
{
    if (setting->transport == LOCKSTEP_TRANSPORT_LOOPBACK)
        skip();
    ranks_run(setting, crossing_body, NULL);
}

int main(void)
{
    static const uint32_t two[] = {2, 0};
    static const struct stamp stamps[] = {
        {"blocking_sends", blocking_sends, NULL},
        {"begun_sends", begun_sends, NULL},
        {"receives_from_any_source", receives_from_any_source, NULL},
        {"two_threads_that_send", two_threads_that_send, two},
        {"another_count", another_count, NULL},
        {"a_receiver_that_ends", a_receiver_that_ends, two},
        {"sends_that_wait_for_each_other", sends_that_wait_for_each_other, two},
    };
    return stamp_run_whole("senders that are ahead", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
