// SPDX-License-Identifier: Apache-2.0
//
// The world of cluster.h. The test's thread starts the ranks and waits for them with a time limit,
// so it is also the watchdog.

#include "tests/support/cluster.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "protos/tuning.h"
#include "tests/fake_gpu/fake_gpu.h"
#include "tests/support/devices.h"
#include "worker/support/config.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct cluster {
    // set before the threads start, then constant
    const struct cluster_test *test;
    char job[64];
    uint32_t world_size;
    struct rank ranks[CLUSTER_MAX_WORLD];
    struct thread threads[CLUSTER_MAX_WORLD];

    // guarded by mutex
    struct mutex mutex;
    struct cond changed;
    uint32_t ended;
    uint32_t met; // Ranks that wait in rank_meet now.
    uint32_t meetings; // Meetings that all ranks have passed.
    char failure[8192]; // Empty: none.
};

// ---- The coordinator ---------------------------------------------------------------------------

static pid_t coordinator_pid;
static char coordinator_address[64];

static void coordinator_stop(void)
{
    kill(coordinator_pid, SIGKILL);
    waitpid(coordinator_pid, NULL, 0);
}

static _Noreturn void coordinator_exec(int output)
{
    char program[4096];
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    snprintf(program, sizeof(program), "%s/lockstep-coordinator", folder ? folder : "build/bin");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(output, STDOUT_FILENO);
    execl(program, program, "--listen", "127.0.0.1:0", "--http", "off", "--json", "--log-level",
          "error", (char *)NULL);
    _exit(127);
}

// Reads the first line of the coordinator's output, which contains its address.
static void coordinator_read_line(int input, char *line, size_t bytes)
{
    size_t size = 0;
    while (size + 1 < bytes && !memchr(line, '\n', size)) {
        const ssize_t got = read(input, line + size, bytes - 1 - size);
        if (got <= 0)
            fail_msg("lockstep-coordinator did not start (LOCKSTEP_TEST_BIN?)");
        size += (size_t)got;
    }
    line[size] = '\0';
}

static void coordinator_start(void)
{
    static const char key[] = "\"grpc\":\"";
    char line[512];
    const char *found;
    int output[2];
    assert_int_equal(pipe2(output, O_CLOEXEC), 0);
    coordinator_pid = fork();
    if (coordinator_pid == 0)
        coordinator_exec(output[1]);
    close(output[1]);
    coordinator_read_line(output[0], line, sizeof(line));
    close(output[0]);
    found = strstr(line, key);
    if (!found)
        fail_msg("lockstep-coordinator said: %s", line);
    snprintf(coordinator_address, sizeof(coordinator_address), "%.*s",
             (int)strcspn(found + sizeof(key) - 1, "\""), found + sizeof(key) - 1);
    atexit(coordinator_stop);
}

const char *cluster_coordinator(void)
{
    if (coordinator_pid == 0)
        coordinator_start();
    return coordinator_address;
}

void cluster_signal_coordinator(int signal)
{
    kill(coordinator_pid, signal);
}

void cluster_job_name(char *name, size_t bytes)
{
    static atomic_uint jobs;
    snprintf(name, bytes, "conformance-%d-%u", (int)getpid(), ++jobs);
}

// ---- A rank ------------------------------------------------------------------------------------

void rank_enter(struct rank *rank, const char *call, int line)
{
    atomic_store(&rank->since_ms, clock_now_ms());
    atomic_store(&rank->line, line);
    atomic_store(&rank->call, call);
}

int rank_left(struct rank *rank, int status)
{
    atomic_store(&rank->call, NULL);
    atomic_store(&rank->since_ms, clock_now_ms());
    return status;
}

void rank_fail(struct rank *rank, const char *file, int line, const char *format, ...)
{
    struct cluster *cluster = rank->cluster;
    char text[4096 + 256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    mutex_lock(&cluster->mutex);
    if (cluster->failure[0] == '\0')
        snprintf(cluster->failure, sizeof(cluster->failure), "%s:%d: %s of %" PRIu32 " on %s: %s",
                 file, line, rank->label, rank->world_size, rank->setting->name, text);
    cond_broadcast(&cluster->changed);
    mutex_unlock(&cluster->mutex);
    if (rank->session)
        lockstep_abort(rank->session, "a check of the test failed");
    longjmp(rank->out, 1);
}

void rank_check_status(struct rank *rank, int expected, int status, const char *call,
                       const char *file, int line)
{
    if (status != expected)
        rank_fail(rank, file, line, "%s returned %s instead of %s%s%s", call,
                  lockstep_status_name(status), lockstep_status_name(expected),
                  status < 0 ? ": " : "", status < 0 ? lockstep_error_text() : "");
}

void rank_check_text(struct rank *rank, const char *part, const char *file, int line)
{
    if (!strstr(lockstep_error_text(), part))
        rank_fail(rank, file, line, "the error text has no '%s': %s", part, lockstep_error_text());
}

void rank_check_equal(struct rank *rank, int64_t a, int64_t b, const char *what, const char *file,
                      int line)
{
    if (a != b)
        rank_fail(rank, file, line, "%s differ: %" PRId64 " and %" PRId64, what, a, b);
}

void rank_digest(struct rank *rank, const void *bytes, size_t size)
{
    hash64_update(&rank->digest, bytes, size);
}

void rank_meet(struct rank *rank)
{
    struct cluster *cluster = rank->cluster;
    bool failed;
    uint32_t meeting;
    rank_enter(rank, "rank_meet", 0);
    mutex_lock(&cluster->mutex);
    meeting = cluster->meetings;
    if (++cluster->met == cluster->world_size) {
        cluster->met = 0;
        cluster->meetings++;
        cond_broadcast(&cluster->changed);
    }
    while (cluster->meetings == meeting && cluster->failure[0] == '\0')
        cond_wait(&cluster->changed, &cluster->mutex);
    failed = cluster->meetings == meeting;
    mutex_unlock(&cluster->mutex);
    rank_left(rank, 0);
    if (failed)
        longjmp(rank->out, 1);
}

struct lockstep_config rank_config(const struct rank *rank)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.coordinator = coordinator_address;
    config.job = rank->cluster->job;
    config.world_size = rank->world_size;
    config.rank_hint = (int32_t)rank->rank;
    config.transport = rank->setting->transport;
    atomic_store(&config_torn_bytes, rank->setting->torn_bytes);
    config.host_id = rank->host[0] == '\0' ? NULL : rank->host;
    config.open_timeout_ms = (uint32_t)test_bound_ms(CLUSTER_PATIENCE_MS);
    config.device = rank->device;
    return config;
}

static void rank_open(struct rank *rank)
{
    const struct cluster_test *test = rank->cluster->test;
    struct lockstep_config config = rank_config(rank);
    uint32_t given = 0;
    if (test->configure)
        test->configure(rank, &config);
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    RANK_OK(rank, lockstep_world(rank->session, &given, NULL));
    RANK_EQUAL(rank, given, rank->rank);
}

static void rank_live(struct rank *rank)
{
    if (setjmp(rank->out) != 0)
        return;
    if (!rank->cluster->test->without_session)
        rank_open(rank);
    rank->cluster->test->body(rank);
}

static void rank_run(void *argument)
{
    struct rank *rank = argument;
    struct cluster *cluster = rank->cluster;
    rank_live(rank);
    rank_enter(rank, "lockstep_close at the end of the test", 0);
    if (rank->session)
        lockstep_close(rank->session);
    rank->session = NULL;
    rank_left(rank, 0);
    atomic_store(&rank->ended, true);
    mutex_lock(&cluster->mutex);
    cluster->ended++;
    cond_broadcast(&cluster->changed);
    mutex_unlock(&cluster->mutex);
}

// ---- The world ---------------------------------------------------------------------------------

static void cluster_print_rank(const struct rank *rank)
{
    const char *call = atomic_load(&rank->call);
    const uint64_t since_ms = clock_now_ms() - atomic_load(&rank->since_ms);
    if (atomic_load(&rank->ended)) {
        fprintf(stderr, "  %s: has ended\n", rank->label);
        return;
    }
    fprintf(stderr, "  %s: %s%s of step %" PRIu64 " (line %d) since %" PRIu64 ".%" PRIu64 " s\n",
            rank->label, !call ? "outside the library" : "in ", !call ? "" : call,
            atomic_load(&rank->step), atomic_load(&rank->line), since_ms / 1000,
            since_ms % 1000 / 100);
}

// Prints the NCCL operations that are not done, and the ranks that they wait for.
static void cluster_print_devices(void)
{
    const char *path = getenv("LOCKSTEP_NCCL_LIBRARY");
    void *library = !path ? NULL : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    fake_nccl_report_function *report;
    char text[4096] = "";
    *(void **)&report = !library ? NULL : dlsym(library, "fake_nccl_report");
    if (!report)
        return;
    report(text, sizeof(text));
    fprintf(stderr, "  NCCL: %s\n", text[0] == '\0' ? "nothing stands" : text);
}

static _Noreturn void cluster_hangs(struct cluster *cluster)
{
    fprintf(stderr, "a world of %" PRIu32 " on %s did not end within %" PRIu64 " ms; job %s\n",
            cluster->world_size, cluster->test->setting->name, test_bound_ms(CLUSTER_PATIENCE_MS),
            cluster->job);
    for (uint32_t i = 0; i < cluster->world_size; i++)
        cluster_print_rank(&cluster->ranks[i]);
    cluster_print_devices();
    mutex_lock(&cluster->mutex);
    if (cluster->failure[0] != '\0')
        fprintf(stderr, "  before that: %s\n", cluster->failure);
    mutex_unlock(&cluster->mutex);
    abort();
}

static void cluster_await(struct cluster *cluster)
{
    const uint64_t deadline = clock_now_ms() + test_bound_ms(CLUSTER_PATIENCE_MS);
    bool in_time = true;
    mutex_lock(&cluster->mutex);
    while (cluster->ended < cluster->world_size && in_time)
        in_time = cond_wait_until(&cluster->changed, &cluster->mutex, deadline);
    mutex_unlock(&cluster->mutex);
    if (!in_time)
        cluster_hangs(cluster);
}

// Gives the rank a host name. The numbers of ranks of any two hosts differ by at most 1.
static void cluster_place_rank(struct rank *rank)
{
    uint32_t hosts = rank->setting->hosts;
    if (hosts == 0)
        return;
    if (hosts > rank->world_size)
        hosts = rank->world_size;
    snprintf(rank->host, sizeof(rank->host), "host-%" PRIu32,
             rank->rank * hosts / rank->world_size % CLUSTER_MAX_WORLD);
}

static void cluster_start_rank(struct cluster *cluster, uint32_t index)
{
    struct rank *rank = &cluster->ranks[index];
    rank->cluster = cluster;
    rank->rank = index;
    rank->world_size = cluster->world_size;
    rank->setting = cluster->test->setting;
    rank->context = cluster->test->context;
    snprintf(rank->label, sizeof(rank->label), "rank %u", (unsigned)index % CLUSTER_MAX_WORLD);
    cluster_place_rank(rank);
    if (index < rank->setting->devices)
        snprintf(rank->device, sizeof(rank->device), "cuda:%" PRIu32, index % CLUSTER_MAX_WORLD);
    else
        snprintf(rank->device, sizeof(rank->device), "none");
    hash64_init(&rank->digest, 0);
    rank_left(rank, 0);
    assert_int_equal(thread_start(&cluster->threads[index], rank->label, rank_run, rank), 0);
}

// Returns the digest that all ranks have. Fails the test if digests differ or a check failed.
static uint64_t cluster_judge(struct cluster *cluster)
{
    const uint64_t digest = hash64_final(&cluster->ranks[0].digest);
    static char failure[sizeof(cluster->failure)];
    snprintf(failure, sizeof(failure), "%s", cluster->failure);
    for (uint32_t i = 1; i < cluster->world_size && failure[0] == '\0'; i++) {
        if (hash64_final(&cluster->ranks[i].digest) != digest)
            snprintf(failure, sizeof(failure), "ranks 0 and %" PRIu32 " hold different bytes on %s",
                     i, cluster->test->setting->name);
    }
    cond_fini(&cluster->changed);
    mutex_fini(&cluster->mutex);
    free(cluster);
    if (failure[0] != '\0')
        fail_msg("%s", failure);
    return digest;
}

// Sets or removes an environment variable. Called only while no thread of a rank exists.
static void cluster_environment(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

// Points the variable to a fake library. A process loads each library once, and the library reads
// most of its variables then. LOCKSTEP_TEST_DEVICES names another folder of libraries, for a real
// GPU.
static void cluster_fake(const char *variable, const char *library)
{
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    const char *other = getenv("LOCKSTEP_TEST_DEVICES");
    char path[4096];
    if (other)
        snprintf(path, sizeof(path), "%s/%s", other, library);
    else
        snprintf(path, sizeof(path), "%s/../tests/fake_gpu/%s", folder ? folder : "build/bin",
                 library);
    if (access(path, R_OK) != 0)
        fail_msg("%s is not there: make builds it with the tests", path);
    setenv(variable, path, 1);
}

static void cluster_devices(const struct setting *setting)
{
    if (setting->devices == 0)
        return;
    cluster_fake("LOCKSTEP_CUDA_LIBRARY", "libcuda-fake.so");
    cluster_fake("LOCKSTEP_NCCL_LIBRARY", "libnccl-fake.so");
    setenv("FAKE_CUDA_EVERYWHERE", setting->device_memory_only ? "0" : "1", 1);
}

uint64_t ranks_run_test(const struct cluster_test *test)
{
    struct cluster *cluster = calloc(1, sizeof(*cluster));
    assert_non_null(cluster);
    assert_in_range(test->setting->world_size, 1, CLUSTER_MAX_WORLD);
    cluster_coordinator();
    cluster->test = test;
    cluster->world_size = test->setting->world_size;
    cluster_job_name(cluster->job, sizeof(cluster->job));
    mutex_init(&cluster->mutex);
    cond_init(&cluster->changed);
    cluster_environment("LOCKSTEP_ALGORITHM", test->setting->algorithm);
    cluster_environment("LOCKSTEP_LINK", test->setting->link);
    cluster_devices(test->setting);
    for (uint32_t i = 0; i < cluster->world_size; i++)
        cluster_start_rank(cluster, i);
    cluster_await(cluster);
    for (uint32_t i = 0; i < cluster->world_size; i++)
        thread_join(&cluster->threads[i]);
    return cluster_judge(cluster);
}

struct setting setting_on_ring(const struct setting *setting)
{
    struct setting ring = *setting;
    ring.algorithm = "ring";
    return ring;
}

uint64_t ranks_run(const struct setting *setting, void (*body)(struct rank *rank), void *context)
{
    const struct cluster_test test = {.setting = setting, .body = body, .context = context};
    return ranks_run_test(&test);
}

// ---- Stamping ----------------------------------------------------------------------------------

#define STAMP_MAX_TESTS 1024

#define APART CLUSTER_MAX_WORLD // Every rank on a host of its own.

static const struct setting stamp_transports[] = {
    {.name = "loopback", .transport = LOCKSTEP_TRANSPORT_LOOPBACK, .hosts = APART},
    {.name = "torn_1", .transport = LOCKSTEP_TRANSPORT_LOOPBACK, .torn_bytes = 1, .hosts = APART},
    {.name = "torn_7", .transport = LOCKSTEP_TRANSPORT_LOOPBACK, .torn_bytes = 7, .hosts = APART},
    {.name = "torn_1000",
     .transport = LOCKSTEP_TRANSPORT_LOOPBACK,
     .torn_bytes = 1000,
     .hosts = APART},
    {.name = "tcp", .transport = LOCKSTEP_TRANSPORT_TCP},
    {.name = "shared", .transport = LOCKSTEP_TRANSPORT_AUTO},
    {.name = "ring", .transport = LOCKSTEP_TRANSPORT_TCP, .algorithm = "ring"},
    {.name = "doubling", .transport = LOCKSTEP_TRANSPORT_TCP, .algorithm = "doubling"},
    {.name = "halving", .transport = LOCKSTEP_TRANSPORT_TCP, .algorithm = "halving"},
    {.name = "direct", .transport = LOCKSTEP_TRANSPORT_TCP, .algorithm = "direct"},
#if TUNING_HAS_TWO_LEVEL
    {.name = "two_level",
     .transport = LOCKSTEP_TRANSPORT_AUTO,
     .hosts = 2,
     .algorithm = "two_level"},
#endif
    {.name = "staged", .transport = LOCKSTEP_TRANSPORT_TCP, .devices = 1},
    {.name = "mixed", .transport = LOCKSTEP_TRANSPORT_AUTO, .devices = 2},
    {.name = "nccl", .transport = LOCKSTEP_TRANSPORT_TCP, .devices = CLUSTER_MAX_WORLD},
};
#define STAMP_TRANSPORTS (sizeof(stamp_transports) / sizeof(stamp_transports[0]))

bool setting_meets(const struct setting *setting)
{
    return setting->devices >= 2 && setting->devices < setting->world_size;
}

struct setting setting_named(const char *name)
{
    for (size_t t = 0; t < STAMP_TRANSPORTS; t++) {
        if (strcmp(stamp_transports[t].name, name) == 0)
            return stamp_transports[t];
    }
    fail_msg("there is no setting '%s'", name);
    return stamp_transports[0];
}

struct stamped {
    void (*run)(const struct setting *setting);
    struct setting setting;
    char name[128];
};

// All stamps of a program.
struct stamps {
    const char *group;
    bool torn; // True if the stamps also run over the torn loopbacks.
};

static void stamp_test(void **state)
{
    const struct stamped *stamped = *state;
    stamped->run(&stamped->setting);
}

// Number of a setting's family: TCP, loopback, shared memory or torn loopback. Under a sanitizer
// each test runs in one family only, and the tests take the families in turn.
static uint32_t stamp_place(const struct setting *setting)
{
    if (setting->torn_bytes != 0)
        return 3;
    return setting->transport == LOCKSTEP_TRANSPORT_TCP        ? 0
           : setting->transport == LOCKSTEP_TRANSPORT_LOOPBACK ? 1
                                                               : 2;
}

// True if a normal run skips this setting. Of the torn loopbacks a normal run takes only torn_7,
// whose parts end inside elements, and under ThreadSanitizer torn_1000, which moves most at once.
// Of the usual world sizes, TCP takes 2 ranks, loopback and shared memory take 3.
static bool stamp_leaves_out(const struct stamps *all, const struct stamp *stamp, uint32_t turn,
                             const struct setting *setting)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    const bool sanitized = sanitizer && sanitizer[0] != '\0';
    if (test_everything() || getenv("LOCKSTEP_TEST_FILTER"))
        return false;
    if (setting->devices > 0)
        return !test_takes(turn, setting->devices < 3 ? setting->devices - 1 : 2, 3);
    if (sanitized && stamp_place(setting) != turn % (all->torn ? 4 : 3))
        return true;
    if (setting->torn_bytes != 0)
        return setting->torn_bytes != (sanitized && strcmp(sanitizer, "thread") == 0 ? 1000 : 7);
    return !stamp->worlds &&
           (setting->world_size == 2) != (setting->transport == LOCKSTEP_TRANSPORT_TCP);
}

static bool stamp_wants(const struct stamps *all, const struct stamp *stamp,
                        const struct setting *setting)
{
    if (setting->devices > 0)
        return devices_always(all->group, stamp->name) ||
               (test_everything() && !devices_never(all->group, stamp->name, setting->name));
    return (setting->torn_bytes == 0 || all->torn) && (!setting->algorithm || test_everything());
}

// World sizes of a stamp in a setting. With devices and on torn loopbacks one usual size is enough,
// unless test_everything() holds.
static const uint32_t *stamp_worlds(const struct stamps *all, const struct stamp *stamp,
                                    const struct setting *setting)
{
    static const uint32_t two_and_three[] = {2, 3, 0};
    static const uint32_t two[] = {2, 0};
    static const uint32_t three[] = {3, 0};
    static const uint32_t four[] = {4, 0};
    if (stamp->worlds)
        return stamp->worlds;
    if (setting->torn_bytes != 0 && !test_everything())
        return setting->torn_bytes == 7 ? two : three;
    if (setting->devices == 2)
        return devices_of_four(all->group, stamp->name) ? four : three;
    return setting->devices > 0 && !test_everything() ? three : two_and_three;
}

static uint32_t stamp_one(const struct stamps *all, const struct stamp *stamp, uint32_t turn,
                          struct stamped *stamped, struct CMUnitTest *tests)
{
    uint32_t count = 0;
    for (size_t t = 0; t < STAMP_TRANSPORTS; t++) {
        if (!stamp_wants(all, stamp, &stamp_transports[t]))
            continue;
        for (const uint32_t *world = stamp_worlds(all, stamp, &stamp_transports[t]); *world != 0;
             world++) {
            struct stamped *one = &stamped[count];
            one->run = stamp->run;
            one->setting = stamp_transports[t];
            one->setting.world_size = *world;
            if (stamp_leaves_out(all, stamp, turn, &one->setting))
                continue;
            snprintf(one->name, sizeof(one->name), "%s/%s/world_%" PRIu32, stamp->name,
                     one->setting.name, *world);
            tests[count++] = (struct CMUnitTest){
                .name = one->name, .test_func = stamp_test, .initial_state = one};
        }
    }
    return count;
}

static int stamp_run_over(const struct stamps *all, const struct stamp *stamps, uint32_t count)
{
    static struct stamped stamped[STAMP_MAX_TESTS];
    static struct CMUnitTest tests[STAMP_MAX_TESTS];
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += stamp_one(all, &stamps[i], i, &stamped[total], &tests[total]);
    return _cmocka_run_group_tests(all->group, tests, total, NULL, NULL);
}

int stamp_run(const char *group, const struct stamp *stamps, uint32_t count)
{
    return stamp_run_over(&(struct stamps){group, true}, stamps, count);
}

int stamp_run_whole(const char *group, const struct stamp *stamps, uint32_t count)
{
    return stamp_run_over(&(struct stamps){group, false}, stamps, count);
}
