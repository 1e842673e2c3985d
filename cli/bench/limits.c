// SPDX-License-Identifier: Apache-2.0
//
// Limits of this machine without the library: the rate of memory copies, and of one TCP connection
// from the machine to itself. And the cost of this process: processor time, and cycles if there is
// a counter. Trainer's thread of rank 0 (limits) or of every rank (cost). The limits also run on
// the main thread of `lockstep doctor`.
//
// A limit is the best of several passes, because what disturbs a pass only makes it slower.

#include "cli/bench/limits.h"

#include "cli/bench/bench.h"
#include "cli/bench/worker.h"

#include "base/address.h"
#include "base/thread.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEASURE_US 100000.0
#define MIN_PASSES 8
// Source and target together are larger than most caches.
#define COPY_BYTES ((size_t)64 * 1024 * 1024)
#define PIECE_BYTES ((size_t)4 * 1024 * 1024) // Shorter than a turn of the scheduler.
#define CALL_BYTES ((size_t)1024 * 1024) // Bytes of one system call.
#define PASS_BYTES (32 * CALL_BYTES)
#define CACHE_BYTES_UNKNOWN ((size_t)32 * 1024 * 1024)

// ---- Memory ------------------------------------------------------------------------------------

// Returns the best time of one piece. All pages are allocated before the first copy, and a piece is
// copied again only after all others.
static double copy_best_us(char *to, char *from)
{
    double best_us = INFINITY;
    memset(from, 1, COPY_BYTES);
    // Not zeros: the kernel would allocate pages of zeros only at the first copy.
    memset(to, 2, COPY_BYTES);
    double begin_us = bench_now_us();
    size_t at = 0;
    do {
        double piece_us = bench_now_us();
        memcpy(to + at, from + at, PIECE_BYTES);
        // Without this the compiler may remove the copy.
        __asm__ volatile("" : : "r"(to) : "memory");
        best_us = fmin(best_us, bench_now_us() - piece_us);
        at = (at + PIECE_BYTES) % COPY_BYTES;
    } while (bench_now_us() - begin_us < MEASURE_US);
    return best_us;
}

double bench_limit_memcpy(void)
{
    char *from = malloc(COPY_BYTES);
    char *to = malloc(COPY_BYTES);
    double best_us = from && to ? copy_best_us(to, from) : NAN;
    free(from);
    free(to);
    return (double)PIECE_BYTES / best_us * 1e6;
}

size_t bench_cache_bytes(void)
{
    size_t largest = 0;
    for (int i = 0; i < 8; i++) {
        char path[80];
        size_t kib = 0;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        if (fscanf(file, "%zuK", &kib) == 1 && kib * 1024 > largest)
            largest = kib * 1024;
        fclose(file);
    }
    return largest ? largest : CACHE_BYTES_UNKNOWN;
}

// ---- One stream of TCP -------------------------------------------------------------------------

struct sender {
    int fd;
    char *bytes; // borrowed
};

// Sends until the other side has closed.
static void sender_run(void *argument)
{
    const struct sender *sender = argument;
    ssize_t sent = 0;
    while (sent >= 0)
        sent = send(sender->fd, sender->bytes, CALL_BYTES, MSG_NOSIGNAL);
}

// Sets the congestion control, if one is given and allowed, and TCP_NODELAY, so that a byte is sent
// at once.
static void tune(int fd, const char *congestion)
{
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (congestion)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                         (socklen_t)strlen(congestion));
}

// Makes two ends of one connection over 127.0.0.1, or over ::1 where there is no IPv4. Returns
// false if there is no such network.
static bool connect_pair(int pair[2], const char *congestion)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const bool six = strchr(address_loopback(), ':') != NULL;
    if (!six) {
        const struct sockaddr_in four = {.sin_family = AF_INET,
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        memcpy(&address, &four, sizeof(four));
    }
    socklen_t size = six ? sizeof(address) : sizeof(struct sockaddr_in);
    const int family = six ? AF_INET6 : AF_INET;
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pair[0] = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pair[1] = -1;
    tune(pair[0], congestion);
    if (bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 1) == 0 &&
        getsockname(listener, (struct sockaddr *)&address, &size) == 0 &&
        connect(pair[0], (struct sockaddr *)&address, size) == 0)
        pair[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (listener >= 0)
        close(listener);
    if (pair[1] < 0 && pair[0] >= 0)
        close(pair[0]);
    tune(pair[1], congestion);
    return pair[1] >= 0;
}

// Receives one pass. Returns false if the stream has ended.
static bool receive_pass(int fd, char *bytes)
{
    for (size_t received = 0; received < PASS_BYTES;) {
        ssize_t size = recv(fd, bytes, CALL_BYTES, 0);
        if (size <= 0)
            return false;
        received += (size_t)size;
    }
    return true;
}

static double receive_best_us(int fd, char *bytes)
{
    double best_us = NAN;
    double begin_us = bench_now_us();
    for (int i = 0; i < MIN_PASSES || bench_now_us() - begin_us < MEASURE_US; i++) {
        double pass_us = bench_now_us();
        if (!receive_pass(fd, bytes))
            break;
        best_us = fmin(best_us, bench_now_us() - pass_us);
    }
    return best_us;
}

// Sends received bytes back until the other side has closed.
static void echo_run(void *argument)
{
    const struct sender *sender = argument;
    ssize_t sent = 1;
    while (sent == 1 && recv(sender->fd, sender->bytes, 1, 0) == 1)
        sent = send(sender->fd, sender->bytes, 1, MSG_NOSIGNAL);
}

static double echo_best_us(int fd, char *bytes)
{
    double best_us = NAN;
    double begin_us = bench_now_us();
    do {
        double turn_us = bench_now_us();
        if (send(fd, bytes, 1, MSG_NOSIGNAL) != 1 || recv(fd, bytes, 1, 0) != 1)
            break;
        best_us = fmin(best_us, bench_now_us() - turn_us);
    } while (bench_now_us() - begin_us < MEASURE_US);
    return best_us;
}

// Calls best_us on one end of a connection while `run` uses the other end on a thread.
static double measure_pair(const char *congestion, void (*run)(void *argument),
                           double (*best_us)(int fd, char *bytes))
{
    int pair[2];
    double us = NAN;
    struct thread thread;
    char *bytes = calloc(2, CALL_BYTES);
    if (!bytes || !connect_pair(pair, congestion)) {
        free(bytes);
        return NAN;
    }
    struct sender sender = {.fd = pair[0], .bytes = bytes};
    bool started = thread_start(&thread, "bench-sender", run, &sender) == 0;
    if (started)
        us = best_us(pair[1], bytes + CALL_BYTES);
    close(pair[1]);
    if (started)
        thread_join(&thread);
    close(pair[0]);
    free(bytes);
    return us;
}

double bench_limit_tcp(const char *congestion)
{
    return (double)PASS_BYTES / measure_pair(congestion, sender_run, receive_best_us) * 1e6;
}

double bench_limit_tcp_us(const char *congestion)
{
    return measure_pair(congestion, echo_run, echo_best_us) / 2;
}

// ---- Cost --------------------------------------------------------------------------------------

static int cycles_fd = -1;

// Includes the kernel's cycles, because TCP spends its cycles there.
int bench_cost_open(void)
{
    struct perf_event_attr attributes = {.type = PERF_TYPE_HARDWARE,
                                         .size = sizeof(attributes),
                                         .config = PERF_COUNT_HW_CPU_CYCLES,
                                         .inherit = 1};
    cycles_fd = (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    return cycles_fd < 0 ? errno : 0;
}

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
}

struct bench_cost bench_cost_now(void)
{
    struct rusage usage = {0};
    uint64_t cycles = 0;
    getrusage(RUSAGE_SELF, &usage);
    bool counted = cycles_fd >= 0 && read(cycles_fd, &cycles, sizeof(cycles)) == sizeof(cycles);
    return (struct bench_cost){.cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
                               .cycles = counted ? (double)cycles : NAN};
}

void bench_cost_add(struct bench_cost *sum, struct bench_cost from, struct bench_cost to)
{
    sum->cpu_s += to.cpu_s - from.cpu_s;
    sum->cycles += to.cycles - from.cycles;
}
