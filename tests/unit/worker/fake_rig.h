// SPDX-License-Identifier: Apache-2.0
//
// Shared by tests of the fake GPUs: the foreign libraries through the library's fences, and a
// device with streams, kernels and memory. Of the test's thread, but for what the fakes allow to
// any.
#ifndef TESTS_UNIT_WORKER_FAKE_RIG_H
#define TESTS_UNIT_WORKER_FAKE_RIG_H

#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"
#include "worker/device/nccl.h"

enum {
    RIG_COUNT = 1000,
    RIG_BYTES = RIG_COUNT * 4
};

// Set by fake_rig_load.
extern const struct fake_controls *fake;
extern const struct cuda *cuda;
extern const struct nccl *nccl;

#define ok(call) assert_int_equal(call, 0)

struct rig {
    int device;
    void *context;
    void *a, *b; // streams
    void *module, *fill, *add;
    uint64_t memory; // [RIG_COUNT] of uint32_t
    uint32_t *host; // [RIG_COUNT], pinned
};

// Makes the device's context current.
void rig_open(struct rig *rig, int device, unsigned stream_flags);
void rig_close(struct rig *rig);
// Destroys a broken context, and everything in it.
void rig_abandon(struct rig *rig);

int rig_fill_at(const struct rig *rig, void *stream, uint64_t address, uint64_t count,
                uint32_t value);
int rig_fill(const struct rig *rig, void *stream, uint32_t value); // memory = value
int rig_fetch(const struct rig *rig, void *stream); // host = memory

void assert_complaint(const char *words);

// For cmocka: a group's setup; each test's, which makes the weather fair; each test's teardown:
// nothing is left of it in either library.
int fake_rig_load(void **state);
int fake_weather_fair(void **state);
int fake_nothing_left(void **state);

#endif
