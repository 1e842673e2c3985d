// SPDX-License-Identifier: Apache-2.0
//
// Findings about ranks with a GPU: the driver, its GPUs, this library's kernels, NCCL, and whether
// NCCL's sums have the same bits on every run. A machine without a GPU is fine. The checks call the
// library through its public header, so they load the same libraries as a rank. Main thread, after
// all forks, because CUDA cannot be used on both sides of a fork.

#include "cli/doctor/gpu.h"

#include "cli/doctor/doctor.h"

#include "base/nccl_setting.h"
#include "base/text.h"
#include "lockstep/lockstep.h"

#include <stdio.h>
#include <unistd.h>

#define GPUS_NAMED 8

static void set_version(struct doctor_finding *finding, uint32_t major, uint32_t minor, int patch)
{
    char patched[16] = "";
    if (patch >= 0)
        snprintf(patched, sizeof(patched), ".%d", patch);
    snprintf(finding->word, sizeof(finding->word), "%u.%u%s", (unsigned)major, (unsigned)minor,
             patched);
}

// Returns true if the kernel has found an NVIDIA GPU, whatever libraries are installed.
static bool has_hardware(void)
{
    return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidia0", F_OK) == 0;
}

static void find_driver(struct doctor_report *report, const struct lockstep_devices *devices)
{
    struct doctor_finding *finding = doctor_add(report, "gpu_driver");
    if (devices->driver_version > 0) {
        set_version(finding, devices->driver_version / 1000, devices->driver_version % 1000 / 10,
                    -1);
        doctor_judge(finding, DOCTOR_OK, "the CUDA of the driver in %s", devices->driver_text);
    } else if (has_hardware()) {
        doctor_judge(finding, DOCTOR_WARNING,
                     "there is a GPU, and its driver cannot be used: %s; in a container, start it "
                     "with the GPU (--gpus all)",
                     devices->driver_text);
    } else {
        doctor_judge(finding, DOCTOR_OK, "ranks of this machine compute on its processors: %s",
                     devices->driver_text);
    }
}

// Returns how many GPUs can be used.
static uint32_t find_gpus(struct doctor_report *report, const struct lockstep_devices *devices)
{
    struct doctor_finding *finding = doctor_add(report, "gpus");
    char names[LOCKSTEP_TEXT_BYTES / 2] = "";
    uint32_t usable = 0;
    struct text text;
    text_init(&text, names, sizeof(names));
    finding->number = devices->count;
    finding->unit = devices->count == 1 ? "GPU" : "GPUs";
    for (uint32_t i = 0; i < devices->count; i++) {
        struct lockstep_device device = LOCKSTEP_DEVICE_INIT;
        if (lockstep_device_describe(i, &device) < 0)
            (void)text_copy(device.problem, sizeof(device.problem), lockstep_error_text());
        usable += !device.problem[0];
        if (i < GPUS_NAMED || device.problem[0])
            text_append(&text, "%scuda:%u is %s, %u.%u%s%s", i == 0 ? "" : "; ", (unsigned)i,
                        device.name, (unsigned)device.capability / 10,
                        (unsigned)device.capability % 10,
                        device.problem[0] ? ", and cannot be used: " : "", device.problem);
    }
    if (devices->count == 0)
        doctor_judge(finding, DOCTOR_OK, "no rank of this machine can name one (LOCKSTEP_DEVICE)");
    else
        doctor_judge(finding, usable == devices->count ? DOCTOR_OK : DOCTOR_WARNING, "%s", names);
    return usable;
}

static void find_gpu_kernels(struct doctor_report *report, const struct lockstep_devices *devices)
{
    struct doctor_finding *finding = doctor_add(report, "gpu_kernels");
    (void)text_copy(finding->word, sizeof(finding->word),
                    devices->kernels[0] ? devices->kernels : "none");
    if (devices->kernels[0])
        doctor_judge(finding, DOCTOR_OK,
                     "this liblockstep has machine code for these GPUs, and for newer ones what "
                     "their driver compiles (compute_)");
    else
        doctor_judge(finding, devices->count > 0 ? DOCTOR_WARNING : DOCTOR_OK,
                     "this liblockstep was built without nvcc: its ranks compute on processors "
                     "only; build it where the CUDA toolkit is");
}

// ---- NCCL --------------------------------------------------------------------------------------

static void find_nccl(struct doctor_report *report, const struct lockstep_devices *devices)
{
    struct doctor_finding *finding = doctor_add(report, "nccl");
    const uint32_t version = devices->nccl_version;
    const enum doctor_status bad = devices->count > 0 ? DOCTOR_WARNING : DOCTOR_OK;
    if (nccl_setting_blocks()) {
        doctor_judge(finding, bad,
                     "NCCL_COMM_BLOCKING is set: unset it, because ranks with GPUs would wait for "
                     "lost ones for ever");
        return;
    }
    if (version == 0) {
        doctor_judge(finding, bad, "jobs with two GPUs or more need it: %s", devices->nccl_text);
        return;
    }
    set_version(finding, version / 10000, version / 100 % 100, (int)(version % 100));
    if (version < LOCKSTEP_NCCL_OLDEST)
        doctor_judge(
            finding, bad, "too old: jobs with two GPUs or more need %d.%d or newer; it is %s",
            LOCKSTEP_NCCL_OLDEST / 10000, LOCKSTEP_NCCL_OLDEST / 100 % 100, devices->nccl_text);
    else
        doctor_judge(finding, DOCTOR_OK,
                     "of %s; major and minor version have to be the same on all ranks with GPUs",
                     devices->nccl_text);
}

static void find_nccl_pinned(struct doctor_report *report, uint32_t usable)
{
    struct doctor_finding *finding = doctor_add(report, "nccl_pinned");
    char algorithm[24] = "";
    char protocol[24] = "";
    const bool one = nccl_setting("NCCL_ALGO", algorithm, sizeof(algorithm));
    const bool other = nccl_setting("NCCL_PROTO", protocol, sizeof(protocol));
    if (algorithm[0] || protocol[0])
        snprintf(finding->word, sizeof(finding->word), "%s, %s",
                 algorithm[0] ? algorithm : "any algorithm",
                 protocol[0] ? protocol : "any protocol");
    else
        (void)text_copy(finding->word, sizeof(finding->word), "no");
    if (one && other)
        doctor_judge(
            finding, DOCTOR_OK,
            "sums between GPUs have the same bits on every run of the same world; set it on "
            "all ranks");
    else
        doctor_judge(
            finding, usable > 0 ? DOCTOR_WARNING : DOCTOR_OK,
            "NCCL chooses how it sums: ranks of a run have the same bits, two runs may not; "
            "for that set NCCL_ALGO and NCCL_PROTO (Ring and Simple, for one) on all ranks");
}

void doctor_gpu(struct doctor_report *report)
{
    struct lockstep_devices devices = LOCKSTEP_DEVICES_INIT;
    if (lockstep_devices_find(&devices) < 0)
        (void)text_copy(devices.driver_text, sizeof(devices.driver_text), lockstep_error_text());
    find_driver(report, &devices);
    const uint32_t usable = find_gpus(report, &devices);
    find_gpu_kernels(report, &devices);
    find_nccl(report, &devices);
    find_nccl_pinned(report, usable);
}
