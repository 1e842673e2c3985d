// SPDX-License-Identifier: Apache-2.0
//
// Conformance: receives from any source. Every message is received once, with its sender's place;
// messages that wait are taken in the order of their arrival, and those of one sender in the order
// of its sends.

#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define LARGE 66000 // Elements that are not sent before the receiver has granted them.
#define MESSAGES 3 // Of each sender.
#define NOBODY 77

static struct lockstep_collective describe(lockstep_collective_kind kind, const char *name,
                                           uint32_t peer, int32_t *memory, uint64_t count)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.kind = kind;
    what.name = name;
    what.peer = peer;
    what.dtype = LOCKSTEP_INT32;
    what.count = count;
    what.input = kind == LOCKSTEP_SEND ? memory : NULL;
    what.output = kind == LOCKSTEP_SEND ? NULL : memory;
    return what;
}

static struct lockstep_collective receive_any(const char *name, int32_t *memory, uint64_t count,
                                              uint32_t *sender)
{
    struct lockstep_collective what =
        describe(LOCKSTEP_RECEIVE, name, LOCKSTEP_ANY_SOURCE, memory, count);
    what.sender = sender;
    *sender = NOBODY;
    return what;
}

static void run(struct rank *rank, const struct lockstep_collective *what)
{
    RANK_OK(rank, lockstep_collective_run(rank->session, what, FOREVER));
}

static void send_one(struct rank *rank, const char *name, uint32_t peer, int32_t value)
{
    const struct lockstep_collective what = describe(LOCKSTEP_SEND, name, peer, &value, 1);
    run(rank, &what);
}

static int32_t receive_one(struct rank *rank, const char *name, uint32_t peer)
{
    int32_t value = -1;
    const struct lockstep_collective what = describe(LOCKSTEP_RECEIVE, name, peer, &value, 1);
    run(rank, &what);
    return value;
}

// ---- Every message once ------------------------------------------------------------------------

// Members send MESSAGES messages each to one member, which receives all of them from any source.
struct inbox {
    struct rank *rank;
    lockstep_group *group;
    uint32_t place;
    uint32_t size;
    uint32_t receiver;
    uint64_t count;
    uint32_t tag; // Of this inbox: a fast sender may already send to the next one.
    bool asynchronous; // True if all receives are begun before the first message is sent.
};

static int32_t element(uint32_t sender, uint32_t message, uint64_t index)
{
    return (int32_t)(sender * 1000 + message * 100 + index % 97);
}

static void inbox_send(const struct inbox *inbox)
{
    struct rank *rank = inbox->rank;
    lockstep_work *works[MESSAGES];
    int32_t *memory = malloc((MESSAGES * inbox->count + 1) * sizeof(*memory));
    for (uint32_t m = 0; m < MESSAGES; m++) {
        int32_t *message = memory + m * inbox->count;
        for (uint64_t e = 0; e < inbox->count; e++)
            message[e] = element(inbox->place, m, e);
        struct lockstep_collective what =
            describe(LOCKSTEP_SEND, "inbox", inbox->receiver, message, inbox->count);
        what.group = inbox->group;
        what.tag = inbox->tag;
        RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[m]));
    }
    for (uint32_t m = 0; m < MESSAGES; m++)
        RANK_OK(rank, lockstep_work_wait(works[m], FOREVER));
    free(memory);
}

// Checks the message and counts it. Messages of one sender come in the order of its sends.
static void inbox_check(const struct inbox *inbox, uint32_t sender, const int32_t *message,
                        uint32_t got[CLUSTER_MAX_WORLD])
{
    struct rank *rank = inbox->rank;
    RANK_TRUE(rank, sender < inbox->size && sender != inbox->place);
    for (uint64_t e = 0; e < inbox->count; e++)
        if (message[e] != element(sender, got[sender], e))
            rank_fail(rank, __FILE__, __LINE__,
                      "element %" PRIu64 " of message %" PRIu32 " of %" PRIu32 " is %d", e,
                      got[sender], sender, message[e]);
    got[sender]++;
}

static void inbox_receive(const struct inbox *inbox)
{
    struct rank *rank = inbox->rank;
    const uint32_t most = MESSAGES * (inbox->size - 1);
    uint32_t got[CLUSTER_MAX_WORLD] = {0};
    uint32_t *senders = calloc(most, sizeof(*senders));
    lockstep_work **works = calloc(most, sizeof(*works));
    int32_t *memory = malloc((most * inbox->count + 1) * sizeof(*memory));
    for (uint32_t i = 0; i < most; i++) {
        int32_t *message = memory + i * inbox->count;
        struct lockstep_collective what = receive_any("inbox", message, inbox->count, &senders[i]);
        what.group = inbox->group;
        what.tag = inbox->tag;
        if (inbox->asynchronous) {
            RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[i]));
            continue;
        }
        run(rank, &what);
        inbox_check(inbox, senders[i], message, got);
    }
    if (inbox->asynchronous)
        rank_meet(rank);
    for (uint32_t i = 0; inbox->asynchronous && i < most; i++) {
        RANK_OK(rank, lockstep_work_wait(works[i], FOREVER));
        inbox_check(inbox, senders[i], memory + i * inbox->count, got);
    }
    free(memory);
    free(works);
    free(senders);
}

static void inbox_run(struct inbox inbox)
{
    if (inbox.place == inbox.receiver) {
        inbox_receive(&inbox);
        return;
    }
    if (inbox.asynchronous)
        rank_meet(inbox.rank);
    inbox_send(&inbox);
}

static void inboxes_body(struct rank *rank)
{
    const uint32_t n = rank->world_size;
    // Large messages of five ranks in pieces of one byte take as long as a test may take.
    const bool slow = rank->setting->torn_bytes == 1 && n > 3;
    const uint64_t counts[] = {0, 7, slow ? 8 : LARGE};
    uint32_t turned[CLUSTER_MAX_WORLD];
    struct inbox inbox = {.rank = rank, .place = rank->rank, .size = n};
    for (uint32_t i = 0; i < n; i++)
        turned[i] = n - 1 - i;
    for (uint32_t i = 0; i < 2 * 3; i++) {
        inbox.count = counts[i % 3];
        inbox.asynchronous = i >= 3;
        inbox.tag = i;
        inbox.receiver = n - 1; // Its links to other ranks are the ones that it has to make.
        inbox_run(inbox);
        inbox.receiver = 0;
        inbox_run(inbox);
    }
    RANK_OK(rank, lockstep_group_create(rank->session, turned, n, "turned", &inbox.group));
    RANK_OK(rank, lockstep_group_world(inbox.group, &inbox.place, &inbox.size));
    inbox.count = 7;
    inbox_run(inbox);
    RANK_OK(rank, lockstep_group_close(inbox.group));
}

static void case_61_every_message_once(const struct setting *setting)
{
    ranks_run(setting, inboxes_body, NULL);
}

// ---- Which message -----------------------------------------------------------------------------

// Member `first` sends before member `second`: the receiver hears of each message by another one
// behind it on the same link.
static void arrive_in_order(struct rank *rank, uint32_t first, uint32_t second)
{
    const uint32_t order[] = {first, second};
    for (uint32_t i = 0; i < 2; i++) {
        if (rank->rank == 0) {
            send_one(rank, "go", order[i], 0);
            RANK_EQUAL(rank, receive_one(rank, "done", order[i]), 1);
        } else if (rank->rank == order[i]) {
            (void)receive_one(rank, "go", 0);
            send_one(rank, "x", 0, (int32_t)rank->rank);
            send_one(rank, "done", 0, 1);
        }
    }
    for (uint32_t i = 0; rank->rank == 0 && i < 2; i++) {
        uint32_t sender;
        int32_t value = -1;
        const struct lockstep_collective what = receive_any("x", &value, 1, &sender);
        run(rank, &what);
        RANK_EQUAL(rank, sender, order[i]);
        RANK_EQUAL(rank, value, order[i]);
    }
}

static void arrival_body(struct rank *rank)
{
    arrive_in_order(rank, 1, 2);
    arrive_in_order(rank, 2, 1);
}

static void case_61_in_the_order_of_arrival(const struct setting *setting)
{
    ranks_run(setting, arrival_body, NULL);
}

// A named receive has claimed the next message of rank 1, although one from any source was begun
// before. A receive with another tag or name takes neither.
static void named_body(struct rank *rank)
{
    int32_t values[3] = {-1, -1, -1};
    uint32_t senders[3];
    lockstep_work *works[3];
    if (rank->rank == 0) {
        struct lockstep_collective what[] = {receive_any("x", &values[0], 1, &senders[0]),
                                             receive_any("x", &values[1], 1, &senders[1]),
                                             receive_any("x", &values[2], 1, &senders[2])};
        what[0].tag = 9;
        what[2].peer = 1;
        for (uint32_t i = 0; i < 3; i++)
            RANK_OK(rank, lockstep_collective_begin(rank->session, &what[i], &works[i]));
        RANK_EQUAL(rank, senders[2], 1);
    }
    RANK_OK(rank, lockstep_barrier(rank->session, "begun", FOREVER));
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_work_wait(works[2], FOREVER));
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(works[1], 0));
        send_one(rank, "go", 2, 0);
        RANK_OK(rank, lockstep_work_wait(works[1], FOREVER));
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(works[0], 0));
        send_one(rank, "go", 1, 0);
        RANK_OK(rank, lockstep_work_wait(works[0], FOREVER));
        for (uint32_t i = 0; i < 3; i++)
            RANK_EQUAL(rank, values[i], (i == 0 ? 100 : 0) + (int32_t)senders[i]);
        RANK_EQUAL(rank, senders[0], 1);
        RANK_EQUAL(rank, senders[1], 2);
    } else if (rank->rank == 1) {
        send_one(rank, "x", 0, 1);
        (void)receive_one(rank, "go", 0);
        int32_t tagged = 101;
        struct lockstep_collective what = describe(LOCKSTEP_SEND, "x", 0, &tagged, 1);
        what.tag = 9;
        run(rank, &what);
    } else {
        (void)receive_one(rank, "go", 0);
        send_one(rank, "x", 0, 2);
    }
}

static void case_61_a_named_receive_goes_first(const struct setting *setting)
{
    ranks_run(setting, named_body, NULL);
}

#define BULK (4u << 20) // Elements that keep the link busy.
#define ROUNDS 20

// While much is on its way, a small message waits for the link, and the announcement of the large
// one behind it does not. The small one still comes first.
static void overtaken_body(struct rank *rank)
{
    const lockstep_collective_kind kind = rank->rank == 0 ? LOCKSTEP_RECEIVE : LOCKSTEP_SEND;
    int32_t *memory = calloc(BULK + 2 * LARGE, sizeof(*memory));
    uint32_t sender;
    lockstep_work *bulk = NULL;
    struct lockstep_collective what = describe(kind, "bulk", 1 - rank->rank, memory, BULK);
    if (rank->rank < 2)
        RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &bulk));
    for (uint32_t i = 0; rank->rank < 2 && i < ROUNDS; i++) {
        static const uint64_t counts[] = {1, LARGE};
        lockstep_work *works[2];
        for (uint32_t k = 0; k < 2; k++) {
            what = receive_any("x", memory + BULK + k * LARGE, counts[k], &sender);
            if (rank->rank == 1)
                what = describe(LOCKSTEP_SEND, "x", 0, memory + BULK + k * LARGE, counts[k]);
            RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[k]));
        }
        for (uint32_t k = 0; k < 2; k++)
            RANK_OK(rank, lockstep_work_wait(works[k], FOREVER));
    }
    if (bulk)
        RANK_OK(rank, lockstep_work_wait(bulk, FOREVER));
    free(memory);
}

static void case_61_small_before_large(const struct setting *setting)
{
    if (setting->torn_bytes != 0)
        skip(); // It takes too long.
    ranks_run(setting, overtaken_body, NULL);
}

// ---- Members that disagree ---------------------------------------------------------------------

struct odd {
    uint64_t sent;
    uint64_t awaited;
    lockstep_dtype dtype; // Of the receive.
    const char *both[2]; // Calls that every text has; NULL: none, the send was complete.
};

static void odd_body(struct rank *rank)
{
    const struct odd *odd = rank->context;
    int32_t *memory = calloc(LARGE + 1, sizeof(*memory));
    uint32_t sender;
    int status = 0;
    rank_meet(rank); // The third rank has opened its session when the others fail.
    if (rank->rank == 1) {
        const struct lockstep_collective what =
            describe(LOCKSTEP_SEND, "odd", 0, memory, odd->sent);
        status = RANK_CALL(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    } else if (rank->rank == 0) {
        struct lockstep_collective what = receive_any("odd", memory, odd->awaited, &sender);
        what.dtype = odd->dtype;
        status = RANK_CALL(rank, lockstep_collective_run(rank->session, &what, FOREVER));
        RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    }
    if (status == 0)
        status = RANK_CALL(rank, lockstep_barrier(rank->session, "next", FOREVER));
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "'odd'");
    for (uint32_t i = 0; i < 2 && odd->both[i]; i++)
        RANK_SAYS(rank, odd->both[i]);
    free(memory);
}

static void case_61_another_count_or_dtype(const struct setting *setting)
{
    struct odd odds[] = {
        {3, 4, LOCKSTEP_INT32, {NULL, NULL}},
        {3, 3, LOCKSTEP_FLOAT32, {NULL, NULL}},
        {LARGE,
         LARGE + 1,
         LOCKSTEP_INT32,
         {"rank 0 (host ", "receive from rank 1 with 66001 elements of int32"}},
        {LARGE, 1, LOCKSTEP_INT32, {"send to rank 0 with 66000 elements of int32", NULL}},
    };
    for (size_t i = 0; i < sizeof(odds) / sizeof(odds[0]); i++)
        ranks_run(setting, odd_body, &odds[i]);
}

static void refused(struct rank *rank, const struct lockstep_collective *what, const char *text)
{
    lockstep_work *work;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_collective_run(rank->session, what, FOREVER));
    RANK_SAYS(rank, text);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_collective_begin(rank->session, what, &work));
    RANK_SAYS(rank, text);
}

static void refused_body(struct rank *rank)
{
    int32_t value = 0;
    uint32_t sender;
    lockstep_group *group;
    lockstep_work *work;
    struct lockstep_collective what = describe(LOCKSTEP_SEND, "x", LOCKSTEP_ANY_SOURCE, &value, 1);
    refused(rank, &what, "LOCKSTEP_ANY_SOURCE is for receives; name the peer");
    what = receive_any("x", &value, 1, &sender);
    what.struct_bytes = offsetof(struct lockstep_collective, sender) - 1;
    refused(rank, &what, "begin with LOCKSTEP_COLLECTIVE_INIT");
    what.struct_bytes = sizeof(what) + 1;
    refused(rank, &what, "begin with LOCKSTEP_COLLECTIVE_INIT");
    RANK_OK(rank, lockstep_group_create(rank->session, &rank->rank, 1, "alone", &group));
    what = receive_any("x", &value, 1, &sender);
    what.group = group;
    refused(rank, &what, "there is no other member to receive from");
    RANK_OK(rank, lockstep_group_close(group));
    if (rank->rank == 0) {
        what = receive_any("late", &value, 1, &sender);
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT,
                   lockstep_collective_wait(rank->session, &what, 1, &work));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_broadcast(rank->session, "b", &value, 1, LOCKSTEP_INT32, 0, FOREVER));
        RANK_SAYS(rank, "'late'"); // The memory is borrowed.
    }
    RANK_OK(rank, lockstep_barrier(rank->session, "asked", FOREVER));
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_work_wait(work, FOREVER));
        RANK_EQUAL(rank, sender, 1);
        RANK_EQUAL(rank, value, 4);
    } else if (rank->rank == 1) {
        send_one(rank, "late", 0, 4);
    }
    // A description of an older header has no sender.
    what = receive_any("old", &value, 1, &sender);
    what.struct_bytes = offsetof(struct lockstep_collective, sender);
    if (rank->rank == 0)
        run(rank, &what);
    else if (rank->rank == 1)
        send_one(rank, "old", 0, 5);
    RANK_EQUAL(rank, sender, NOBODY);
}

static void calls_that_are_refused(const struct setting *setting)
{
    ranks_run(setting, refused_body, NULL);
}

// ---- Names -------------------------------------------------------------------------------------

#define NAMES 4096

static void use_names(struct rank *rank, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        char name[16];
        int32_t value = 0;
        snprintf(name, sizeof(name), "n%" PRIu32, i);
        RANK_OK(rank, lockstep_allreduce(rank->session, name, &value, 1, LOCKSTEP_INT32,
                                         LOCKSTEP_SUM, FOREVER));
    }
}

// A receive from any source keeps room for the name that its message will need.
static void names_body(struct rank *rank)
{
    int32_t value = 0;
    uint32_t sender;
    lockstep_work *work;
    const struct lockstep_collective any = receive_any("any", &value, 1, &sender);
    const struct lockstep_collective more = receive_any("more", &value, 1, &sender);
    use_names(rank, 0, NAMES - 4);
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_collective_begin(rank->session, &any, &work));
    use_names(rank, NAMES - 4, NAMES - 2);
    if (rank->rank == 0) {
        int32_t other;
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_allreduce(rank->session, "one more", &other, 1, LOCKSTEP_INT32,
                                      LOCKSTEP_SUM, FOREVER));
        RANK_SAYS(rank, "at most 4096 different names");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_collective_run(rank->session, &more, FOREVER));
    }
    RANK_OK(rank, lockstep_barrier(rank->session, "n0", FOREVER));
    if (rank->rank == 1)
        send_one(rank, "any", 0, 6);
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_work_wait(work, FOREVER));
        RANK_EQUAL(rank, value, 6);
    }
    // The library has room for its own names.
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_state_check(rank->session));
}

static void case_61_room_for_names(const struct setting *setting)
{
    if (setting->transport != LOCKSTEP_TRANSPORT_AUTO)
        skip(); // Thousands of collectives take longer over other links, and show nothing more.
    ranks_run(setting, names_body, NULL);
}

// ---- Ranks that end ----------------------------------------------------------------------------

static void leave(struct rank *rank)
{
    lockstep_session *session = rank->session;
    rank->session = NULL;
    RANK_OK(rank, lockstep_close(session));
}

// Of two members that can send, one leaves, then the other one sends, and leaves, too.
static void leavers_body(struct rank *rank)
{
    int32_t value = 0;
    uint32_t sender;
    const struct lockstep_collective what = receive_any("x", &value, 1, &sender);
    RANK_OK(rank, lockstep_barrier(rank->session, "begin", FOREVER));
    if (rank->rank == 2)
        leave(rank);
    rank_meet(rank);
    if (rank->rank == 0) {
        run(rank, &what);
        RANK_EQUAL(rank, sender, 1);
        RANK_EQUAL(rank, value, 8);
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST,
                   lockstep_collective_run(rank->session, &what, FOREVER));
        RANK_SAYS(rank, "closed its session while ");
    } else if (rank->rank == 1) {
        send_one(rank, "x", 0, 8);
        leave(rank);
    }
}

static void members_that_leave(const struct setting *setting)
{
    if (setting->transport == LOCKSTEP_TRANSPORT_LOOPBACK)
        skip(); // It waits for seconds, and shows the same as over the other links.
    ranks_run(setting, leavers_body, NULL);
}

static void *abort_late(void *context)
{
    struct rank *rank = context;
    rank_meet(rank);
    (void)lockstep_abort(rank->session, "enough");
    return NULL;
}

// A session is aborted while its receive waits, which it shares with a rank that only waits.
static void abort_body(struct rank *rank)
{
    int32_t values[2];
    uint32_t senders[2];
    lockstep_work *work;
    pthread_t thread;
    const struct lockstep_collective first = receive_any("x", &values[0], 1, &senders[0]);
    const struct lockstep_collective what = receive_any("x", &values[1], 1, &senders[1]);
    RANK_OK(rank, lockstep_collective_begin(rank->session, &first, &work));
    if (rank->rank != 0) {
        rank_meet(rank);
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST,
                   lockstep_collective_run(rank->session, &what, FOREVER));
        RANK_SAYS(rank, "enough");
        return;
    }
    RANK_EQUAL(rank, pthread_create(&thread, NULL, abort_late, rank), 0);
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_collective_run(rank->session, &what, FOREVER));
    RANK_EQUAL(rank, pthread_join(thread, NULL), 0);
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_work_wait(work, FOREVER));
}

static void an_abort_while_receives_wait(const struct setting *setting)
{
    ranks_run(setting, abort_body, NULL);
}

int main(void)
{
    static const uint32_t inboxes[] = {2, 3, 5, 0};
    static const uint32_t three[] = {3, 0};
    static const struct stamp stamps[] = {
        {"case_61_every_message_once", case_61_every_message_once, inboxes},
        {"case_61_in_the_order_of_arrival", case_61_in_the_order_of_arrival, three},
        {"case_61_a_named_receive_goes_first", case_61_a_named_receive_goes_first, three},
        {"case_61_small_before_large", case_61_small_before_large, three},
        {"case_61_another_count_or_dtype", case_61_another_count_or_dtype, three},
        {"case_61_room_for_names", case_61_room_for_names, three},
        {"calls_that_are_refused", calls_that_are_refused, three},
        {"members_that_leave", members_that_leave, three},
        {"an_abort_while_receives_wait", an_abort_while_receives_wait, three},
    };
    return stamp_run("any source", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
