// SPDX-License-Identifier: Apache-2.0
//
// For tests of collectives on fake devices (tests/fake_gpu/fake_gpu.h), whose memory the host must
// not access: the memory and the streams of a rank's trainer, a collective on them, and its
// expected result. Ranks are threads (transport_fleet.h). A script runs on each rank; its argument
// is a struct play.

#ifndef TESTS_TRANSPORT_RIG_H
#define TESTS_TRANSPORT_RIG_H

#include "tests/conformance/transport_fleet.h"
#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"

#define ELEMENTS 3000
#define ELEMENTS_MOST 150000 // Maximum; needs several pieces of shared memory.
#define PIECES 3
#define SEGMENT_BYTES 4000
// Segments of a row of ELEMENTS. Each has 1024 elements, because segments are whole lines.
#define SEGMENTS 3
#define LAZY "FAKE_CUDA_LAZY_US=300000"
#define DEVICES "FAKE_CUDA_DEVICES=8"
// Time limit of an abort in plays where it hangs. Other plays have the default, which they must not
// reach.
#define ABORT_MS 300

// Set by rig_setup, then constant.
extern const struct fake_controls *fake;
extern const struct cuda *cuda;

#define CUDA(member, call) MEMBER_CHECK(member, cuda->call == CUDA_OK)

// The variant of a test that its script runs.
struct play {
    bool pieces; // True: three extents instead of one.
    bool follows; // True: a stream reads the results as soon as they are enqueued.
    bool idle; // True: rank 0 has no input, but its stream still writes to its memory.
    bool hangs; // True: an abort, or the work of a device, never ends.
    bool late; // True: NCCL has an error, but reports it only when it is queried again.
    bool memory; // True: ranks share memory.
    bool weightless; // True: all ranks have weight 0.
    // True: rank 0 has no input for the first piece, and tells late which output may be written.
    bool leaves_out;
    bool lost; // True: the device that hangs is lost in the end.
    uint32_t elements; // At most ELEMENTS_MOST. 0: ELEMENTS.
    uint64_t segment_bytes; // 0: the row is one segment.
    const char *weather; // A setting of the fakes, "NAME=value"; NULL: LAZY.
    const char *says; // Expected part of the failure's text.
};

const struct play *rig_play(const struct member *member);
uint32_t rig_elements(const struct member *member);
size_t rig_bytes(const struct member *member);

// ---- a rank's memory and streams ----------------------------------------------------------------

struct rig {
    void *context;
    void *makes; // The trainer's stream that makes gradients.
    void *reads; // The trainer's stream that reads results.
    void *module;
    void *fill;
    void *event;
    uint64_t address; // Device address of the elements.
    // Host memory for the elements: pinned memory, or the gradients of a rank without a device.
    float *host;
};

void rig_open(struct member *member, struct rig *rig);
// Frees everything; on a device that was lost, only the context.
void rig_close(struct member *member, struct rig *rig);
// Sets all gradients to `value`: asynchronously in the stream `makes`, or at once on a rank without
// a device.
void rig_fill(struct member *member, const struct rig *rig, float value);
// Returns the gradients as they are now, without waiting for the device.
const float *rig_look(const struct member *member, const struct rig *rig);
// Returns the gradients as the stream `reads` finds them.
const float *rig_read(struct member *member, const struct rig *rig);
// True if all `count` values are `value`.
bool rig_some_are(const float *values, uint32_t count, float value);
bool rig_all_are(const struct member *member, const float *values, float value);

// ---- one collective -----------------------------------------------------------------------------

struct shot {
    struct collective collective;
    struct extent extents[PIECES];
    uint64_t ends[PIECES];
    uint64_t used;
    struct device_ready ready;
    struct device_behind behind;
};

// Prepares a mean. The weight of a rank is its number plus 1, unless the play says otherwise.
void shot_make(struct member *member, struct shot *shot, const struct rig *rig, uint32_t round);
// Prepares and launches a mean.
void shot_launch(struct member *member, struct shot *shot, const struct rig *rig, uint32_t round);
float shot_value(uint32_t rank, uint32_t round); // The value of each gradient of the rank.
// The weighted sum of the gradients of all ranks >= `first`, divided by the total weight of all
// ranks >= `weighs`.
float shot_mean_from(const struct member *member, uint32_t round, uint32_t first, uint32_t weighs);
float shot_mean(const struct member *member, uint32_t round);

// ---- a world ------------------------------------------------------------------------------------

const char *rig_name(enum fleet_devices devices);
void rig_run(enum fleet_devices devices, uint32_t world, void (*script)(struct member *),
             struct play *play);

// Setup of a test program, and teardown of each test that must leave no object on the fakes.
int rig_setup(void **state);
int rig_nothing_left(void **state);

#endif
