// SPDX-License-Identifier: Apache-2.0
//
// The API's answer about a job that stands still, and its metrics: a snapshot in, text out.

#include "server/render/metrics.h"
#include "server/render/render.h"
#include "server/render/stack.h"
#include "server/render/stall.h"
#include "server/render/state.h"
#include "server/render/timeline.h"

#include "protos/trace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#define WORKERS 12

static struct snapshot snapshot;
static struct worker_view workers[WORKERS];
static struct module_view modules[2] = {{"actor"}, {"cri\"tic"}};
static struct stall_view stalls[2];
static struct rate_view rates[2] = {{500, 3, 310000, 12000, 9000, 5000}, {.age_ms = 1500}};
static struct event_view events[1] = {{2000, "stall_began", "rank 3 is <outside>", 1}};
static struct json json;

static void fill_worker(uint32_t rank)
{
    struct worker_view *worker = &workers[rank];
    *worker = (struct worker_view){.rank = rank, .has_rank = true, .pid = 900 + rank};
    snprintf(worker->host, sizeof(worker->host), "node-%u", rank / 8);
    snprintf(worker->device, sizeof(worker->device), "%s", rank < 6 ? "cpu" : "gpu");
    worker->step = 1832;
    worker->heartbeat_age_ms = 300;
    worker->straggler_permille = rank * 7 % 11; // Ranks 0 and 11 have none.
    worker->place = (struct place){.position = 3, .count = 12, .waits = true, .inside = true};
    worker->place.api = API_STEP_END;
    worker->place.module = LOCKSTEP_MAX_MODULES;
    worker->place.slot.module = 1;
    worker->has_gpu = rank >= 6;
    worker->gpu = (struct gpu_view){{{0xa0, 1, 2, 3, 4}}, 100, 12080, rank == 6 ? 0 : 22105};
}

static int setup(void **state)
{
    (void)state;
    snapshot = (struct snapshot){.made_ms = 100000, .job_count = 1, .worker_count = WORKERS};
    snapshot.workers = workers;
    snapshot.modules = modules;
    snapshot.stalls = stalls;
    snapshot.rates = rates;
    snapshot.events = events;
    snapshot.jobs[0] = (struct snapshot_job){.workers = {0, WORKERS},
                                             .modules = {0, 2},
                                             .stalls = {0, 2},
                                             .rates = {0, 2},
                                             .events = {0, 1}};
    struct job_view *job = &snapshot.jobs[0].view;
    snprintf(job->name, sizeof(job->name), "run \"1\"");
    job->state = JOB_RUNNING;
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        fill_worker(rank);
    struct worker_view *culprit = &workers[3];
    culprit->kind = STALL_OUTSIDE;
    culprit->flags = PLACE_PAUSED | PLACE_DISK;
    strcpy(culprit->sleeps, "read (nfs_wait)");
    culprit->place.api = API_CALL_END;
    culprit->place.module = 0;
    culprit->place.call = 4;
    culprit->place.inside = false;
    culprit->place.waits = false;
    culprit->place.api_ms = 41000;

    stalls[0] = (struct stall_view){.number = 2,
                                    .active = true,
                                    .kind = STALL_OUTSIDE,
                                    .step = 1832,
                                    .age_ms = 41200,
                                    .waiting = 11,
                                    .culprit_total = 1,
                                    .culprit_count = 1,
                                    .edge_count = 1};
    snprintf(stalls[0].sentence, sizeof(stalls[0]).sentence, "rank 3 is outside");
    struct culprit_view *view = &stalls[0].culprits[0];
    view->rank = 3;
    snprintf(view->host, sizeof(view->host), "node-0");
    view->pid = 903;
    view->kind = STALL_OUTSIDE;
    view->age_ms = 41200;
    view->bound_ms = 11200;
    snprintf(view->why, sizeof(view->why), "floor");
    view->place = culprit->place;
    view->answered = true;
    snprintf(view->top, sizeof(view->top), "read_batch (a.out+0x1a2b)");
    view->missing_total = 3;
    snprintf(view->awaited, sizeof(view->awaited), "the gradient of 'w'");
    view->stream = 0x7f00;
    view->missing_count = 1;
    snprintf(view->missing[0], sizeof(view->missing[0]), "layer.0");
    stalls[0].edges[0] = (struct stall_edge){.from = 0, .to = 3, .members = 11};
    stalls[1] = (struct stall_view){.number = 1, .kind = STALL_FROZEN, .lasted_ms = 3000};
    stalls[1].culprit_count = 1;
    stalls[1].culprits[0].kind = STALL_FROZEN;
    json_init(&json, RENDER_JSON_BYTES);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    json_fini(&json);
    return 0;
}

static const char *text(void)
{
    const char *bytes = json_text(&json, NULL);
    assert_non_null(bytes);
    return bytes;
}

static void expect(const char *part)
{
    if (!strstr(text(), part))
        fail_msg("'%s' is missing in:\n%s", part, text());
}

// The whole of a verdict, word for word: tools read it.
static void stall_is_told_in_full(void **state)
{
    (void)state;
    assert_true(render_stalls(&json, &snapshot, "run \"1\""));
    expect(
        "{\"stalls\":[{\"job\":\"run \\\"1\\\"\",\"number\":2,\"active\":true,\"kind\":\"outside\","
        "\"sentence\":\"rank 3 is outside\",\"step\":1832,\"phase\":null,\"age_ms\":41200,"
        "\"lasted_ms\":null,\"ranks_waiting\":11,\"culprits_total\":1,\"culprits\":[{\"rank\":3,"
        "\"host\":\"node-0\",\"pid\":903,\"kind\":\"outside\",\"age_ms\":41200,\"bound_ms\":11200,"
        "\"why\":\"floor\",\"api\":\"call_end\",\"inside\":false,\"api_age_ms\":41300,"
        "\"module\":\"actor\",\"call\":5,\"ready\":0,\"gradients\":0,\"missing\":[\"layer.0\"],"
        "\"missing_total\":3,\"awaited\":\"the gradient of "
        "'w'\",\"stream\":\"0x7f00\",\"mark\":null,\"answered\":true,"
        "\"top\":\"read_batch (a.out+0x1a2b)\",\"flags\":[],\"sleeps\":null}],"
        "\"edges\":[{\"from\":0,\"members\":11,\"to\":3}]},{\"job\"");
    expect("\"number\":1,\"active\":false,\"kind\":\"frozen\"");
    expect("\"lasted_ms\":3000,");
    expect("\"kind\":\"frozen\",\"age_ms\":null,\"bound_ms\":null,\"why\":null,\"api\":null,"
           "\"inside\":null,\"api_age_ms\":null,\"module\":null,\"call\":null,\"ready\":null,"
           "\"gradients\":null,\"missing\":[],\"missing_total\":null,\"awaited\":null,"
           "\"stream\":null,\"mark\":null,\"answered\":null,\"top\":null,\"flags\":[],"
           "\"sleeps\":null}],\"edges\":[]}]}"); // Not kept.
    assert_false(render_stalls(&json, &snapshot, "run 2"));
}

// Over all jobs those that last come first, whichever job is newer.
static void stalls_that_last_come_first(void **state)
{
    (void)state;
    static struct stall_view several[3];
    several[0] = stalls[0];
    several[1] = stalls[1];
    several[2] = (struct stall_view){.number = 9, .kind = STALL_LOST};
    snapshot.stalls = several;
    snapshot.job_count = 2;
    snapshot.jobs[1] = (struct snapshot_job){.stalls = {2, 1}};
    assert_true(render_stalls(&json, &snapshot, NULL));
    const char *active = strstr(text(), "\"number\":2");
    const char *newer = strstr(text(), "\"number\":9");
    const char *older = strstr(text(), "\"number\":1");
    assert_true(active && newer && older);
    assert_true(active < newer && newer < older);
}

static void job_says_where_its_workers_are(void **state)
{
    (void)state;
    assert_true(render_job(&json, &snapshot, "run \"1\""));
    expect("\"stalled\":true,\"verdict\":\"rank 3 is outside\",\"phase\":null,"
           "\"device_classes\":[\"cpu\",\"gpu\"],"
           "\"stragglers\":[{\"rank\":3,\"score\":0.01},");
    expect(
        "\"device\":\"cpu\",\"place\":{\"position\":3,\"count\":12,\"done\":false,\"waits\":true,"
        "\"slot\":{\"module\":\"cri\\\"tic\",\"call\":1,\"bucket\":0},\"api\":\"step_end\","
        "\"inside\":true,\"api_age_ms\":300,\"module\":null,\"call\":null},\"flags\":[],\"sleeps\":"
        "null,"
        "\"verdict\":null,\"slow\":false");
    expect(
        "\"flags\":[\"paused\",\"disk\"],\"sleeps\":\"read (nfs_wait)\",\"verdict\":\"outside\"");
    expect("\"straggler\":0,\"gpu\":null}");
    expect("\"gpu\":{\"uuid\":\"GPU-a0010203-0400-0000-0000-000000000000\",\"capability\":\"10.0\","
           "\"driver\":\"12.8\",\"nccl\":null}}");
    expect("\"driver\":\"12.8\",\"nccl\":\"2.21\"}}");
    workers[3].place.api = API_NONE; // A worker that has not said where it is.
    json_reset(&json);
    assert_true(render_job(&json, &snapshot, "run \"1\""));
    expect("\"place\":null");
}

static void state_has_a_row_for_each_rank(void **state)
{
    (void)state;
    assert_true(render_state(&json, &snapshot, "run \"1\""));
    expect("\"columns\":[\"rank\",\"host\",\"pid\"");
    expect("[3,\"node-0\",903,\"cpu\",1832,\"paused\",\"outside\",0,\"call_end\",false,\"actor\",5,"
           "41300,0,0,3,12,0,9,300,\"\",0.01,0]");
    expect("[0,\"node-0\",900,\"cpu\",1832,\"waiting\",null,0,\"step_end\",true,null,0,300,");
    expect("\"rates\":[[0,310000,12000,9000,5000],[1,0,0,0,0]]");
    expect("\"log\":[[2000,\"rank 3 is <outside>\",\"stall_began\"]]");
    expect("{\"name\":\"actor\",\"ranks\":1}");
    assert_null(strchr(text(), '\n')); // It is one line of a stream.
}

// The eight worst of ten, and nobody for whom the others do not wait.
static void stragglers_are_the_worst(void **state)
{
    (void)state;
    const struct worker_view *found[RENDER_STRAGGLERS];
    assert_int_equal(render_stragglers(&snapshot, &snapshot.jobs[0], found), RENDER_STRAGGLERS);
    for (uint32_t i = 0; i < RENDER_STRAGGLERS; i++)
        assert_int_equal(found[i]->straggler_permille, 10 - i);
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        workers[rank].straggler_permille = rank == 5;
    assert_int_equal(render_stragglers(&snapshot, &snapshot.jobs[0], found), 1);
    assert_int_equal(found[0]->rank, 5);
}

static void largest_job_fits(void **state)
{
    (void)state;
    static struct worker_view many[LOCKSTEP_MAX_WORLD];
    snapshot.workers = many;
    snapshot.jobs[0].workers.count = LOCKSTEP_MAX_WORLD;
    for (uint32_t rank = 0; rank < LOCKSTEP_MAX_WORLD; rank++) {
        many[rank] = workers[3];
        many[rank].rank = rank;
        memset(many[rank].mark, '"', sizeof(many[rank]).mark - 1);
        memset(many[rank].host, '"', sizeof(many[rank]).host - 1);
    }
    assert_true(render_job(&json, &snapshot, "run \"1\""));
    assert_non_null(json_text(&json, NULL));
    json_reset(&json);
    assert_true(render_state(&json, &snapshot, "run \"1\""));
    assert_non_null(json_text(&json, NULL));
}

static void a_rank_that_has_not_come_is_awaited(void **state)
{
    (void)state;
    static char buffer[RENDER_METRICS_BYTES];
    const struct render_process process = {.version = "1"};
    const struct render_http http = {0};
    struct text metrics;
    workers[5] = (struct worker_view){.rank = 5, .has_rank = true, .awaited = true};
    assert_true(render_job(&json, &snapshot, "run \"1\""));
    expect("{\"rank\":5,\"state\":\"awaited\",");
    json_reset(&json);
    assert_true(render_state(&json, &snapshot, "run \"1\""));
    expect("[5,\"\",0,\"\",0,\"awaited\",");
    text_init(&metrics, buffer, sizeof(buffer));
    render_metrics(&metrics, &snapshot, &process, &http);
    assert_non_null(strstr(buffer, "workers{state=\"awaited\"} 1\n"));
    assert_non_null(strstr(buffer, "workers{state=\"present\"} 11\n"));
}

// A value that is no number is null; a total has all of its digits.
static void a_job_has_its_numbers(void **state)
{
    (void)state;
    struct numbers_view *numbers = &snapshot.jobs[0].view.numbers;
    const struct numbers_view none = *numbers;
    numbers->metric_count = 2;
    numbers->metrics[0] = (struct metric_state){"loss", METRIC_MEAN, 8, 0.1};
    numbers->metrics[1] = (struct metric_state){"most", METRIC_MAX, 1, NAN};
    numbers->counter_count = 1;
    numbers->counters[0] = (struct counter_state){"all \"samples\"", INT64_MIN};
    json_reset(&json);
    assert_true(render_job(&json, &snapshot, "run \"1\""));
    const char *text = json_text(&json, NULL);
    assert_non_null(strstr(text, "{\"name\":\"loss\",\"kind\":\"mean\",\"value\":0.1,\"count\":8},"
                                 "{\"name\":\"most\",\"kind\":\"max\",\"value\":null,"
                                 "\"count\":1}]"));
    assert_non_null(strstr(text, "{\"name\":\"all \\\"samples\\\"\","
                                 "\"total\":-9223372036854775808}]"));
    *numbers = none;
}

// ---- metrics ----------------------------------------------------------------------------------

static void metrics_tell_of_the_stall(void **state)
{
    (void)state;
    static char buffer[RENDER_METRICS_BYTES];
    static const char *const wanted[] = {
        "lockstep_coordinator_stalls_total{kind=\"outside\"} 4\n",
        "lockstep_coordinator_stalls_total{kind=\"frozen\"} 0\n",
        "lockstep_coordinator_job_gathering{job=\"run \\\"1\\\"\"} 0\n",
        "lockstep_coordinator_job_stalled{job=\"run \\\"1\\\"\"} 1\n",
        "lockstep_coordinator_job_stall_seconds{job=\"run \\\"1\\\"\"} 41.200000\n",
        "lockstep_coordinator_job_step_seconds{job=\"run \\\"1\\\"\"} 0.310000\n",
        "lockstep_coordinator_job_exposed_seconds{job=\"run \\\"1\\\"\"} 0.012000\n",
        "lockstep_coordinator_job_straggler_score{job=\"run \\\"1\\\"\",rank=\"3\"} 0.010\n",
        "lockstep_coordinator_event_streams 5\n",
        "lockstep_coordinator_event_streams_skipped_total 6\n",
    };
    const struct render_process process = {.version = "1"};
    const struct render_http http = {.streams = 5, .skipped = 6};
    struct text metrics;
    snapshot.counts.stalls[STALL_OUTSIDE] = 4;
    text_init(&metrics, buffer, sizeof(buffer));
    render_metrics(&metrics, &snapshot, &process, &http);
    assert_false(metrics.truncated);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        if (!strstr(buffer, wanted[i]))
            fail_msg("'%s' is missing in:\n%s", wanted[i], buffer);
    }
}

static void metrics_tell_which_job_waits_for_workers(void **state)
{
    (void)state;
    static char buffer[RENDER_METRICS_BYTES];
    const struct render_process process = {.version = "1"};
    const struct render_http http = {0};
    struct text metrics;
    const enum job_state before = snapshot.jobs[0].view.state;
    snapshot.jobs[0].view.state = JOB_GATHERING;
    text_init(&metrics, buffer, sizeof(buffer));
    render_metrics(&metrics, &snapshot, &process, &http);
    snapshot.jobs[0].view.state = before;
    assert_non_null(strstr(buffer, "job_gathering{job=\"run \\\"1\\\"\"} 1\n"));
}

static void metrics_of_an_ended_job_have_no_rate(void **state)
{
    (void)state;
    static char buffer[RENDER_METRICS_BYTES];
    const struct render_process process = {.version = "1"};
    const struct render_http http = {0};
    struct text metrics;
    snapshot.jobs[0].view.state = JOB_FINISHED;
    text_init(&metrics, buffer, sizeof(buffer));
    render_metrics(&metrics, &snapshot, &process, &http);
    assert_non_null(strstr(buffer, "job_step_max{job=\"run \\\"1\\\"\"}"));
    assert_null(strstr(buffer, "job_step_seconds{"));
    assert_null(strstr(buffer, "job_exposed_seconds{"));
}

// ---- stacks and timelines ---------------------------------------------------------------------

static void stack_shows_threads_and_frames(void **state)
{
    (void)state;
    struct stack_thread threads[2] = {
        {.tid = 7, .name = "main", .state = 'S', .trainer = true, .syscall = 202},
        {.tid = 8,
         .name = "<b>",
         .syscall = -1,
         .how = STACK_SILENT,
         .other = true,
         .own = true,
         .awaits = AWAITS_LOCK,
         .owner = 7,
         .owner_name = "main"}};
    struct stack_frame frames[3] = {{.thread = 0, .python = true, .library = true, .offset = 44},
                                    {.thread = 0, .offset = 0x1a2b, .guessed = true},
                                    {.thread = 1, .offset = 1}};
    snprintf(frames[0].object, sizeof(frames[0]).object, "train.py");
    snprintf(frames[0].symbol, sizeof(frames[0]).symbol, "sample");
    snprintf(frames[1].object, sizeof(frames[1]).object, "libc.so.6");
    const struct archived archived = {.who = {.job = "j", .rank = 3, .host = "h", .pid = 9},
                                      .stacks_ms = 1000,
                                      .threads = {threads, 2, 2},
                                      .frames = {frames, 3, 3}};
    render_stack(&json, &archived, 1400, true);
    expect("\"rank\":3,\"host\":\"h\",\"pid\":9,\"age_ms\":400,\"fresh\":true,\"phase\":null,"
           "\"doing\":null");
    expect("{\"tid\":7,\"name\":\"main\",\"state\":\"S\",\"syscall\":202,\"wchan\":null,"
           "\"trainer\":true,\"other\":false,\"own\":false,\"how\":\"signal\",\"awaits\":null,"
           "\"owner\":0,"
           "\"owner_name\":null,\"python\":[{\"file\":\"train.py\",\"line\":44,"
           "\"function\":\"sample\",\"library\":true}],\"native\":[{\"module\":\"libc.so.6\","
           "\"offset\":\"0x1a2b\",\"symbol\":null,\"guessed\":true}]}");
    expect("\"trainer\":false,\"other\":true,\"own\":true,\"how\":\"silent\",\"awaits\":\"lock\","
           "\"owner\":7,"
           "\"owner_name\":\"main\",\"python\":[],\"native\":[{\"module\":\"\",\"offset\":\"0x1\"");
}

// Condition: two buckets overlap, one of them has not ended. Decision: two lanes, and the other one
// reaches to the moment of the answer, which is the clock of this process.
static void timeline_has_lanes(void **state)
{
    (void)state;
    struct trace_event list[] = {
        {.time_ns = 1000000, .step = 5, .kind = TRACE_STEP_BEGIN},
        {.time_ns = 2000000, .step = 5, .kind = TRACE_LAUNCH, .bucket = 0, .value = 64},
        {.time_ns = 3000000, .step = 5, .kind = TRACE_LAUNCH, .bucket = 1, .value = 64},
        {.time_ns = 4000000, .step = 5, .kind = TRACE_FINAL, .bucket = 0},
        {.time_ns = 5000000, .step = 5, .kind = TRACE_STEP_END},
        // An event of a step that was never seen.
        {.time_ns = 6000000, .step = 9, .kind = TRACE_SETTLED},
    };
    const struct archived archived = {.who = {.job = "run \"1\"", .rank = 3, .host = "h"},
                                      .events_ms = 100,
                                      .clock_ns = 10000000,
                                      .events = {list, 6, 6}};
    render_timeline_begin(&json);
    render_timeline_rank(&json, &snapshot, &archived);
    render_timeline_end(&json);
    expect("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{\"name\":\"process_name\",\"ph\":\"M\","
           "\"pid\":3,\"tid\":0,\"args\":{\"name\":\"rank 3 (h)\"}}");
    expect("{\"name\":\"step 5\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":3,\"tid\":1,\"ts\":91000,"
           "\"dur\":4000,");
    expect("{\"name\":\"actor#1.0\",\"cat\":\"bucket\",\"ph\":\"X\",\"pid\":3,\"tid\":200,"
           "\"ts\":92000,\"dur\":2000,\"args\":{\"step\":5,\"module\":0,\"call\":1,\"bucket\":0,"
           "\"bytes\":64}}");
    expect("{\"name\":\"actor#1.1\",\"cat\":\"bucket\",\"ph\":\"X\",\"pid\":3,\"tid\":201,"
           "\"ts\":93000,\"dur\":7000,");
    expect("{\"name\":\"end of step 5\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":3,\"tid\":1,"
           "\"ts\":95000,\"dur\":5000,");
}

// Events that only begin: what is not shown is left out, nothing is written past its end.
static void timeline_bounds_what_a_worker_says(void **state)
{
    (void)state;
    static struct trace_event list[LOCKSTEP_TRACE_EVENTS];
    for (uint32_t i = 0; i < LOCKSTEP_TRACE_EVENTS; i++)
        list[i] = (struct trace_event){.time_ns = UINT64_MAX - i,
                                       .step = i,
                                       .kind = (uint16_t)(i % 3 ? TRACE_LAUNCH : i),
                                       .module = (uint16_t)i,
                                       .value = UINT64_MAX};
    const struct archived archived = {.who = {.job = "gone", .rank = 1},
                                      .events = {list, LOCKSTEP_TRACE_EVENTS, 0}};
    render_timeline_begin(&json);
    render_timeline_rank(&json, &snapshot, &archived);
    render_timeline_end(&json);
    assert_non_null(json_text(&json, NULL));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(stall_is_told_in_full),
        TEST(stalls_that_last_come_first),
        TEST(job_says_where_its_workers_are),
        TEST(state_has_a_row_for_each_rank),
        TEST(stragglers_are_the_worst),
        TEST(largest_job_fits),
        TEST(a_rank_that_has_not_come_is_awaited),
        TEST(a_job_has_its_numbers),
        TEST(metrics_tell_of_the_stall),
        TEST(metrics_tell_which_job_waits_for_workers),
        TEST(metrics_of_an_ended_job_have_no_rate),
        TEST(stack_shows_threads_and_frames),
        TEST(timeline_has_lanes),
        TEST(timeline_bounds_what_a_worker_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
