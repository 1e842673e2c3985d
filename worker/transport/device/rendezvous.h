// SPDX-License-Identifier: Apache-2.0
//
// Forms the NCCL communicator of a generation. Engine thread.

#ifndef WORKER_TRANSPORT_DEVICE_MEET_H
#define WORKER_TRANSPORT_DEVICE_MEET_H

#include "worker/transport/flow/peers.h"
#include "worker/transport/flow/wave.h"

#include <stdbool.h>
#include <stdint.h>

struct devices;
struct flows;
struct transport_world;

// Progress of the wave that carries the id of the communicator. All ranks take part in it.
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

// Called when a generation begins to form.
void rendezvous_form(struct flows *flows, struct rendezvous *rendezvous);
// True if the communicator is ready, or none is needed. Called once all links are proven.
bool rendezvous_formed(const struct flows *flows, const struct rendezvous *rendezvous);
// Returns why the communicator cannot form; NULL: it has not failed.
const char *rendezvous_failed(const struct flows *flows, const struct rendezvous *rendezvous);
// Called when a wave is done. True if it was the wave of the rendezvous.
bool rendezvous_wave_done(struct flows *flows, struct rendezvous *rendezvous,
                          const struct wave *wave);
// Continues forming, from the time when all links are proven to the event formed(). Also on a rank
// without a device.
void rendezvous_work(struct flows *flows, struct rendezvous *rendezvous);
// The number of lower ranks that have a device: this rank's position in the communicator.
uint32_t rendezvous_place(const struct transport_world *world);
// Registers with NCCL the memory that it will use, if the communicator is ready.
void rendezvous_register(struct devices *devices);

#endif
