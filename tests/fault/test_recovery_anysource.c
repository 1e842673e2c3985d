// SPDX-License-Identifier: Apache-2.0
//
// Receives from any source that a death finds waiting, or that begin while the survivors recover.
// They get the messages in the order in which they were begun, each message once, and no survivor
// counts as gone. Real processes: rank 0 sends, rank 2 is killed, and rank 3 receives.

#include "tests/fault/kinds_job.h"
#include "tests/fault/process_world.h"

#include "tests/support/sends.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    RANKS = KINDS_RANKS,
    SENDER = 0,
    BESIDE = 1, // It has its frames of the accord from the sender, and sends to the receiver.
    DEAD = 2,
    RECEIVER = 3, // The coordinator tells it last of the death.
    EARLY = 4, // Messages before the death, whose receives are waited for after it.
    WAITING = 2, // Receives from any source that wait when the rank dies.
    MESSAGES = WAITING + 2, // Sent after the death.
    LATE_US = 20000,
    LARGE = 8 * 1024 * 1024, // Elements of a message that is on its way when a rank dies.
};

// What happens beside the death.
struct plot {
    const char *transport;
    bool slow; // Each frame of BESIDE is late: the receiver is the last one that ends the accord.
    bool names; // True if it is about the number of a receive's sender.
    bool hears; // True if the trainer hears of the death before it waits for that receive.
    int second; // BESIDE dies at this of its frames, the first being 0; -1: it lives.
};

static const struct plot *plot;
static char (*told)[512]; // [RANKS]: why a rank has failed.
static struct coordinator_process coordinator;
static pid_t pids[RANKS]; // 0: it has ended.
static atomic_bool late; // True if this rank is BESIDE, from the death on.

static void before_send(int fd)
{
    if (!atomic_load(&late) || send_port(fd) == coordinator.port)
        return;
    if (sends_over())
        kill(getpid(), SIGKILL);
    if (plot->slow)
        pause_us(LATE_US);
}

// ---- The trainer --------------------------------------------------------------------------------

struct trainer {
    uint32_t id; // This rank's number in the first world.
    lockstep_session *session;
    lockstep_group *group; // Of all but DEAD, which could be the source otherwise.
};

static void expect(const struct trainer *trainer, bool right, const char *what)
{
    if (right)
        return;
    snprintf(told[trainer->id], sizeof(told[0]), "%s: %s", what, lockstep_error_text());
    _exit(1);
}

// The sender is the first member of the group, and the receiver the last one.
static lockstep_work *begin(const struct trainer *trainer, const char *name, uint32_t source,
                            int32_t *value, uint32_t *sender)
{
    const bool sends = trainer->id == SENDER;
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    lockstep_work *work = NULL;
    int status = LOCKSTEP_E_CHANGED;
    what.kind = sends ? LOCKSTEP_SEND : LOCKSTEP_RECEIVE;
    what.group = trainer->group;
    what.name = name;
    what.dtype = LOCKSTEP_INT32;
    what.count = 1;
    what.input = what.output = value;
    what.sender = sender;
    while (status == LOCKSTEP_E_CHANGED) {
        uint32_t own = 0;
        uint32_t size = 0;
        (void)lockstep_world_change(trainer->session, &change);
        expect(trainer, lockstep_group_world(trainer->group, &own, &size) == 0, "group_world");
        what.peer = sends ? size - 1 : source;
        status = lockstep_collective_begin(trainer->session, &what, &work);
    }
    expect(trainer, status == 0, "a message cannot begin");
    return work;
}

static void end(const struct trainer *trainer, lockstep_work *work)
{
    expect(trainer, lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER) == 0, "a message fails");
}

static void meet(const struct trainer *trainer)
{
    int status = LOCKSTEP_E_CHANGED;
    while (status == LOCKSTEP_E_CHANGED)
        status = lockstep_barrier(trainer->session, "meet", LOCKSTEP_WAIT_FOREVER);
    expect(trainer, status == 0, "barrier");
}

static void await_change(const struct trainer *trainer)
{
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    while (change.changes == 0)
        expect(trainer, lockstep_world_change(trainer->session, &change) == 0, "world_change");
}

static void end_early(const struct trainer *trainer, lockstep_work *const works[EARLY])
{
    for (uint32_t i = 0; i < EARLY; i++)
        end(trainer, works[i]);
}

// Waits for a receive. Returns 1 if it has the message with this number, and 0 if a death has ended
// it without one.
static int32_t take(const struct trainer *trainer, lockstep_work *work, const int32_t *value,
                    int32_t number)
{
    char text[64];
    const int status = lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER);
    if (status == LOCKSTEP_E_CHANGED && plot->second >= 0)
        return 0;
    expect(trainer, status == 0, "a receive fails");
    snprintf(text, sizeof(text), "message %d comes instead of %d", *value, number);
    expect(trainer, *value == number, text);
    return 1;
}

// The last receive reuses what the early ones have freed, so its entry is before that of the
// receive that was begun before it. BESIDE is a possible source, too, so its death ends receives.
static void receive(const struct trainer *trainer, lockstep_work *const early[EARLY])
{
    lockstep_work *works[MESSAGES];
    int32_t values[MESSAGES] = {-1, -1, -1, -1};
    uint32_t sender = 0;
    int32_t number = 0;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        if (i == WAITING) {
            meet(trainer);
            await_change(trainer);
        }
        if (i == WAITING + 1)
            end_early(trainer, early);
        works[i] = begin(trainer, "any", LOCKSTEP_ANY_SOURCE, &values[i], &sender);
    }
    for (uint32_t i = 0; i < MESSAGES; i++)
        number += take(trainer, works[i], &values[i], number);
    while (number < MESSAGES) {
        works[0] = begin(trainer, "any", LOCKSTEP_ANY_SOURCE, &values[0], &sender);
        number += take(trainer, works[0], &values[0], number);
    }
    expect(trainer, sender == 0, "a wrong sender");
}

static void send_all(const struct trainer *trainer, lockstep_work *const early[EARLY])
{
    lockstep_work *works[MESSAGES];
    int32_t values[MESSAGES];
    meet(trainer);
    await_change(trainer);
    for (int32_t i = 0; i < MESSAGES; i++) {
        values[i] = i;
        works[i] = begin(trainer, "any", 0, &values[i], NULL);
    }
    for (uint32_t i = 0; i < MESSAGES; i++)
        end(trainer, works[i]);
    end_early(trainer, early);
}

static void exchange(const struct trainer *trainer)
{
    lockstep_work *early[EARLY];
    int32_t values[EARLY] = {0};
    for (uint32_t i = 0; i < EARLY; i++)
        early[i] = begin(trainer, "early", 0, &values[i], NULL);
    if (trainer->id == RECEIVER)
        receive(trainer, early);
    else
        send_all(trainer, early);
}

// BESIDE dies when the receive has its message, which is still on its way from DEAD. The trainer
// may hear of that before it waits for the receive.
static uint32_t receive_named(const struct trainer *trainer, struct lockstep_collective *what)
{
    _Atomic(uint32_t) *sender = calloc(1, sizeof(*sender));
    lockstep_work *work = NULL;
    expect(trainer, sender, "memory");
    what->peer = LOCKSTEP_ANY_SOURCE;
    what->sender = (uint32_t *)(void *)sender;
    expect(trainer, lockstep_collective_begin(trainer->session, what, &work) == 0, "begin");
    while (atomic_load(sender) == LOCKSTEP_ANY_SOURCE)
        pause_us(1000);
    kill(pids[BESIDE], SIGKILL);
    if (plot->hears)
        await_change(trainer);
    end(trainer, work);
    const uint32_t named = atomic_load(sender);
    free((void *)sender);
    return named;
}

// DEAD lives here, and is the sender: the numbers are those of the enumeration, of all ranks.
__attribute__((noreturn)) static void name_the_sender(const struct trainer *trainer)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.name = "large";
    what.dtype = LOCKSTEP_INT32;
    what.count = LARGE;
    what.input = what.output = calloc(LARGE, sizeof(int32_t));
    expect(trainer, what.input, "memory");
    meet(trainer);
    while (trainer->id == BESIDE)
        pause_us(LATE_US);
    atomic_store(&late, trainer->id == DEAD);
    if (trainer->id == DEAD) {
        what.kind = LOCKSTEP_SEND;
        what.peer = RECEIVER;
        expect(trainer,
               lockstep_collective_run(trainer->session, &what, LOCKSTEP_WAIT_FOREVER) == 0,
               "send");
    } else if (trainer->id == RECEIVER) {
        what.kind = LOCKSTEP_RECEIVE;
        const uint32_t named = receive_named(trainer, &what);
        expect(trainer, named == (plot->hears ? DEAD - 1u : DEAD), "a wrong sender");
    }
    meet(trainer);
    expect(trainer, lockstep_close(trainer->session) == 0, "close");
    _exit(0);
}

__attribute__((noreturn)) static void train(uint32_t id)
{
    static const uint32_t members[] = {SENDER, BESIDE, RECEIVER};
    struct trainer trainer = {.id = id};
    expect(&trainer,
           kinds_open(&trainer.session, id, coordinator.port, plot->transport, "none") == 0,
           "open");
    if (plot->names)
        name_the_sender(&trainer);
    if (id != DEAD)
        expect(&trainer,
               lockstep_group_create(trainer.session, members, 3, "living", &trainer.group) == 0,
               "group_create");
    if (id == SENDER || id == RECEIVER) {
        exchange(&trainer);
    } else {
        meet(&trainer);
        if (id == DEAD) {
            pause_us(LATE_US);
            kill(getpid(), SIGKILL);
        }
        atomic_store(&sends_left, plot->second);
        atomic_store(&late, true);
    }
    meet(&trainer);
    expect(&trainer, lockstep_close(trainer.session) == 0, "close");
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static void play(const struct plot *chosen)
{
    plot = chosen;
    memset(told, 0, RANKS * sizeof(*told));
    coordinator_start(&coordinator, NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            train(r);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        const bool ended = process_reap(pids[r], WAIT_MS, &status);
        pids[r] = ended ? 0 : pids[r];
        const bool may_die = r == DEAD || (r == BESIDE && (plot->second >= 0 || plot->names));
        if (ended && (status == 0 || (may_die && status == SIGKILL)))
            continue;
        fail_msg("%s, slow %d, second %d: rank %u ends with 0x%x: %s", plot->transport, plot->slow,
                 plot->second, r, (unsigned)status, told[r]);
    }
    coordinator_stop(&coordinator);
}

static void messages_come_in_order(void **state)
{
    static const struct plot plots[] = {
        {.transport = "auto", .second = -1},
        {.transport = "tcp", .second = -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(plots) / sizeof(plots[0]); i++)
        play(&plots[i]);
}

// Messages are there before the receiver knows that it may launch its receives.
static void messages_may_come_early(void **state)
{
    (void)state;
    play(&(struct plot){.transport = "tcp", .slow = true, .second = -1});
}

static void a_frozen_sender_has_not_left(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++)
        play(&(struct plot){.transport = i % 2 == 0 ? "tcp" : "auto", .second = -1});
}

static void a_second_death(void **state)
{
    (void)state;
    for (int frame = 0; frame < 16; frame += 3)
        play(&(struct plot){.transport = "tcp", .slow = true, .second = frame});
}

static void the_trainer_knows_the_number_of_the_sender(void **state)
{
    (void)state;
    for (int hears = 0; hears < 2; hears++)
        play(&(struct plot){
            .transport = "tcp", .slow = true, .names = true, .hears = hears == 1, .second = -1});
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        if (pids[r] > 0)
            kill(pids[r], SIGKILL);
    if (coordinator.pid > 0)
        kill(coordinator.pid, SIGKILL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(messages_come_in_order, teardown),
        cmocka_unit_test_teardown(messages_may_come_early, teardown),
        cmocka_unit_test_teardown(a_frozen_sender_has_not_left, teardown),
        cmocka_unit_test_teardown(a_second_death, teardown),
        cmocka_unit_test_teardown(the_trainer_knows_the_number_of_the_sender, teardown),
    };
    told = mmap(NULL, RANKS * sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                0);
    if (told == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
