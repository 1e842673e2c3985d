// SPDX-License-Identifier: Apache-2.0
//
// Findings about the data plane on this machine. Each function checks one thing and adds its
// finding. The bounds of a figure are defined in front of its function. Main thread.

#include "cli/doctor/machine.h"

#include "cli/bench/bench.h"
#include "cli/bench/limits.h"
#include "cli/bench/line.h"
#include "cli/doctor/doctor.h"
#include "cli/doctor/share.h"

#include "base/parse.h"
#include "base/processor.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GB 1e9
#define CONGESTION "cubic" // The congestion control that TCP links ask for: worker/link/tcp.c.
#define CONGESTION_BYTES 16 // The kernel's limit.

static void set_number(struct doctor_finding *finding, double number, const char *unit)
{
    finding->number = number;
    finding->unit = unit;
}

static void set_word(struct doctor_finding *finding, const char *word)
{
    (void)text_copy(finding->word, sizeof(finding->word), word);
}

// Reads the first line of a file. Returns false if there is none.
static bool read_line(const char *path, char *line, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool read = fgets(line, (int)capacity, file) != NULL;
    fclose(file);
    if (read)
        line[strcspn(line, "\n")] = '\0';
    return read;
}

// ---- Processor ---------------------------------------------------------------------------------

static void find_cores(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "cores");
    const uint32_t cores = bench_cores();
    set_number(finding, cores, cores == 1 ? "core" : "cores");
    if (cores > 1)
        doctor_judge(finding, DOCTOR_OK, "so many ranks can compute at once; more take turns");
    else
        doctor_judge(finding, DOCTOR_WARNING,
                     "all ranks of this machine take turns on one core: start one rank only, or "
                     "allow this process more cores (taskset, the container's cpus)");
}

// Above this, two cores are far apart. Cores that share a cache have 50 to 200 ns.
#define LINE_FAR_NS 400.0

static void find_line(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "line");
    const double ns = bench_limit_line_ns();
    set_number(finding, ns, "ns");
    if (!isfinite(ns))
        doctor_judge(finding, DOCTOR_WARNING,
                     "there are no two cores that answer each other, so ranks take turns");
    else if (ns > LINE_FAR_NS)
        doctor_judge(finding, DOCTOR_OK,
                     "two cores are far from each other now: ranks fill shared slots past the "
                     "caches, and words between them take several times as long");
    else
        doctor_judge(finding, DOCTOR_OK,
                     "two cores are near each other now: what ranks share goes through the caches");
}

static void find_kernels(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "kernels");
    const enum processor_vectors vectors = processor_vectors();
    set_word(finding, processor_vectors_name(vectors));
    if (vectors == PROCESSOR_AVX512)
        doctor_judge(finding, DOCTOR_OK, "sums use AVX-512 where it is faster, else AVX2");
    else if (vectors == PROCESSOR_AVX2)
        doctor_judge(finding, DOCTOR_OK, "sums use AVX2");
    else
        doctor_judge(finding, DOCTOR_WARNING,
                     "this processor has no AVX2 with F16C, so sums use portable loops: the bits "
                     "are the same, 16-bit gradients are much slower");
}

// ---- Memory ------------------------------------------------------------------------------------

static void find_shared_memory(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "shared_memory");
    int number = 0;
    const char *failed = doctor_share(&number);
    set_word(finding, failed ? "no" : "yes");
    if (!failed)
        doctor_judge(finding, DOCTOR_OK,
                     "two processes have shared memory: ranks of this host reduce in memory and "
                     "need no network between them");
    else
        doctor_judge(
            finding, DOCTOR_WARNING,
            "memory between ranks of this host cannot be shared, so TCP is used; what "
            "failed is %s%s%s: look at the limits and the seccomp profile of the container",
            failed, number ? ": " : "", number ? strerror(number) : "");
}

// Copies the word in brackets, for instance "advise" of "always within_size [advise] never deny
// force".
static bool chosen_word(const char *line, char *word, size_t capacity)
{
    const char *from = strchr(line, '[');
    const char *to = from ? strchr(from, ']') : NULL;
    struct text text;
    text_init(&text, word, capacity);
    return to && text_append_bytes(&text, from + 1, (size_t)(to - from - 1));
}

static void find_huge_pages(struct doctor_report *report)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    struct doctor_finding *finding = doctor_add(report, "huge_pages");
    char line[128];
    char word[DOCTOR_WORD_BYTES];
    if (!read_line(path, line, sizeof(line)) || !chosen_word(line, word, sizeof(word))) {
        doctor_judge(finding, DOCTOR_WARNING,
                     "this kernel does not tell of huge pages for shared memory: large payloads "
                     "between ranks of this host may be slower");
        return;
    }
    set_word(finding, word);
    if (strcmp(word, "never") != 0 && strcmp(word, "deny") != 0)
        doctor_judge(finding, DOCTOR_OK, "memory of lockstep_alloc gets huge pages");
    else
        doctor_judge(finding, DOCTOR_WARNING,
                     "shared memory has small pages, so large payloads between ranks of this host "
                     "are slower: echo advise > %s, as root",
                     path);
}

#define MEMORY_LITTLE_BYTES ((uint64_t)1024 * 1024 * 1024)
#define MEMORY_NO_LIMIT ((uint64_t)1 << 60) // A value above this means that there is no limit.

// Returns the lowest limit of a group and of all groups above it. path is shortened on the way up.
static uint64_t group_limit(const char *root, char *path, const char *file)
{
    uint64_t lowest = UINT64_MAX;
    for (;;) {
        char name[1024];
        char line[32];
        uint64_t limit = 0;
        snprintf(name, sizeof(name), "%s%s/%s", root, path, file);
        if (read_line(name, line, sizeof(line)) && parse_u64(line, &limit) && limit < lowest)
            lowest = limit;
        char *slash = strrchr(path, '/');
        if (!slash)
            return lowest;
        *slash = '\0';
    }
}

// Returns true if a line of /proc/self/cgroup, such as "4:cpu,memory:/path", is about memory in
// cgroup version 1.
static bool has_memory(const char *controllers, size_t size)
{
    for (const char *at = controllers; at < controllers + size; at += strcspn(at, ",:") + 1) {
        if (strcspn(at, ",:") == strlen("memory") && strncmp(at, "memory", strlen("memory")) == 0)
            return true;
    }
    return false;
}

// Returns the limit for one such line. An empty list of controllers means cgroup version 2.
static uint64_t line_limit(char *line)
{
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path)
        return UINT64_MAX;
    const size_t size = (size_t)(path - controllers - 1);
    if (size == 0)
        return group_limit("/sys/fs/cgroup", path + 1, "memory.max");
    if (has_memory(controllers + 1, size))
        return group_limit("/sys/fs/cgroup/memory", path + 1, "memory.limit_in_bytes");
    return UINT64_MAX;
}

static uint64_t memory_limit(void)
{
    char line[1024];
    uint64_t lowest = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = '\0';
        const uint64_t limit = line_limit(line);
        lowest = limit < lowest ? limit : lowest;
    }
    if (file)
        fclose(file);
    return lowest;
}

static void find_memory_limit(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "memory_limit");
    const uint64_t limit = memory_limit();
    if (limit > MEMORY_NO_LIMIT) {
        set_word(finding, "none");
        doctor_judge(finding, DOCTOR_OK, "no control group limits the memory of this process");
        return;
    }
    set_number(finding, (double)limit, "bytes");
    if (limit >= MEMORY_LITTLE_BYTES)
        doctor_judge(
            finding, DOCTOR_OK,
            "the control group kills a rank above it; memory that ranks share counts, too");
    else
        doctor_judge(finding, DOCTOR_WARNING,
                     "the control group kills a rank above it, and gradients, scratch and memory "
                     "that ranks share all count: give it %.0f GiB or more",
                     (double)MEMORY_LITTLE_BYTES / (1024.0 * 1024 * 1024));
}

static void find_memcpy(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "memcpy");
    const double rate = bench_limit_memcpy();
    set_number(finding, rate / GB, "GB/s");
    if (isfinite(rate))
        doctor_judge(finding, DOCTOR_OK,
                     "one core copies so much: the measure for reductions in shared memory");
    else
        doctor_judge(finding, DOCTOR_WARNING,
                     "there were no 128 MiB to copy: free memory, or training will not have it");
}

// ---- Descriptors -------------------------------------------------------------------------------

// Descriptors that a rank needs to form a world: its links, and its trainer's and gRPC's own.
#define FILES_NEEDED (2 * LOCKSTEP_MAX_NEIGHBOURS)
// Descriptors that a rank needs if it also shares the largest number of memory regions.
#define FILES_WANTED (FILES_NEEDED + LOCKSTEP_MAX_REGIONS + 64)

static void find_open_files(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "open_files");
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        set_word(finding, "unlimited");
    else
        set_number(finding, (double)limit.rlim_cur, "descriptors");
    if (limit.rlim_cur >= FILES_WANTED)
        doctor_judge(finding, DOCTOR_OK, "enough for links and for all memory that is shared");
    else if (limit.rlim_cur >= FILES_NEEDED)
        doctor_judge(finding, DOCTOR_WARNING,
                     "enough for links, but not for all memory that can be shared, and what is not "
                     "shared is copied: ulimit -n %d",
                     FILES_WANTED);
    else
        doctor_judge(finding, DOCTOR_MISSING, "too few for the links of a rank: ulimit -n %d",
                     FILES_WANTED);
}

// ---- Network -----------------------------------------------------------------------------------

#define LATENCY_HIGH_US 200.0

// Copies the congestion control that a new socket uses after it has asked for ours. Returns false
// if no socket could be made.
static bool congestion_had(char *name, socklen_t capacity, int *refusal)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0)
        return false;
    const socklen_t size = sizeof(CONGESTION) - 1;
    *refusal = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, CONGESTION, size) < 0 ? errno : 0;
    memset(name, 0, capacity);
    const bool known = getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &capacity) == 0;
    (void)close(fd);
    return known;
}

static void find_congestion(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "congestion");
    char name[CONGESTION_BYTES + 1];
    int refusal = 0;
    if (!congestion_had(name, CONGESTION_BYTES, &refusal)) {
        doctor_judge(finding, DOCTOR_WARNING, "the rule of congestion of TCP is not known: %s",
                     strerror(errno));
        return;
    }
    set_word(finding, name);
    if (refusal == 0)
        doctor_judge(finding, DOCTOR_OK,
                     CONGESTION " can be chosen, so every link has it, whatever is the default");
    else
        doctor_judge(finding, DOCTOR_WARNING,
                     CONGESTION " cannot be chosen (%s), so links have the default, and one that "
                                "paces (bbr) halves short links: modprobe tcp_" CONGESTION
                                " and add it to net.ipv4.tcp_allowed_congestion_control",
                     strerror(refusal));
}

static void find_tcp_latency(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "tcp_latency");
    const double us = bench_limit_tcp_us(CONGESTION);
    set_number(finding, us, "us");
    if (!isfinite(us))
        doctor_judge(
            finding, DOCTOR_MISSING,
            "no byte came over the loopback interface, and coordinator and ranks need TCP: "
            "bring it up (ip link set lo up)");
    else if (us > LATENCY_HIGH_US)
        doctor_judge(finding, DOCTOR_WARNING,
                     "a byte takes long even on one machine: it is busy, or has a slow clock or "
                     "sandbox; small payloads suffer");
    else
        doctor_judge(
            finding, DOCTOR_OK,
            "one way over loopback at best: what one hop of a small payload costs over TCP");
}

static void find_tcp_bandwidth(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "tcp_bandwidth");
    const double rate = bench_limit_tcp(CONGESTION);
    set_number(finding, rate / GB, "GB/s");
    if (isfinite(rate))
        doctor_judge(finding, DOCTOR_OK,
                     "one stream over loopback at best: the measure for large payloads over TCP");
    else
        doctor_judge(finding, DOCTOR_MISSING,
                     "no stream over the loopback interface could be measured");
}

// Tests shared memory before any function that starts threads, because that test forks.
void doctor_machine(struct doctor_report *report)
{
    find_cores(report);
    find_line(report);
    find_kernels(report);
    find_shared_memory(report);
    find_huge_pages(report);
    find_memory_limit(report);
    find_open_files(report);
    find_memcpy(report);
    find_congestion(report);
    find_tcp_latency(report);
    find_tcp_bandwidth(report);
}
