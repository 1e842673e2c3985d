// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/process_trainer.h"

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <lockstep/lockstep.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// About 5 MB in buckets of at most 1 MiB, of sizes that no world divides evenly. Set before the
// first session, then constant.
static int64_t sizes[] = {300007, 70001, 262144, 1000, 1, 400003, 131072, 65537};
#define PARAMETERS ((uint32_t)(sizeof(sizes) / sizeof(sizes[0])))
static int64_t metrics_size = 500009;
static uint64_t bucket_bytes = 1024 * 1024;

struct trainer {
    const struct trainer_place *place;
    const struct script *script;
    lockstep_session *session;
    lockstep_module *module;
    float *data[PARAMETERS];
    float *gradients[PARAMETERS]; // The module's, where they are registered.
    uint64_t filled[PARAMETERS]; // The step whose input each gradient holds.
    float *metrics;
    const struct cuda *cuda; // NULL: this process has no device.
    void *stream; // The stream that makes gradients.
    uint64_t step;
    uint64_t settled;
    uint64_t metrics_uses;
    bool reported;
    bool checks_failed;
};

// ---- Telling the test ---------------------------------------------------------------------------

static void trainer_send(struct trainer *trainer, struct report *report)
{
    const size_t size = offsetof(struct report, text) + strlen(report->text) + 1;
    report->step = trainer->step;
    report->settled = trainer->settled;
    report->at_us = report->at_us != 0 ? report->at_us : clock_now_us();
    if (send(trainer->place->socket, report, size, MSG_NOSIGNAL) < 0)
        _exit(3); // The test is gone.
}

static void trainer_say(struct trainer *trainer, enum report_kind kind, uint64_t value)
{
    struct report report = {.kind = kind, .value = value};
    trainer_send(trainer, &report);
}

// True if the test has released this rank. Always inlined, also in a build without optimization, so
// that stacks name the hold_ function that calls it.
__attribute__((always_inline)) static inline bool trainer_released(const struct trainer *trainer)
{
    return (atomic_load(&trainer->place->shared->released) >> trainer->place->rank & 1) != 0;
}

// The hold_ functions are not inlined, because stacks have to name them. Each of them reads the
// byte that releases the rank: a socket that is closed with unread data resets its connection.
__attribute__((noinline)) static void hold_read(const struct trainer *trainer)
{
    char release;
    if (recv(trainer->place->socket, &release, 1, 0) != 1)
        _exit(3);
}

__attribute__((noinline)) static void hold_spin(const struct trainer *trainer)
{
    while (!trainer_released(trainer))
        ;
    hold_read(trainer);
}

__attribute__((noinline)) static void hold_sleep(const struct trainer *trainer)
{
    while (!trainer_released(trainer))
        (void)usleep(20000);
    hold_read(trainer);
}

// The parent of a vfork is in state D until its child ends, like a process that reads from a dead
// mount.
__attribute__((noinline)) static void hold_kernel(const struct trainer *trainer)
{
    const pid_t child = vfork();
    if (child < 0)
        _exit(5);
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
            _exit(1);
        while (!trainer_released(trainer))
            (void)usleep(20000);
        _exit(0);
    }
    (void)waitpid(child, NULL, 0);
    hold_read(trainer);
}

__attribute__((noinline)) static void hold_frozen(const struct trainer *trainer)
{
    const char *path = getenv("LOCKSTEP_TEST_FROZEN");
    const int fd = path ? open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) : -1;
    if (fd < 0)
        _exit(5);
    close(fd);
    hold_read(trainer);
}

struct load {
    const struct trainer *trainer;
    const char *pipe;
};

// Ends the hold of hold_load: with a writer that writes nothing, the pipe is an empty file.
static void *load_ends(void *argument)
{
    const struct load *load = argument;
    while (!trainer_released(load->trainer))
        (void)usleep(20000);
    close(open(load->pipe, O_WRONLY | O_CLOEXEC));
    return NULL;
}

// The loader opens the file of a library with its lock held. A pipe is not open before it has a
// writer.
__attribute__((noinline)) static void hold_load(const struct trainer *trainer)
{
    char directory[] = "/tmp/lockstep-load-XXXXXX";
    char pipe[sizeof(directory) + 8];
    struct load load = {trainer, pipe};
    pthread_t thread;
    if (!mkdtemp(directory))
        _exit(5);
    snprintf(pipe, sizeof(pipe), "%s/pipe.so", directory);
    if (mkfifo(pipe, 0600) != 0 || pthread_create(&thread, NULL, load_ends, &load) != 0 ||
        dlopen(pipe, RTLD_NOW))
        _exit(5);
    pthread_join(thread, NULL);
    unlink(pipe);
    rmdir(directory);
    hold_read(trainer);
}

static void hold_stream(void *argument)
{
    hold_read(argument);
}

static void trainer_hold(struct trainer *trainer)
{
    static void (*const holds[])(const struct trainer *) = {
        [HOLD_READ] = hold_read,     [HOLD_SPIN] = hold_spin,     [HOLD_SLEEP] = hold_sleep,
        [HOLD_KERNEL] = hold_kernel, [HOLD_FROZEN] = hold_frozen, [HOLD_LOAD] = hold_load};
    const struct script *script = trainer->script;
    if (script->hold == HOLD_NOT)
        return;
    if (script->hold == HOLD_STREAM) {
        if (trainer->cuda->launch_host_func(trainer->stream, hold_stream, trainer) != CUDA_OK)
            _exit(3);
        return;
    }
    if (script->pause_ms != 0)
        lockstep_pause(trainer->session, "held", script->pause_ms);
    holds[script->hold](trainer);
    if (script->pause_ms != 0)
        lockstep_resume(trainer->session);
}

static void trainer_visit(struct trainer *trainer, enum stand_place place)
{
    const struct script *script = trainer->script;
    if (trainer->reported || place != script->place ||
        (place > PLACE_START && trainer->step + 1 < script->place_step))
        return;
    trainer->reported = true;
    trainer_say(trainer, REPORT_PLACE, (uint64_t)place);
    trainer_hold(trainer);
}

// ---- What gradients and metrics are -------------------------------------------------------------

// What a rank hands over repeats after so many elements.
#define PERIOD 2039

// Whole numbers below 2^11, so that every sum of a world is exact in a float.
static int32_t input_of(uint32_t rank, uint64_t step, uint64_t index)
{
    return (int32_t)((rank * 389 + step * 71 + index * 13) % PERIOD) - 1019;
}

static float sum_of(uint32_t world_size, uint64_t step, uint64_t index)
{
    int32_t sum = 0;
    for (uint32_t rank = 0; rank < world_size; rank++)
        sum += input_of(rank, step, index);
    return (float)sum;
}

static int64_t part_of(int64_t count, int64_t from)
{
    return count - from < PERIOD ? count - from : PERIOD;
}

static void fill(float *values, int64_t count, uint32_t rank, uint64_t step)
{
    float inputs[PERIOD];
    for (uint32_t i = 0; i < PERIOD; i++)
        inputs[i] = (float)input_of(rank, step, i);
    for (int64_t from = 0; from < count; from += PERIOD)
        memcpy(values + from, inputs, (size_t)part_of(count, from) * sizeof(float));
}

// divisor: 1 for a sum, the world size for a mean.
static void compare(const struct trainer *trainer, const float *values, int64_t count,
                    uint64_t step, float divisor, struct report *report)
{
    const struct trainer_place *place = trainer->place;
    float finals[PERIOD];
    for (uint32_t i = 0; i < PERIOD; i++)
        finals[i] = sum_of(place->world_size, step, i) / divisor;
    for (int64_t from = 0; from < count; from += PERIOD) {
        const int64_t part = part_of(count, from);
        const bool all = memcmp(values + from, finals, (size_t)part * sizeof(float)) == 0;
        if (all)
            report->elements_final += (uint64_t)part;
        for (int64_t i = 0; i < part && !all; i++) {
            if (values[from + i] == finals[i])
                report->elements_final++;
            else if (values[from + i] == (float)input_of(place->rank, step, (uint64_t)i))
                report->elements_intact++;
            else
                report->elements_torn++;
        }
    }
}

static void compare_gradients(const struct trainer *trainer, struct report *report)
{
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        if (trainer->step > 0 && trainer->filled[p] == trainer->step)
            compare(trainer, trainer->gradients[p], sizes[p], trainer->step,
                    (float)trainer->place->world_size, report);
    }
}

// ---- Failing ------------------------------------------------------------------------------------

// Returns the status; a failure is reported, once.
static int trainer_check(struct trainer *trainer, const char *call, int status)
{
    struct report report = {.kind = REPORT_FAILED, .status = status, .at_us = clock_now_us()};
    if (status >= 0)
        return status;
    snprintf(report.call, sizeof(report.call), "%s", call);
    snprintf(report.text, sizeof(report.text), "%s", lockstep_error_text());
    if (trainer->session)
        report.status_again = lockstep_barrier(trainer->session, "again", LOCKSTEP_WAIT_FOREVER);
    compare_gradients(trainer, &report);
    trainer_send(trainer, &report);
    return status;
}

// A wrong result is reported like a failed call.
static int trainer_wrong(struct trainer *trainer, const char *call, const struct report *seen)
{
    struct report report = *seen;
    report.kind = REPORT_FAILED;
    report.status = LOCKSTEP_E_SYSTEM;
    snprintf(report.call, sizeof(report.call), "%s", call);
    snprintf(report.text, sizeof(report.text), "the result is wrong");
    trainer_send(trainer, &report);
    return report.status;
}

// ---- The model ----------------------------------------------------------------------------------

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        _exit(4);
    return memory;
}

// Under a sanitizer each element takes many times as long, so the model gets a 32nd of the
// elements, in the same number of buckets.
static void model_shrink(void)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    if (!sanitizer || sanitizer[0] == '\0')
        return;
    for (uint32_t p = 0; p < PARAMETERS; p++)
        sizes[p] = sizes[p] / 32 | 1;
    metrics_size = metrics_size / 32 | 1;
    bucket_bytes /= 32;
}

static void model_init(struct trainer *trainer)
{
    model_shrink();
    trainer->metrics = allocate((size_t)metrics_size * sizeof(float));
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        trainer->data[p] = allocate((size_t)sizes[p] * sizeof(float));
        if (!trainer->script->way.registered)
            trainer->gradients[p] = allocate((size_t)sizes[p] * sizeof(float));
    }
}

static void model_fini(struct trainer *trainer)
{
    free(trainer->metrics);
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        free(trainer->data[p]);
        if (!trainer->script->way.registered)
            free(trainer->gradients[p]);
    }
}

// If the script registers gradients: allocates them in one region, in the order in which they
// travel.
static int model_place(struct trainer *trainer)
{
    void *gradients[PARAMETERS];
    if (!trainer->script->way.registered)
        return 0;
    const int status = trainer_check(
        trainer, "gradients", lockstep_module_gradients(trainer->module, gradients, PARAMETERS));
    for (uint32_t p = 0; status == 0 && p < PARAMETERS; p++) {
        trainer->gradients[p] = gradients[p];
        trainer->filled[p] = 0;
    }
    return status;
}

static int model_register(struct trainer *trainer)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    struct lockstep_parameter parameters[PARAMETERS];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        // Different on every rank, so that lockstep_start has something to send.
        fill(trainer->data[p], sizes[p], trainer->place->rank, 1000 + p);
        parameters[p] = (struct lockstep_parameter){.name = names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &sizes[p],
                                                    .data = trainer->data[p],
                                                    .gradient = trainer->gradients[p]};
    }
    config.name = "model";
    config.parameters = parameters;
    config.parameter_count = PARAMETERS;
    const int status = trainer_check(
        trainer, "register", lockstep_module_register(trainer->session, &config, &trainer->module));
    return status < 0 ? status : model_place(trainer);
}

// Registered gradients go with their module.
static int model_close(struct trainer *trainer)
{
    if (trainer->script->way.registered)
        memset(trainer->filled, 0, sizeof(trainer->filled));
    return trainer_check(trainer, "close", lockstep_module_close(trainer->module));
}

static void model_optimize(struct trainer *trainer)
{
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        float *data = trainer->data[p];
        const float *gradient = trainer->gradients[p];
        const int64_t size = sizes[p];
        for (int64_t i = 0; i < size; i++)
            data[i] -= 0.001f * gradient[i];
    }
}

// ---- Opening and starting -----------------------------------------------------------------------

static int trainer_open(struct trainer *trainer, uint32_t round)
{
    const struct trainer_place *place = trainer->place;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    char job[64];
    char device[24];
    snprintf(job, sizeof(job), round == 0 ? "%s" : "%s-%u", place->job, round);
    config.coordinator = place->coordinator;
    config.job = job;
    config.world_size = place->world_size;
    config.rank_hint = (int32_t)place->rank;
    if (trainer->script->way.two_hosts)
        config.host_id = place->rank < (place->world_size + 1) / 2 ? "one host" : "another host";
    config.open_timeout_ms = trainer->script->open_timeout_ms;
    if (trainer->script->survives)
        config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.halt_timeout_ms = trainer->script->halt_timeout_ms;
    config.bucket_first_bytes = bucket_bytes / 4;
    config.bucket_bytes = bucket_bytes;
    config.bucket_last_bytes = bucket_bytes / 4;
    snprintf(device, sizeof(device), "cuda:%u", place->rank);
    if (trainer->script->way.device)
        config.device = device;
    trainer_visit(trainer, PLACE_OPENING);
    return trainer_check(trainer, "open", lockstep_open(&config, &trainer->session));
}

// A data loader that outlives its trainer: it waits for the end of the test and touches nothing.
static void trainer_fork(struct trainer *trainer)
{
    char end;
    const pid_t child = fork();
    if (child == 0) {
        ssize_t ignored = read(trainer->place->lifeline, &end, 1);
        (void)ignored;
        _exit(0);
    }
    trainer_say(trainer, REPORT_CHILD, (uint64_t)child);
}

static int trainer_start(struct trainer *trainer)
{
    int status = model_register(trainer);
    trainer_visit(trainer, PLACE_START);
    if (status == 0)
        status = trainer_check(trainer, "start", lockstep_start(trainer->session));
    if (status == 0 && trainer->script->child)
        trainer_fork(trainer);
    return status;
}

// ---- Steps --------------------------------------------------------------------------------------

static int step_backward(struct trainer *trainer)
{
    lockstep_call *call;
    int status = trainer_check(trainer, "call_begin", lockstep_call_begin(trainer->module, &call));
    for (uint32_t i = 0; status == 0 && i < PARAMETERS; i++) {
        const uint32_t p = trainer->script->forwards ? i : PARAMETERS - 1 - i;
        if (i == trainer->script->place_gradients)
            trainer_visit(trainer, PLACE_IN_CALL);
        fill(trainer->gradients[p], sizes[p], trainer->place->rank, trainer->step);
        trainer->filled[p] = trainer->step;
        status =
            trainer_check(trainer, "grad_ready",
                          lockstep_grad_ready(trainer->module, call, p, NULL, trainer->stream));
    }
    if (status == 0)
        status = trainer_check(trainer, "call_end", lockstep_call_end(call));
    if (status == 0 && trainer->script->waits)
        status =
            trainer_check(trainer, "call_wait", lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
    return status;
}

// True if the trainer closes after this step, and does not wait for its results.
static bool step_is_left(const struct trainer *trainer)
{
    return trainer->script->ending == ENDING_AT_ONCE && trainer->step == trainer->script->last_step;
}

static int step_end(struct trainer *trainer)
{
    void *stream = trainer->script->by_stream ? trainer->stream : NULL;
    const int status =
        trainer_check(trainer, "step_end", lockstep_step_end(trainer->session, stream));
    if (status == 0 && stream && !step_is_left(trainer) &&
        trainer->cuda->stream_synchronize(stream) != CUDA_OK)
        _exit(3);
    return status;
}

static int step_run(struct trainer *trainer)
{
    struct report seen = {0};
    int status;
    trainer_visit(trainer, trainer->step == 0 ? PLACE_LEARNING : PLACE_STEADY);
    status =
        trainer_check(trainer, "step_begin", lockstep_step_begin(trainer->session, NULL, NULL));
    if (status < 0)
        return status;
    trainer->step++;
    status = step_backward(trainer);
    if (status == 0 && atomic_load(&trainer->place->shared->stop))
        lockstep_counter_add(trainer->session, "stop", 1);
    if (status == 0)
        status = step_end(trainer);
    if (status < 0)
        return status;
    trainer->settled = trainer->step;
    if (step_is_left(trainer))
        return 0;
    compare_gradients(trainer, &seen);
    // After a death the mean is one of fewer ranks.
    if (seen.elements_torn + seen.elements_intact > 0 && !trainer->script->survives)
        return trainer_wrong(trainer, "step_end", &seen);
    return 0;
}

static int step_metrics(struct trainer *trainer)
{
    const uint64_t use = ++trainer->metrics_uses;
    struct report seen = {0};
    int status;
    fill(trainer->metrics, metrics_size, trainer->place->rank, use);
    trainer_visit(trainer, PLACE_PLAIN);
    status =
        lockstep_allreduce(trainer->session, "metrics", trainer->metrics, (uint64_t)metrics_size,
                           LOCKSTEP_FLOAT32, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER);
    compare(trainer, trainer->metrics, metrics_size, use, 1, &seen);
    if (seen.elements_torn != 0 || (status == 0 && seen.elements_intact != 0))
        return trainer_wrong(trainer, "allreduce", &seen);
    return trainer_check(trainer, "allreduce", status);
}

// All ranks see the same total, so all stop after the same step.
static bool trainer_stops(struct trainer *trainer)
{
    int64_t stop = 0;
    if (trainer->script->last_step != 0)
        return trainer->step >= trainer->script->last_step;
    lockstep_counter_read(trainer->session, "stop", &stop);
    return stop != 0;
}

static int trainer_start_again(struct trainer *trainer)
{
    int status = model_close(trainer);
    if (status == 0)
        status = model_register(trainer);
    trainer_visit(trainer, PLACE_START_AGAIN);
    if (status == 0)
        status = trainer_check(trainer, "start", lockstep_start(trainer->session));
    return status;
}

static int trainer_train(struct trainer *trainer)
{
    const uint64_t every = trainer->script->report_every;
    int status = 0;
    do {
        status = step_run(trainer);
        if (status < 0)
            return status;
        trainer_visit(trainer, PLACE_OPTIMIZER);
        model_optimize(trainer);
        if (trainer->script->rest_ms != 0)
            (void)usleep((useconds_t)(trainer->script->rest_ms * 1000));
        // The order has been learned: from here on each bucket is one run of memory.
        if (trainer->step == 1)
            status = model_place(trainer);
        if (status == 0 && trainer->step % 2 == 0 && !trainer->script->survives)
            status = step_metrics(trainer);
        if (status == 0 && trainer->step == trainer->script->starts_after)
            status = trainer_start_again(trainer);
        if (status == 0 && every != 0 && trainer->step % every == 0)
            trainer_say(trainer, REPORT_STEP, 0);
    } while (status == 0 && !trainer_stops(trainer));
    return status;
}

// ---- The whole script ---------------------------------------------------------------------------

static int trainer_end(struct trainer *trainer, uint64_t *hash)
{
    int status = 0;
    if (trainer->script->ending == ENDING_EXIT)
        _exit(0);
    if (trainer->script->ending == ENDING_AT_ONCE)
        return 0;
    if (trainer->script->ending == ENDING_ABORT)
        return lockstep_abort(trainer->session, "the loss is not a number");
    if (trainer->script->last_step == 0)
        status = trainer_check(trainer, "state_check", lockstep_state_check(trainer->session));
    if (status == 0)
        status = trainer_check(trainer, "state_hash", lockstep_state_hash(trainer->session, hash));
    return status;
}

static int trainer_round(struct trainer *trainer, uint32_t round)
{
    uint64_t hash = 0;
    int status = trainer_open(trainer, round);
    if (status < 0)
        return status;
    status = trainer_start(trainer);
    if (status == 0)
        status = trainer_train(trainer);
    if (status == 0)
        status = trainer_end(trainer, &hash);
    const int closed = lockstep_close(trainer->session);
    trainer->session = NULL;
    if (status == 0)
        status = trainer_check(trainer, "close", closed);
    if (status == 0)
        trainer_say(trainer, REPORT_DONE, hash);
    return status;
}

// ---- What is left -------------------------------------------------------------------------------

// Sockets and anonymous files that this process holds.
static uint32_t count_descriptors(void)
{
    char target[64];
    uint32_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    const struct dirent *entry = NULL;
    while (directory && (entry = readdir(directory))) {
        const ssize_t size = readlinkat(dirfd(directory), entry->d_name, target, sizeof(target));
        count +=
            size > 7 && (strncmp(target, "socket:", 7) == 0 || strncmp(target, "/memfd:", 7) == 0);
    }
    if (directory)
        (void)closedir(directory);
    return count;
}

// Number of mappings of memory that this process shares with its mates.
static uint32_t count_shared_mappings(void)
{
    char line[512];
    uint32_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps))
        count += strstr(line, "memfd:") != NULL;
    if (maps)
        (void)fclose(maps);
    return count;
}

// Prints the sockets of this process with their addresses and states, to say which one is left.
static void print_sockets(void)
{
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_storage own = {0};
        struct sockaddr_storage peer = {0};
        struct tcp_info info = {0};
        socklen_t own_size = sizeof(own);
        socklen_t peer_size = sizeof(peer);
        socklen_t info_size = sizeof(info);
        if (getsockname(fd, (struct sockaddr *)&own, &own_size) < 0)
            continue;
        (void)getpeername(fd, (struct sockaddr *)&peer, &peer_size);
        (void)getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size);
        fprintf(stderr, "  descriptor %d: family %d, port %u to port %u, TCP state %u\n", fd,
                own.ss_family, ntohs(((struct sockaddr_in *)&own)->sin_port),
                ntohs(((struct sockaddr_in *)&peer)->sin_port), info.tcpi_state);
    }
}

#define LEAVES_MS 5000

// Returns 0 if the closed session left no descriptor and no mapping, else an exit code. Waits for
// descriptors, since gRPC closes its connection on a thread of its own, after lockstep_close.
static int trainer_leaves(uint32_t descriptors, uint32_t leaves_ms)
{
    const uint64_t end_ms =
        clock_now_ms() + (leaves_ms != 0 ? leaves_ms : test_bound_ms(LEAVES_MS));
    uint32_t now = count_descriptors();
    while (now != descriptors && clock_now_ms() < end_ms) {
        (void)usleep(1000);
        now = count_descriptors();
    }
    const uint32_t mappings = count_shared_mappings();
    if (now == descriptors && mappings == 0)
        return 0;
    fprintf(stderr, "closed, with %u sockets and files of memory (before: %u) and %u mappings\n",
            now, descriptors, mappings);
    print_sockets();
    return 5;
}

// Loads the fake driver. Each process loads its own, because no driver survives a fork, and does
// so before it starts a thread.
static void trainer_device(struct trainer *trainer)
{
    char error[256] = "";
    void *context = NULL;
    const int device = (int)trainer->place->rank;
    fake_gpu_weather("FAKE_CUDA_EVERYWHERE=1", NULL);
    trainer->cuda = cuda_load(error, sizeof(error));
    const struct cuda *cuda = trainer->cuda;
    if (cuda && cuda->init(0) == CUDA_OK &&
        cuda->device_primary_ctx_retain(&context, device) == CUDA_OK &&
        cuda->ctx_set_current(context) == CUDA_OK &&
        cuda->stream_create_with_priority(&trainer->stream, CUDA_STREAM_NON_BLOCKING, 0) == CUDA_OK)
        return;
    fprintf(stderr, "no fake device: %s\n", error);
    _exit(3);
}

int trainer_run(const struct trainer_place *place, const struct script *script)
{
    struct trainer trainer = {.place = place, .script = script};
    const uint32_t descriptors = count_descriptors();
    int status = 0;
    if (script->way.transport)
        setenv("LOCKSTEP_TRANSPORT", script->way.transport, 1);
    if (script->way.algorithm)
        setenv("LOCKSTEP_ALGORITHM", script->way.algorithm, 1);
    if (script->away_timeout_ms != 0) {
        char ms[16];
        snprintf(ms, sizeof(ms), "%" PRIu32, script->away_timeout_ms);
        setenv("LOCKSTEP_AWAY_TIMEOUT_MS", ms, 1);
    }
    if (script->way.device)
        trainer_device(&trainer);
    model_init(&trainer);
    for (uint32_t round = 0; status == 0 && (round == 0 || round < script->rounds); round++) {
        trainer.step = trainer.settled = trainer.metrics_uses = 0;
        memset(trainer.filled, 0, sizeof(trainer.filled));
        status = trainer_round(&trainer, round);
    }
    model_fini(&trainer);
    return script->way.device
               ? 0
               : trainer_leaves(descriptors, script->leaves_ms); // Fakes keep theirs.
}
