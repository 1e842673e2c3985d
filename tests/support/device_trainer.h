// SPDX-License-Identifier: Apache-2.0
//
// A trainer for tests of the public functions on devices. Streams of a device make the gradients,
// and another stream reads the results. The host never waits in between, so if Lockstep misses a
// wait on the device, the reading stream finds old data. The devices are fakes (tests/fake_gpu)
// that begin each operation as late as possible, so a missing wait fails the test every time; the
// host faults when it accesses their memory. In some worlds some ranks have no device and compute
// on the host. The trainer has one module of float32, "net".

#ifndef LOCKSTEP_TESTS_DEVICE_TRAINER_H
#define LOCKSTEP_TESTS_DEVICE_TRAINER_H

#include "tests/support/cluster.h"
#include "worker/device/cuda.h"

#define DEVICE_PARAMETERS 12
#define DEVICE_MAKERS 2 // Streams that make gradients.

extern const int64_t device_sizes[DEVICE_PARAMETERS]; // Elements of each parameter.

struct device_trainer {
    const struct cuda *cuda; // NULL: this rank has no device.
    void *context;
    void *makes[DEVICE_MAKERS];
    void *reads;
    char names[DEVICE_PARAMETERS][8];
    float *data[DEVICE_PARAMETERS];
    float *gradients[DEVICE_PARAMETERS]; // Gradients on the device, or on the host.
    float *buffer;
    // In host memory: the values that the streams copy to the gradients later.
    float *made[DEVICE_PARAMETERS];
    float *made_buffer;
    float *result; // In host memory; as large as the largest parameter.
    lockstep_module *module;
};

struct device_module {
    uint64_t calls_per_step;
    bool buffer; // True if the module has a buffer, averaged over the ranks in every step.
    lockstep_wire wire;
};

#define DEVICE_CUDA(rank, trainer, call) RANK_TRUE(rank, (trainer)->cuda->call == CUDA_OK)

// Opens the trainer of a rank. The lowest setting->devices ranks have a device.
// device_trainer_close() also closes the session if it is open.
void device_trainer_open(struct rank *rank, struct device_trainer *trainer);
void device_trainer_close(struct rank *rank, struct device_trainer *trainer);
// Registers the module and starts.
void device_trainer_register(struct rank *rank, struct device_trainer *trainer,
                             const struct device_module *described);
// Allocates memory filled with zeros: on the rank's device, or on the host if it has none.
void *device_trainer_allocate(struct rank *rank, const struct device_trainer *trainer,
                              int64_t elements);
void device_trainer_release(struct rank *rank, const struct device_trainer *trainer, void *memory);

// The known gradient of an element: a small integer, so that sums are exact in any order.
float device_known(uint32_t rank, uint64_t step, uint32_t parameter, int64_t element);
// The mean of device_known() over all ranks.
float device_known_mean(const struct rank *rank, uint64_t step, uint32_t parameter,
                        int64_t element);

// The stream that makes a gradient; NULL on a rank without a device.
void *device_trainer_stream(const struct device_trainer *trainer, uint32_t parameter);
// Returns the host memory whose values device_trainer_put copies to `to`.
float *device_trainer_made(const struct device_trainer *trainer, uint32_t parameter,
                           const float *to);
// Copies the values of device_trainer_made() to `to`: asynchronously in the stream, or at once on a
// rank without a device.
void device_trainer_put(struct rank *rank, const struct device_trainer *trainer, uint32_t parameter,
                        float *to, void *stream);
// Fills device_trainer_made() with the known gradients and calls device_trainer_put().
void device_trainer_make(struct rank *rank, const struct device_trainer *trainer,
                         uint32_t parameter, uint64_t step, float *to, void *stream);
// Returns the values at `from` as the reading stream finds them, valid until the next call. Adds
// nothing to the rank's digest.
const float *device_trainer_look(struct rank *rank, const struct device_trainer *trainer,
                                 uint32_t parameter, const float *from);
// Checks that the reading stream finds the known mean at `from`. Adds the values to the digest.
void device_trainer_expect(struct rank *rank, const struct device_trainer *trainer,
                           uint32_t parameter, uint64_t step, const float *from);

// Returns a function of the fake driver, or of the fake NCCL ("fake_nccl_..."). All ranks of this
// process share them.
void *device_fake(const char *name);
// Fails the test if the fake driver has a complaint, or if an object in it was not freed.
void device_expect_nothing_is_left(void);

#define DEVICE_STORIES 8 // Maximum number of stories, and of other tests, in one program.

// One test, which device_stories_run repeats for each world.
struct device_story {
    const char *name; // "case_45_results_are_there"
    void (*run)(const struct setting *setting);
};

struct CMUnitTest;

// Runs every story in worlds where one rank, some ranks or all ranks have a device, then the tests
// `more`. Returns the exit status for main.
int device_stories_run(const char *group, const struct device_story *stories, size_t count,
                       const struct CMUnitTest *more, size_t more_count);

#endif
