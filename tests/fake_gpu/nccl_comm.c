// SPDX-License-Identifier: Apache-2.0
//
// libnccl-fake.so: communicators, from init to destroy or abort. It replaces NCCL on the devices of
// the fake driver; see fake_gpu.h. As in NCCL, a non-blocking communicator works on a thread of its
// own: init and launches are "in progress" when the call returns, and calls that use the
// communicator before init or the launch has ended are refused.
#include "tests/fake_gpu/nccl_inside.h"

#include "tests/fake_gpu/hooks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct nccl_world world = {.mutex = MUTEX_INITIALIZER};

// ---- settings and calls -------------------------------------------------------------------------

static void weather_read(struct nccl_weather *weather)
{
    const char *abort = getenv("FAKE_NCCL_ABORT");
    *weather = (struct nccl_weather){
        .version = (int)setting_number("FAKE_NCCL_VERSION", 22705),
        .launch_us = setting_number("FAKE_NCCL_LAUNCH_US", 200),
        .abort_own = abort && strcmp(abort, "own") == 0,
        .abort_hangs = setting_number("FAKE_NCCL_ABORT_HANGS", 0) != 0,
        .late_errors = setting_number("FAKE_NCCL_LATE_ERRORS", 0),
        .verbose = setting_number("FAKE_GPU_VERBOSE", 0) != 0,
    };
    faults_read(&weather->faults, "FAKE_NCCL_FAIL");
}

__attribute__((constructor)) static void nccl_load_fake(void)
{
    cond_init(&world.changed);
    weather_read(&world.weather);
}

EXPORTED fake_nccl_reload_function fake_nccl_reload;
void fake_nccl_reload(void)
{
    mutex_lock(&world.mutex);
    weather_read(&world.weather);
    memset(world.calls, 0, sizeof(world.calls));
    world.complaint[0] = '\0';
    cond_broadcast(&world.changed);
    mutex_unlock(&world.mutex);
}

EXPORTED fake_nccl_calls_function fake_nccl_calls;
uint64_t fake_nccl_calls(const char *name)
{
    uint64_t calls = 0;
    mutex_lock(&world.mutex);
    for (size_t i = 0; i < NCCL_CALL_NAMES && world.calls[i].name; i++)
        if (strcmp(world.calls[i].name, name) == 0)
            calls = world.calls[i].calls;
    mutex_unlock(&world.mutex);
    return calls;
}

EXPORTED fake_nccl_live_function fake_nccl_live;
uint32_t fake_nccl_live(void)
{
    uint32_t live = 0;
    mutex_lock(&world.mutex);
    for (size_t i = 0; i < COMMS_MAX; i++)
        live += world.comms[i] && world.comms[i]->alive;
    mutex_unlock(&world.mutex);
    return live;
}

int nccl_enter(const char *name, int rank)
{
    mutex_lock(&world.mutex);
    for (size_t i = 0; i < NCCL_CALL_NAMES; i++) {
        if (!world.calls[i].name)
            world.calls[i].name = name;
        if (strcmp(world.calls[i].name, name) == 0) {
            world.calls[i].calls++;
            break;
        }
    }
    return faults_strike(&world.weather.faults, name, rank);
}

int nccl_leave(int result)
{
    mutex_unlock(&world.mutex);
    return result;
}

void nccl_complain_locked(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(world.complaint, sizeof(world.complaint), format, arguments);
    va_end(arguments);
    if (world.weather.verbose)
        fprintf(stderr, "fake nccl: %s\n", world.complaint);
}

EXPORTED int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    const int result = nccl_enter("ncclGetVersion", -1);
    *version = world.weather.version;
    return nccl_leave(result);
}

EXPORTED const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result <= NCCL_IN_PROGRESS ? texts[result] : "unknown result code";
}

EXPORTED const char *ncclGetLastError(void *comm);
const char *ncclGetLastError(void *comm)
{
    static _Thread_local char text[sizeof(world.complaint)];
    (void)comm; // As in NCCL: the last error of any communicator.
    mutex_lock(&world.mutex);
    memcpy(text, world.complaint, sizeof(text));
    mutex_unlock(&world.mutex);
    return text;
}

// ---- handles ------------------------------------------------------------------------------------

#define HANDLE_TAG ((uintptr_t)0xfb << 56) // A program that follows such a handle faults.

static void *comm_handle(const struct comm *comm)
{
    return (void *)(HANDLE_TAG | (uintptr_t)(comm->life & 0xffffffff) << 16 | comm->index);
}

struct comm *comm_of_locked(const void *handle)
{
    const uintptr_t bits = (uintptr_t)handle;
    const uintptr_t index = bits & 0xffff;
    struct comm *comm =
        bits >> 56 == HANDLE_TAG >> 56 && index < COMMS_MAX ? world.comms[index] : NULL;
    return comm && comm->alive && comm_handle(comm) == handle ? comm : NULL;
}

int comm_ready_locked(const char *name, const struct comm *comm)
{
    if (!comm) {
        nccl_complain_locked("%s: there is no such communicator", name);
        return NCCL_INVALID_ARGUMENT;
    }
    if (comm->error)
        return comm->error;
    if (comm->step != STEP_IDLE) {
        nccl_complain_locked("%s: the operation before it is still in progress", name);
        return NCCL_INVALID_ARGUMENT;
    }
    return 0;
}

void comm_fail_locked(struct comm *comm, int error)
{
    if (!comm->error)
        comm->error = error;
    cond_broadcast(&world.changed);
}

void comm_release_locked(struct comm *comm)
{
    comm->holders--;
    if (comm->holders == 0 && !comm->alive && comm->segment) {
        segment_close(comm->segment);
        comm->segment = NULL;
    }
    cond_broadcast(&world.changed);
}

// ---- meeting ------------------------------------------------------------------------------------

static bool given_up_locked(struct comm *comm)
{
    if (comm->aborted)
        return true;
    if (!comm->segment || !atomic_load(&comm->segment->aborted))
        return false;
    comm_fail_locked(comm, NCCL_REMOTE_ERROR);
    return true;
}

bool comm_given_up(struct comm *comm)
{
    mutex_lock(&world.mutex);
    const bool given_up = given_up_locked(comm);
    mutex_unlock(&world.mutex);
    return given_up;
}

static bool all_met(const struct comm *comm, uint64_t phase)
{
    for (int rank = 0; rank < comm->ranks; rank++)
        if (atomic_load(&comm->segment->rank[rank].phase) < phase)
            return false;
    return true;
}

bool comm_meet(struct comm *comm)
{
    struct segment *segment = comm->segment;
    if (comm_given_up(comm)) // Other ranks must not see an aborted rank arrive.
        return false;
    const uint64_t phase = atomic_fetch_add(&segment->rank[comm->rank].phase, 1) + 1;
    segment_ring(segment);
    for (;;) {
        const uint32_t bell = atomic_load(&segment->bell);
        if (comm_given_up(comm) || fake_cuda_lost(comm->device))
            return false;
        if (all_met(comm, phase))
            return true;
        segment_wait(segment, bell);
    }
}

// ---- init ---------------------------------------------------------------------------------------

EXPORTED int ncclGetUniqueId(struct nccl_unique_id *id);
int ncclGetUniqueId(struct nccl_unique_id *id)
{
    int result = nccl_enter("ncclGetUniqueId", -1);
    if (!result && !segment_create(id))
        result = NCCL_SYSTEM_ERROR;
    return nccl_leave(result);
}

// Returns an error if two ranks of the communicator use the same device, else 0. As
// newer versions of the real one it allows that with NCCL_MULTI_RANK_GPU_ENABLE=1.
static int arrivals_fault(const struct comm *comm)
{
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (shared && strcmp(shared, "1") == 0)
        return 0;
    const struct segment_rank *ranks = comm->segment->rank;
    for (int a = 0; a < comm->ranks; a++)
        for (int b = 0; b < a; b++)
            if (atomic_load(&ranks[a].arrived) == atomic_load(&ranks[b].arrived))
                return NCCL_INVALID_USAGE; // Two ranks on one device.
    return 0;
}

// Enters this rank into the segment. Returns an error if another rank gave another number of ranks,
// or if this rank has already arrived; else 0.
static int arrive(struct comm *comm)
{
    uint32_t said = 0;
    if (!atomic_compare_exchange_strong(&comm->segment->ranks, &said, (uint32_t)comm->ranks) &&
        said != (uint32_t)comm->ranks)
        return NCCL_INVALID_ARGUMENT;
    uint32_t nobody = 0;
    if (!atomic_compare_exchange_strong(&comm->segment->rank[comm->rank].arrived, &nobody,
                                        (uint32_t)comm->device + 1))
        return NCCL_INVALID_USAGE;
    return 0;
}

// Waits for all ranks of the communicator. May never return if a rank does not come.
static int comm_init(struct comm *comm)
{
    mutex_lock(&world.mutex);
    const int strike = faults_strike(&world.weather.faults, "init", comm->rank);
    mutex_unlock(&world.mutex);
    if (strike > 0)
        return strike;
    while (strike == FAULT_HANG && !comm_given_up(comm))
        usleep(1000);
    struct segment *segment = segment_open(&comm->id);
    mutex_lock(&world.mutex);
    comm->segment = segment;
    mutex_unlock(&world.mutex);
    if (!segment)
        return NCCL_SYSTEM_ERROR; // The process that made the id is gone.
    const int fault = arrive(comm);
    if (fault)
        return fault;
    const bool met = comm_meet(comm);
    segment_forget(&comm->id);
    return met ? arrivals_fault(comm) : NCCL_REMOTE_ERROR;
}

static void comm_thread(void *argument)
{
    struct comm *comm = argument;
    const int fault = comm_init(comm);
    mutex_lock(&world.mutex);
    if (fault)
        comm_fail_locked(comm, fault);
    comm->step = STEP_IDLE;
    cond_broadcast(&world.changed);
    for (;;) {
        while (comm->step == STEP_IDLE && !comm->ending)
            cond_wait(&world.changed, &world.mutex);
        if (comm->step == STEP_IDLE)
            break;
        if (comm->step == STEP_LAUNCH) {
            const uint64_t late = world.weather.launch_us;
            mutex_unlock(&world.mutex);
            usleep((useconds_t)late);
            tasks_launch(comm->group, comm->group_count);
            mutex_lock(&world.mutex);
            comm->group_count = 0;
        }
        // STEP_FINALIZE ends when all launched operations are done.
        while (comm->step == STEP_FINALIZE && comm->turn < comm->launched && !comm->aborted)
            cond_wait(&world.changed, &world.mutex);
        comm->step = STEP_IDLE;
        cond_broadcast(&world.changed);
    }
    comm_release_locked(comm);
    mutex_unlock(&world.mutex);
}

static struct comm *comm_free_locked(void)
{
    for (uint32_t i = 0; i < COMMS_MAX; i++) {
        struct comm *comm = world.comms[i];
        if (comm && !comm->alive && comm->holders == 0)
            return comm;
        if (comm)
            continue;
        comm = calloc(1, sizeof(*comm));
        if (comm)
            comm->tasks = calloc(COMM_TASKS, sizeof(*comm->tasks));
        if (!comm || !comm->tasks)
            return NULL;
        comm->index = i;
        world.comms[i] = comm;
        return comm;
    }
    return NULL;
}

static int comm_open_locked(struct comm **opened, int ranks, const struct nccl_unique_id *id,
                            int rank, int device, bool blocking)
{
    struct comm *comm = comm_free_locked();
    if (!comm)
        return NCCL_SYSTEM_ERROR;
    *comm = (struct comm){
        .index = comm->index,
        .life = comm->life + 1,
        .rank = rank,
        .ranks = ranks,
        .device = device,
        .blocking = blocking,
        .id = *id,
        .alive = true,
        .holders = 1,
        .step = STEP_INIT,
        .tasks = comm->tasks,
    };
    if (thread_start(&comm->thread, "fake-nccl", comm_thread, comm)) {
        comm->alive = false;
        comm->holders = 0;
        return NCCL_SYSTEM_ERROR;
    }
    pthread_detach(comm->thread.id); // The thread may wait for another rank for ever.
    *opened = comm;
    return 0;
}

static bool config_blocks(const struct nccl_config *config)
{
    return !config || config->blocking == NCCL_UNDEFINED || config->blocking != 0;
}

int comm_init_wait_locked(struct comm *comm)
{
    while (comm->step == STEP_INIT)
        cond_wait(&world.changed, &world.mutex);
    return comm->error;
}

EXPORTED int ncclCommInitRankConfig(void **handle, int ranks, struct nccl_unique_id id, int rank,
                                    struct nccl_config *config);
int ncclCommInitRankConfig(void **handle, int ranks, struct nccl_unique_id id, int rank,
                           struct nccl_config *config)
{
    struct comm *comm = NULL;
    const int device = fake_cuda_current_device();
    int result = nccl_enter("ncclCommInitRankConfig", rank);
    if (!result && (ranks < 1 || ranks > SEGMENT_RANKS_MAX || rank < 0 || rank >= ranks ||
                    (config && config->magic != NCCL_CONFIG_MAGIC)))
        result = NCCL_INVALID_ARGUMENT;
    if (!result && device < 0) {
        nccl_complain_locked("ncclCommInitRankConfig: no context is current on this thread");
        result = NCCL_CUDA_ERROR;
    }
    if (!result)
        result = comm_open_locked(&comm, ranks, &id, rank, device, config_blocks(config));
    if (result)
        return nccl_leave(result);
    *handle = comm_handle(comm);
    if (!comm->blocking)
        return nccl_leave(NCCL_IN_PROGRESS);
    return nccl_leave(group_defers_init(comm) ? 0 : comm_init_wait_locked(comm));
}

// The error that ncclCommGetAsyncError reports now; FAKE_NCCL_LATE_ERRORS hides it at first.
static int error_said_locked(struct comm *comm)
{
    if (!comm->error || comm->unsaid >= world.weather.late_errors)
        return comm->error;
    comm->unsaid++;
    return 0;
}

EXPORTED int ncclCommGetAsyncError(void *handle, int *error);
int ncclCommGetAsyncError(void *handle, int *error)
{
    int result = nccl_enter("ncclCommGetAsyncError", -1);
    struct comm *comm = comm_of_locked(handle);
    if (!comm)
        result = NCCL_INVALID_ARGUMENT;
    else if (!given_up_locked(comm) || comm->error) {
        const int said = error_said_locked(comm);
        *error = said ? said : comm->step == STEP_IDLE ? 0 : NCCL_IN_PROGRESS;
    }
    return nccl_leave(result);
}

// ---- the end ------------------------------------------------------------------------------------

EXPORTED int ncclCommFinalize(void *handle);
int ncclCommFinalize(void *handle)
{
    int result = nccl_enter("ncclCommFinalize", -1);
    struct comm *comm = comm_of_locked(handle);
    if (!result)
        result = comm_ready_locked("ncclCommFinalize", comm);
    if (result)
        return nccl_leave(result);
    comm->step = STEP_FINALIZE;
    cond_broadcast(&world.changed);
    if (!comm->blocking)
        return nccl_leave(NCCL_IN_PROGRESS);
    while (comm->step == STEP_FINALIZE)
        cond_wait(&world.changed, &world.mutex);
    return nccl_leave(comm->error);
}

static void comm_close_locked(struct comm *comm)
{
    if (comm->registrations)
        nccl_complain_locked("a communicator ends with %u registrations", comm->registrations);
    comm->alive = false;
    comm->ending = true;
    segment_forget(&comm->id);
    cond_broadcast(&world.changed);
}

// As in NCCL, waits until all launched operations are done.
EXPORTED int ncclCommDestroy(void *handle);
int ncclCommDestroy(void *handle)
{
    const int result = nccl_enter("ncclCommDestroy", -1);
    struct comm *comm = comm_of_locked(handle);
    if (result || !comm)
        return nccl_leave(result ? result : NCCL_INVALID_ARGUMENT);
    while ((comm->step != STEP_IDLE || comm->turn < comm->launched) && !comm->aborted)
        cond_wait(&world.changed, &world.mutex);
    comm_close_locked(comm);
    return nccl_leave(0);
}

// Waits until the streams have come to all launched operations, which end at once then. NCCL has a
// stream of its own that follows the streams of launches, and waits for it here.
EXPORTED int ncclCommAbort(void *handle);
int ncclCommAbort(void *handle)
{
    const int result = nccl_enter("ncclCommAbort", -1);
    struct comm *comm = comm_of_locked(handle);
    if (result || !comm)
        return nccl_leave(result ? result : NCCL_INVALID_ARGUMENT);
    while (world.weather.abort_hangs)
        cond_wait(&world.changed, &world.mutex);
    comm->aborted = true;
    cond_broadcast(&world.changed);
    if (comm->segment) {
        if (!world.weather.abort_own)
            atomic_store(&comm->segment->aborted, 1);
        segment_ring(comm->segment);
    }
    while (comm->step != STEP_IDLE || comm->turn < comm->launched)
        cond_wait(&world.changed, &world.mutex);
    comm_close_locked(comm);
    return nccl_leave(0);
}

// ---- registration -------------------------------------------------------------------------------

EXPORTED int ncclCommRegister(void *handle, void *memory, size_t bytes, void **registration);
int ncclCommRegister(void *handle, void *memory, size_t bytes, void **registration)
{
    int result = nccl_enter("ncclCommRegister", -1);
    struct comm *comm = comm_of_locked(handle);
    if (!result)
        result = comm_ready_locked("ncclCommRegister", comm);
    if (!result && (!memory || bytes == 0))
        result = NCCL_INVALID_ARGUMENT;
    if (!result)
        *registration = (void *)(HANDLE_TAG | ++comm->registrations);
    return nccl_leave(result);
}

EXPORTED int ncclCommDeregister(void *handle, void *registration);
int ncclCommDeregister(void *handle, void *registration)
{
    int result = nccl_enter("ncclCommDeregister", -1);
    struct comm *comm = comm_of_locked(handle);
    if (!result && (!comm || !registration || comm->registrations == 0))
        result = NCCL_INVALID_ARGUMENT;
    if (!result)
        comm->registrations--;
    return nccl_leave(result);
}
