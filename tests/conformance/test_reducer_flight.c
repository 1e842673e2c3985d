// SPDX-License-Identifier: Apache-2.0
//
// Conformance: a call ends while another thread is inside a report of the call. The test stops the
// reporting thread inside lockstep_replica_ready, after the report is counted and before the
// gradient is handed over: the thread adds replicas, and one replica lies in a page that cannot be
// read yet. Meanwhile another thread ends the call and the step. test_sim_reports covers all other
// orders of the two threads.

#include "base/clock.h"
#include "base/thread.h"
#include "tests/support/trainer.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

#define COUNT 2 // Number of parameters; the report of the last one is in flight.
#define LAST (COUNT - 1)
#define REPLICAS 2
#define ELEMENTS 40
#define STEPS 3
// Time limits of the stopped thread: for the end of the call, and then for the end of the step.
#define CALL_MS 50
#define STEP_MS 5000

static const uint64_t sizes[COUNT] = {ELEMENTS, ELEMENTS};

// The module of rank 0 and the state of its two threads. One world runs at a time.
static struct flight {
    struct trained_module net; // The first member: configure gets this one.
    struct lockstep_parameter parameters[REPLICAS * COUNT];
    float data[COUNT][ELEMENTS]; // Values of the second replica.
    float gradients[COUNT][ELEMENTS]; // Gradients of the second replica, except the last one.
    bool given_up; // True if the test aborts the call.
    int status; // Status that the report returned.
    atomic_bool in_flight; // The reporting thread is stopped.
    atomic_bool call_over; // The call has ended.
    atomic_bool step_over; // The step has ended.
    atomic_bool reported; // The report has returned.
} flight;

static float *page; // The last gradient of the second replica, whose report is in flight.
static size_t page_bytes;

// ---- A report that is stopped ------------------------------------------------------------------

static void await_flag(const atomic_bool *flag, uint64_t ms)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const uint64_t end = clock_now_ms() + ms;
    while (!atomic_load(flag) && clock_now_ms() < end)
        nanosleep(&pause, NULL);
}

// Stops the reporting thread. If the end of the call waits for the report, the thread goes on after
// CALL_MS; otherwise it goes on after the end of the step.
static void handle_fault(int number, siginfo_t *info, void *context)
{
    const char *at = info->si_addr;
    (void)context;
    if (at < (char *)page || at >= (char *)page + page_bytes) {
        signal(number, SIG_DFL);
        return;
    }
    atomic_store(&flight.in_flight, true);
    await_flag(&flight.call_over, CALL_MS);
    if (atomic_load(&flight.call_over))
        await_flag(&flight.step_over, STEP_MS);
    mprotect(page, page_bytes, PROT_READ | PROT_WRITE);
}

static void reporter_run(void *argument)
{
    (void)argument;
    flight.status = lockstep_replica_ready(flight.net.module, NULL, 1, LAST, NULL, NULL);
    atomic_store(&flight.reported, true);
}

// ---- The rank whose report is in flight --------------------------------------------------------

static void replicate(struct trained_module *module, struct lockstep_module_config *config)
{
    struct flight *net = (struct flight *)module;
    for (uint32_t i = 0; i < REPLICAS * COUNT; i++) {
        const uint32_t p = i % COUNT;
        net->parameters[i] = module->parameters[p];
        if (i < COUNT)
            continue;
        net->parameters[i].data = net->data[p];
        net->parameters[i].gradient = p == LAST ? page : net->gradients[p];
    }
    config->parameters = net->parameters;
    config->replicas = REPLICAS;
    config->on_abort = LOCKSTEP_ABORT_ACCEPT;
}

// Fills both replicas with the known gradient of this rank, so their mean is that gradient, too.
static void fill(struct rank *rank)
{
    const uint64_t step = atomic_load(&rank->step);
    trainer_fill_known(&flight.net, rank->rank, step);
    memcpy(flight.gradients[0], flight.net.gradients[0], sizeof(flight.gradients[0]));
    memcpy(page, flight.net.gradients[LAST], sizeof(flight.gradients[LAST]));
}

static void end_call(struct rank *rank, lockstep_call *call)
{
    RANK_OK(rank, flight.given_up ? lockstep_call_abort(call) : lockstep_call_end(call));
    atomic_store(&flight.call_over, true);
}

static void flown_step(struct rank *rank)
{
    struct thread reporter;
    lockstep_call *call;
    flight.in_flight = flight.call_over = flight.step_over = flight.reported = false;
    trainer_begin(rank, NULL);
    fill(rank);
    RANK_OK(rank, lockstep_call_begin(flight.net.module, &call));
    for (uint32_t i = 0; i < REPLICAS * COUNT - 1; i++)
        RANK_OK(rank,
                lockstep_replica_ready(flight.net.module, call, i / COUNT, i % COUNT, NULL, NULL));
    // A device adds replicas itself, so no thread reads the page there.
    if (rank->setting->devices == 0)
        RANK_TRUE(rank, mprotect(page, page_bytes, PROT_NONE) == 0);
    RANK_TRUE(rank, thread_start(&reporter, "reporter", reporter_run, NULL) == 0);
    while (!atomic_load(&flight.in_flight) && !atomic_load(&flight.reported))
        await_flag(&flight.in_flight, 1);
    end_call(rank, call);
    trainer_end(rank);
    atomic_store(&flight.step_over, true);
    thread_join(&reporter);
    RANK_EQUAL(rank, flight.status, LOCKSTEP_OK);
}

// ---- All ranks ---------------------------------------------------------------------------------

static void accept_aborts(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->on_abort = LOCKSTEP_ABORT_ACCEPT;
}

static void body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net",
                                       .count = COUNT,
                                       .elements = sizes,
                                       .configure = rank->rank == 0 ? replicate : accept_aborts};
    struct trained_module mine;
    struct trained_module *net = rank->rank == 0 ? &flight.net : &mine;
    trainer_make(rank, &shape, 0, net);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < STEPS; i++) {
        if (rank->rank == 0) {
            flown_step(rank);
        } else {
            trainer_begin(rank, NULL);
            trainer_fill_known(net, rank->rank, atomic_load(&rank->step));
            trainer_call(rank, net);
            trainer_end(rank);
        }
        trainer_expect_mean(rank, net, atomic_load(&rank->step), NULL);
    }
    trainer_free(net);
}

// Replaces the handler of SIGSEGV, also cmocka's, which is installed while a test runs.
static void run(const struct setting *setting, bool given_up)
{
    struct sigaction action = {.sa_sigaction = handle_fault, .sa_flags = SA_SIGINFO};
    struct sigaction before;
    sigemptyset(&action.sa_mask);
    memset(&flight, 0, sizeof(flight));
    flight.given_up = given_up;
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    ranks_run(setting, body, NULL);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
}

static void case_19_report_in_flight_as_its_call_ends(const struct setting *setting)
{
    run(setting, false);
}

// The aborted call's bucket still travels, because the report in flight completes it.
static void case_19_report_in_flight_as_its_call_is_given_up(const struct setting *setting)
{
    run(setting, true);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_19_report_in_flight_as_its_call_ends", case_19_report_in_flight_as_its_call_ends,
         NULL},
        {"case_19_report_in_flight_as_its_call_is_given_up",
         case_19_report_in_flight_as_its_call_is_given_up, NULL},
    };
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return 1;
    return stamp_run("reducer: reports in flight", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
