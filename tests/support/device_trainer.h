// SPDX-License-Identifier: Apache-2.0
//
// Trainers whose gradients are made by streams of a device, and whose results are read by another
// one. The host never waits between: code that does not wait on the device reads the old data. The
// devices are fakes (tests/fake_gpu) that begin an operation as late as they may, so a wait that is
// missing shows each time, and whose memory faults when the host touches it. Some ranks of each
// world compute on the host. One module of float32, "net", for tests of the public functions.

#ifndef LOCKSTEP_TESTS_DEVICE_TRAINER_H
#define LOCKSTEP_TESTS_DEVICE_TRAINER_H

#include "tests/support/cluster.h"
#include "worker/device/cuda.h"

#define DEVICE_PARAMETERS 12
#define DEVICE_MAKERS 2 // Streams that make gradients.

extern const int64_t device_sizes[DEVICE_PARAMETERS]; // Elements.

struct device_trainer {
    const struct cuda *cuda; // NULL: this rank has no device.
    void *context;
    void *makes[DEVICE_MAKERS];
    void *reads;
    char names[DEVICE_PARAMETERS][8];
    float *data[DEVICE_PARAMETERS];
    float *gradients[DEVICE_PARAMETERS]; // Gradients on the device, or on the host.
    float *buffer;
    // In host memory: the values that are copied to gradients, late.
    float *made[DEVICE_PARAMETERS];
    float *made_buffer;
    float *result; // In host memory; as large as the largest parameter.
    lockstep_module *module;
};

struct device_module {
    uint64_t calls_per_step;
    bool buffer; // Mean of all ranks, every step.
    lockstep_wire wire;
};

#define DEVICE_CUDA(rank, trainer, call) RANK_TRUE(rank, (trainer)->cuda->call == CUDA_OK)

// The lowest ranks have a device, as many as the setting says. Close also closes the session, if it
// is open.
void device_trainer_open(struct rank *rank, struct device_trainer *trainer);
void device_trainer_close(struct rank *rank, struct device_trainer *trainer);
// Registers the module and starts.
void device_trainer_register(struct rank *rank, struct device_trainer *trainer,
                             const struct device_module *described);
// More memory of the rank, of zeros: of the device, or of the host.
void *device_trainer_allocate(struct rank *rank, const struct device_trainer *trainer,
                              int64_t elements);
void device_trainer_release(struct rank *rank, const struct device_trainer *trainer, void *memory);

// Small integers, so that sums are exact in any order; and their mean over all ranks.
float device_known(uint32_t rank, uint64_t step, uint32_t parameter, int64_t element);
float device_known_mean(const struct rank *rank, uint64_t step, uint32_t parameter,
                        int64_t element);

// The stream that makes a gradient; NULL on a rank without a device.
void *device_trainer_stream(const struct device_trainer *trainer, uint32_t parameter);
// Where a tensor of the parameter's size is made on the host.
float *device_trainer_made(const struct device_trainer *trainer, uint32_t parameter,
                           const float *to);
// Begins to copy what was made there; where there is a device, on the stream.
void device_trainer_put(struct rank *rank, const struct device_trainer *trainer, uint32_t parameter,
                        float *to, void *stream);
// Both, with known numbers.
void device_trainer_make(struct rank *rank, const struct device_trainer *trainer,
                         uint32_t parameter, uint64_t step, float *to, void *stream);
// The results as the reading stream finds them, valid until the next look. It adds nothing to
// digests.
const float *device_trainer_look(struct rank *rank, const struct device_trainer *trainer,
                                 uint32_t parameter, const float *from);
// It finds the known mean.
void device_trainer_expect(struct rank *rank, const struct device_trainer *trainer,
                           uint32_t parameter, uint64_t step, const float *from);

// A function of the fake driver; every rank of this process has the same one.
void *device_fake(const char *name);
// Fails the test when the fake has been misused, or something was not given back.
void device_expect_nothing_is_left(void);

#define DEVICE_STORIES 8 // Stories of one program, at most.

struct device_story {
    const char *name; // "case_45_results_are_there"
    void (*run)(const struct setting *setting);
};

struct CMUnitTest;

// Runs every story in worlds with one device, with some, and with NCCL, then the other tests; what
// main returns.
int device_stories_run(const char *group, const struct device_story *stories, size_t count,
                       const struct CMUnitTest *more, size_t more_count);

#endif
