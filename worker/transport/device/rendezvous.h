// SPDX-License-Identifier: Apache-2.0
//
// How the devices of a generation meet: the forming of a communicator. Engine thread.

#ifndef WORKER_TRANSPORT_DEVICE_MEET_H
#define WORKER_TRANSPORT_DEVICE_MEET_H

#include "worker/transport/flow/peers.h"
#include "worker/transport/flow/wave.h"

#include <stdbool.h>
#include <stdint.h>

struct devices;
struct flows;
struct transport_world;

// How far this rank is with the wave that tells devices how to meet. All ranks take part.
enum naming_stage {
    NAMING_NONE,
    NAMING_ASKED,
    NAMING_HEARD,
    NAMING_FAILED,
};

struct rendezvous {
    enum naming_stage stage;
    char text[TRANSPORT_TEXT_BYTES]; // Reason of NAMING_FAILED.
    struct wave wave;
};

// A generation begins.
void rendezvous_form(struct flows *flows, struct rendezvous *rendezvous);
// True if the communicator stands, or none is needed. All links stand.
bool rendezvous_formed(const struct flows *flows, const struct rendezvous *rendezvous);
// Why it never will; NULL.
const char *rendezvous_failed(const struct flows *flows, const struct rendezvous *rendezvous);
// A wave is done. True if it was the one of the rendezvous.
bool rendezvous_wave_done(struct flows *flows, struct rendezvous *rendezvous,
                          const struct wave *wave);
// Goes on with forming: between the links' standing and the event that says so. Also on a rank
// without a device.
void rendezvous_work(struct flows *flows, struct rendezvous *rendezvous);
// This rank's place among those with a device.
uint32_t rendezvous_place(const struct transport_world *world);
// Tells NCCL of the memory that it will be given, once it has a communicator.
void rendezvous_register(struct devices *devices);

#endif
