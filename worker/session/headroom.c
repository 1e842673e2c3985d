// SPDX-License-Identifier: Apache-2.0
//
// The check of the process's limits; see headroom.h. worker/support/spare.c keeps descriptors for
// later. Runs on the thread that opens a session, and on the driver when it forms the links of a
// world.

#include "worker/session/headroom.h"

#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"
#include "protos/limits.h"
#include "worker/link/shm_ring.h"
#include "worker/support/config.h"
#include "worker/support/error.h"
#include "worker/support/spare.h"
#include "worker/watch/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MIB (1024 * 1024)

static uint64_t limit_of(__rlimit_resource_t resource)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

// ---- File descriptors ---------------------------------------------------------------------------

bool headroom_descriptors(uint32_t count, const char *what, char *text, size_t text_bytes)
{
    const uint32_t most = LOCKSTEP_SESSION_DESCRIPTORS_MOST;
    const uint32_t wanted = count < most ? count : most;
    const uint32_t had = spare_room(wanted);
    char reason[64];
    struct text out;
    if (had == wanted)
        return true;
    text_init(&out, text, text_bytes);
    text_append(
        &out, "%s %" PRIu32 " file descriptors, and this process can open %" PRIu32 " more: ", what,
        wanted, had);
    if (errno == ENFILE)
        text_append(&out, "this host has no others (sysctl fs.file-max)");
    else if (errno != EMFILE)
        text_append(&out,
                    "the system refuses them (%s): look for a filter of system calls (seccomp) of "
                    "its container",
                    strerror_r(errno, reason, sizeof(reason)));
    else
        text_append(&out,
                    "its limit is %" PRIu64 " (ulimit -n); raise the limit, or close files before "
                    "lockstep_open",
                    limit_of(RLIMIT_NOFILE));
    return false;
}

// ---- Threads ------------------------------------------------------------------------------------

static uint32_t threads_needed(void)
{
    const long processors = sysconf(_SC_NPROCESSORS_CONF);
    long workers = processors;
    if (workers < LOCKSTEP_CONTROL_THREADS_MIN)
        workers = LOCKSTEP_CONTROL_THREADS_MIN;
    if (workers > LOCKSTEP_CONTROL_THREADS_MAX)
        workers = LOCKSTEP_CONTROL_THREADS_MAX;
    return LOCKSTEP_OWN_THREADS + (uint32_t)workers + LOCKSTEP_CONTROL_THREADS_MORE;
}

// Body of a thread of threads_had: waits until all of them are started.
static void thread_waits(void *argument)
{
    struct mutex *gate = argument;
    mutex_lock(gate);
    mutex_unlock(gate);
}

// Starts up to `count` threads, which live at the same time, and joins them. Returns how many it
// could start; if that is less than `count`, *failure is the error number.
static uint32_t threads_had(uint32_t count, int *failure)
{
    struct thread threads[LOCKSTEP_SESSION_THREADS_MAX];
    struct mutex gate;
    uint32_t had = 0;
    mutex_init(&gate);
    mutex_lock(&gate);
    *failure = 0;
    while (had < count && *failure == 0) {
        *failure = thread_start(&threads[had], "lockstep-probe", thread_waits, &gate);
        had += *failure == 0;
    }
    mutex_unlock(&gate);
    for (uint32_t i = 0; i < had; i++)
        thread_join(&threads[i]);
    mutex_fini(&gate);
    return had;
}

static int check_threads(uint32_t count)
{
    char reason[64];
    int failure;
    const uint32_t had = threads_had(count, &failure);
    if (had == count)
        return 0;
    return error_set(LOCKSTEP_E_SYSTEM,
                     "a session needs %" PRIu32 " threads, and this process can start %" PRIu32
                     " (%s): raise the limit on processes and threads of this user (ulimit -u), or "
                     "that of its container (pids.max)",
                     count, had, strerror_r(failure, reason, sizeof(reason)));
}

// ---- Address space ------------------------------------------------------------------------------

static size_t stack_bytes(void)
{
    pthread_attr_t attributes;
    size_t bytes = 0;
    if (pthread_getattr_default_np(&attributes) != 0)
        return 0;
    if (pthread_attr_getstacksize(&attributes, &bytes) != 0)
        bytes = 0;
    (void)pthread_attr_destroy(&attributes);
    return bytes;
}

static int check_stack(size_t bytes)
{
    if (bytes == 0 || bytes >= LOCKSTEP_STACK_BYTES)
        return 0;
    return error_set(LOCKSTEP_E_SYSTEM,
                     "threads of this process have stacks of %zu KiB, and a session needs %d KiB: "
                     "raise the limit (ulimit -s)",
                     bytes / 1024, LOCKSTEP_STACK_BYTES / 1024);
}

static bool can_map(uint64_t bytes, int access)
{
    void *memory = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    (void)munmap(memory, bytes);
    return true;
}

// Checks a limit on address space or data by mapping so many bytes, if the limit is set. Physical
// memory is not checked.
static int check_map(__rlimit_resource_t resource, const char *what, const char *option, int access,
                     uint64_t bytes)
{
    const uint64_t limit = limit_of(resource);
    if (limit == UINT64_MAX || can_map(bytes, access))
        return 0;
    return error_set(LOCKSTEP_E_SYSTEM,
                     "a session needs %" PRIu64 " MiB of %s, and this process cannot have so much "
                     "more: its limit is %" PRIu64 " MiB (ulimit %s); raise the limit",
                     bytes / MIB, what, limit / MIB, option);
}

// ---- Files --------------------------------------------------------------------------------------

// Checks the limit on the size of files, which also applies to files in memory (memfd).
static int check_files(const struct config *config)
{
    const uint64_t limit = limit_of(RLIMIT_FSIZE);
    uint64_t needed = TRACE_BYTES;
    if (config->transport == LOCKSTEP_TRANSPORT_AUTO && needed < sizeof(struct shm_memory))
        needed = sizeof(struct shm_memory);
    if (limit >= needed)
        return 0;
    return error_set(LOCKSTEP_E_SYSTEM,
                     "a session needs files of %" PRIu64
                     " KiB in memory, and files of this process "
                     "may have %" PRIu64 " KiB (ulimit -f): raise the limit",
                     (needed + 1023) / 1024, limit / 1024);
}

// ---- The whole check ----------------------------------------------------------------------------

int headroom_check(const struct config *config)
{
    const uint32_t threads = threads_needed();
    const size_t stack = stack_bytes();
    const uint64_t stacks = (uint64_t)threads * stack;
    const uint64_t arenas = (uint64_t)threads * LOCKSTEP_ARENA_BYTES;
    char text[LOCKSTEP_TEXT_BYTES];
    int status = 0;
    if (!headroom_descriptors(config->solo ? LOCKSTEP_SOLO_DESCRIPTORS
                                           : LOCKSTEP_SESSION_DESCRIPTORS,
                              "a session needs", text, sizeof(text)))
        return error_set(LOCKSTEP_E_SYSTEM, "%s", text);
    if (config->solo)
        return 0;
    status = check_files(config);
    if (status == 0)
        status = check_stack(stack);
    if (status == 0)
        status = check_map(RLIMIT_AS, "address space", "-v", PROT_NONE,
                           stacks + arenas + LOCKSTEP_SESSION_BYTES);
    if (status == 0)
        status = check_map(RLIMIT_DATA, "data", "-d", PROT_READ | PROT_WRITE,
                           stacks + LOCKSTEP_SESSION_BYTES);
    return status < 0 ? status : check_threads(threads);
}
