// SPDX-License-Identifier: Apache-2.0
//
// The functions of meet.c that other files call.

#ifndef WORKER_TRANSPORT_DEVICE_MEET_H
#define WORKER_TRANSPORT_DEVICE_MEET_H

#include <stdbool.h>
#include <stdint.h>

struct devices;
struct transport;
struct transport_world;
struct wave;

// A generation begins.
void devices_form(struct transport *transport);
// Whether the communicator stands, or none is needed. All links stand.
bool devices_formed(const struct transport *transport);
// Why it never will; NULL.
const char *devices_form_failed(const struct transport *transport);
// The wave that tells how to meet. Whether it was that one.
bool devices_wave_done(struct transport *transport, const struct wave *wave);
// Goes on with forming: between the links' standing and the event that says so. Also on a rank
// without a device.
void naming_work(struct transport *transport);
// This rank's place among those with a device.
uint32_t naming_place(const struct transport_world *world);
// Tells NCCL of the memory that it will be given, once it has a communicator.
void naming_register(struct devices *devices);

#endif
