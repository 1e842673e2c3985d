// SPDX-License-Identifier: Apache-2.0
//
// How the devices of a generation meet: the naming of a communicator, and its forming. The driver's
// thread.
//
// When all links stand the lowest rank with a device makes an id, and a wave of its own takes it to
// all ranks, also to those without a device: the OR of what they bring, which is zeros but for one.
// So the id is as trustworthy as the links, and belongs to this generation; when there is none, all
// learn why. Then every rank with a device joins, without blocking, until the deadline of the
// generation's forming. When it stands, the memory that NCCL will be given again and again is
// registered with it.

#include "worker/transport/device/meet.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/flow/wave_schedule.h"
#include "worker/transport/flow/waves.h"

#include <assert.h>
#include <string.h>

#define NAMING_WAVE UINT32_MAX // Its kind.

// What the naming wave carries. All ranks bring zeros but one.
struct naming {
    uint8_t id[COMMUNICATOR_ID_BYTES];
    char text[DEVICE_TEXT_BYTES]; // Why there is no id; "": there is one.
};

static_assert(sizeof(struct naming) <= LOCKSTEP_WAVE_BYTES, "it fits in a wave");
static_assert(DEVICE_TEXT_BYTES <= TRANSPORT_TEXT_BYTES, "its text fits in what is kept of it");

// ---- forming ------------------------------------------------------------------------------------

uint32_t naming_place(const struct transport_world *world)
{
    uint32_t place = 0;
    for (uint32_t rank = 0; rank < world->rank; rank++)
        place += (uint32_t)(world->devices[rank / 64] >> (rank % 64) & 1);
    return place;
}

static void naming_merge(void *into, const void *from)
{
    uint8_t *bytes = into;
    const uint8_t *more = from;
    for (size_t i = 0; i < sizeof(struct naming); i++)
        bytes[i] |= more[i];
}

// The lowest rank with a device says an id, or why there is none. All others bring zeros.
static const char *naming_check(const void *context, const struct wave_origin *origin,
                                const void *payload, const void *own)
{
    static const struct naming none;
    const struct transport_world *world = context;
    const struct naming *naming = payload;
    uint32_t rank = 0;
    (void)own;
    while (rank < world->world_size && (world->devices[rank / 64] >> (rank % 64) & 1) == 0)
        rank++;
    if (!wave_origin_has(origin, rank))
        return memcmp(naming, &none, sizeof(none)) == 0 ? NULL
                                                        : "it names what others have to name";
    const char *end = memchr(naming->text, '\0', sizeof(naming->text));
    if (!end || !utf8_valid(naming->text, (size_t)(end - naming->text)))
        return "its text is none";
    return NULL;
}

static void naming_fails(struct devices *devices, const char *text)
{
    devices->stage = DEVICES_FAILED;
    text_copy(devices->text, sizeof(devices->text), text);
}

static void naming_begin(struct transport *transport)
{
    struct naming naming = {.text = ""};
    transport->naming_stage = NAMING_ASKED;
    if (transport->devices && naming_place(&transport->world) == 0 &&
        communicator_id(naming.id, naming.text, sizeof(naming.text)) < 0)
        memset(naming.id, 0, sizeof(naming.id));
    transport->naming = (struct wave){.kind = NAMING_WAVE,
                                      .size = sizeof(naming),
                                      .merge = naming_merge,
                                      .check = naming_check,
                                      .context = &transport->world,
                                      .name = "naming"};
    memcpy(transport->naming.payload, &naming, sizeof(naming));
    wave_join(transport, &transport->naming);
}

static void naming_meet(struct devices *devices, const struct naming *naming)
{
    const struct transport_world *world = &devices->transport->world;
    char error[DEVICE_TEXT_BYTES];
    device_enter(devices->device);
    devices->communicator = communicator_begin(devices->device, naming->id, naming_place(world),
                                               device_ranks(world), error, sizeof(error));
    device_leave(devices->device);
    devices->stage = DEVICES_JOINING;
    if (!devices->communicator)
        naming_fails(devices, error);
}

bool devices_wave_done(struct transport *transport, const struct wave *wave)
{
    struct naming naming;
    if (wave != &transport->naming)
        return false;
    memcpy(&naming, wave->payload, sizeof(naming));
    naming.text[sizeof(naming.text) - 1] = '\0';
    transport->naming_stage = naming.text[0] == '\0' ? NAMING_HEARD : NAMING_FAILED;
    text_copy(transport->naming_text, sizeof(transport->naming_text), naming.text);
    if (transport->devices && transport->naming_stage == NAMING_HEARD)
        naming_meet(transport->devices, &naming);
    return true;
}

static void naming_register_block(void *context, const struct device_block *block)
{
    communicator_register(context, block->address, block->bytes);
}

// All rows that are free; those that are not, or that are made later, go without.
void naming_register(struct devices *devices)
{
    if (devices->stage == DEVICES_FORMED)
        device_visit_rows(devices->device, naming_register_block, devices->communicator);
}

static void naming_join(struct devices *devices)
{
    const enum communicator_state state = communicator_poll(devices->communicator);
    if (state == COMMUNICATOR_STANDS) {
        devices->stage = DEVICES_FORMED;
        naming_register(devices);
    } else if (state == COMMUNICATOR_BROKEN)
        naming_fails(devices, communicator_text(devices->communicator));
    else if (clock_now_ms() >= devices->transport->form_deadline_ms)
        naming_fails(devices, "NCCL has not connected the GPUs in time");
}

void devices_form(struct transport *transport)
{
    struct devices *devices = transport->devices;
    transport->naming_stage = NAMING_NONE;
    if (!devices)
        return;
    devices->failed = devices->failure_reported = false;
    devices->left_ms = 0;
    devices->stage = DEVICES_IDLE;
    devices->generation++;
    ((uint32_t *)(void *)devices->revoked->host)[devices->generation % DEVICE_REVOKED_WORDS] = 0;
    if (device_failed(devices->device))
        naming_fails(devices, device_failed(devices->device));
}

bool devices_formed(const struct transport *transport)
{
    const struct devices *devices = transport->devices;
    if (devices && devices->stage != DEVICES_IDLE)
        return devices->stage == DEVICES_FORMED;
    return !transport_is_strict(&transport->world) ||
           (!devices && transport->naming_stage == NAMING_HEARD);
}

const char *devices_form_failed(const struct transport *transport)
{
    const struct devices *devices = transport->devices;
    if (transport->naming_stage == NAMING_FAILED)
        return transport->naming_text;
    return devices && devices->stage == DEVICES_FAILED ? devices->text : NULL;
}

void naming_work(struct transport *transport)
{
    struct devices *devices = transport->devices;
    if (!transport->formed || transport->formed_reported ||
        !transport_is_strict(&transport->world) || devices_form_failed(transport))
        return;
    if (transport->naming_stage == NAMING_NONE)
        naming_begin(transport);
    else if (devices && devices->stage == DEVICES_JOINING)
        naming_join(devices);
}
