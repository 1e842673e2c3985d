// SPDX-License-Identifier: Apache-2.0
//
// The trace of a session: events of several threads in its ring while another one reads them, texts
// in cells, and the file that it is when a directory is named. tests/fault/test_trace_killed.c
// reads the trace of a killed process.

#include "base/clock.h"
#include "base/thread.h"
#include "tests/support/bounds.h"
#include "worker/support/config.h"
#include "worker/watch/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITERS 4
#define EVENTS_EACH 50000
#define COST_ROUNDS 100
#define COST_EVENTS 10000 // Events in a round.
#define COST_NS 1000 // A hundred times what it takes here: only a lock or a system call costs more.

static const struct uuid uuid = {.bytes = {0xab, 0xcd, 0x01, 0x23}};
static struct log silent;
static struct config config;
static char directory[] = "/tmp/lockstep-test-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    memset(&config, 0, sizeof(config));
    strcpy(config.job, "job/of one");
    strcpy(config.host, "here");
    strcpy(directory, "/tmp/lockstep-test-XXXXXX");
    return !mkdtemp(directory) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(directory); // Fails when something was left in it.
}

static void open_trace(struct trace *trace)
{
    assert_int_equal(trace_open(&config, &uuid, &silent, trace), 0);
}

// ---- Events ------------------------------------------------------------------------------------

static void test_events_come_back(void **state)
{
    struct trace trace;
    struct trace_event event;
    (void)state;
    open_trace(&trace);
    assert_int_equal(trace_begun(&trace), 0);
    assert_false(trace_read(&trace, 0, &event));
    trace_event_at(&trace, 4711, TRACE_LAUNCH, 812, 63, 255, 1023, 1 << 20);
    trace_event_at(&trace, 4712, TRACE_STEP_END, UINT64_MAX, TRACE_NO_MODULE, 0, 0, 0);
    assert_int_equal(trace_begun(&trace), 2);
    assert_true(trace_read(&trace, 0, &event));
    assert_int_equal(event.time_ns, 4711);
    assert_int_equal(event.kind, TRACE_LAUNCH);
    assert_int_equal(event.step, 812);
    assert_int_equal(event.module, 63);
    assert_int_equal(event.call, 255);
    assert_int_equal(event.bucket, 1023);
    assert_int_equal(event.value, 1 << 20);
    assert_int_equal(event.thread, 0);
    assert_true(trace_read(&trace, 1, &event));
    assert_true(event.step == UINT64_MAX);
    assert_int_equal(event.module, TRACE_NO_MODULE);
    trace_close(&trace, false);
}

static void test_new_events_take_the_place_of_old_ones(void **state)
{
    struct trace trace;
    struct trace_event event;
    (void)state;
    open_trace(&trace);
    for (uint64_t i = 0; i < LOCKSTEP_TRACE_EVENTS + 3; i++)
        trace_event(&trace, TRACE_SETTLED, i, TRACE_NO_MODULE, 0, 0, 0);
    assert_int_equal(trace_begun(&trace), LOCKSTEP_TRACE_EVENTS + 3);
    assert_false(trace_read(&trace, 2, &event));
    for (uint64_t i = 3; i < LOCKSTEP_TRACE_EVENTS + 3; i++) {
        assert_true(trace_read(&trace, i, &event));
        assert_int_equal(event.step, i);
    }
    trace_close(&trace, false);
}

static struct trace_slot *slot_of(const struct trace *trace, uint64_t number)
{
    return (struct trace_slot *)(void *)(trace->base + TRACE_EVENTS) +
           number % LOCKSTEP_TRACE_EVENTS;
}

// One thread was held up in its event while others went round: a later thread leaves the slot.
static void test_a_slot_has_one_writer(void **state)
{
    struct trace trace;
    struct trace_event event;
    (void)state;
    open_trace(&trace);
    for (uint64_t i = 0; i < LOCKSTEP_TRACE_EVENTS; i++)
        trace_event(&trace, TRACE_SETTLED, i, TRACE_NO_MODULE, 0, 0, 0);
    struct trace_slot *writing = slot_of(&trace, 0);
    atomic_store(&writing->sequence, TRACE_WRITING);
    struct trace_slot *newer = slot_of(&trace, 1);
    atomic_store(&newer->sequence, 2 * LOCKSTEP_TRACE_EVENTS + 2);
    for (uint64_t i = 0; i < 3; i++)
        trace_event(&trace, TRACE_SETTLED, LOCKSTEP_TRACE_EVENTS + i, TRACE_NO_MODULE, 0, 0, 0);
    assert_true(atomic_load(&writing->sequence) == TRACE_WRITING);
    assert_int_equal(writing->step, 0);
    assert_int_equal(newer->step, 1);
    assert_false(trace_read(&trace, LOCKSTEP_TRACE_EVENTS, &event));
    assert_false(trace_read(&trace, LOCKSTEP_TRACE_EVENTS + 1, &event));
    assert_true(trace_read(&trace, 2 * LOCKSTEP_TRACE_EVENTS + 1, &event));
    assert_true(trace_read(&trace, LOCKSTEP_TRACE_EVENTS + 2, &event)); // And others go on.
    assert_int_equal(event.step, LOCKSTEP_TRACE_EVENTS + 2);
    trace_close(&trace, false);
}

static void write_one(void *context)
{
    trace_event(context, TRACE_SETTLED, 0, TRACE_NO_MODULE, 0, 0, 0);
}

// More threads than there are places write one after the other. Each event has its thread's name.
static void test_threads_that_end_give_their_places_back(void **state)
{
    struct trace trace;
    struct trace_event event;
    (void)state;
    open_trace(&trace);
    const struct trace_thread *threads = (const void *)(trace.base + TRACE_THREADS);
    write_one(&trace); // This thread stays.
    for (uint32_t i = 1; i < 2 * TRACE_THREAD_PLACES; i++) {
        struct thread thread;
        char name[LOCKSTEP_THREAD_BYTES];
        snprintf(name, sizeof(name), "number %u", (unsigned)i);
        assert_int_equal(thread_start(&thread, name, write_one, &trace), 0);
        thread_join(&thread);
        assert_true(trace_read(&trace, i, &event));
        assert_in_range(event.thread, 1, TRACE_THREAD_PLACES - 1);
        assert_string_equal(threads[event.thread].name, name);
    }
    trace_close(&trace, false);
}

struct writer {
    struct thread thread;
    const struct trace *trace;
    uint32_t number;
    atomic_bool *go;
};

// Every field follows from the step, so that a mixed event is seen.
static void write_events(void *argument)
{
    const struct writer *writer = argument;
    while (!atomic_load(writer->go))
        ;
    for (uint32_t i = 0; i < EVENTS_EACH; i++) {
        const uint64_t step = (uint64_t)writer->number * EVENTS_EACH + i;
        trace_event_at(writer->trace, step + 1, TRACE_FINAL, step, step % 64, step % 256,
                       (uint32_t)step % 1024, ~step);
    }
}

static void expect_whole(const struct trace_event *event)
{
    assert_int_equal(event->time_ns, event->step + 1);
    assert_int_equal(event->kind, TRACE_FINAL);
    assert_int_equal(event->module, event->step % 64);
    assert_int_equal(event->call, event->step % 256);
    assert_int_equal(event->bucket, event->step % 1024);
    assert_true(event->value == ~event->step);
    assert_in_range(event->thread, 0, WRITERS);
}

static void test_a_reader_gets_whole_events(void **state)
{
    struct trace trace;
    struct writer writers[WRITERS];
    struct trace_event event;
    atomic_bool go = false;
    uint64_t taken = 0;
    (void)state;
    open_trace(&trace);
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.trace = &trace, .number = i, .go = &go};
        assert_int_equal(thread_start(&writers[i].thread, "writer", write_events, &writers[i]), 0);
    }
    atomic_store(&go, true);
    while (trace_begun(&trace) < WRITERS * EVENTS_EACH) {
        const uint64_t end = trace_begun(&trace);
        for (uint64_t n = end > 64 ? end - 64 : 0; n < end; n++) {
            if (!trace_read(&trace, n, &event))
                continue;
            expect_whole(&event);
            taken++;
        }
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        thread_join(&writers[i].thread);
    for (uint64_t n = WRITERS * EVENTS_EACH - 64; n < WRITERS * EVENTS_EACH; n++)
        taken += trace_read(&trace, n, &event);
    assert_true(taken > 0);
    trace_close(&trace, false);
}

// Takes the round in which nothing held this thread up.
static void test_an_event_is_cheap(void **state)
{
    struct trace trace;
    uint64_t least = UINT64_MAX;
    (void)state;
    open_trace(&trace);
    for (uint32_t round = 0; round < COST_ROUNDS; round++) {
        const uint64_t begin = clock_now_ns();
        for (uint64_t i = 0; i < COST_EVENTS; i++)
            trace_event(&trace, TRACE_FINAL, i, 1, 2, 3, 4);
        const uint64_t each = (clock_now_ns() - begin) / COST_EVENTS;
        least = each < least ? each : least;
    }
    print_message("%llu ns an event\n", (unsigned long long)least);
    assert_true(least < (uint64_t)COST_NS * test_slow());
    trace_close(&trace, false);
}

// ---- Cells -------------------------------------------------------------------------------------

static void write_marks(void *argument)
{
    const struct writer *writer = argument;
    struct trace_cell *cell = trace_cell(writer->trace, TRACE_MARK);
    char text[LOCKSTEP_MARK_BYTES];
    for (uint32_t i = 0; atomic_load(writer->go); i++) {
        memset(text, 'a' + (int)(i % 26), sizeof(text) - 1);
        text[i % (sizeof(text) - 1)] = '\0';
        trace_cell_write(cell, text);
    }
}

static void test_a_reader_gets_whole_texts(void **state)
{
    struct trace trace;
    atomic_bool go = true;
    struct writer writer = {.trace = &trace, .go = &go};
    char text[LOCKSTEP_MARK_BYTES];
    (void)state;
    open_trace(&trace);
    assert_int_equal(thread_start(&writer.thread, "writer", write_marks, &writer), 0);
    for (uint32_t i = 0; i < 20000; i++) {
        trace_cell_read(trace_cell(&trace, TRACE_MARK), text);
        const size_t length = strlen(text);
        assert_true(length < sizeof(text));
        for (size_t c = 1; c < length; c++)
            assert_int_equal(text[c], text[0]);
    }
    atomic_store(&go, false);
    thread_join(&writer.thread);
    trace_cell_write(trace_cell(&trace, TRACE_MARK), "saving");
    trace_cell_read(trace_cell(&trace, TRACE_MARK), text);
    assert_string_equal(text, "saving");
    trace_close(&trace, false);
}

// ---- The file ----------------------------------------------------------------------------------

static uint32_t files_in(const char *path)
{
    DIR *open = opendir(path);
    uint32_t count = 0;
    assert_non_null(open);
    for (const struct dirent *entry = readdir(open); entry; entry = readdir(open))
        count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

static void test_a_directory_gets_a_file(void **state)
{
    struct trace trace;
    struct stat status;
    char wanted[128];
    (void)state;
    strcpy(config.trace_dir, directory);
    open_trace(&trace);
    snprintf(wanted, sizeof(wanted), "%s/lockstep-job_of_one-%ld-abcd0123.trace", directory,
             (long)getpid());
    assert_string_equal(trace.path, wanted);
    assert_int_equal(stat(wanted, &status), 0);
    assert_int_equal(status.st_size, TRACE_BYTES);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_true((uint64_t)status.st_blocks * 512 >= TRACE_BYTES); // A full disk is no signal later.
    trace_close(&trace, false);
    assert_int_equal(files_in(directory), 0);
}

static void test_a_file_that_is_kept(void **state)
{
    struct trace trace;
    struct trace_header header;
    const struct generation_id generation = {.number = 3, .incarnation = 77};
    char path[PATH_MAX];
    (void)state;
    strcpy(config.trace_dir, directory);
    open_trace(&trace);
    trace_formed(&trace, &generation, 2, 4);
    trace_module(&trace, 1, "critic");
    strcpy(path, trace.path);
    trace_close(&trace, true);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&header, sizeof(header), 1, file), 1);
    fclose(file);
    assert_int_equal(unlink(path), 0);
    assert_memory_equal(header.magic, TRACE_MAGIC, sizeof(header.magic));
    assert_int_equal(header.version, TRACE_VERSION);
    assert_int_equal(header.event_count, LOCKSTEP_TRACE_EVENTS);
    assert_int_equal(header.pid, getpid());
    assert_int_equal(header.generation, 3);
    assert_int_equal(header.rank, 2);
    assert_int_equal(header.world_size, 4);
    assert_int_equal(header.closed, 1);
    assert_string_equal(header.job, "job/of one");
}

static void count_line(void *context, enum log_level level, const char *line, size_t size)
{
    (void)size;
    assert_int_equal(level, LOG_LEVEL_WARN);
    assert_non_null(strstr(line, "trace_dir_refused"));
    (*(uint32_t *)context)++;
}

// Memory takes its place, and one line says so.
static void test_a_directory_that_is_none(void **state)
{
    struct trace trace;
    struct trace_event event;
    struct log log;
    uint32_t lines = 0;
    (void)state;
    log_init(&log, LOG_LEVEL_WARN, count_line, &lines);
    strcpy(config.trace_dir, "/nonexistent/traces");
    assert_int_equal(trace_open(&config, &uuid, &log, &trace), 0);
    assert_int_equal(lines, 1);
    assert_string_equal(trace.path, "");
    trace_event(&trace, TRACE_FINAL, 1, 0, 0, 0, 0);
    assert_true(trace_read(&trace, 0, &event));
    trace_close(&trace, true);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(threads_that_end_give_their_places_back),
        TEST(events_come_back),
        TEST(new_events_take_the_place_of_old_ones),
        TEST(a_slot_has_one_writer),
        TEST(a_reader_gets_whole_events),
        TEST(an_event_is_cheap),
        TEST(a_reader_gets_whole_texts),
        TEST(a_directory_gets_a_file),
        TEST(a_file_that_is_kept),
        TEST(a_directory_that_is_none),
    };
    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
