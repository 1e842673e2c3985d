// SPDX-License-Identifier: Apache-2.0
//
// Collectives of every kind, out of place and of groups, sends and receives, in jobs whose
// survivors go on (config.on_failure continue). Real processes, of which some die at a frame that
// they are about to send, or soon after a collective has begun.
//
//     collectives     end with the same status on every survivor, OK or LOCKSTEP_E_CHANGED; after
//                     OK every element is right, after E_CHANGED an input that is no output, too
//     sends, receives are done between any two ranks that live; a rank gets E_CHANGED only if the
//                     other one is gone
//     groups          have the members that are left, in their order
//
// In two of three jobs all ranks, or some of them, have a device: a stand-in (tests/fake_gpu) that
// says that all memory is its own.
//
// LOCKSTEP_TEST_FAULT_ROUNDS jobs (3), chosen by LOCKSTEP_TEST_FAULT_SEED, which is printed. With
// LOCKSTEP_TEST_LONG_CUT, a rank dies at each of the first frames of each collective.

#include "tests/fault/kinds_job.h"
#include "tests/fault/process_world.h"

#include "tests/support/choice.h"
#include "tests/support/fake_gpu.h"
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
    TURNS = 8,
    LAST_DEATH = 5, // No rank dies in a later turn.
    ENTRIES = 4000,
    FRAMES = 16,
};

struct entry {
    uint32_t turn;
    enum operation operation;
    int status;
};

// What a rank tells the test.
struct told {
    _Atomic(int) failed;
    // The rank dies in this turn, with this operation. By frames: when it is about to send that
    // frame; otherwise so many microseconds after the operation has begun.
    uint32_t dies_at;
    enum operation dies_in;
    bool dies_by_frames;
    bool dies_awaited; // True: it dies when a receive from any source waits only for this rank.
    uint32_t dies_after;
    _Atomic(uint32_t) awaited; // Set of ranks for which a receive from any source waits.
    uint32_t turn;
    enum operation operation;
    uint32_t count;
    uint32_t changed; // Collectives that ended with LOCKSTEP_E_CHANGED.
    uint32_t parted; // Sends and receives whose other rank was gone.
    uint32_t renumbered;
    char text[512];
    struct entry log[ENTRIES];
};

static struct told *told_of; // [RANKS]
static struct coordinator_process coordinator;
static const char *const transports[] = {"auto", "tcp"};
static const uint32_t worlds[] = {0, 15, 5}; // Sets of ranks with a device.

// ---- Dying --------------------------------------------------------------------------------------

static void before_send(int fd)
{
    (void)fd;
    if (sends_over())
        kill(getpid(), SIGKILL);
}

// ---- The trainer --------------------------------------------------------------------------------

struct trainer {
    struct told *told;
    uint32_t id; // This rank's number in the first world, as all below.
    uint32_t ids[RANKS]; // [count]: the ranks that live, as far as this one knows.
    uint32_t count;
    uint64_t changes;
    uint32_t turn;
    lockstep_session *session;
    lockstep_group *group; // Of the ranks 3, 0 and 2.
    lockstep_group *all; // Of all ranks, in the opposite order.
    uint32_t members[RANKS]; // [member_count]: of `all`.
    uint32_t member_count;
    int32_t *input; // [KINDS_RANKS * KINDS_MOST]
    int32_t *output; // [KINDS_RANKS * KINDS_MOST]
};

static void expect(const struct trainer *trainer, bool right, const char *what)
{
    struct told *told = trainer->told;
    if (right)
        return;
    snprintf(told->text, sizeof(told->text), "turn %u, operation %d: %s: %s", told->turn,
             (int)told->operation, what, lockstep_error_text());
    atomic_store(&told->failed, -99);
    _exit(1);
}

static void learn(struct trainer *trainer)
{
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    expect(trainer, lockstep_world_change(trainer->session, &change) == 0, "world_change");
    trainer->changes = change.changes;
    trainer->count = 0;
    for (uint32_t id = 0; id < RANKS; id++) {
        bool lost = false;
        for (uint32_t i = 0; i < change.lost_count; i++)
            lost = lost || change.lost[i] == id;
        if (!lost)
            trainer->ids[trainer->count++] = id;
    }
    expect(trainer, change.changes == 0 || change.world_size == trainer->count, "world_size");
}

// The number that a rank has now; RANKS: it is gone.
static uint32_t number_of(const struct trainer *trainer, uint32_t id)
{
    for (uint32_t i = 0; i < trainer->count; i++)
        if (trainer->ids[i] == id)
            return i;
    return RANKS;
}

// The text of another error may repeat what a dead rank was told.
static bool renumbered(const struct trainer *trainer, int status)
{
    static const char begin[] = "ranks may have other numbers";
    if (status != LOCKSTEP_E_CHANGED ||
        strncmp(lockstep_error_text(), begin, sizeof(begin) - 1) != 0)
        return false;
    trainer->told->renumbered++;
    return true;
}

static void note(struct trainer *trainer, enum operation operation, int status)
{
    struct told *told = trainer->told;
    expect(trainer, status == 0 || status == LOCKSTEP_E_CHANGED, "a collective fails");
    expect(trainer, told->count < ENTRIES, "too many entries");
    told->changed += status != 0;
    told->log[told->count++] =
        (struct entry){.turn = trainer->turn, .operation = operation, .status = status};
}

// The rank dies in this operation.
static bool dies(const struct trainer *trainer, enum operation operation)
{
    return trainer->told->dies_at == trainer->turn && trainer->told->dies_in == operation;
}

static void arm(const struct trainer *trainer, enum operation operation)
{
    if (dies(trainer, operation) && trainer->told->dies_by_frames)
        atomic_store(&sends_left, (int)trainer->told->dies_after);
}

static void die(const struct trainer *trainer, enum operation operation)
{
    if (!dies(trainer, operation))
        return;
    if (!trainer->told->dies_by_frames)
        pause_us(trainer->told->dies_after);
    kill(getpid(), SIGKILL);
}

// ---- Collectives --------------------------------------------------------------------------------

static void choose_members(const struct trainer *trainer, struct kinds_job *job)
{
    static const uint32_t three[] = {3, 0, 2};
    const bool group = job->operation == GROUP_GATHER || job->operation == GROUP_COPY;
    const bool all = job->operation == GROUP_SUM;
    const uint32_t *from = group ? three : all ? trainer->members : trainer->ids;
    const uint32_t most = group ? 3 : all ? trainer->member_count : trainer->count;
    for (uint32_t i = 0; i < most; i++) {
        if (number_of(trainer, from[i]) == RANKS)
            continue;
        if (from[i] == trainer->id)
            job->own = job->n;
        job->members[job->n++] = from[i];
    }
    job->group = group ? trainer->group : all ? trainer->all : NULL;
}

// A sum names no ranks: it may be one over the ranks that are left, before this rank has heard of a
// death. True if it is right for some of the members.
static bool right(const struct kinds_job *job)
{
    struct kinds_job some = *job;
    if (job->what.kind != LOCKSTEP_ALLREDUCE)
        return kinds_right(job);
    for (uint32_t set = 1; set < 1u << job->n; set++) {
        some.n = 0;
        for (uint32_t i = 0; i < job->n; i++)
            if ((set >> i & 1) != 0)
                some.members[some.n++] = job->members[i];
        if ((set >> job->own & 1) != 0 && kinds_right(&some))
            return true;
    }
    return false;
}

// Makes the collective once. Returns its status.
static int attempt(struct trainer *trainer, struct kinds_job *job)
{
    lockstep_work *work;
    choose_members(trainer, job);
    kinds_lay(job);
    arm(trainer, job->operation);
    int status = lockstep_collective_begin(trainer->session, &job->what, &work);
    const bool begun = status == 0;
    if (begun && !trainer->told->dies_by_frames)
        die(trainer, job->operation);
    if (begun)
        status = lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER);
    if (begun || !renumbered(trainer, status))
        note(trainer, job->operation, status);
    expect(trainer, status != 0 || right(job), "a wrong element");
    expect(trainer, kinds_untouched(job), "an input is written");
    return status;
}

static void collective(struct trainer *trainer, enum operation operation)
{
    int status;
    do {
        struct kinds_job job = {.operation = operation,
                                .turn = trainer->turn,
                                .id = trainer->id,
                                .input = trainer->input,
                                .output = trainer->output};
        status = attempt(trainer, &job);
        if (status != 0)
            learn(trainer);
    } while (status != 0);
    die(trainer, operation);
}

// ---- Groups -------------------------------------------------------------------------------------

static void create(struct trainer *trainer, const uint32_t *ids, uint32_t count, const char *name,
                   lockstep_group **group)
{
    int status;
    do {
        uint32_t ranks[RANKS];
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++)
            if (number_of(trainer, ids[i]) != RANKS)
                ranks[n++] = number_of(trainer, ids[i]);
        status = lockstep_group_create(trainer->session, ranks, n, name, group);
        if (status == LOCKSTEP_E_CHANGED)
            learn(trainer);
        expect(trainer, status == 0 || status == LOCKSTEP_E_CHANGED, "group_create");
    } while (status != 0);
}

// Of all ranks that live, the highest first. All ranks agree on them, because they meet.
static void create_all(struct trainer *trainer)
{
    if (trainer->all)
        expect(trainer, lockstep_group_close(trainer->all) == 0, "group_close");
    static const uint32_t down[] = {3, 2, 1, 0};
    create(trainer, down, RANKS, "all", &trainer->all);
    trainer->member_count = 0;
    for (uint32_t i = 0; i < RANKS; i++)
        if (number_of(trainer, down[i]) != RANKS)
            trainer->members[trainer->member_count++] = down[i];
}

static void check_group(struct trainer *trainer)
{
    const uint64_t changes = trainer->changes;
    struct kinds_job job = {.operation = GROUP_GATHER};
    uint32_t rank;
    uint32_t size;
    choose_members(trainer, &job);
    expect(trainer, lockstep_group_world(trainer->group, &rank, &size) == 0, "group_world");
    learn(trainer);
    expect(trainer, trainer->changes != changes || (rank == job.own && size == job.n),
           "a wrong place in the group");
}

// ---- Sends and receives -------------------------------------------------------------------------

struct message {
    struct lockstep_collective what;
    uint32_t peer; // Its number in the first world.
    bool gone;
    lockstep_work *work;
    int32_t *data;
};

// Begins it, unless the other rank is known to be gone.
static void begin_message(struct trainer *trainer, struct message *message)
{
    int status = LOCKSTEP_E_CHANGED;
    while (status != 0) {
        const uint32_t number = number_of(trainer, message->peer);
        message->gone = number == RANKS;
        if (message->gone)
            return;
        message->what.peer = number;
        status = lockstep_collective_begin(trainer->session, &message->what, &message->work);
        expect(trainer, status == 0 || renumbered(trainer, status), "a message cannot begin");
        if (status != 0)
            learn(trainer);
    }
}

static void end_message(struct trainer *trainer, struct message *message)
{
    const bool sends = message->what.kind == LOCKSTEP_SEND;
    if (message->gone)
        return;
    const int status = lockstep_work_wait(message->work, LOCKSTEP_WAIT_FOREVER);
    expect(trainer, status == 0 || status == LOCKSTEP_E_CHANGED, "a message fails");
    for (uint64_t e = 0; status == 0 && e < message->what.count; e++)
        expect(trainer,
               message->data[e] == kinds_value(sends ? trainer->id : message->peer,
                                               sends ? message->peer : trainer->id, trainer->turn,
                                               e),
               "a wrong message");
    if (status == 0)
        return;
    learn(trainer);
    trainer->told->parted++;
    expect(trainer, number_of(trainer, message->peer) == RANKS, "a message to a living rank");
}

static struct message message_of(struct trainer *trainer, bool sends, uint32_t peer, int32_t *data)
{
    struct message message = {.peer = peer, .data = data};
    message.what = (struct lockstep_collective)LOCKSTEP_COLLECTIVE_INIT;
    message.what.kind = sends ? LOCKSTEP_SEND : LOCKSTEP_RECEIVE;
    message.what.name = "message";
    message.what.dtype = LOCKSTEP_INT32;
    message.what.count = trainer->turn % 3 == 0 ? KINDS_MOST : 100;
    message.what.tag = trainer->turn % 2;
    message.what.input = message.what.output = data;
    for (uint64_t e = 0; sends && e < message.what.count; e++)
        data[e] = kinds_value(trainer->id, peer, trainer->turn, e);
    return message;
}

// Each rank sends to two others, whether they live or not.
static void pairs(struct trainer *trainer)
{
    struct message messages[4];
    arm(trainer, PAIRS);
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t distance = 1 + i / 2;
        const bool sends = i % 2 == 0;
        const uint32_t peer = (trainer->id + (sends ? distance : RANKS - distance)) % RANKS;
        messages[i] = message_of(trainer, sends, peer, trainer->input + i * (size_t)KINDS_MOST);
        begin_message(trainer, &messages[i]);
    }
    if (!trainer->told->dies_by_frames)
        die(trainer, PAIRS);
    for (uint32_t i = 0; i < 4; i++)
        end_message(trainer, &messages[i]);
    die(trainer, PAIRS);
}

static bool awaits(const struct trainer *trainer, uint32_t from)
{
    for (uint32_t id = 0; id < RANKS; id++)
        if ((from >> id & 1) != 0 && number_of(trainer, id) != RANKS)
            return true;
    return false;
}

// Receives a message of each of the ranks in the set `from` that live.
static void receive_any(struct trainer *trainer, uint32_t from)
{
    while (awaits(trainer, from)) {
        struct message message = message_of(trainer, false, RANKS, trainer->output);
        lockstep_work *work;
        uint32_t sender = RANKS;
        message.what.name = "any";
        message.what.peer = LOCKSTEP_ANY_SOURCE;
        message.what.sender = &sender;
        int status = lockstep_collective_begin(trainer->session, &message.what, &work);
        atomic_store(&trainer->told->awaited, status == 0 ? from : 0);
        if (status == 0)
            status = lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER);
        expect(trainer, status == 0 || status == LOCKSTEP_E_CHANGED, "a receive fails");
        if (status != 0) {
            learn(trainer);
            continue;
        }
        uint32_t id = 0;
        while (id < RANKS && message.data[0] != kinds_value(id, trainer->id, trainer->turn, 0))
            id++;
        expect(trainer, id < RANKS && (from >> id & 1) != 0, "a message of nobody");
        from &= ~(1u << id);
        const uint64_t changes = trainer->changes;
        learn(trainer);
        expect(trainer, trainer->changes != changes || sender == number_of(trainer, id),
               "a wrong sender");
    }
}

// Dies when the receiver has the messages of all other living ranks.
static void die_awaited(const struct trainer *trainer, uint32_t receiver)
{
    const uint32_t own = 1u << trainer->id;
    uint32_t awaited;
    do {
        pause_us(200);
        awaited = atomic_load(&told_of[receiver].awaited);
    } while ((awaited & own) == 0 || awaits(trainer, awaited & ~own));
    kill(getpid(), SIGKILL);
}

static void any_source(struct trainer *trainer)
{
    const uint32_t receiver = trainer->turn % RANKS;
    struct message message;
    arm(trainer, ANY_SOURCE);
    if (receiver == trainer->id) {
        if (!trainer->told->dies_by_frames)
            die(trainer, ANY_SOURCE);
        receive_any(trainer, ((1u << RANKS) - 1) & ~(1u << receiver));
    } else {
        if (dies(trainer, ANY_SOURCE) && trainer->told->dies_awaited)
            die_awaited(trainer, receiver);
        message = message_of(trainer, true, receiver, trainer->input);
        message.what.name = "any";
        begin_message(trainer, &message);
        if (!trainer->told->dies_by_frames)
            die(trainer, ANY_SOURCE);
        end_message(trainer, &message);
    }
    die(trainer, ANY_SOURCE);
}

// ---- A job --------------------------------------------------------------------------------------

static void take_turn(struct trainer *trainer)
{
    for (enum operation operation = 0; operation < OPERATIONS; operation++) {
        const bool group = operation == GROUP_GATHER || operation == GROUP_COPY;
        trainer->told->operation = operation;
        if (operation == PAIRS)
            pairs(trainer);
        else if (operation == ANY_SOURCE)
            any_source(trainer);
        else if (!group || trainer->group)
            collective(trainer, operation);
    }
    if (trainer->group)
        check_group(trainer);
    if (trainer->turn % 3 == 0)
        create_all(trainer);
}

static void train(uint32_t id, const char *transport, bool with_device)
{
    static struct trainer trainer;
    char device[16];
    static const uint32_t three[] = {3, 0, 2};
    trainer.told = &told_of[id];
    trainer.id = id;
    trainer.input = calloc((size_t)RANKS * KINDS_MOST + 1000, sizeof(int32_t));
    trainer.output = calloc((size_t)RANKS * KINDS_MOST + 1000, sizeof(int32_t));
    snprintf(device, sizeof(device), with_device ? "cuda:%u" : "none", id);
    fake_gpu_part_hosts(id);
    expect(&trainer, kinds_open(&trainer.session, id, coordinator.port, transport, device) == 0,
           "open");
    learn(&trainer);
    if (id != 1)
        create(&trainer, three, 3, "three", &trainer.group);
    create_all(&trainer);
    for (trainer.turn = 1; trainer.turn <= TURNS; trainer.turn++) {
        trainer.told->turn = trainer.turn;
        take_turn(&trainer);
    }
    lockstep_close(trainer.session);
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static uint64_t random_state;

// What both ranks have in common ends alike. A rank that dies may not have noted its last one.
static void check_alike(uint32_t round, uint32_t one, uint32_t other, bool dead)
{
    const struct told *a = &told_of[one];
    const struct told *b = &told_of[other];
    const bool apart = one == 1 || other == 1; // Rank 1 is in no group of three.
    uint32_t i = 0;
    uint32_t k = 0;
    for (;;) {
        while (apart && i < a->count && a->log[i].operation > GROUP_SUM)
            i++;
        while (apart && k < b->count && b->log[k].operation > GROUP_SUM)
            k++;
        if (i == a->count || k == b->count)
            break;
        const struct entry *x = &a->log[i++];
        const struct entry *y = &b->log[k++];
        if (x->turn != y->turn || x->operation != y->operation || x->status != y->status)
            fail_msg("round %u: rank %u has turn %u, operation %d with %d, and rank %u has turn "
                     "%u, operation %d with %d",
                     round, one, x->turn, (int)x->operation, x->status, other, y->turn,
                     (int)y->operation, y->status);
    }
    assert_int_equal(k, b->count);
    assert_true(dead || i == a->count);
}

// By day the first deaths are in what only this test has.
static enum operation operation_of(uint32_t number, bool cut)
{
    static const enum operation first[] = {PAIRS, GROUP_COPY, ANY_SOURCE, GROUP_SUM};
    if (cut)
        return (enum operation)(number % OPERATIONS);
    return number < sizeof(first) / sizeof(first[0])
               ? first[number]
               : (enum operation)choice_below(&random_state, OPERATIONS);
}

static void plan_death(uint32_t round, uint32_t index, uint32_t deaths, bool cut)
{
    struct told *told = &told_of[(round + index) % RANKS];
    const uint32_t number = round * 3 + index;
    told->dies_at = 1 + LAST_DEATH * index / deaths;
    told->dies_in = operation_of(cut ? number : round * (round + 1) / 2 + index, cut);
    told->dies_awaited = !cut && round == 1 && told->dies_in == ANY_SOURCE;
    told->dies_by_frames = cut || (!told->dies_awaited && choice_below(&random_state, 2) == 0);
    told->dies_after =
        (uint32_t)(cut ? number / OPERATIONS % FRAMES
                       : choice_below(&random_state, told->dies_by_frames ? 8 : 200));
    // Rank 1 does not make them.
    if (told == &told_of[1] && (told->dies_in == GROUP_GATHER || told->dies_in == GROUP_COPY))
        told->dies_in = GROUP_SUM;
    printf("round %u: rank %u dies in turn %u, operation %d, after %u %s\n", round,
           (round + index) % RANKS, told->dies_at, (int)told->dies_in, told->dies_after,
           told->dies_by_frames ? "frames" : "us");
}

static void one_job(uint32_t round, bool cut, uint32_t *changed, uint32_t *parted)
{
    const uint32_t deaths = 1 + round % 3;
    const char *transport = transports[round / 2 % 2];
    const uint32_t with_device = worlds[(round + round / 3) % 3];
    pid_t pids[RANKS];
    uint32_t dead = 0;
    memset(told_of, 0, RANKS * sizeof(*told_of));
    for (uint32_t d = 0; d < deaths; d++)
        plan_death(round, d, deaths, cut);
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            train(r, transport, (with_device >> r & 1) != 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        const bool dies = told_of[r].dies_at != 0;
        dead |= (uint32_t)dies << r;
        if (process_reap(pids[r], WAIT_MS, &status) && (dies ? status == SIGKILL : status == 0))
            continue;
        for (uint32_t i = 0; i < RANKS; i++)
            printf("rank %u: turn %u, operation %d: %s\n", i, told_of[i].turn,
                   (int)told_of[i].operation, told_of[i].text);
        fail_msg("round %u, over %s: rank %u ends with 0x%x", round, transport, r,
                 (unsigned)status);
    }
    uint32_t last = RANKS - 1;
    while ((dead >> last & 1) != 0)
        last--;
    for (uint32_t r = 0; r < RANKS; r++)
        check_alike(round, last, r, (dead >> r & 1) != 0);
    printf("round %u: %s, devices %x, %u deaths, %u collectives changed, %u messages parted, %u "
           "renumbered\n",
           round, transport, with_device, deaths, told_of[last].changed, told_of[last].parted,
           told_of[last].renumbered);
    *changed += told_of[last].changed;
    *parted += told_of[last].parted;
}

static void collectives_and_messages_end_alike(void **state)
{
    const char *long_cut = getenv("LOCKSTEP_TEST_LONG_CUT");
    const bool cut = long_cut && long_cut[0] != '\0';
    const uint64_t rounds =
        choice_number("LOCKSTEP_TEST_FAULT_ROUNDS", cut ? OPERATIONS * FRAMES / 2 : 3);
    const uint64_t seed = choice_number("LOCKSTEP_TEST_FAULT_SEED", (uint64_t)getpid());
    uint32_t changed = 0;
    uint32_t parted = 0;
    (void)state;
    printf("LOCKSTEP_TEST_FAULT_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed * 2654435761u + 1;
    for (uint32_t round = 0; round < rounds; round++) {
        coordinator_start(&coordinator, NULL);
        one_job(round, cut, &changed, &parted);
        coordinator_stop(&coordinator);
    }
    assert_true((changed > 0 && parted > 0) || rounds < 10); // In a few rounds chance may have it.
}

static int teardown(void **state)
{
    (void)state;
    if (coordinator.pid > 0)
        kill(coordinator.pid, SIGKILL);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(collectives_and_messages_end_alike, teardown),
    };
    told_of = mmap(NULL, RANKS * sizeof(*told_of), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told_of == MAP_FAILED)
        abort();
    fake_gpu_name_libraries();
    setenv("FAKE_CUDA_EVERYWHERE", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
