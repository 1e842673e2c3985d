// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the report of a step is plausible in every kind of step (case 44), and the
// coordinator shows the sums of the reports for each worker and for the job.

#include "tests/fault/test_server_daemon.h"
#include "tests/support/trainer.h"

#include "base/clock.h"

#include <inttypes.h>
#include <sched.h>

#define ROUNDS 4

// ---- Rules -------------------------------------------------------------------------------------

// Measurements of a step on this rank.
struct seen {
    struct lockstep_report report;
    uint32_t world_size;
    bool solo;
};

static bool ready_in_order(const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    return r->first_ready_us <= r->last_ready_us && r->last_ready_us <= r->end_us;
}

static bool done_after_end(const struct seen *seen)
{
    return seen->report.end_us <= seen->report.done_us;
}

static bool wire_in_order(const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    return r->first_wire_us <= r->last_wire_us && r->last_wire_us <= r->done_us;
}

static bool exposed_is_the_wait(const struct seen *seen)
{
    return seen->report.exposed_us == seen->report.done_us - seen->report.end_us;
}

static bool overlap_within_transfer(const struct seen *seen)
{
    return seen->report.overlap_us <= seen->report.in_flight_us;
}

// True if the overlap is at most the time from the first gradient to the end of the step. A rank
// without a gradient has no overlap.
static bool overlap_within_computation(const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    return r->overlap_us <= (r->first_ready_us == 0 ? 0 : r->end_us - r->first_ready_us);
}

static bool the_rest_is_exposed(const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    return r->in_flight_us - r->overlap_us <= r->exposed_us;
}

static bool transfer_within_step(const struct seen *seen)
{
    return seen->report.in_flight_us <= seen->report.done_us;
}

static bool nothing_travels_without_buckets(const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    return r->buckets > 0 || (r->in_flight_us == 0 && r->first_wire_us == 0 &&
                              r->last_wire_us == 0 && r->bytes_copied == 0);
}

static bool zeros_are_buckets(const struct seen *seen)
{
    return seen->report.zero_filled <= seen->report.buckets;
}

static bool bytes_travel_to_others(const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    const bool others = seen->world_size > 1;
    return (r->bytes_sent > 0) == others && (r->bytes_received > 0) == others;
}

static bool wire_means_others(const struct seen *seen)
{
    return seen->world_size > 1 ||
           (seen->report.first_wire_us == 0 && seen->report.bytes_sent == 0);
}

static bool alone_nothing_is_counted(const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    return !seen->solo || (r->buckets == 0 && r->control_messages == 0 && r->learning == 0);
}

static const struct {
    const char *name;
    bool (*holds)(const struct seen *seen);
} rules[] = {
    {"gradients are ready in order, and before the end", ready_in_order},
    {"a step is done after its end was called", done_after_end},
    {"first byte, last byte, done", wire_in_order},
    {"exposed is done less end", exposed_is_the_wait},
    {"overlap is part of the transfer", overlap_within_transfer},
    {"overlap is part of the computation", overlap_within_computation},
    {"what does not overlap is exposed", the_rest_is_exposed},
    {"transfers lie within the step", transfer_within_step},
    {"without buckets nothing travels", nothing_travels_without_buckets},
    {"zeros are contributed in buckets", zeros_are_buckets},
    {"others get bytes and send bytes", bytes_travel_to_others},
    {"a world of one has no wire", wire_means_others},
    {"alone nothing is counted", alone_nothing_is_counted},
};

static void check_rules(struct rank *rank, const char *what, const struct seen *seen)
{
    const struct lockstep_report *r = &seen->report;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (!rules[i].holds(seen))
            rank_fail(rank, __FILE__, __LINE__,
                      "%s: not so: %s: ready %" PRIu64 " to %" PRIu64 ", wire %" PRIu64
                      " to %" PRIu64 ", end %" PRIu64 ", done %" PRIu64 ", in flight %" PRIu64
                      ", overlap %" PRIu64 ", exposed %" PRIu64 ", buckets %" PRIu32,
                      what, rules[i].name, r->first_ready_us, r->last_ready_us, r->first_wire_us,
                      r->last_wire_us, r->end_us, r->done_us, r->in_flight_us, r->overlap_us,
                      r->exposed_us, r->buckets);
    }
}

static struct lockstep_report check_report(struct rank *rank, const char *what, bool solo)
{
    struct seen seen = {trainer_report(rank), rank->world_size, solo};
    check_rules(rank, what, &seen);
    return seen.report;
}

// ---- Kinds of steps ----------------------------------------------------------------------------

static const uint64_t sizes[6] = {300, 7, 0, 900, 64, 2500};

struct trainer {
    struct trained_module modules[2];
    bool solo;
    uint64_t random;
};

// Runs a slow backward pass.
static void slow_call(struct rank *rank, struct trainer *trainer, struct trained_module *module)
{
    lockstep_call *call;
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < module->shape.count; i++) {
        usleep((useconds_t)(trainer_random(&trainer->random) % 200));
        RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

static void step_of_both(struct rank *rank, struct trainer *trainer)
{
    trainer_begin(rank, NULL);
    slow_call(rank, trainer, &trainer->modules[0]);
    slow_call(rank, trainer, &trainer->modules[1]);
    trainer_end(rank);
    const struct lockstep_report report = check_report(rank, "a step of both", trainer->solo);
    RANK_EQUAL(rank, report.zero_filled, 0);
    RANK_TRUE(rank, report.first_ready_us > 0);
    RANK_TRUE(rank, trainer->solo || report.buckets > 0);
    RANK_EQUAL(rank, report.weight_total, rank->world_size);
}

static void step_of_nothing(struct rank *rank, struct trainer *trainer)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.phase = "nothing";
    trainer_begin(rank, &options);
    trainer_end(rank);
    const struct lockstep_report report = check_report(rank, "nothing", trainer->solo);
    RANK_EQUAL(rank, report.buckets, 0);
    RANK_EQUAL(rank, report.first_ready_us, 0);
    RANK_EQUAL(rank, report.in_flight_us, 0);
}

// Runs a step in which only the last rank calls the planned module.
static void step_of_zeros(struct rank *rank, struct trainer *trainer)
{
    const bool calls = rank->rank == rank->world_size - 1;
    trainer_begin(rank, NULL);
    if (calls)
        slow_call(rank, trainer, &trainer->modules[0]);
    trainer_end(rank);
    const struct lockstep_report report = check_report(rank, "zeros", trainer->solo);
    RANK_TRUE(rank, trainer->solo || report.zero_filled > 0);
    RANK_TRUE(rank, trainer->solo || calls || report.zero_filled == report.buckets);
    RANK_EQUAL(rank, report.first_ready_us > 0, calls);
}

static void step_of_a_window(struct rank *rank, struct trainer *trainer)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    for (uint32_t i = 0; i < 3; i++) {
        options.accumulate = i < 2;
        trainer_begin(rank, &options);
        slow_call(rank, trainer, &trainer->modules[0]);
        trainer_end(rank);
    }
    check_report(rank, "a window", trainer->solo);
}

// Runs a step whose end a rank polls until the other ranks arrive.
static void step_in_pieces(struct rank *rank, struct trainer *trainer)
{
    int status;
    trainer_begin(rank, NULL);
    slow_call(rank, trainer, &trainer->modules[1]);
    do
        status = RANK_CALL(rank, lockstep_step_wait(rank->session, NULL, 0));
    while (status == LOCKSTEP_E_TIMEOUT);
    RANK_EQUAL(rank, status, LOCKSTEP_OK);
    check_report(rank, "in pieces", trainer->solo);
}

static void run_steps(struct rank *rank, bool solo)
{
    const struct module_shape a = {.name = "a", .count = 6, .elements = sizes};
    const struct module_shape b = {.name = "b", .count = 4, .elements = sizes, .scattered = true};
    struct trainer trainer = {.solo = solo, .random = rank->rank};
    trainer_make(rank, &a, 0, &trainer.modules[0]);
    trainer_make(rank, &b, 1, &trainer.modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < ROUNDS; i++) {
        step_of_both(rank, &trainer);
        step_of_nothing(rank, &trainer);
        step_of_zeros(rank, &trainer);
        step_of_a_window(rank, &trainer);
        step_in_pieces(rank, &trainer);
    }
    trainer_free(&trainer.modules[0]);
    trainer_free(&trainer.modules[1]);
}

static void together_body(struct rank *rank)
{
    run_steps(rank, false);
}

static void small_buckets(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = 4000;
    config->bucket_last_bytes = 500;
}

static void case_44_rules_of_every_step(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = small_buckets, .body = together_body};
    ranks_run_test(&test);
}

static void alone_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    run_steps(rank, true);
}

static void case_44_rules_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

// ---- Amounts -----------------------------------------------------------------------------------

// Rank 0 waits for the other ranks for a known time. Its exposed time is at least this time, and
// does not include earlier time.
static void waiting_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "a", .count = 6, .elements = sizes};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    trainer_begin(rank, NULL);
    if (rank->rank == 0) {
        trainer_call(rank, &module);
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_step_wait(rank->session, NULL, 40));
    }
    rank_meet(rank);
    if (rank->rank != 0)
        trainer_call(rank, &module);
    trainer_end(rank);
    const struct lockstep_report report = check_report(rank, "waiting", false);
    RANK_TRUE(rank, rank->rank != 0 || report.exposed_us >= 38000);
    trainer_free(&module);
}

static void case_44_waiting_is_exposed(const struct setting *setting)
{
    ranks_run(setting, waiting_body, NULL);
}

// Runs a planned step with a pause before the last gradient. Returns the step's overlap in us.
static uint64_t overlap_of_pause(struct rank *rank, struct trained_module *module,
                                 useconds_t pause_us)
{
    trainer_step_pausing(rank, module, pause_us);
    return check_report(rank, "a pause", false).overlap_us;
}

// On a busy machine the engine may not run within a short pause, so the pause grows until there is
// an overlap.
static void overlapping_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "a", .count = 6, .elements = sizes};
    struct trained_module module;
    int64_t overlap = 0;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    for (useconds_t pause_us = 2000; overlap == 0 && pause_us < 2000000; pause_us *= 2) {
        overlap = (int64_t)overlap_of_pause(rank, &module, pause_us);
        RANK_OK(rank, lockstep_allreduce(rank->session, "overlap", &overlap, 1, LOCKSTEP_INT64,
                                         LOCKSTEP_MIN, LOCKSTEP_WAIT_FOREVER));
    }
    RANK_TRUE(rank, overlap > 0);
    trainer_free(&module);
}

static void case_44_overlap_is_measured(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = small_buckets, .body = overlapping_body};
    ranks_run_test(&test);
}

// ---- Cores that are full -----------------------------------------------------------------------

#define FULL_TRIES 20
#define FULL_ENOUGH 5 // The engine may be awake when a bucket is complete; then it launches it.

// All ranks share one core.
static void full_configure(struct rank *rank, struct lockstep_config *config)
{
    cpu_set_t allowed;
    cpu_set_t first;
    size_t cpu = 0;
    RANK_EQUAL(rank, sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    while (!CPU_ISSET(cpu, &allowed))
        cpu++;
    CPU_ZERO(&first);
    CPU_SET(cpu, &first);
    RANK_EQUAL(rank, sched_setaffinity(0, sizeof(first), &first), 0);
    small_buckets(rank, config);
}

static void compute(uint64_t us)
{
    const uint64_t end_us = clock_now_us() + us;
    while (clock_now_us() < end_us)
        continue;
}

// Runs a step. `early` ranks end it at once. The others compute before and after their gradients
// become ready. Returns 1 if some gradients of such a rank travelled while it computed, else 0; -1
// if other programs took most of the core, so that it was not full.
static int64_t travels_beside(struct rank *rank, struct trained_module *module, uint32_t early)
{
    const bool computes = rank->rank >= early;
    int64_t seen[2] = {0}; // Travelled beside the computation; not full.
    trainer_begin(rank, NULL);
    const uint64_t begin_us = clock_now_us();
    const uint64_t begin_used_us = clock_process_us();
    if (computes) {
        usleep(5000); // The engine falls asleep.
        compute(40000);
    }
    const bool is_full = 2 * (clock_process_us() - begin_used_us) > clock_now_us() - begin_us;
    trainer_call(rank, module);
    if (computes)
        compute(20000);
    const uint64_t computed_us = clock_now_us() - begin_us;
    if (early == 0)
        rank_meet(rank); // No rank ends the step while another one computes.
    trainer_end(rank);
    const struct lockstep_report report = check_report(rank, "computing", false);
    seen[0] = computes && report.first_wire_us < computed_us;
    seen[1] = computes && !is_full;
    RANK_OK(rank, lockstep_allreduce(rank->session, "seen", seen, 2, LOCKSTEP_INT64, LOCKSTEP_MAX,
                                     LOCKSTEP_WAIT_FOREVER));
    return seen[1] == 1 ? -1 : seen[0];
}

static atomic_bool undecided; // True if other programs had the core in too many steps.

// True if one of the steps in which the core is full ends as expected, or if there are few of them.
static bool one_travels(struct rank *rank, struct trained_module *module, uint32_t early,
                        int64_t expected)
{
    uint32_t full = 0;
    for (uint32_t tries = 0; tries < FULL_TRIES && full < FULL_ENOUGH; tries++) {
        const int64_t beside = travels_beside(rank, module, early);
        if (beside == expected)
            return true;
        full += beside >= 0;
    }
    if (full < FULL_ENOUGH)
        atomic_store(&undecided, true);
    return full < FULL_ENOUGH;
}

// Where all ranks compute, gradients travel after the computation. If a rank waits in step_end,
// they travel beside it.
static void full_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "a", .count = 6, .elements = sizes};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    RANK_TRUE(rank, one_travels(rank, &module, 0, 0));
    RANK_TRUE(rank, one_travels(rank, &module, rank->world_size - 1, 1));
    trainer_free(&module);
}

static void case_44_gradients_wait_on_full_cores(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = full_configure, .body = full_body};
    if (setting->transport != LOCKSTEP_TRANSPORT_AUTO || setting->hosts > 0 || setting->devices > 0)
        return;
    atomic_store(&undecided, false);
    ranks_run_test(&test);
    if (atomic_load(&undecided))
        skip();
}

// ---- Sums at the coordinator -------------------------------------------------------------------

static struct daemon server;
static char server_address[32];
static char server_job[64];

struct totals {
    int64_t steps;
    int64_t bytes_copied;
    int64_t in_flight_us;
    int64_t overlap_us;
    int64_t exposed_us;
    int64_t zero_filled;
    int64_t unused;
};

static void add_report(struct totals *totals, const struct lockstep_report *report)
{
    totals->steps++;
    totals->bytes_copied += (int64_t)report->bytes_copied;
    totals->in_flight_us += (int64_t)report->in_flight_us;
    totals->overlap_us += (int64_t)report->overlap_us;
    totals->exposed_us += (int64_t)report->exposed_us;
    totals->zero_filled += report->zero_filled;
}

static void totals_json(const struct totals *totals, char *text, size_t bytes)
{
    snprintf(text, bytes,
             "\"totals\":{\"steps\":%" PRId64 ",\"bytes_copied\":%" PRId64
             ",\"in_flight_us\":%" PRId64 ",\"overlap_us\":%" PRId64 ",\"exposed_us\":%" PRId64
             ",\"zero_filled\":%" PRId64 ",\"unused\":%" PRId64 "}",
             totals->steps, totals->bytes_copied, totals->in_flight_us, totals->overlap_us,
             totals->exposed_us, totals->zero_filled, totals->unused);
}

static void expect_answer(struct rank *rank, const char *path, const struct totals *totals)
{
    const uint64_t deadline_ms = clock_now_ms() + wait_bound_ms() / 2;
    char wanted[512];
    char answer[16384];
    totals_json(totals, wanted, sizeof(wanted));
    do {
        http_get(server.http, path, answer, sizeof(answer));
        if (strstr(answer, wanted))
            return;
        poll(NULL, 0, 20);
    } while (clock_now_ms() < deadline_ms);
    rank_fail(rank, __FILE__, __LINE__, "%s does not say %s, but:\n%s", path, wanted, answer);
}

// Checks that the table of `lockstep status` shows the values that follow from the sums.
static void expect_status(struct rank *rank, const struct totals *totals)
{
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    char command[512];
    char said[4096] = "";
    char wanted[64];
    snprintf(command, sizeof(command), "%s/lockstep status --http 127.0.0.1:%u",
             folder ? folder : "build/bin", server.http);
    FILE *status = popen(command, "r");
    RANK_TRUE(rank, status != NULL);
    RANK_TRUE(rank, fread(said, 1, sizeof(said) - 1, status) > 0);
    RANK_EQUAL(rank, pclose(status), 0);
    snprintf(wanted, sizeof(wanted), " %.0f %%  %.1f ms ",
             100 * ((double)totals->overlap_us / (double)totals->in_flight_us),
             (double)totals->exposed_us / (double)totals->steps / 1000);
    for (char *from = said, *to = said; (*to = *from) != '\0'; from++)
        to += *from != ' ' || from[1] != ' ' || from[2] != ' ';
    if (!strstr(said, "OVERLAP") || !strstr(said, wanted))
        rank_fail(rank, __FILE__, __LINE__, "the table has no '%s':\n%s", wanted, said);
}

// Trains some steps. Rank 0 does not use the first parameter, and makes no call in one step.
static void train(struct rank *rank, struct trained_module *module, struct totals *totals)
{
    for (int i = 0; i < 6; i++) {
        lockstep_call *call;
        trainer_begin(rank, NULL);
        if (rank->rank > 0 || i != 4) {
            RANK_OK(rank, lockstep_call_begin(module->module, &call));
            for (uint32_t p = module->shape.count; p-- > (rank->rank == 0 ? 1 : 0);)
                RANK_OK(rank, lockstep_grad_ready(module->module, call, p, NULL, NULL));
            RANK_OK(rank, lockstep_call_end(call));
            totals->unused += rank->rank == 0;
        }
        trainer_end(rank);
        const struct lockstep_report report = trainer_report(rank);
        add_report(totals, &report);
    }
}

static void shown_body(struct rank *rank)
{
    const struct module_shape shape = {
        .name = "a", .count = 6, .elements = sizes, .unused = LOCKSTEP_UNUSED_ACCEPT};
    struct trained_module module;
    struct totals totals = {0};
    char path[128];
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    train(rank, &module, &totals);
    snprintf(path, sizeof(path), "/api/v1/jobs/%s", server_job);
    expect_answer(rank, path, &totals);
    RANK_OK(rank,
            lockstep_allreduce(rank->session, "totals", &totals, sizeof(totals) / sizeof(int64_t),
                               LOCKSTEP_INT64, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
    RANK_EQUAL(rank, totals.steps, 6 * rank->world_size);
    RANK_EQUAL(rank, totals.unused, 5);
    expect_answer(rank, path, &totals);
    expect_answer(rank, "/api/v1/jobs", &totals);
    if (rank->rank == 0)
        expect_status(rank, &totals);
    rank_meet(rank);
    trainer_free(&module);
}

static void shown_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->coordinator = server_address;
    config->job = server_job;
}

// Runs over one transport only, because the sums do not depend on the transport.
static void sums_are_shown(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = shown_configure, .body = shown_body};
    if (setting->transport != LOCKSTEP_TRANSPORT_TCP)
        return;
    daemon_start(&server, NULL, 0);
    snprintf(server_address, sizeof(server_address), "127.0.0.1:%u", server.grpc);
    cluster_job_name(server_job, sizeof(server_job));
    ranks_run_test(&test);
    daemon_stop(&server);
}

static const uint32_t worlds[] = {1, 2, 3, 0};
static const uint32_t one[] = {1, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_44_rules_of_every_step", case_44_rules_of_every_step, worlds},
        {"case_44_rules_alone", case_44_rules_alone, one},
        {"case_44_waiting_is_exposed", case_44_waiting_is_exposed, NULL},
        {"case_44_overlap_is_measured", case_44_overlap_is_measured, NULL},
        {"case_44_gradients_wait_on_full_cores", case_44_gradients_wait_on_full_cores, NULL},
        {"sums_are_shown", sums_are_shown, NULL},
    };
    return stamp_run("statistics", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
