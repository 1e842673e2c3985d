// SPDX-License-Identifier: Apache-2.0
//
// Finds tensors that overlap in memory. If two gradients shared a byte, it would be reduced twice,
// and two values would overwrite each other. So each tensor of a session needs memory of its own. A
// parameter with LOCKSTEP_PARAMETER_SHARED is not checked, only its owner is. Trainer, outside a
// step.
//
// All tensors are sorted by their first address. A walk along them remembers the tensor with the
// highest end so far: a tensor that begins before that end overlaps it.

#include "worker/session/module/overlap.h"

#include "worker/kernels/kernels.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct overlap_list {
    struct overlap_place *places;
    size_t count;
};

static void overlap_add(struct overlap_list *list, const struct overlap_place *place,
                        const void *memory, const struct tensor *tensor)
{
    struct overlap_place *added = &list->places[list->count];
    if (!memory || tensor->elements == 0 || tensor->ignored)
        return;
    *added = *place;
    added->begin = (uintptr_t)memory;
    added->end = added->begin + tensor->elements * dtype_size(place->kind == OVERLAP_GRADIENT
                                                                  ? tensor->gradient_dtype
                                                                  : tensor->dtype);
    list->count++;
}

static void overlap_add_parameter(struct overlap_list *list, const struct lockstep_module *module,
                                  uint32_t parameter)
{
    const struct tensor *tensor = &module->parameters[parameter];
    for (uint32_t r = 0; r < module->replicas; r++) {
        const size_t at = r == 0 ? 0 : (size_t)(r - 1) * module->parameter_count + parameter;
        struct overlap_place place = {
            .module = module, .index = parameter, .replica = r, .kind = OVERLAP_DATA};
        overlap_add(list, &place, r == 0 ? tensor->data : module->replica_data[at], tensor);
        place.kind = OVERLAP_GRADIENT;
        overlap_add(list, &place,
                    r == 0 ? module->contributions[0].gradients[parameter].registered
                           : module->contributions[0].replicas[at].registered,
                    tensor);
    }
}

static void overlap_add_module(struct overlap_list *list, const struct lockstep_module *module)
{
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (home_is_own(module, p))
            overlap_add_parameter(list, module, p);
    }
    for (uint32_t b = 0; b < module->buffer_count; b++) {
        const struct overlap_place place = {.module = module, .index = b, .kind = OVERLAP_BUFFER};
        if (module->buffers[b].flags != LOCKSTEP_BUFFER_IGNORE)
            overlap_add(list, &place, module->buffers[b].data, &module->buffers[b]);
    }
}

static size_t overlap_room(const struct lockstep_module *module)
{
    return (size_t)module->parameter_count * module->replicas * 2 + module->buffer_count;
}

static int overlap_order(const void *a, const void *b)
{
    const struct overlap_place *first = a;
    const struct overlap_place *second = b;
    if (first->begin != second->begin)
        return first->begin < second->begin ? -1 : 1;
    return first->end < second->end ? -1 : first->end > second->end;
}

// True if an overlap is allowed: two tensors of one parameter use exactly the same memory, and not
// both are gradients. Replicas may share one value, and a trainer that only needs means may pass
// the gradient's memory as the value.
static bool overlap_is_fine(const struct overlap_place *a, const struct overlap_place *b)
{
    return a->module == b->module && a->index == b->index && a->begin == b->begin &&
           a->end == b->end && a->kind != OVERLAP_BUFFER && b->kind != OVERLAP_BUFFER &&
           !(a->kind == OVERLAP_GRADIENT && b->kind == OVERLAP_GRADIENT);
}

const char *overlap_name(const struct overlap_place *place, char *text, size_t bytes)
{
    static const char *const kinds[] = {"value of parameter", "gradient of parameter", "buffer"};
    const struct tensor *tensor = place->kind == OVERLAP_BUFFER
                                      ? &place->module->buffers[place->index]
                                      : &place->module->parameters[place->index];
    char replica[32] = "";
    if (place->replica > 0)
        snprintf(replica, sizeof(replica), " (replica %" PRIu32 ")", place->replica);
    snprintf(text, bytes, "the %s '%s'%s of module '%s'", kinds[place->kind], tensor->name, replica,
             place->module->name);
    return text;
}

static int overlap_error(const struct overlap_place *a, const struct overlap_place *b)
{
    const uintptr_t end = a->end < b->end ? a->end : b->end;
    const bool tied =
        a->begin == b->begin && a->end == b->end && a->kind == b->kind && a->kind != OVERLAP_BUFFER;
    char first[3 * LOCKSTEP_NAME_BYTES];
    char second[3 * LOCKSTEP_NAME_BYTES];
    return error_set(LOCKSTEP_E_INVALID,
                     "%s and %s overlap in memory: they have %zu bytes at %p in common. Give each "
                     "memory of its own%s",
                     overlap_name(a, first, sizeof(first)), overlap_name(b, second, sizeof(second)),
                     (size_t)(end - b->begin), (void *)b->begin,
                     tied ? ", or register the later one with the data of the earlier one and "
                            "LOCKSTEP_PARAMETER_SHARED"
                          : "");
}

static int overlap_look(struct overlap_list *list)
{
    const struct overlap_place *reach = list->places;
    qsort(list->places, list->count, sizeof(*list->places), overlap_order);
    for (size_t i = 1; i < list->count; i++) {
        const struct overlap_place *next = &list->places[i];
        if (next->begin < reach->end && !overlap_is_fine(reach, next))
            return overlap_error(reach, next);
        if (next->end > reach->end)
            reach = next;
    }
    return 0;
}

static int overlap_collect(const struct lockstep_session *session,
                           const struct lockstep_module *further, struct overlap_list *list)
{
    size_t room = 1 + (!further ? 0 : overlap_room(further));
    for (uint32_t m = 0; m < session->module_count; m++)
        room += overlap_room(session->modules[m]);
    list->places = calloc(room, sizeof(*list->places));
    if (!list->places)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (uint32_t m = 0; m < session->module_count; m++)
        overlap_add_module(list, session->modules[m]);
    if (further)
        overlap_add_module(list, further);
    return overlap_look(list);
}

int overlap_check(const struct lockstep_session *session, const struct lockstep_module *further)
{
    struct overlap_list list = {0};
    const int status = overlap_collect(session, further, &list);
    free(list.places);
    return status;
}

static void overlap_keep(struct lockstep_session *session, const struct overlap_list *list)
{
    struct overlap_place *old;
    mutex_lock(&session->places.mutex);
    old = session->places.known;
    session->places.known = list->places;
    session->places.known_count = list->count;
    mutex_unlock(&session->places.mutex);
    free(old);
}

void overlap_forget(struct lockstep_session *session)
{
    overlap_keep(session, &(struct overlap_list){0});
}

int overlap_check_moved(struct lockstep_session *session)
{
    struct overlap_list list = {0};
    int status;
    if (!session->places.moved)
        return 0;
    status = overlap_collect(session, NULL, &list);
    if (status < 0) {
        free(list.places);
        return status;
    }
    overlap_keep(session, &list);
    session->places.moved = false;
    return 0;
}
