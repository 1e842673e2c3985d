// SPDX-License-Identifier: Apache-2.0
//
// A world of n ranks inside one test program: every rank is a thread with a session of its own,
// joined through a real lockstep-coordinator process (one for the program). It is not a simulator:
// engine, control stream and transport are the real ones.
//
//     static void body(struct rank *rank)
//     {
//         RANK_OK(rank, lockstep_start(rank->session));
//         RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_start(rank->session));
//         RANK_SAYS(rank, "already");
//     }
//     static void case_17_started_twice(const struct setting *setting)
//     {
//         ranks_run(setting, body, NULL);
//     }
//
// The body of a rank checks with the RANK_ macros; only the test's thread may use cmocka's
// assertions. The first check that fails aborts the session of its rank, so that the other ranks do
// not hang; the test reports this check. If a world does not end in time, the test prints the
// current call of each rank and ends the program.

#ifndef LOCKSTEP_TESTS_CLUSTER_H
#define LOCKSTEP_TESTS_CLUSTER_H

#include "base/hash64.h"
#include "tests/support/bounds.h"

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>

#define CLUSTER_MAX_WORLD 20
#define CLUSTER_PATIENCE_MS 20000 // Time limit of a world, before test_bound_ms().

// ---- Settings: each test runs in several of them -----------------------------------------------

struct setting {
    const char *name; // Name of the transport: "loopback", "torn_7", "tcp", "shared".
    lockstep_transport_kind transport;
    uint32_t torn_bytes;
    // Number of different host names that the ranks report, evenly spread, at most one for each
    // rank. 0: all ranks report the real host.
    uint32_t hosts;
    const char *algorithm; // LOCKSTEP_ALGORITHM; NULL: chosen by the size of the data.
    const char *link; // LOCKSTEP_LINK; NULL: links are measured.
    // Number of ranks with a fake device (tests/fake_gpu): the lowest ones. Unless
    // device_memory_only is set, all memory counts as memory of the device, so tests that know
    // nothing of devices run on them. 0: no rank has a device.
    uint32_t devices;
    bool device_memory_only; // True if only memory allocated on a device is device memory.
    uint32_t world_size;
};

// True if some ranks have devices, whose gradients NCCL sums first, and other ranks have none.
bool setting_meets(const struct setting *setting);

// Returns the setting with this name ("tcp"), for tests that choose their setting themselves. The
// caller sets world_size.
struct setting setting_named(const char *name);

// Returns the setting with the ring algorithm, for tests that expect the exact bits of its sums.
struct setting setting_on_ring(const struct setting *setting);

// One test, which stamp_run repeats for each setting and world size.
struct stamp {
    const char *name; // "case_06_ready_orders_differ"
    void (*run)(const struct setting *setting);
    const uint32_t *worlds; // World sizes; ends with 0. NULL: 2 and 3.
};

// Runs every stamp over all transports and its world sizes as one cmocka group. Returns the exit
// status for main. With LOCKSTEP_TEST_ALGORITHMS=all the stamps also run over every algorithm, and
// over worlds with devices: "staged" (one rank has a device), "mixed" (two ranks have one), "nccl"
// (all ranks have one). devices.h lists the tests that always run with devices, and those that
// never do. LOCKSTEP_TEST_FILTER, a pattern such as "*case_26*tcp*", selects tests by name.
int stamp_run(const char *group, const struct stamp *stamps, uint32_t count);
// The same without the torn loopbacks, for tests that would take too long over them.
int stamp_run_whole(const char *group, const struct stamp *stamps, uint32_t count);

// ---- A world -----------------------------------------------------------------------------------

struct cluster;

struct rank {
    // set before the thread starts, then constant
    struct cluster *cluster;
    uint32_t rank;
    uint32_t world_size;
    const struct setting *setting;
    void *context; // Data of the test, the same for all ranks.
    char label[16]; // "rank 2"
    char host[16]; // "host-1"
    char device[16]; // "cuda:2"

    // this rank's thread
    // Opened before the body and closed after it. A body that closes its session sets it to NULL.
    lockstep_session *session;
    struct hash64 digest;
    jmp_buf out;

    // atomic: the current call of the rank, for the report of a hang
    _Atomic(const char *) call; // NULL: the rank is outside the library.
    atomic_int line;
    _Atomic(uint64_t) step;
    _Atomic(uint64_t) since_ms;
    atomic_bool ended;
};

struct cluster_test {
    const struct setting *setting;
    // Changes the configuration before the session is opened. NULL: no change.
    void (*configure)(struct rank *rank, struct lockstep_config *config);
    void (*body)(struct rank *rank);
    void *context;
    bool without_session; // True if the body opens sessions itself.
};

// Runs the body on every rank and fails the test if a check failed. The digests of the ranks must
// be equal; the digest is returned.
uint64_t ranks_run(const struct setting *setting, void (*body)(struct rank *rank), void *context);
uint64_t ranks_run_test(const struct cluster_test *test);

// A barrier of all ranks, without the library.
void rank_meet(struct rank *rank);
// Adds bytes to the rank's digest.
void rank_digest(struct rank *rank, const void *bytes, size_t size);

// The configuration with which the session of a rank is opened: job, world, hint, transport.
struct lockstep_config rank_config(const struct rank *rank);

// Returns the address of the program's coordinator, which the first call starts.
const char *cluster_coordinator(void);
// Sends a signal to the coordinator: SIGSTOP or SIGCONT. All worlds wait for a stopped coordinator.
void cluster_signal_coordinator(int signal);
// Makes a job name that no other test uses.
void cluster_job_name(char *name, size_t bytes);

// ---- Checks of a rank --------------------------------------------------------------------------

#define RANK_CALL(rank, call) (rank_enter((rank), #call, __LINE__), rank_left((rank), (call)))
#define RANK_STATUS(rank, expected, call) \
    rank_check_status((rank), (expected), RANK_CALL((rank), call), #call, __FILE__, __LINE__)
#define RANK_OK(rank, call) RANK_STATUS(rank, LOCKSTEP_OK, call)
#define RANK_FAILS(rank, status, call) RANK_STATUS(rank, status, call)
// Checks that the error text of the last failure contains `part`.
#define RANK_SAYS(rank, part) rank_check_text((rank), (part), __FILE__, __LINE__)
#define RANK_TRUE(rank, condition) \
    ((condition) ? (void)0 : rank_fail((rank), __FILE__, __LINE__, "%s", #condition))
#define RANK_EQUAL(rank, a, b) \
    rank_check_equal((rank), (int64_t)(a), (int64_t)(b), #a " and " #b, __FILE__, __LINE__)

void rank_enter(struct rank *rank, const char *call, int line);
int rank_left(struct rank *rank, int status);
void rank_check_status(struct rank *rank, int expected, int status, const char *call,
                       const char *file, int line);
void rank_check_text(struct rank *rank, const char *part, const char *file, int line);
void rank_check_equal(struct rank *rank, int64_t a, int64_t b, const char *what, const char *file,
                      int line);
_Noreturn void rank_fail(struct rank *rank, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
