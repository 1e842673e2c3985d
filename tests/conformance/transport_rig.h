// SPDX-License-Identifier: Apache-2.0
//
// For tests of collectives on devices, fake ones (tests/fake_gpu/fake_gpu.h), whose memory the host
// must not touch: what a rank's trainer has there, a collective of it, and the required result.
// Ranks are threads (transport_fleet.h); a script runs on each, and its argument is a struct play.

#ifndef TESTS_TRANSPORT_RIG_H
#define TESTS_TRANSPORT_RIG_H

#include "tests/conformance/transport_fleet.h"
#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"

#define ELEMENTS 3000
#define ELEMENTS_MOST 150000 // In several pieces of shared memory.
#define PIECES 3
#define SEGMENT_BYTES 4000
// Segments of a row of ELEMENTS. Each has 1024 elements, because segments are whole lines.
#define SEGMENTS 3
#define LAZY "FAKE_CUDA_LAZY_US=300000"
#define DEVICES "FAKE_CUDA_DEVICES=8"
#define ABORT_MS 300 // Where an abort hangs; elsewhere the default, which nothing is to reach.

// Set by rig_setup, then constant.
extern const struct fake_controls *fake;
extern const struct cuda *cuda;

#define CUDA(member, call) MEMBER_CHECK(member, cuda->call == CUDA_OK)

// The actions of a script.
struct play {
    bool pieces; // Three extents instead of one.
    bool follows; // Results are read by a stream, as soon as they are enqueued.
    bool idle; // Rank 0 has no input, and its stream still writes to its memory.
    bool hangs; // An abort, or what the device was given, never ends.
    bool late; // NCCL has ended with an error, of which it tells when it is asked again.
    bool memory; // Ranks share it.
    bool weightless; // Nobody's gradients count.
    bool leaves_out; // Rank 0 has no input for the first piece, and says late what may be written.
    bool lost; // The device that stands still is lost in the end.
    uint32_t elements; // At most ELEMENTS_MOST. 0: ELEMENTS.
    uint64_t segment_bytes; // 0: the row is one segment.
    const char *weather; // NULL: LAZY.
    const char *says; // Part of the failure's text.
};

const struct play *rig_play(const struct member *member);
uint32_t rig_elements(const struct member *member);
size_t rig_bytes(const struct member *member);

// ---- a rank's memory and streams ----------------------------------------------------------------

struct rig {
    void *context;
    void *makes; // Streams of the trainer.
    void *reads;
    void *module;
    void *fill;
    void *event;
    uint64_t address; // Address of the elements on the device.
    // Address of as many elements here: pinned memory, or the gradient of a rank without a device.
    float *host;
};

void rig_open(struct member *member, struct rig *rig);
// After a device was lost nothing of it can be given back.
void rig_close(struct member *member, struct rig *rig);
// The trainer makes its gradients, in its time.
void rig_fill(struct member *member, const struct rig *rig, float value);
// The gradients at this moment, whatever the device has still to do.
const float *rig_look(const struct member *member, const struct rig *rig);
// The gradients as a stream of the trainer reads them.
const float *rig_read(struct member *member, const struct rig *rig);
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

// The weight of a rank is its number and one.
void shot_launch(struct member *member, struct shot *shot, const struct rig *rig, uint32_t round);
float shot_value(uint32_t rank, uint32_t round); // The value of each of its gradients.
// The mean of what the ranks from `first` contribute, by the weights of those from `weighs`.
float shot_mean_from(const struct member *member, uint32_t round, uint32_t first, uint32_t weighs);
float shot_mean(const struct member *member, uint32_t round);

// ---- a world ------------------------------------------------------------------------------------

const char *rig_name(enum fleet_devices devices);
void rig_run(enum fleet_devices devices, uint32_t world, void (*script)(struct member *),
             struct play *play);

// For cmocka: before all tests of a program, and after each that gives everything back.
int rig_setup(void **state);
int rig_nothing_left(void **state);

#endif
