// SPDX-License-Identifier: Apache-2.0
//
// Standstills: each kind of culprit is named, with what it does and for whom, and nobody else is.

#include "coordinator/journal.h"
#include "tests/unit/coordinator/fleet_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    FLOOR = LOCKSTEP_STALL_FLOOR_MS,
    // Time until a stall is found: the floor, and one heartbeat.
    FOUND = LOCKSTEP_STALL_FLOOR_MS + LOCKSTEP_HEARTBEAT_MS + FLEET_MS,
    // The same when the rank does not answer: the coordinator's wait for an answer comes on top.
    UNANSWERED = FOUND + LOCKSTEP_INSPECT_MS + LOCKSTEP_WATCH_MS,
};

static void assert_found(uint64_t after_ms, uint64_t least_ms, uint64_t most_ms)
{
    if (after_ms <= least_ms || after_ms > most_ms)
        print_error("found after %llu ms\n", (unsigned long long)after_ms);
    assert_true(after_ms > least_ms && after_ms <= most_ms);
}

// ---- In the trainer's own code -----------------------------------------------------------------

// Condition: the coordinator has another job. Decision: the command names the job, because without
// a name it is about the latest one.
static void test_with_another_job_the_command_names_the_job(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    const struct up_hello hello = story_hello("later", 2, "h9");
    story_say_hello(fleet.story, 4, &hello);
    fleet_outside(&fleet, 1);
    assert_found(fleet_until_stall(&fleet, 60000), FLOOR, FOUND);
    fleet_expect_says(&fleet, " Look at that process: lockstep stacks 1 --job j.");
}

static void test_a_rank_outside_is_named_with_what_it_does(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 1);
    snprintf(fleet.ranks[1].beat.mark, LOCKSTEP_MARK_BYTES, "sampling");
    assert_found(fleet_until_stall(&fleet, 60000), FLOOR, FOUND);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    fleet_expect_says(&fleet, "rank 1 (h1, pid 102) has been outside the library for 10.");
    fleet_expect_says(
        &fleet, " s, after lockstep_call_end of 'actor' (call 4) in step 11 of phase 'aux'; mark "
                "'sampling'; it is in index_samples (phases+0x1a2b); 2 ranks wait for it. Look at "
                "that process: lockstep stacks 1.");
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->number, 1);
    assert_int_equal(stall->step, 11);
    assert_int_equal(stall->waiting, 2);
    assert_string_equal(stall->phase, "aux");
    assert_true(stall->culprits[0].answered);
    assert_true(stall->culprits[0].age_ms > FLOOR);
    assert_int_equal(stall->culprits[0].bound_ms, FLOOR);
    assert_string_equal(stall->culprits[0].why, "floor");
    assert_int_equal(stall->edge_count, 1);
    assert_int_equal(stall->edges[0].from, 0);
    assert_int_equal(stall->edges[0].to, 1);
    assert_int_equal(stall->edges[0].members, 2);
}

static void test_a_stall_ends_with_progress(void **state)
{
    (void)state;
    struct event_view line;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 1);
    fleet_pass(&fleet, 12000);
    assert_true(fleet_is_stalled(&fleet));
    fleet_settle(&fleet);
    fleet_pass(&fleet, 1000);
    assert_false(fleet_is_stalled(&fleet));
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->number, 1);
    assert_int_equal(stall->kind, STALL_OUTSIDE);
    assert_true(stall->lasted_ms > 10000 && stall->lasted_ms < 14000);
    assert_int_equal(stall->culprits[0].rank, 1);
    assert_int_equal(stall->culprits[0].pid, 102);
    assert_string_equal(stall->culprits[0].host, "h1");
    fleet_expect_says(&fleet, "rank 1 (h1, pid 102) has been outside");
    assert_true(coordinator_event_view(story.core, 0, 0, story.now_ms, &line));
    assert_string_equal(line.id, "stall_ended");
    assert_non_null(strstr(line.text, "stall 1 is over after 1"));
    assert_true(coordinator_event_view(story.core, 0, 1, story.now_ms, &line));
    assert_string_equal(line.id, "stall_began");
    assert_true(coordinator_event_view(story.core, 0, 2, story.now_ms, &line));
    assert_string_equal(line.id, "manifests_verified");
    assert_true(coordinator_event_view(story.core, 0, 3, story.now_ms, &line));
    assert_string_equal(line.id, "world_formed");
    assert_string_equal(line.text, "3 ranks on 3 hosts");
    assert_false(coordinator_event_view(story.core, 0, 4, story.now_ms, &line));
}

static void test_a_stall_is_one_line_of_the_log(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    story.quiet = false;
    story.logging = true;
    fleet_pass(&fleet, 15000);
    story.quiet = true;
    const char *line = strstr(story.trace, "log stall_began job=j generation=1 text=\"rank 1 (h1");
    assert_non_null(line);
    assert_null(strstr(line + 1, "log "));
    story_forget(&story);
}

static void test_a_culprit_that_does_not_answer_is_named_without(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].mute = true;
    assert_found(fleet_until_stall(&fleet, 60000), FLOOR + LOCKSTEP_INSPECT_MS, UNANSWERED);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    assert_false(fleet_stall(&fleet)->culprits[0].answered);
    fleet_expect_says(&fleet, "in step 11; 1 rank waits for it.");
}

// Rank 1 is outside of the library, rank 0 waits, and the coordinator has asked rank 1 for its
// stacks. The test answers.
static void begin_asked(void)
{
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].mute = true;
    fleet_pass(&fleet, 13000);
}

static void test_what_is_answered_late_is_added(void **state)
{
    (void)state;
    begin_asked();
    const struct down_inspect *asked = &story.last[2].u.inspect;
    assert_int_equal(story.last[2].kind, DOWN_INSPECT);
    assert_int_equal(asked->what, INSPECT_PLACE | INSPECT_STACKS);
    struct up_message message = {.kind = UP_ANSWER};
    message.u.answer = (struct up_answer){.id = asked->id, .kind = ANSWER_PLACE, .last = true};
    snprintf(message.u.answer.u.place.phase, LOCKSTEP_NAME_BYTES, "l\nate");
    story_say(&story, 2, &message);
    fleet_expect_says(&fleet, "in step 11 of phase 'l?ate'; 1 rank waits for it.");
    assert_true(fleet_stall(&fleet)->culprits[0].answered);
}

// Somebody looks at the timeline of a culprit that has said where it is.
static void test_a_timeline_leaves_the_function(void **state)
{
    static const char says[] = "; it is in index_samples (phases+0x1a2b); 1 rank waits for it.";
    struct up_message message = {.kind = UP_ANSWER};
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet_pass(&fleet, 13000);
    fleet_expect_says(&fleet, says);
    fleet.ranks[1].mute = true;
    story_ask(&story, "j", 1, INSPECT_PLACE | INSPECT_EVENTS);
    assert_int_equal(story.last[2].kind, DOWN_INSPECT);
    message.u.answer.id = story.last[2].u.inspect.id;
    message.u.answer.kind = ANSWER_PLACE;
    story_say(&story, 2, &message);
    message.u.answer.kind = ANSWER_EVENTS;
    message.u.answer.last = true;
    story_say(&story, 2, &message);
    fleet_pass(&fleet, 2000);
    fleet_expect_says(&fleet, says);
}

// A rank that has been asked says what its trainer's thread does, and what its stack is.
static void answer_thread(uint32_t rank, const struct stack_thread *thread,
                          const struct stack_frame *frames, uint32_t count)
{
    const uint64_t id = story.last[rank + 1].u.inspect.id;
    struct up_message message = {.kind = UP_ANSWER};
    struct up_answer *answer = &message.u.answer;
    *answer = (struct up_answer){.id = id, .kind = ANSWER_THREADS, .last = count == 0};
    answer->u.threads.count = 1;
    answer->u.threads.threads[0] = *thread;
    story_say(&story, rank + 1, &message);
    if (count == 0)
        return;
    *answer = (struct up_answer){.id = id, .kind = ANSWER_FRAMES, .last = true};
    answer->u.frames.count = count;
    memcpy(answer->u.frames.frames, frames, count * sizeof(frames[0]));
    story_say(&story, rank + 1, &message);
}

static void answer_frames(uint32_t rank, enum stack_how how, const struct stack_frame *frames,
                          uint32_t count)
{
    const struct stack_thread thread = {.trainer = true, .how = how};
    answer_thread(rank, &thread, frames, count);
}

static void is_asked_again_after(enum stack_how how)
{
    begin_asked();
    answer_frames(1, how, NULL, 0);
    fleet_expect_says(&fleet, "in step 11; 1 rank waits for it.");
    fleet.ranks[1].mute = false;
    fleet_pass(&fleet, LOCKSTEP_INSPECT_PAUSE_MS);
    fleet_expect_says(&fleet, "; it is in index_samples (phases+0x1a2b); 1 rank waits for it.");
    const uint64_t last = story.last[2].u.inspect.id;
    fleet_pass(&fleet, 2 * LOCKSTEP_INSPECT_PAUSE_MS);
    assert_int_equal(story.last[2].u.inspect.id, last);
}

// On a busy machine a thread may take longer than it has.
static void test_who_had_no_time_to_answer_is_asked_again(void **state)
{
    (void)state;
    is_asked_again_after(STACK_SILENT);
}

// On a busy machine a thread that polls may wake up whenever it is looked at.
static void test_who_never_slept_long_enough_is_asked_again(void **state)
{
    (void)state;
    is_asked_again_after(STACK_LEFT_ALONE);
}

static void test_frames_of_python_come_first(void **state)
{
    static const struct stack_frame frames[] = {
        {.object = "_sampler.so"},
        {.object = "replay_buffer.py", .symbol = "sample", .python = true, .offset = 41},
        {.object = "train.py", .python = true},
    };
    (void)state;
    begin_asked();
    answer_frames(1, STACK_SIGNAL, frames, 3);
    fleet_expect_says(&fleet, "; it is in sample (replay_buffer.py:41); 1 rank waits for it.");
}

// Where Python's own library waits says nothing: the first frame outside of it is shown as well.
static void test_callers_of_the_library_of_python_are_shown(void **state)
{
    static const struct stack_frame frames[] = {
        {.object = "threading.py",
         .symbol = "wait",
         .python = true,
         .library = true,
         .offset = 320},
        {.object = "queue.py", .symbol = "get", .python = true, .library = true, .offset = 171},
        {.object = "train.py", .symbol = "load", .python = true, .offset = 41},
        {.object = "train.py", .symbol = "main", .python = true, .offset = 90},
        {.object = "libc.so.6", .symbol = "read"},
    };
    (void)state;
    begin_asked();
    answer_frames(1, STACK_ASLEEP, frames, 5);
    fleet_expect_says(&fleet, "; it is in wait (threading.py:320), called from load (train.py:41); "
                              "1 rank waits for it.");
}

// A lock has an owner, and so has the end of a thread.
static void test_a_thread_that_is_waited_for_is_named(void **state)
{
    static const struct stack_frame frame = {.object = "train", .symbol = "next_batch"};
    const struct stack_thread thread = {.trainer = true,
                                        .how = STACK_ASLEEP,
                                        .awaits = AWAITS_LOCK,
                                        .owner = 9041,
                                        .owner_name = "loa\nder"};
    (void)state;
    begin_asked();
    answer_thread(1, &thread, &frame, 1);
    fleet_expect_says(&fleet, "; it is in next_batch (train+0x0); it waits for a lock that thread "
                              "9041 (loa?der) holds; 1 rank waits for it.");
}

// Condition: the innermost frame is in no file. Decision: the sentence says what such code is.
static void test_generated_code(void **state)
{
    static const struct stack_frame frame = {.offset = 0x7f22a15ff009};
    (void)state;
    begin_asked();
    answer_frames(1, STACK_SIGNAL, &frame, 1);
    fleet_expect_says(&fleet, "; it is in generated code at 0x7f22a15ff009; 1 rank waits for it.");
}

// Condition: a thread has locked a mutex twice. Decision: no other thread is named.
static void test_a_thread_that_waits_for_itself(void **state)
{
    static const struct stack_frame frame = {.object = "train", .symbol = "next_batch"};
    const struct stack_thread thread = {
        .trainer = true, .tid = 9041, .awaits = AWAITS_LOCK, .owner = 9041, .owner_name = "train"};
    (void)state;
    begin_asked();
    answer_thread(1, &thread, &frame, 1);
    fleet_expect_says(&fleet,
                      "; it is in next_batch (train+0x0); it waits for a lock that it holds "
                      "itself; 1 rank waits for it.");
}

// A program may contain the library: a thread that is in there for long was called from somewhere.
static void test_the_caller_of_the_library_is_named(void **state)
{
    static const struct stack_frame frames[] = {
        {.object = "libc.so.6", .symbol = "fsync", .offset = 1},
        {.object = "trainer", .symbol = "saved_flush", .offset = 2},
        {.object = "trainer", .symbol = "lockstep_session_save", .offset = 3},
        {.object = "trainer", .symbol = "checkpoint", .offset = 4},
        {.object = "trainer", .symbol = "main", .offset = 5},
    };
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].mute = true;
    fleet.ranks[1].beat.place.inside = true;
    fleet_pass(&fleet, 13000);
    fleet_expect_culprit(&fleet, 1, STALL_UNKNOWN);
    answer_frames(1, STACK_SIGNAL, frames, 5);
    fleet_expect_says(&fleet, "; it is in checkpoint (trainer+0x4); 1 rank waits");
}

// The report skips frames that every waiting thread has, whatever library they are from.
static void test_frames_of_libraries_are_passed_by(void **state)
{
    static const struct stack_frame frames[] = {
        {.object = "[vdso]", .offset = 1},
        {.object = "libc.so.6", .symbol = "clock_nanosleep", .offset = 2},
        {.object = "libasan.so.8", .symbol = "usleep", .offset = 3},
        {.object = "libtsan.so.2", .offset = 4},
        {.object = "libubsan.so.1", .offset = 5},
        {.object = "trainer", .symbol = "___interceptor_usleep", .offset = 6},
        {.object = "trainer", .symbol = "__sanitizer_weak_hook", .offset = 7},
        {.object = "libgcc_s.so.1", .symbol = "_Unwind_Backtrace", .offset = 8},
        {.object = "trainer", .symbol = "asan_is_a_name_of_mine", .offset = 9},
        {.object = "trainer", .symbol = "main", .offset = 10},
    };
    (void)state;
    begin_asked();
    answer_frames(1, STACK_SIGNAL, frames, 10);
    fleet_expect_says(&fleet, "; it is in asan_is_a_name_of_mine (trainer+0x9); 1 rank waits");
}

static void test_a_rank_in_a_call_is_named_with_what_is_missing(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_in_call(&fleet, 0);
    assert_found(fleet_until_stall(&fleet, 60000), FLOOR, FOUND);
    fleet_expect_culprit(&fleet, 0, STALL_IN_CALL);
    fleet_expect_says(
        &fleet, "rank 0 (h0, pid 101) has a call open of 'critic' (call 2) in step 11 of phase "
                "'aux' and has reported nothing for 1");
    fleet_expect_says(
        &fleet, "; 3 of 10 gradients are ready, missing 'w0', 'w1', 'w2' and 4 more; it is in "
                "index_samples");
    assert_int_equal(fleet_stall(&fleet)->culprits[0].missing_count, 4);
    assert_int_equal(fleet_stall(&fleet)->culprits[0].missing_total, 7);
    assert_string_equal(fleet_stall(&fleet)->culprits[0].missing[3], "w3");
}

static void test_a_rank_that_gets_on_slowly_is_no_culprit(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_in_call(&fleet, 0);
    fleet.ranks[0].beat.place.gradients = 100;
    for (uint32_t i = 0; i < 20; i++) {
        fleet_pass(&fleet, 5000);
        fleet.ranks[0].beat.place.ready++;
        fleet.ranks[0].api_at_ms = story.now_ms;
    }
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_a_rank_that_calls_without_getting_on_is_a_culprit(void **state)
{
    (void)state;
    uint64_t passed = 0;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 0);
    for (; passed < 20000 && !fleet_is_stalled(&fleet); passed += FLEET_MS) {
        fleet.ranks[0].api_at_ms = story.now_ms;
        fleet_pass(&fleet, FLEET_MS);
    }
    assert_found(passed, FLOOR, FOUND + LOCKSTEP_HEARTBEAT_MS);
    fleet_expect_culprit(&fleet, 0, STALL_OUTSIDE);
}

static void test_a_rank_inside_that_waits_for_nobody_is_named(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 0);
    fleet.ranks[0].beat.place.api = API_STATE;
    fleet.ranks[0].beat.place.module = LOCKSTEP_MAX_MODULES;
    fleet.ranks[0].beat.place.inside = true;
    fleet_pass(&fleet, 12000);
    fleet_expect_culprit(&fleet, 0, STALL_UNKNOWN);
    fleet_expect_says(&fleet, "has been inside a function that saves or loads for 1");
    fleet_expect_says(&fleet, " and waits for no rank; it is in index_samples");
}

// One of two threads waits for a call, so the trainer is not held up: the other one may go on.
static void test_a_rank_with_a_thread_that_does_not_wait_is_told_so(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 0);
    fleet.ranks[0].beat.place.api = API_CALL_WAIT;
    fleet.ranks[0].beat.place.inside = true;
    fleet_pass(&fleet, 12000);
    fleet_expect_culprit(&fleet, 0, STALL_UNKNOWN);
    fleet_expect_says(&fleet, "has been inside lockstep_call_wait of 'actor' (call 4) for 1");
    fleet_expect_says(&fleet, ", and another thread of its trainer does not wait; it is in");
}

// ---- Who is no culprit -------------------------------------------------------------------------

static void test_nobody_waits_nobody_is_in_the_way(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    for (uint32_t rank = 0; rank < 3; rank++)
        fleet_outside(&fleet, rank);
    // Ranks 0 and 1 are long past their bounds; rank 2 still does something.
    for (uint32_t i = 0; i < 10; i++) {
        fleet_pass(&fleet, 4000);
        fleet_outside(&fleet, 2);
        fleet.ranks[2].beat.place.ready = i;
    }
    assert_int_equal(fleet_stalls(&fleet), 0);
    // When it does nothing either, nobody will ever get on.
    assert_found(fleet_until_stall(&fleet, 60000), FLOOR - 4000, FOUND + 1000);
    assert_int_equal(fleet_stall(&fleet)->culprit_total, 3);
    assert_int_equal(fleet_stall(&fleet)->waiting, 0);
    fleet_expect_says(&fleet, "; nobody waits for them.");
}

// Between steps no rank has done a part yet: a rank in a collective waits, and a rank that is not
// in one is in the way.
static void test_a_rank_that_waits_before_its_part_is_no_culprit(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_settle(&fleet);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct place *place = &fleet.ranks[rank].beat.place;
        place->api = API_COLLECTIVE;
        place->inside = true;
        place->waits = true;
    }
    fleet_pass(&fleet, 13000);
    fleet_expect_culprit(&fleet, 2, STALL_OUTSIDE);
    fleet_expect_says(&fleet, "has been outside the library for 1");
    fleet_expect_says(&fleet, " s, after lockstep_step_end in step 11 of phase 'aux'; it is in");
}

// Steps count from 1: a rank that has not begun one is in none.
static void test_no_sentence_says_step_0(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_settle(&fleet);
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct place *place = &fleet.ranks[rank].beat.place;
        fleet.ranks[rank].beat.step = 0;
        place->api = rank < 2 ? API_COLLECTIVE : API_START;
        place->inside = place->waits = rank < 2;
    }
    fleet_pass(&fleet, 13000);
    fleet_expect_culprit(&fleet, 2, STALL_OUTSIDE);
    fleet_expect_says(&fleet, " s, after lockstep_start; it is in");
}

static void test_the_last_rank_of_a_job_may_take_its_time(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_settle(&fleet);
    fleet_pass(&fleet, 1000);
    story_leave(&story, 2, 11);
    fleet_pass(&fleet, 60000);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_a_rank_ahead_of_the_low_is_no_culprit(void **state)
{
    (void)state;
    fleet_begin_waiting(4, 1);
    for (uint32_t rank = 0; rank < 3; rank++)
        fleet_outside(&fleet, rank);
    fleet.ranks[1].beat.place.position = 3;
    fleet.ranks[2].beat.settled = 11; // And before the first position of the next step.
    fleet.ranks[2].beat.place.position = 0;
    fleet_pass(&fleet, 12000);
    fleet_expect_culprit(&fleet, 0, STALL_OUTSIDE);
}

static void test_a_rank_that_has_done_its_part_is_no_culprit(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 0);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.place.done = true;
    fleet_pass(&fleet, 12000);
    fleet_expect_culprit(&fleet, 0, STALL_OUTSIDE);
}

static void test_debuggers_throttles_and_disks_are_labels(void **state)
{
    (void)state;
    static const uint32_t flags[] = {PLACE_TRACED, PLACE_THROTTLED, PLACE_DISK};
    fleet_begin_waiting(2, 1);
    for (size_t i = 0; i < 3; i++) {
        fleet_waits(&fleet, 1);
        fleet_pass(&fleet, 1000);
        fleet_outside(&fleet, 1);
        fleet.ranks[1].beat.flags = flags[i];
        fleet_pass(&fleet, 28000);
        assert_int_equal(fleet_stalls(&fleet), 0);
        assert_int_equal(fleet_worker(&fleet, 1).flags, flags[i]);
        assert_true(fleet_worker(&fleet, 1).slow);
    }
    fleet.ranks[1].beat.flags = 0;
    fleet_pass(&fleet, 2000);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    fleet.ranks[1].beat.flags = PLACE_TRACED;
    fleet_pass(&fleet, 2000);
    assert_false(fleet_is_stalled(&fleet));
}

static void test_workers_that_do_not_say_where_they_are_have_no_stalls(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 2, 1);
    for (uint32_t rank = 0; rank < 2; rank++)
        fleet.ranks[rank].beat.place.api = API_NONE;
    fleet_pass(&fleet, 30000);
    assert_int_equal(coordinator_deadline(story.core), UINT64_MAX);
    assert_int_equal(fleet_stalls(&fleet), 0);
    assert_int_equal(fleet_worker(&fleet, 0).bound_ms, 0);
}

// ---- Bounds ------------------------------------------------------------------------------------

static void test_a_declared_pause_has_twice_its_time(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.place.api = API_PAUSE;
    fleet.ranks[1].beat.flags = PLACE_PAUSED;
    fleet.ranks[1].beat.pause_ms = 20000;
    fleet_pass(&fleet, 39000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    assert_int_equal(fleet_worker(&fleet, 1).bound_ms, 40000);
    fleet_pass(&fleet, 3000);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    assert_string_equal(fleet_stall(&fleet)->culprits[0].why, "pause");
}

static void test_the_time_of_a_pause_does_not_count_after_it(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.flags = PLACE_PAUSED;
    fleet.ranks[1].beat.pause_ms = 60000;
    fleet_pass(&fleet, 60000);
    fleet.ranks[1].beat.flags = 0;
    fleet.ranks[1].api_at_ms = story.now_ms;
    fleet_pass(&fleet, 9000);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_first_steps_take_ten_times_as_long_and_are_shown(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.totals.steps = LOCKSTEP_STALL_FIRST_STEPS - 1;
    fleet_pass(&fleet, 9000);
    assert_false(fleet_worker(&fleet, 1).slow);
    fleet_pass(&fleet, 3000);
    assert_true(fleet_worker(&fleet, 1).slow);
    assert_false(fleet_worker(&fleet, 0).slow);
    fleet_pass(&fleet, 87000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet_pass(&fleet, 3000);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    assert_false(fleet_worker(&fleet, 1).slow);
    assert_string_equal(fleet_stall(&fleet)->culprits[0].why, "first steps");
}

static void test_learning_steps_are_first_steps(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.place.learning = true;
    fleet_pass(&fleet, 99000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    assert_int_equal(fleet_worker(&fleet, 1).bound_ms, 10 * FLOOR);
    fleet.ranks[1].beat.place.learning = false;
    fleet.ranks[1].beat.flags = PLACE_FIRST;
    fleet_pass(&fleet, 2000);
    assert_int_equal(fleet_worker(&fleet, 1).bound_ms, 10 * FLOOR);
}

// A bound that one rank has learned counts for other ranks of its class at the same place.
static void test_bounds_are_learned_for_a_class_of_devices(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 0);
    fleet.ranks[0].beat.place.usual_us = 2500000;
    fleet_pass(&fleet, 2000);
    fleet_waits(&fleet, 0);
    fleet_outside(&fleet, 1);
    fleet_pass(&fleet, 19000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    assert_int_equal(fleet_worker(&fleet, 1).bound_ms, 20000);
    fleet_pass(&fleet, 2000);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    assert_string_equal(fleet_stall(&fleet)->culprits[0].why, "8 x p99 of 'actor' call 4 (2.5 s)");
    // Rank 2 has another class of device.
    fleet_waits(&fleet, 1);
    fleet_outside(&fleet, 2);
    fleet_pass(&fleet, 1000);
    assert_int_equal(fleet_worker(&fleet, 2).bound_ms, FLOOR);
    // Another call is another place.
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.place.call = 2;
    fleet_pass(&fleet, 1000);
    assert_int_equal(fleet_worker(&fleet, 1).bound_ms, FLOOR);
}

static void test_what_happens_rarely_is_known_too(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 0);
    fleet.ranks[0].beat.place.usual_us = 1000;
    fleet.ranks[0].beat.place.longest_us = 30000000;
    fleet_pass(&fleet, 58000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet_pass(&fleet, 4000);
    fleet_expect_culprit(&fleet, 0, STALL_OUTSIDE);
    assert_string_equal(fleet_stall(&fleet)->culprits[0].why,
                        "2 x the longest of 'actor' call 4 (30.0 s)");
}

static void test_what_was_usual_long_ago_is_forgotten(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 0);
    fleet.ranks[0].beat.place.usual_us = 5000000;
    fleet_pass(&fleet, 1000);
    fleet.ranks[0].beat.place.usual_us = 1000;
    fleet_pass(&fleet, 1000);
    assert_int_equal(fleet_worker(&fleet, 0).bound_ms, 40000);
    for (uint32_t i = 0; i < 1300; i++) {
        fleet_pass(&fleet, 1000);
        fleet.ranks[0].beat.place.ready = i % 2;
        fleet.ranks[0].api_at_ms = story.now_ms;
    }
    assert_int_equal(fleet_worker(&fleet, 0).bound_ms, FLOOR);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_absurd_claims_have_an_end(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 0);
    fleet.ranks[0].beat.place.usual_us = UINT64_MAX;
    fleet.ranks[0].beat.place.longest_us = UINT64_MAX;
    fleet.ranks[0].beat.pause_ms = UINT64_MAX;
    fleet.ranks[0].beat.flags = PLACE_PAUSED;
    fleet_pass(&fleet, 2000);
    assert_true(fleet_worker(&fleet, 0).bound_ms <= UINT64_C(48) * 3600 * 1000);
    assert_true(fleet_worker(&fleet, 0).bound_ms >= UINT64_C(8) * 3600 * 1000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fleet_setup, fleet_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_with_another_job_the_command_names_the_job),
        TEST(test_a_rank_outside_is_named_with_what_it_does),
        TEST(test_a_stall_ends_with_progress),
        TEST(test_a_stall_is_one_line_of_the_log),
        TEST(test_a_culprit_that_does_not_answer_is_named_without),
        TEST(test_what_is_answered_late_is_added),
        TEST(test_a_timeline_leaves_the_function),
        TEST(test_who_had_no_time_to_answer_is_asked_again),
        TEST(test_who_never_slept_long_enough_is_asked_again),
        TEST(test_frames_of_python_come_first),
        TEST(test_callers_of_the_library_of_python_are_shown),
        TEST(test_a_thread_that_is_waited_for_is_named),
        TEST(test_a_thread_that_waits_for_itself),
        TEST(test_generated_code),
        TEST(test_the_caller_of_the_library_is_named),
        TEST(test_frames_of_libraries_are_passed_by),
        TEST(test_a_rank_in_a_call_is_named_with_what_is_missing),
        TEST(test_a_rank_that_gets_on_slowly_is_no_culprit),
        TEST(test_a_rank_that_calls_without_getting_on_is_a_culprit),
        TEST(test_a_rank_inside_that_waits_for_nobody_is_named),
        TEST(test_a_rank_with_a_thread_that_does_not_wait_is_told_so),
        TEST(test_nobody_waits_nobody_is_in_the_way),
        TEST(test_a_rank_that_waits_before_its_part_is_no_culprit),
        TEST(test_no_sentence_says_step_0),
        TEST(test_the_last_rank_of_a_job_may_take_its_time),
        TEST(test_a_rank_ahead_of_the_low_is_no_culprit),
        TEST(test_a_rank_that_has_done_its_part_is_no_culprit),
        TEST(test_debuggers_throttles_and_disks_are_labels),
        TEST(test_workers_that_do_not_say_where_they_are_have_no_stalls),
        TEST(test_a_declared_pause_has_twice_its_time),
        TEST(test_the_time_of_a_pause_does_not_count_after_it),
        TEST(test_first_steps_take_ten_times_as_long_and_are_shown),
        TEST(test_learning_steps_are_first_steps),
        TEST(test_bounds_are_learned_for_a_class_of_devices),
        TEST(test_what_happens_rarely_is_known_too),
        TEST(test_what_was_usual_long_ago_is_forgotten),
        TEST(test_absurd_claims_have_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
