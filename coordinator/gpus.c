// SPDX-License-Identifier: Apache-2.0
//
// Checks whether the GPUs of a world can work together, before NCCL would fail on some of the ranks
// with an error number. Also decides whether the GPUs meet (below). Runs inside coordinator_step.
//
// Rules. Every worker can use the GPU that its user chose. No two workers use the same GPU, neither
// as their own nor for further replicas. If two or more workers have a GPU, each of these workers
// has NCCL, not older than LOCKSTEP_NCCL_OLDEST, and all have the same major and minor version. A
// world that breaks a rule does not form: all its workers get the same sentence.
//
// In a world in which only some workers have a GPU, the GPUs may *meet*: they first sum by NCCL
// among themselves, then all workers sum over their hosts. They meet if there are two or more and
// all are on one host. Then NCCL's data crosses no link between hosts, and each of these workers
// copies only its share of the sum to host memory. Over a network NCCL would only add traffic: the
// traffic between the hosts would stay the same.

#include "coordinator/gpus.h"

#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/sentence.h"

// The first worker, or pair of workers, that breaks a rule.
struct gpus_fault {
    const struct up_hello *one; // NULL: no rule is broken.
    const struct up_hello *other; // NULL: `one` alone breaks the rule.
    const struct uuid *gpu; // The GPU that both use; NULL: another rule is broken.
};

// Adds "the worker on b (pid 12)".
static void gpus_name(struct text *sentence, const struct up_hello *hello)
{
    text_append(sentence, "the worker on %s (pid %" PRIu32 ")", hello->host, hello->pid);
}

// Adds "2.21.5".
static void gpus_version(struct text *sentence, uint32_t version)
{
    text_append(sentence, "%" PRIu32 ".%" PRIu32 ".%" PRIu32, version / 10000, version / 100 % 100,
                version % 100);
}

// Adds "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", the format of nvidia-smi.
static void gpus_uuid(struct text *sentence, const struct uuid *uuid)
{
    text_append(sentence, "GPU");
    for (uint32_t i = 0; i < LOCKSTEP_UUID_BYTES; i++) {
        const bool group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        text_append(sentence, "%s%02x", group ? "-" : "", (unsigned)uuid->bytes[i]);
    }
}

static struct gpus_fault gpus_unusable(struct coordinator *core, const struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_hello *hello = &job_worker(core, job, i)->hello;
        if (hello->gpu_problem[0] != '\0')
            return (struct gpus_fault){.one = hello};
    }
    return (struct gpus_fault){.one = NULL};
}

// Returns a GPU that the worker uses. Index 0 is the worker's own GPU.
static const struct uuid *gpus_of(const struct up_hello *hello, uint32_t index)
{
    return index == 0 ? &hello->gpu.uuid : &hello->further_gpus[index - 1];
}

static uint32_t gpus_used(const struct up_hello *hello)
{
    return hello->has_gpu ? 1 + hello->further_gpu_count : 0;
}

// Returns a GPU that both workers use, or NULL.
static const struct uuid *gpus_common(const struct up_hello *one, const struct up_hello *other)
{
    for (uint32_t i = 0; i < gpus_used(one); i++) {
        for (uint32_t k = 0; k < gpus_used(other); k++) {
            if (memcmp(gpus_of(one, i), gpus_of(other, k), sizeof(struct uuid)) == 0)
                return gpus_of(one, i);
        }
    }
    return NULL;
}

static struct gpus_fault gpus_shared(struct coordinator *core, const struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_hello *one = &job_worker(core, job, i)->hello;
        for (uint32_t k = i + 1; one->has_gpu && k < job->count; k++) {
            const struct up_hello *other = &job_worker(core, job, k)->hello;
            const struct uuid *common = gpus_common(one, other);
            if (common)
                return (struct gpus_fault){one, other, common};
        }
    }
    return (struct gpus_fault){.one = NULL};
}

// Checks the rule about NCCL versions.
static struct gpus_fault gpus_nccl(struct coordinator *core, const struct job *job)
{
    const struct up_hello *first = NULL;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_hello *hello = &job_worker(core, job, i)->hello;
        if (!hello->has_gpu)
            continue;
        if (hello->gpu.nccl_version < LOCKSTEP_NCCL_OLDEST)
            return (struct gpus_fault){.one = hello};
        if (!first)
            first = hello;
        else if (hello->gpu.nccl_version / 100 != first->gpu.nccl_version / 100)
            return (struct gpus_fault){.one = first, .other = hello};
    }
    return (struct gpus_fault){.one = NULL};
}

static void gpus_say_unusable(struct text *sentence, const struct gpus_fault *fault)
{
    gpus_name(sentence, fault->one);
    text_append(sentence, " cannot compute on its GPU, %s; LOCKSTEP_DEVICE=none does without",
                fault->one->gpu_problem);
}

static void gpus_say_shared(struct text *sentence, const struct gpus_fault *fault)
{
    gpus_name(sentence, fault->one);
    text_append(sentence, " and ");
    gpus_name(sentence, fault->other);
    text_append(sentence, " compute on the same GPU, ");
    gpus_uuid(sentence, fault->gpu);
    text_append(sentence, ": give each worker one of its own (LOCKSTEP_DEVICE=cuda:N, or "
                          "CUDA_VISIBLE_DEVICES), or none (LOCKSTEP_DEVICE=none)");
}

static void gpus_say_nccl(struct text *sentence, const struct gpus_fault *fault)
{
    const struct gpu *gpu = &fault->one->gpu;
    gpus_name(sentence, fault->one);
    if (gpu->nccl_version == 0) {
        text_append(sentence, " computes on a GPU and has no NCCL%s%s",
                    gpu->nccl_missing[0] ? ": " : "", gpu->nccl_missing);
    } else {
        text_append(sentence, " has NCCL ");
        gpus_version(sentence, gpu->nccl_version);
    }
    if (fault->other) {
        text_append(sentence, ", ");
        gpus_name(sentence, fault->other);
        text_append(sentence, " has ");
        gpus_version(sentence, fault->other->gpu.nccl_version);
        text_append(sentence, ": install the same NCCL for all workers with GPUs");
        return;
    }
    text_append(sentence,
                "; workers with GPUs exchange gradients by NCCL, %d.%d or newer: install "
                "it, or name its file with LOCKSTEP_NCCL_LIBRARY",
                LOCKSTEP_NCCL_OLDEST / 10000, LOCKSTEP_NCCL_OLDEST / 100 % 100);
}

static uint32_t gpus_count(struct coordinator *core, const struct job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->count; i++)
        count += job_worker(core, job, i)->hello.has_gpu;
    return count;
}

bool gpus_conflict(struct coordinator *core, const struct job *job, struct text *sentence)
{
    const struct gpus_fault unusable = gpus_unusable(core, job);
    if (unusable.one) {
        gpus_say_unusable(sentence, &unusable);
        return true;
    }
    if (gpus_count(core, job) < 2)
        return false;
    const struct gpus_fault shared = gpus_shared(core, job);
    const struct gpus_fault nccl = gpus_nccl(core, job);
    if (shared.one)
        gpus_say_shared(sentence, &shared);
    else if (nccl.one)
        gpus_say_nccl(sentence, &nccl);
    return shared.one || nccl.one;
}

bool gpus_meet(struct coordinator *core, const struct job *job)
{
    const uint32_t count = gpus_count(core, job);
    const struct up_hello *first = NULL;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_hello *hello = &job_worker(core, job, i)->hello;
        if (!hello->has_gpu)
            continue;
        if (!first)
            first = hello;
        if (strcmp(first->host_id, hello->host_id) != 0)
            return false;
    }
    return count >= 2 && count < job->count;
}
