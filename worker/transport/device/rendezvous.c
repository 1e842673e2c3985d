// SPDX-License-Identifier: Apache-2.0
//
// Forms the NCCL communicator of a generation: agrees on its id, and joins it. The driver's thread.
//
// When all links are proven, the lowest rank with a device makes an id. A separate wave takes the
// id to all ranks, also to those without a device: it is the OR of all payloads, and all ranks but
// one contribute zeros. So the id is as trustworthy as the links, and belongs to this generation.
// If there is no id, all ranks learn why. Then every rank with a device joins, without blocking,
// until the deadline of forming. Once the communicator is ready, the memory that NCCL will use in
// every step is registered with it.

#include "worker/transport/device/rendezvous.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/device/memory.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/teardown.h"
#include "worker/transport/flow/wave.h"
#include "worker/transport/flow/waves.h"

#include <assert.h>
#include <string.h>

#define NAMING_WAVE UINT32_MAX // The kind of the naming wave.

// Payload of the naming wave. All ranks but one contribute zeros.
struct naming {
    uint8_t id[COMMUNICATOR_ID_BYTES];
    char text[DEVICE_TEXT_BYTES]; // Why there is no id; "": `id` is valid.
};

static_assert(sizeof(struct naming) <= LOCKSTEP_WAVE_BYTES, "it fits in a wave");
static_assert(DEVICE_TEXT_BYTES <= TRANSPORT_TEXT_BYTES, "its text fits in what is kept of it");

// ---- forming ------------------------------------------------------------------------------------

uint32_t rendezvous_place(const struct transport_world *world)
{
    uint32_t place = 0;
    for (uint32_t rank = 0; rank < world->rank; rank++)
        place += bits_has(world->devices, rank);
    return place;
}

static void naming_merge(void *into, const void *from)
{
    uint8_t *bytes = into;
    const uint8_t *more = from;
    for (size_t i = 0; i < sizeof(struct naming); i++)
        bytes[i] |= more[i];
}

// Checks a payload: only the lowest rank with a device may set an id or a text; all others
// contribute zeros.
static const char *naming_check(const void *context, const struct wave_origin *origin,
                                const void *payload, const void *own)
{
    static const struct naming none;
    const struct transport_world *world = context;
    const struct naming *naming = payload;
    uint32_t rank = 0;
    (void)own;
    while (rank < world->world_size && !bits_has(world->devices, rank))
        rank++;
    if (!wave_origin_has(origin, rank))
        return memcmp(naming, &none, sizeof(none)) == 0 ? NULL
                                                        : "it names what others have to name";
    const char *end = memchr(naming->text, '\0', sizeof(naming->text));
    if (!end || !utf8_valid(naming->text, (size_t)(end - naming->text)))
        return "its text is none";
    return NULL;
}

// A rank that starts reports it at once: the user may have to know.
static void naming_fails(struct devices *devices, const char *text)
{
    devices->stage = DEVICES_FAILED;
    devices->failed_ms = devices->generation > 1 ? clock_now_ms() : 0;
    text_copy(devices->text, sizeof(devices->text), text);
}

static void naming_begin(struct flows *flows, struct rendezvous *rendezvous)
{
    struct naming naming = {.text = ""};
    rendezvous->stage = NAMING_ASKED;
    if (flows->devices && rendezvous_place(&flows->world) == 0 &&
        communicator_id(naming.id, naming.text, sizeof(naming.text)) < 0)
        memset(naming.id, 0, sizeof(naming.id));
    rendezvous->wave = (struct wave){.kind = NAMING_WAVE,
                                     .size = sizeof(naming),
                                     .merge = naming_merge,
                                     .check = naming_check,
                                     .context = &flows->world,
                                     .name = "naming"};
    memcpy(rendezvous->wave.payload, &naming, sizeof(naming));
    wave_join(flows, &rendezvous->wave);
}

static void naming_meet(struct devices *devices, const struct naming *naming)
{
    const struct transport_world *world = &devices->flows->world;
    char error[DEVICE_TEXT_BYTES];
    device_enter(devices->device);
    devices->communicator = communicator_begin(devices->device, naming->id, rendezvous_place(world),
                                               device_ranks(world), error, sizeof(error));
    device_leave(devices->device);
    devices->stage = DEVICES_JOINING;
    if (!devices->communicator)
        naming_fails(devices, error);
}

bool rendezvous_wave_done(struct flows *flows, struct rendezvous *rendezvous,
                          const struct wave *wave)
{
    struct naming naming;
    if (wave != &rendezvous->wave)
        return false;
    memcpy(&naming, wave->payload, sizeof(naming));
    naming.text[sizeof(naming.text) - 1] = '\0';
    rendezvous->stage = naming.text[0] == '\0' ? NAMING_HEARD : NAMING_FAILED;
    text_copy(rendezvous->text, sizeof(rendezvous->text), naming.text);
    if (flows->devices && rendezvous->stage == NAMING_HEARD)
        naming_meet(flows->devices, &naming);
    return true;
}

static void naming_register_block(void *context, const struct device_block *block)
{
    communicator_register(context, block->address, block->bytes);
}

// Registers all rows that are free now. Rows in use, and rows made later, are not registered.
void rendezvous_register(struct devices *devices)
{
    if (devices->stage == DEVICES_FORMED)
        device_visit_rows(devices->device, naming_register_block, devices->communicator);
}

static void naming_join(struct devices *devices)
{
    const enum communicator_state state = communicator_poll(devices->communicator);
    if (state == COMMUNICATOR_STANDS) {
        devices->stage = DEVICES_FORMED;
        rendezvous_register(devices);
    } else if (state == COMMUNICATOR_BROKEN)
        naming_fails(devices, communicator_text(devices->communicator));
    else if (clock_now_ms() >= devices->flows->form_deadline_ms)
        naming_fails(devices, "NCCL has not connected the GPUs in time");
}

void rendezvous_form(struct flows *flows, struct rendezvous *rendezvous)
{
    struct devices *devices = flows->devices;
    rendezvous->stage = NAMING_NONE;
    if (!devices)
        return;
    if (devices->communicator)
        teardown_forget(flows, false);
    devices->failed = devices->failure_reported = false;
    devices->failed_ms = devices->left_ms = 0;
    devices->stage = DEVICES_IDLE;
    devices->generation++;
    ((uint32_t *)(void *)devices->revoked->host)[devices->generation % DEVICE_REVOKED_WORDS] = 0;
    if (device_failed(devices->device))
        naming_fails(devices, device_failed(devices->device));
}

bool rendezvous_formed(const struct flows *flows, const struct rendezvous *rendezvous)
{
    const struct devices *devices = flows->devices;
    if (devices && devices->stage != DEVICES_IDLE)
        return devices->stage == DEVICES_FORMED;
    return !device_flow_is_strict(&flows->world) || (!devices && rendezvous->stage == NAMING_HEARD);
}

const char *rendezvous_failed(const struct flows *flows, const struct rendezvous *rendezvous)
{
    const struct devices *devices = flows->devices;
    if (rendezvous->stage == NAMING_FAILED)
        return rendezvous->text;
    return devices && devices->stage == DEVICES_FAILED && !devices_await_word(devices)
               ? devices->text
               : NULL;
}

void rendezvous_work(struct flows *flows, struct rendezvous *rendezvous)
{
    struct devices *devices = flows->devices;
    if (!flows->formed || flows->formed_reported || !device_flow_is_strict(&flows->world) ||
        rendezvous_failed(flows, rendezvous))
        return;
    if (rendezvous->stage == NAMING_NONE)
        naming_begin(flows, rendezvous);
    else if (devices && devices->stage == DEVICES_JOINING)
        naming_join(devices);
}
