// SPDX-License-Identifier: Apache-2.0
//
// Stall sentences about real processes claim no more than is known: ranks that all wait blame
// neither each other nor the network between them; a trainer in state D is named in the end, with
// what it sleeps in; a second culprit is seen behind a stopped one; mates see a debugger; and what
// a slow rank costs is said. A debugger is this test, which stops threads by ptrace.

#include "tests/fault/process_world.h"
#include "tests/fault/stall_ask.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#define REST_MS 50
#define STEP 46 // As in test_stall.c.
#define FLOOR_MS slow_ms(500)
#define LIFTED_MS slow_ms(3000)

static struct coordinator_process coordinator;
static struct world world;

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

static void begin(struct script *scripts, uint32_t size, const char *transport)
{
    char floor_ms[48];
    snprintf(floor_ms, sizeof(floor_ms), "--stall-floor-ms=%llu", (unsigned long long)FLOOR_MS);
    const char *const arguments[] = {"--http=127.0.0.1:0", floor_ms, NULL};
    for (uint32_t rank = 0; rank < size; rank++) {
        scripts[rank].way.transport = transport;
        if (scripts[rank].rest_ms == 0)
            scripts[rank].rest_ms = REST_MS;
        scripts[rank].report_every = 5;
    }
    coordinator_start(&coordinator, arguments);
    world_start(&world, &coordinator, "job", size, scripts);
}

static void end(void)
{
    stall_expect(&coordinator, "", LIFTED_MS);
    world_stop(&world);
    world_expect_done(&world);
    coordinator_stop(&coordinator);
}

// ---- Threads -----------------------------------------------------------------------------------

static bool thread_is_watch(pid_t pid, const char *tid)
{
    char path[64];
    char name[32] = "";
    snprintf(path, sizeof(path), "/proc/%d/task/%.16s/comm", (int)pid, tid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool read = fgets(name, sizeof(name), file) != NULL;
    (void)fclose(file);
    return read && (strncmp(name, "lockstep-watch", 14) == 0 ||
                    strncmp(name, "lockstep-ctl", 12) == 0 || strncmp(name, "grpc", 4) == 0 ||
                    strncmp(name, "event_engine", 12) == 0 || strncmp(name, "timer", 5) == 0);
}

// Makes the ptrace request for all threads of a process. With spare, threads that report to the
// coordinator are left out. A request may fail, because a thread may end meanwhile.
static void threads_each(pid_t pid, bool spare, enum __ptrace_request request)
{
    char path[32];
    struct dirent *entry;
    unsigned stopped = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    assert_non_null(tasks);
    while ((entry = readdir(tasks))) {
        const pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (tid <= 0 || (spare && thread_is_watch(pid, entry->d_name)))
            continue;
        stopped += ptrace(request, tid, NULL, NULL) == 0;
    }
    (void)closedir(tasks);
    assert_true(stopped > 0);
}

static void debugger_stops(pid_t pid, bool spare)
{
    threads_each(pid, spare, PTRACE_SEIZE);
    threads_each(pid, spare, PTRACE_INTERRUPT);
}

// ---- Tests -------------------------------------------------------------------------------------

// Condition: all ranks wait in lockstep_step_end, and rank 1 does nothing there: its threads that
// work are stopped, and the one that reports is not. Decision: no rank and no link is blamed, and
// what all wait for is said in words. Over TCP its kernel takes what the others send until it has
// no more room, and goes on to answer.
static void all_wait(const char *transport)
{
    struct script scripts[3] = {
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_READ},
        {.place = PLACE_NOWHERE},
        {.place = PLACE_NOWHERE},
    };
    begin(scripts, 3, transport);
    world_expect(&world, 0, REPORT_PLACE, NULL);
    stall_expect(&coordinator, "0:outside", WAIT_MS);
    debugger_stops(world.workers[1].pid, true);
    world_release(&world, 0);
    stall_expect(&coordinator, "'nobody:says=ranks 0, 1 and 2 wait in lockstep_step_end of step '",
                 WAIT_MS);
    threads_each(world.workers[1].pid, true, PTRACE_DETACH);
    end();
}

static void all_wait_over_tcp(void **state)
{
    (void)state;
    all_wait("tcp");
}

static void all_wait_in_memory(void **state)
{
    (void)state;
    all_wait("auto");
}

// Condition: rank 1 sleeps in the kernel and takes no signal. Decision: three bounds later it is
// named, with the system call.
static void asleep_in_the_kernel(void **state)
{
    (void)state;
    struct script scripts[2] = {
        {.place = PLACE_NOWHERE},
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_KERNEL},
    };
    begin(scripts, 2, "auto");
    world_expect(&world, 1, REPORT_PLACE, NULL);
    stall_expect(&coordinator,
                 "'1:outside:disk:why\": \"sleeps in the kernel:says=it sleeps in the kernel'",
                 WAIT_MS);
    stall_expect(&coordinator, "'1:outside:says= vfork ('", WAIT_MS);
    world_release(&world, 1);
    end();
}

// ---- A mount that answers no more ---------------------------------------------------------------

// A file system of its own in a file. Its shell thaws and removes it when the pipe ends, so also
// when the test dies; until then nothing can end a process that sleeps there.
static char mount_folder[] = "/tmp/lockstep-frozen-XXXXXX";
static FILE *mount_keeper;

static bool mount_run(const char *format)
{
    char command[512];
    snprintf(command, sizeof(command), "{ D=%s; %s; } >/dev/null 2>&1", mount_folder, format);
    return system(command) == 0;
}

static bool mount_make(void)
{
    if (!mkdtemp(mount_folder))
        return false;
    if (mount_run("mkdir $D/m && truncate -s 8M $D/image && mkfs.ext4 -q $D/image && "
                  "mount -o loop $D/image $D/m"))
        return true;
    mount_run("rm -rf $D");
    return false;
}

// Call it after the workers were forked: they must not hold the pipe.
static void mount_freeze(void)
{
    char command[256];
    snprintf(command, sizeof(command),
             "cat >/dev/null; fsfreeze -u %s/m; umount -l %s/m; rm -rf %s", mount_folder,
             mount_folder, mount_folder);
    mount_keeper = popen(command, "we");
    assert_non_null(mount_keeper);
    assert_true(mount_run("fsfreeze -f $D/m"));
}

static void mount_thaw(void)
{
    if (mount_keeper)
        pclose(mount_keeper);
    mount_keeper = NULL;
}

static int mount_teardown(void **state)
{
    mount_thaw();
    return teardown(state);
}

// Condition: rank 1 makes a file where the file system takes no more writes, and takes no signal.
// Decision: it is named with the system call, the function of the kernel, and its own function.
static void asleep_on_a_dead_mount(void **state)
{
    char path[64];
    struct script scripts[2] = {
        {.place = PLACE_NOWHERE},
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_FROZEN},
    };
    (void)state;
    if (!mount_make()) {
        print_message("skipped: this machine mounts no file system of a test (mkfs.ext4, mount -o "
                      "loop, fsfreeze, as root)\n");
        skip();
    }
    snprintf(path, sizeof(path), "%s/m/file", mount_folder);
    setenv("LOCKSTEP_TEST_FROZEN", path, 1);
    begin(scripts, 2, "auto");
    mount_freeze();
    world_expect(&world, 1, REPORT_PLACE, NULL);
    stall_expect(&coordinator,
                 "'1:outside:disk:why\": \"sleeps in the kernel:says=it sleeps in the kernel'",
                 WAIT_MS);
    stall_expect(&coordinator, "'1:outside:hold_frozen:says= openat (percpu_rwsem_wait)'", WAIT_MS);
    mount_thaw();
    world_release(&world, 1);
    end();
}

// Condition: rank 1 is stopped, and rank 0 stands still in its own code. Decision: both are named.
static void behind_a_stopped_one(void **state)
{
    (void)state;
    struct script scripts[3] = {
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_READ},
        {.place = PLACE_NOWHERE},
        {.place = PLACE_NOWHERE},
    };
    begin(scripts, 3, "auto");
    world_expect(&world, 0, REPORT_PLACE, NULL);
    world_signal(&world, 1, SIGSTOP);
    stall_expect(&coordinator, "0:outside:hold_read 1:stopped", WAIT_MS);
    world_signal(&world, 1, SIGCONT);
    stall_expect(&coordinator, "0:outside:hold_read", WAIT_MS);
    world_release(&world, 0);
    end();
}

// Condition: a debugger holds all threads of rank 1. Decision: the mates see which process it is.
static void held_by_a_debugger(void **state)
{
    (void)state;
    struct script scripts[3] = {{.place = PLACE_NOWHERE}};
    char wanted[96];
    begin(scripts, 3, "auto");
    world_expect_step(&world, 1, STEP);
    debugger_stops(world.workers[1].pid, false);
    snprintf(wanted, sizeof(wanted), "'1:stopped:traced:says=is stopped by a debugger (pid %d)'",
             (int)getpid());
    stall_expect(&coordinator, wanted, WAIT_MS);
    threads_each(world.workers[1].pid, false, PTRACE_DETACH);
    end();
}

// The share of time, as `lockstep status` prints it, that the others wait for this rank. 0: the
// status does not say that they wait for it.
static unsigned waited_for(uint32_t rank)
{
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    const char *keep = getenv("LOCKSTEP_TEST_STALL_KEEP"); // As in stall_ask.h: for docs/stalls.md.
    char command[256];
    char line[1024];
    char wanted[32];
    unsigned percent = 0;
    snprintf(command, sizeof(command), "'%s/lockstep' status --http 127.0.0.1:%u | tee -a '%s'",
             folder ? folder : "build/bin", coordinator.http_port, keep ? keep : "/dev/null");
    snprintf(wanted, sizeof(wanted), " %% for rank %u\n", rank);
    FILE *answer = popen(command, "re");
    assert_non_null(answer);
    while (fgets(line, sizeof(line), answer))
        if (strstr(line, wanted) && sscanf(line, "    others wait %u", &percent) == 1)
            print_message("%s", line);
    assert_int_equal(pclose(answer), 0);
    return percent;
}

// Condition: rank 1 takes half a second longer for each step than the others. Decision: half a
// minute later the status says that the others wait for it, and for no other one.
static void a_slow_rank(void **state)
{
    (void)state;
    struct script scripts[3] = {
        {.place = PLACE_NOWHERE}, {.rest_ms = 550}, {.place = PLACE_NOWHERE}};
    unsigned percent = 0;
    begin(scripts, 3, "auto");
    world_expect_step(&world, 0, 5);
    const uint64_t end_ms = clock_now_ms() + slow_ms(30000);
    while ((percent = waited_for(1)) < 40 && clock_now_ms() < end_ms)
        pause_us(500000);
    assert_in_range(percent, 40, 100);
    end();
}

int main(void)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    const struct CMUnitTest some[] = {
        cmocka_unit_test_teardown(behind_a_stopped_one, teardown),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(all_wait_over_tcp, teardown),
        cmocka_unit_test_teardown(all_wait_in_memory, teardown),
        cmocka_unit_test_teardown(asleep_in_the_kernel, teardown),
        cmocka_unit_test_teardown(asleep_on_a_dead_mount, mount_teardown),
        cmocka_unit_test_teardown(behind_a_stopped_one, teardown),
        cmocka_unit_test_teardown(held_by_a_debugger, teardown),
        cmocka_unit_test_teardown(a_slow_rank, teardown),
    };
    if (sanitizer && sanitizer[0] != '\0')
        return cmocka_run_group_tests(some, NULL, NULL); // Times, vfork and signals differ there.
    return cmocka_run_group_tests(tests, NULL, NULL);
}
