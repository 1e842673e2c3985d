// SPDX-License-Identifier: Apache-2.0
//
// A rank dies when others have left, or are about to leave (rule M10). Three real processes make
// two steps and close their sessions. The victim kills itself at its n-th send of data in the last
// step, for each n: at some of them one survivor has the whole last wave and leaves, and the other
// one lacks a part that only the victim had. step_end is OK on every survivor in any case, and both
// have the same gradients and counters, with those of the victim or without. In half of the jobs
// the victim alone has run out of data (LOCKSTEP_UNEVEN_FIRST): if one survivor has heard of that,
// the other one does not make the step either.
//
// In the same way a rank dies at each of its sends in lockstep_open, and in the recovery from
// another death.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "protos/limits.h"
#include "tests/support/bounds.h"
#include "tests/support/sends.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sched.h>
#include <lockstep/lockstep.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    RANKS = 3,
    STEPS = 2,
    ELEMENTS = 300,
    MANY = 3 * LOCKSTEP_WINDOW,
    SENDS = 40, // More sends than a rank makes in a step.
    GROUP_SENDS = 200, // The same, with a module of a group.
    OPEN_SENDS = 3000, // The same for lockstep_open and a recovery, in which links are measured.
    AWAY_US = 400000, // How long the coordinator is away.
    LATE_US = 250000, // The delay of each message to the coordinator while leaves_late is true.
    NOTICED_US = 200000, // By then each rank has seen the end of its stream.
    SWEEPS = 10, // At most, until the threads of a job have come to the case in question.
};

// Where the victim dies.
enum scene {
    PLAIN, // In the last step.
    UNEVEN, // The same, and it has run out of data.
    AWAY, // The same, and the coordinator has died before.
    GONE, // In the last step. The coordinator dies with the last words of a rank that leaves.
    SEEN, // The same, and the rank that leaves has seen the death.
    IN_OPEN, // In lockstep_open, at a send to another rank: the world has formed.
    HELD, // In the last step, in which another rank has died. Its process leaves all sockets open.
    HOLDS, // In the last step. Its process leaves all sockets open.
    CUT, // None: rank 0 dies in the last step, and the others cannot connect to each other.
    LEARNS, // In a step that is learned. The next one has another phase, and is learned, too.
    // In the last step, in which rank 1 alone calls the module. Ranks 0 and 2 have another one,
    // with many buckets.
    GROUPED,
};

static const char *const scenes[] = {
    "in the last step", "uneven", "no coordinator", "gone", "seen",
    "in open",          "held",   "holds",          "cut",  "in a learned step",
    "grouped"};

struct told {
    char text[512];
    uint64_t hash; // Of the last gradients and counters.
    uint64_t changes; // Of the world, when the last step was over.
    uint64_t ended_us; // When it was over.
    bool finished; // True if the last step was not made.
};

#define HOLDS_MS slow_ms(500) // On the average.
#define HELD_MS slow_ms(5000) // Far from the bound after which a silent rank is removed.

static struct told *shared; // [RANKS]
#define CUT_MS ((uint32_t)slow_ms(1000)) // How long ranks try to connect.
#define NOTICED_CUT_US 100000 // Longer than a step of the others takes.

static _Atomic(uint32_t) *jobs_over; // The number of jobs that have ended.
static uint64_t *died_us; // When the last victim died.
static struct coordinator_process coordinator;

// ---- Sends of the victim ------------------------------------------------------------------------

static _Atomic(bool) leaves_late; // True if the coordinator hears of this rank after other ranks.

// Only what goes to other ranks counts.
static void before_send(int fd)
{
    const uint16_t port = send_port(fd);
    if (port == coordinator.port && atomic_load(&leaves_late))
        pause_us(LATE_US);
    if (port == 0 || port == coordinator.port || !sends_over())
        return;
    *died_us = clock_now_us();
    (void)raise(SIGKILL);
}

static bool cut; // True if this process reaches no other rank any more.

int connect(int fd, __CONST_SOCKADDR_ARG to, socklen_t size)
{
    const struct sockaddr_in *address = to.__sockaddr_in__;
    if (cut && address->sin_family == AF_INET && ntohs(address->sin_port) != coordinator.port) {
        errno = EHOSTUNREACH;
        return -1;
    }
    return (int)syscall(SYS_connect, fd, address, size);
}

// Makes a process that has all descriptors of this one, also those of later, until the job is over.
static void hold_descriptors(void)
{
    if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL) != 0)
        return;
    const uint32_t before = atomic_load(jobs_over);
    for (uint64_t ms = 0; ms < WAIT_MS && atomic_load(jobs_over) == before; ms += 10)
        pause_us(10000);
    _exit(0);
}

// ---- The trainer --------------------------------------------------------------------------------

static void require(struct told *told, int status, const char *where)
{
    if (status >= 0)
        return;
    snprintf(told->text, sizeof(told->text), "%s: %s", where, lockstep_error_text());
    _exit(1);
}

static bool is_gone(enum scene scene)
{
    return scene == GONE || scene == SEEN;
}

// Registers a module of a group of ranks 0 and 2.
static lockstep_module *register_in_group(struct told *told, lockstep_session *session)
{
    static const uint32_t members[] = {0, 2};
    static const int64_t shape = 1;
    static float data[MANY];
    static float gradients[MANY];
    static char names[MANY][8];
    struct lockstep_parameter parameters[MANY];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    memset(parameters, 0, sizeof(parameters));
    for (uint32_t p = 0; p < MANY; p++) {
        snprintf(names[p], sizeof(names[p]), "p%u", p);
        parameters[p] = (struct lockstep_parameter){.name = names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &shape,
                                                    .data = &data[p],
                                                    .gradient = &gradients[p]};
    }
    require(told, lockstep_group_create(session, members, 2, "pair", &config.group), "group");
    config.name = "g";
    config.parameters = parameters;
    config.parameter_count = MANY;
    require(told, lockstep_module_register(session, &config, &module), "register in a group");
    return module;
}

static void call(struct told *told, lockstep_module *module, uint32_t parameters)
{
    lockstep_call *made;
    require(told, lockstep_call_begin(module, &made), "call_begin");
    for (uint32_t p = 0; p < parameters; p++)
        require(told, lockstep_grad_ready(module, made, p, NULL, NULL), "grad_ready");
    require(told, lockstep_call_end(made), "call_end");
}

static void train(uint32_t rank, const char *job, enum scene scene, bool victim, int sends)
{
    static float value[ELEMENTS];
    static float gradient[ELEMENTS];
    static const int64_t shape = ELEMENTS;
    static const char *const phases[] = {"first", "second", "third"};
    const uint32_t steps = scene == LEARNS ? 3 : STEPS;
    const struct lockstep_parameter parameter = {.name = "w",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = &shape,
                                                 .data = value,
                                                 .gradient = gradient};
    struct told *told = &shared[rank];
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config module_config = LOCKSTEP_MODULE_INIT;
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_session *session;
    lockstep_module *module;
    lockstep_module *grouped = NULL;
    char address[64];
    int64_t counter = 0;
    int status = 0;
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.job = job;
    config.world_size = RANKS;
    config.rank_hint = (int32_t)rank;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport = LOCKSTEP_TRANSPORT_TCP;
    config.uneven = scene == UNEVEN ? LOCKSTEP_UNEVEN_FIRST : LOCKSTEP_UNEVEN_NONE;
    if (scene == GROUPED)
        setenv("LOCKSTEP_ALGORITHM", "doubling", 1); // All of it is final at once.
    if (scene == GROUPED)
        config.bucket_first_bytes = config.bucket_bytes = config.bucket_last_bytes = 1;
    module_config.name = "m";
    module_config.parameters = &parameter;
    module_config.parameter_count = 1;
    if (scene == CUT)
        config.open_timeout_ms = CUT_MS;
    if ((scene == HELD || scene == HOLDS) && victim)
        hold_descriptors();
    atomic_store(&sends_left, victim && scene == IN_OPEN ? sends : -1);
    require(told, lockstep_open(&config, &session), "open");
    atomic_store(&sends_left, -1);
    require(told, lockstep_module_register(session, &module_config, &module), "register");
    if (scene == GROUPED && rank != 1)
        grouped = register_in_group(told, session);
    require(told, lockstep_start(session), "start");
    for (uint32_t step = 1; status != LOCKSTEP_FINISHED && step <= steps; step++) {
        cut = step == STEPS && scene == CUT;
        if (cut && rank == 0)
            pause_us(NOTICED_CUT_US);
        if (step == STEPS && (scene == HELD || scene == CUT) && rank == 0)
            (void)raise(SIGKILL);
        if (step == STEPS && victim && scene == AWAY)
            kill(coordinator.pid, SIGKILL);
        if (step == STEPS && scene == AWAY)
            pause_us(NOTICED_US);
        if (step == (scene == LEARNS ? 1 : STEPS) && scene != IN_OPEN)
            atomic_store(&sends_left, victim ? sends : -1);
        options.phase = scene == LEARNS ? phases[step - 1] : "";
        options.exhausted = scene == UNEVEN && victim && step == STEPS;
        status = lockstep_step_begin(session, &options, NULL);
        require(told, status, "step_begin");
        if (status == LOCKSTEP_FINISHED)
            break;
        const bool calls = scene != GROUPED || step < STEPS || rank == 1;
        for (uint32_t i = 0; i < ELEMENTS; i++)
            gradient[i] = calls ? (float)((rank + 1) * (1 + (i + step) % 7)) : 0;
        if (calls)
            call(told, module, 1);
        if (grouped)
            call(told, grouped, MANY);
        require(told, lockstep_counter_add(session, "n", 1 << 4 * rank), "counter_add");
        require(told, lockstep_step_end(session, NULL), "step_end");
    }
    told->ended_us = clock_now_us();
    require(told, lockstep_counter_read(session, "n", &counter), "counter_read");
    told->finished = status == LOCKSTEP_FINISHED;
    // Counters of a rank that has left without a last word are lost.
    told->hash = hash64(gradient, sizeof(gradient)) * 31 + (is_gone(scene) ? 0 : (uint64_t)counter);
    require(told, lockstep_world_change(session, &change), "world_change");
    told->changes = change.changes;
    // The coordinator comes back meanwhile. It hears of the goodbye from the other survivor first.
    atomic_store(&leaves_late, scene == AWAY && change.changes == 0);
    if (is_gone(scene))
        kill(coordinator.pid, SIGSTOP);
    if (scene == SEEN)
        pause_us(NOTICED_US);
    require(told, lockstep_close(session), "close");
    if (is_gone(scene))
        pause_us(NOTICED_US / 2); // Others hear the goodbye, and then see the end of the process.
    _exit(0);
}

// ---- The test -----------------------------------------------------------------------------------

static int teardown(void **state)
{
    (void)state;
    if (coordinator.pid > 0)
        kill(coordinator.pid, SIGKILL);
    coordinator.pid = 0;
    return 0;
}

static void return_coordinator(void)
{
    coordinator_wait(&coordinator);
    pause_us(AWAY_US);
    coordinator_start(&coordinator, NULL);
}

static bool anyone_has_ended(void)
{
    bool ended = false;
    for (uint32_t r = 0; r < RANKS; r++)
        ended = ended || ((volatile struct told *)shared)[r].ended_us > 0;
    return ended;
}

static uint32_t jobs; // So far. Each has a name of its own, so none waits for the end of another.

// Runs a job. Returns true if one survivor has left before the death, and another one has finished
// its last step without the victim.
static bool one_job(enum scene scene, uint32_t victim, int sends, bool *died)
{
    pid_t pids[RANKS];
    uint64_t changes = 0;
    uint64_t hash = 0;
    bool finished = false;
    uint32_t without = 0;
    char job[32];
    snprintf(job, sizeof(job), "job-%u", ++jobs);
    memset(shared, 0, RANKS * sizeof(*shared));
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            train(r, job, scene, r == victim, sends);
    }
    for (uint64_t ms = 0; is_gone(scene) && ms < WAIT_MS && !anyone_has_ended(); ms++)
        pause_us(1000);
    if (is_gone(scene)) {
        pause_us(2 * NOTICED_US);
        kill(coordinator.pid, SIGKILL);
    }
    if (scene == AWAY || is_gone(scene))
        return_coordinator();
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        const bool ended = process_reap(pids[r], WAIT_MS, &status);
        if (r == victim)
            *died = ended && WIFSIGNALED(status);
        if (ended && (status == 0 || r == victim || (scene == HELD && r == 0)))
            continue;
        fail_msg("victim %u at send %d, %s: rank %u %s 0x%x: %s", victim, sends, scenes[scene], r,
                 ended ? "ends with" : "does not end", (unsigned)status, shared[r].text);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        if (r == victim || (scene == HELD && r == 0))
            continue;
        if (hash != 0 && (hash != shared[r].hash || finished != shared[r].finished))
            fail_msg("victim %u at send %d, %s: the survivors differ", victim, sends,
                     scenes[scene]);
        hash = shared[r].hash;
        finished = shared[r].finished;
        changes += shared[r].changes;
        without += shared[r].changes == 0;
    }
    atomic_fetch_add(jobs_over, 1);
    return without == 1 && changes == 1;
}

// Under a sanitizer each sweep takes every fifth instant of a death, and other ones than the last.
static int stride(void)
{
    return test_slow() > 1 ? 5 : 1;
}

// Without a coordinator one victim has to do, because each of these jobs takes half a second.
static void survivors_settle(enum scene scene)
{
    const uint32_t before = jobs;
    // A leaver may have seen the death too late.
    const uint32_t wanted = scene == SEEN && test_slow() <= 1 ? 2 : 1;
    uint32_t leavers = 0;
    coordinator_start(&coordinator, NULL);
    for (int sweep = 0; leavers < wanted && sweep < SWEEPS * stride(); sweep++) {
        for (uint32_t victim = 0; victim < (scene < AWAY ? RANKS : 1); victim++) {
            bool died = true;
            for (int sends = sweep % stride(); died && sends < SENDS; sends += stride())
                leavers += one_job(scene, victim, sends, &died);
            assert_false(died); // The last job is one in which the victim has left, too.
        }
    }
    coordinator_stop(&coordinator);
    printf("%u jobs; in %u of them a rank had left already\n", jobs - before, leavers);
    assert_true(leavers >= wanted);
}

static void a_rank_dies_when_others_have_left(void **state)
{
    (void)state;
    survivors_settle(PLAIN);
}

static void a_rank_dies_when_others_have_run_out_of_data(void **state)
{
    (void)state;
    survivors_settle(UNEVEN);
}

// Condition: the coordinator dies before the last step, and comes back. Decision: a rank that
// leaves meanwhile waits for it, so the other survivor learns what the leaver knows.
static void a_rank_dies_when_others_leave_without_a_coordinator(void **state)
{
    (void)state;
    survivors_settle(AWAY);
}

// Condition: the coordinator dies in the instant in which a rank leaves, so its last word is lost.
// Decision: what the leaver has completed is final on the other survivor, too, which goes on.
static void a_rank_dies_when_the_last_word_of_another_is_lost(void **state)
{
    (void)state;
    survivors_settle(GONE);
}

// Condition: the same, and the goodbye of the leaver names the death. Decision: the same.
static void a_rank_dies_when_the_last_word_of_a_witness_is_lost(void **state)
{
    (void)state;
    survivors_settle(SEEN);
}

// Condition: a rank dies when some ranks have completed the first step, and rank 0 has not.
// Decision: rank 0 says no more about that step, and the next step is learned as any other.
static void a_rank_dies_as_a_learned_step_ends(void **state)
{
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (uint32_t victim = 0; victim < RANKS; victim++) {
        bool died = true;
        for (int sends = 0; died && sends < SENDS; sends += stride())
            (void)one_job(LEARNS, victim, sends, &died);
        assert_false(died);
    }
    coordinator_stop(&coordinator);
}

// Condition: rank 0 dies when the gradient of rank 1 is final there. Rank 2, which has not called
// the module, lacks it. Rank 1 is not in the group whose buckets come much later in the plan.
// Decision: rank 2 gets the gradient.
static void a_rank_dies_beside_a_group(void **state)
{
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (uint32_t sweep = 0; sweep < 4; sweep++) {
        bool died = true;
        for (int sends = 0; died && sends < GROUP_SENDS; sends += stride())
            (void)one_job(GROUPED, 0, sends, &died);
        assert_false(died);
    }
    coordinator_stop(&coordinator);
}

// Condition: a rank dies while the links of the first world are made. Decision: the others have
// lockstep_open, and all steps, without it.
static void a_rank_dies_in_lockstep_open(void **state)
{
    const uint32_t before = jobs;
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (uint32_t victim = 0; victim < RANKS; victim++) {
        bool died = true;
        for (int sends = 0; died && sends < OPEN_SENDS; sends += stride() * (1 + sends / 10)) {
            (void)one_job(IN_OPEN, victim, sends, &died);
            for (uint32_t r = 0; died && r < RANKS; r++)
                assert_int_equal(shared[r].changes, r != victim);
        }
        assert_false(died);
    }
    coordinator_stop(&coordinator);
    printf("%u jobs\n", jobs - before);
}

// Condition: the sockets of a rank stay open when it dies, so only a mate can prove that. This mate
// is frozen, because a third rank has died before. Decision: it says the proof, wherever it is in
// the recovery, and ends alone.
static void a_frozen_rank_proves_a_death(void **state)
{
    bool died = true;
    uint64_t longest_ms = 0;
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (int sends = 0; died && sends < OPEN_SENDS; sends += 1 + sends / 2) {
        const uint64_t since_ms = clock_now_ms();
        (void)one_job(HELD, 1, sends, &died);
        const uint64_t took_ms = clock_now_ms() - since_ms;
        longest_ms = took_ms > longest_ms ? took_ms : longest_ms;
    }
    coordinator_stop(&coordinator);
    assert_false(died);
    printf("the longest job took %llu ms\n", (unsigned long long)longest_ms);
    assert_true(longest_ms < HELD_MS);
}

// Condition: the same, and nobody else dies. Decision: the others go on by the proof of a mate, and
// do not wait for the ends of links.
static void sockets_outlive_their_rank(void **state)
{
    bool died = true;
    uint64_t sum_us = 0;
    uint64_t count = 0;
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (int sends = 0; died && sends < SENDS; sends += 2 * stride()) {
        (void)one_job(HOLDS, 1, sends, &died);
        if (!died || shared[0].ended_us < *died_us)
            continue; // The victim was done, or had done its part.
        sum_us += shared[0].ended_us - *died_us;
        count++;
    }
    coordinator_stop(&coordinator);
    assert_false(died);
    assert_true(count > 0);
    printf("%llu ms from a death to the end of the step\n",
           (unsigned long long)(sum_us / count / 1000));
    assert_true(sum_us / count < HOLDS_MS * 1000);
}

// Rank 0 dies, and the two others hear the coordinator, and cannot connect to each other. One of
// two ranks is no majority, so both end, with the reason.
static void ranks_that_cannot_connect_anew(void **state)
{
    pid_t pids[RANKS];
    (void)state;
    coordinator_start(&coordinator, NULL);
    memset(shared, 0, RANKS * sizeof(*shared));
    for (uint32_t r = 0; r < RANKS; r++) {
        pids[r] = process_fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0)
            train(r, "cut", CUT, false, 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        assert_true(process_reap(pids[r], WAIT_MS, &status));
        if (r > 0)
            assert_non_null(strstr(shared[r].text, " is cut: "));
    }
    coordinator_stop(&coordinator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_rank_dies_when_others_have_left, teardown),
        cmocka_unit_test_teardown(a_rank_dies_when_others_have_run_out_of_data, teardown),
        cmocka_unit_test_teardown(a_rank_dies_when_others_leave_without_a_coordinator, teardown),
        cmocka_unit_test_teardown(a_rank_dies_when_the_last_word_of_another_is_lost, teardown),
        cmocka_unit_test_teardown(a_rank_dies_when_the_last_word_of_a_witness_is_lost, teardown),
        cmocka_unit_test_teardown(a_rank_dies_as_a_learned_step_ends, teardown),
        cmocka_unit_test_teardown(a_rank_dies_beside_a_group, teardown),
        cmocka_unit_test_teardown(a_rank_dies_in_lockstep_open, teardown),
        cmocka_unit_test_teardown(a_frozen_rank_proves_a_death, teardown),
        cmocka_unit_test_teardown(sockets_outlive_their_rank, teardown),
        cmocka_unit_test_teardown(ranks_that_cannot_connect_anew, teardown),
    };
    shared = mmap(NULL, (RANKS + 1) * sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    died_us = &shared[RANKS].ended_us;
    jobs_over = (_Atomic(uint32_t) *)(void *)(shared + RANKS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
