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
// Checks of a rank go through the RANK_ macros: cmocka's own assertions are for the test's thread.
// The first check that fails aborts the session of its rank, which releases the others, and is what
// the test reports. A world that does not end in time prints where each rank is, and ends the
// program.

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
#define CLUSTER_PATIENCE_MS 20000 // A world may take so long: of test_bound_ms().

// ---- What a test is stamped over ---------------------------------------------------------------

struct setting {
    const char *name; // Name of the transport: "loopback", "torn_7", "tcp", "shared".
    lockstep_transport_kind transport;
    uint32_t torn_bytes;
    // Ranks say that they are on so many hosts, evenly spread, and at most one each; 0: on this
    // one.
    uint32_t hosts;
    const char *algorithm; // Asked for by LOCKSTEP_ALGORITHM; NULL: what follows from sizes.
    const char *link; // LOCKSTEP_LINK; NULL: links are measured.
    // So many of the lowest ranks have a device, a fake one (tests/fake_gpu), and to it all memory
    // is its own, wherever it comes from: so tests that know nothing of devices run on them. 0: no
    // rank does.
    uint32_t devices;
    bool device_memory_only; // Only what was allocated on a device is its memory, as on most.
    uint32_t world_size;
};

// Whether some ranks have devices that sum by NCCL before the hosts do, and others have none.
bool setting_meets(const struct setting *setting);

// A setting of one word, for tests that are not stamped. Its world is the test's to choose.
struct setting setting_named(const char *name);

// The same, with the ring asked for: for tests that know its sums to the last bit.
struct setting setting_on_ring(const struct setting *setting);

struct stamp {
    const char *name; // "case_06_ready_orders_differ"
    void (*run)(const struct setting *setting);
    const uint32_t *worlds; // Ends with 0. NULL: 2 and 3.
};

// Runs every stamp over all transports and its worlds as one cmocka group; what main returns. With
// LOCKSTEP_TEST_ALGORITHMS=all also over every algorithm, asked for by name, and over worlds with
// devices: staged (one rank of the world has one), mixed (two of four), nccl (all). devices.h lists
// the tests that are stamped there in any case, and those that never are. LOCKSTEP_TEST_FILTER, a
// pattern such as "*case_26*tcp*", narrows it.
int stamp_run(const char *group, const struct stamp *stamps, uint32_t count);
// The same without the torn loopbacks, for what would take too long there.
int stamp_run_whole(const char *group, const struct stamp *stamps, uint32_t count);

// ---- A world -----------------------------------------------------------------------------------

struct cluster;

struct rank {
    // set before the thread starts, then constant
    struct cluster *cluster;
    uint32_t rank;
    uint32_t world_size;
    const struct setting *setting;
    void *context; // The test's own, the same for all ranks.
    char label[16]; // "rank 2"
    char host[16]; // "host-1"
    char device[16]; // "cuda:2"

    // this rank's thread
    lockstep_session *session; // Opened before the body, closed after it; NULL: closed in it.
    struct hash64 digest;
    jmp_buf out;

    // atomic: where it is, for the report of a hang
    _Atomic(const char *) call; // NULL: outside the library.
    atomic_int line;
    _Atomic(uint64_t) step;
    _Atomic(uint64_t) since_ms;
    atomic_bool ended;
};

struct cluster_test {
    const struct setting *setting;
    // NULL: the configuration stays as it is.
    void (*configure)(struct rank *rank, struct lockstep_config *config);
    void (*body)(struct rank *rank);
    void *context;
    bool without_session; // The body opens sessions itself.
};

// Runs the body on every rank and fails the test if a check failed. The digests of the ranks must
// be equal; the digest is returned.
uint64_t ranks_run(const struct setting *setting, void (*body)(struct rank *rank), void *context);
uint64_t ranks_run_test(const struct cluster_test *test);

// All ranks meet here; without the library.
void rank_meet(struct rank *rank);
void rank_digest(struct rank *rank, const void *bytes, size_t size);

// The configuration with which a rank is opened: job, world, hint, transport.
struct lockstep_config rank_config(const struct rank *rank);

// Address of the program's coordinator; starts it. A job name that no other test has.
const char *cluster_coordinator(void);
// SIGSTOP, SIGCONT: the program's coordinator, whose worlds all wait for it meanwhile.
void cluster_signal_coordinator(int signal);
void cluster_job_name(char *name, size_t bytes);

// ---- Checks of a rank --------------------------------------------------------------------------

#define RANK_CALL(rank, call) (rank_enter((rank), #call, __LINE__), rank_left((rank), (call)))
#define RANK_STATUS(rank, expected, call) \
    rank_check_status((rank), (expected), RANK_CALL((rank), call), #call, __FILE__, __LINE__)
#define RANK_OK(rank, call) RANK_STATUS(rank, LOCKSTEP_OK, call)
#define RANK_FAILS(rank, status, call) RANK_STATUS(rank, status, call)
// The error text of the last failure contains this.
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
