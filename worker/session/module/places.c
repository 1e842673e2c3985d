// SPDX-License-Identifier: Apache-2.0
//
// Gradients whose memory (*place*) is given with their reports. If two gradients of a window shared
// a byte, it would be reduced twice; if a value or buffer shared one with a gradient, it would be
// overwritten. overlap.c compares registered memory before a step. This file compares memory that
// comes with a report with all registered memory and with all places of the window. Any thread that
// reports.
//
// The places of a window form a tree (a treap: ordered by address, a heap by a hash). Its nodes are
// fields of the contributions. So a report takes logarithmic time, and allocates nothing. No two
// places in the tree overlap.
//
// Registered memory is not in the tree. Most reports use it, so they take no lock and never wait. A
// gradient is *watched* if a place was given for it, or if a place was given that overlaps its
// registered memory. A report of a watched gradient checks the tree. The thread that gives a place
// first marks the gradients that it overlaps, and then checks whether they were reported. A report
// is first claimed, and then checks the mark. These accesses are sequentially consistent, so at
// least one of two concurrent threads sees the other.

#include "worker/session/module/places.h"

#include "worker/kernels/kernels.h"
#include "worker/session/module/claims.h"
#include "worker/session/module/overlap.h"
#include "worker/session/module/replicas.h"
#include "worker/support/error.h"
#include "worker/watch/progress.h"

#include <inttypes.h>
#include <stdio.h>

struct range {
    uintptr_t begin;
    uintptr_t end;
};

// ---- The tree ----------------------------------------------------------------------------------

// The lowest place that ends after `address`; NULL: there is none.
static struct given_place *tree_find(struct given_place *root, uintptr_t address)
{
    struct given_place *found = NULL;
    while (root) {
        if (root->end > address)
            found = root;
        root = root->end > address ? root->before : root->behind;
    }
    return found;
}

// The pointer in the tree that points to the place, or that will point to it after an insertion.
static struct given_place **tree_link(struct given_place **root, const struct given_place *place)
{
    while (*root && *root != place && (*root)->priority >= place->priority)
        root = place->begin < (*root)->begin ? &(*root)->before : &(*root)->behind;
    return root;
}

static void tree_insert(struct given_place **root, struct given_place *place)
{
    struct given_place **link = tree_link(root, place);
    struct given_place *rest = *link;
    struct given_place **before = &place->before;
    struct given_place **behind = &place->behind;
    *link = place;
    while (rest) {
        if (rest->begin < place->begin) {
            *before = rest;
            before = &rest->behind;
            rest = rest->behind;
        } else {
            *behind = rest;
            behind = &rest->before;
            rest = rest->before;
        }
    }
    *before = *behind = NULL;
}

static void tree_remove(struct given_place **root, const struct given_place *place)
{
    struct given_place *before = place->before;
    struct given_place *behind = place->behind;
    while (*root != place)
        root = place->begin < (*root)->begin ? &(*root)->before : &(*root)->behind;
    while (before && behind) {
        if (before->priority >= behind->priority) {
            *root = before;
            root = &before->behind;
            before = before->behind;
        } else {
            *root = behind;
            root = &behind->before;
            behind = behind->before;
        }
    }
    *root = before ? before : behind;
}

// ---- Places ------------------------------------------------------------------------------------

void places_window_begin(struct lockstep_session *session)
{
    mutex_lock(&session->places.mutex);
    session->places.given = NULL;
    session->places.window++;
    mutex_unlock(&session->places.mutex);
}

static struct given_place *place_of(const struct contribution *contribution, uint32_t replica,
                                    uint32_t parameter)
{
    return &contribution
                ->places[(size_t)replica * contribution->module->parameter_count + parameter];
}

static bool place_is_given(const struct given_place *place)
{
    return place->window == place->contribution->module->session->places.window;
}

static void *place_registered(const struct contribution *contribution, uint32_t replica,
                              uint32_t parameter)
{
    return replica == 0 ? contribution->gradients[parameter].registered
                        : replica_gradient(contribution, replica, parameter)->registered;
}

static struct range place_range(const struct placed *placed, const void *memory)
{
    const struct tensor *tensor = &placed->contribution->module->parameters[placed->parameter];
    const uintptr_t begin = (uintptr_t)memory;
    return (struct range){begin, begin + tensor->elements * dtype_size(tensor->gradient_dtype)};
}

static void place_watch(const struct contribution *contribution, uint32_t parameter)
{
    atomic_store(&contribution->gradients[parameter].report.watched, true);
}

// ---- Errors ------------------------------------------------------------------------------------

// Writes the name of a gradient for an error text: the name under which it is reported.
static const char *place_name(const struct home *by, const struct contribution *contribution,
                              uint32_t replica, char *text, size_t bytes)
{
    const struct overlap_place place = {
        .module = by->module, .index = by->parameter, .replica = replica, .kind = OVERLAP_GRADIENT};
    char name[3 * LOCKSTEP_NAME_BYTES];
    overlap_name(&place, name, sizeof(name));
    if (contribution->module->separate_calls)
        snprintf(text, bytes, "%s (call %" PRIu32 ")", name, contribution->index + 1);
    else
        snprintf(text, bytes, "%s", name);
    return text;
}

// The number of the step, from a field that any thread may read.
static uint64_t place_step(const struct placed *placed)
{
    return atomic_load_explicit(&placed->contribution->module->session->progress->step,
                                memory_order_relaxed);
}

static int place_overlap_error(const struct placed *placed, const struct range *range,
                               const struct range *other, const char *name)
{
    const uintptr_t begin = range->begin > other->begin ? range->begin : other->begin;
    const uintptr_t end = range->end < other->end ? range->end : other->end;
    char own[4 * LOCKSTEP_NAME_BYTES];
    place_name(&placed->by, placed->contribution, placed->replica, own, sizeof(own));
    return error_set(LOCKSTEP_E_INVALID,
                     "step %" PRIu64 ": %s and %s overlap in memory: they have %zu bytes at %p in "
                     "common. Give each memory of its own until the end of the step",
                     place_step(placed), own, name, (size_t)(end - begin), (void *)begin);
}

static int place_tied_error(const struct placed *placed, const struct home *other,
                            const void *memory, const void *place)
{
    char own[4 * LOCKSTEP_NAME_BYTES];
    char before[4 * LOCKSTEP_NAME_BYTES];
    place_name(&placed->by, placed->contribution, placed->replica, own, sizeof(own));
    place_name(other, placed->contribution, placed->replica, before, sizeof(before));
    return error_set(LOCKSTEP_E_INVALID,
                     "step %" PRIu64 ": %s and %s are one (LOCKSTEP_PARAMETER_SHARED), and they "
                     "are in two places, %p and %p: add up both in one place, and report that one",
                     place_step(placed), own, before, memory, place);
}

// ---- Shared parameters -------------------------------------------------------------------------

// True if a report under this name was claimed in the window.
static bool place_is_claimed(const struct home *name, const struct contribution *contribution,
                             uint32_t replica)
{
    const struct contribution *claims =
        name->module == contribution->module ? contribution : &name->module->contributions[0];
    const struct report *report = replica == 0
                                      ? &claims->gradients[name->parameter].report
                                      : &replica_gradient(claims, replica, name->parameter)->report;
    const uint64_t claim = atomic_load(&report->claim);
    return claim_serial(claim) > name->module->made.window_serial && claim_count(claim) > 0 &&
           claim_count(claim) < CLAIM_ENDED;
}

// Another name of the gradient under which a report was claimed; module NULL: there is none. Runs
// only if a shared parameter is given other memory than the registered one, which is rare.
static struct home place_other_name(const struct placed *placed)
{
    const struct lockstep_session *session = placed->contribution->module->session;
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        for (uint32_t p = 0; p < module->parameter_count; p++) {
            const struct home name = {module, p};
            if (module->homes[p].module == placed->contribution->module &&
                module->homes[p].parameter == placed->parameter &&
                (module != placed->by.module || p != placed->by.parameter) &&
                place_is_claimed(&name, placed->contribution, placed->replica))
                return name;
        }
    }
    return (struct home){NULL, 0};
}

static bool place_is_tied(const struct placed *placed)
{
    const struct lockstep_module *module = placed->contribution->module;
    return placed->by.module != module || placed->by.parameter != placed->parameter ||
           module->awaits[placed->parameter] >
               module->parameters[placed->parameter].ready_count * module->replicas;
}

// A failure if two names of a shared gradient are reported with different memory.
static int place_check_tied(const struct placed *placed, const struct given_place *own,
                            const void *registered)
{
    const void *memory = placed->memory ? placed->memory : registered;
    struct home other;
    if (!place_is_tied(placed) || !memory)
        return 0;
    if (place_is_given(own))
        return own->begin == (uintptr_t)memory || (own->by.module == placed->by.module &&
                                                   own->by.parameter == placed->by.parameter)
                   ? 0
                   : place_tied_error(placed, &own->by, memory, (const void *)own->begin);
    if (!registered || memory == registered)
        return 0;
    other = place_other_name(placed);
    return !other.module ? 0 : place_tied_error(placed, &other, memory, registered);
}

// ---- Overlaps ----------------------------------------------------------------------------------

// A failure if the range overlaps a place in the tree. A place is taken until the window ends, also
// when its results are there: another rank may take them from here (config.on_failure continue).
static int place_check_given(const struct lockstep_session *session, const struct placed *placed,
                             const struct range *range)
{
    char name[4 * LOCKSTEP_NAME_BYTES];
    const struct given_place *other = tree_find(session->places.given, range->begin);
    if (!other || other->begin >= range->end)
        return 0;
    return place_overlap_error(
        placed, range, &(struct range){other->begin, other->end},
        place_name(&other->by, other->contribution, other->replica, name, sizeof(name)));
}

// True if a gradient uses its registered memory in this window: it was reported there, or its
// result will be written there because no more reports come. Marks the gradient as watched.
static bool place_is_taken(const struct overlap_place *known)
{
    const struct lockstep_module *module = known->module;
    const struct contribution *contribution = &module->contributions[0];
    struct gradient *gradient = &contribution->gradients[known->index];
    const struct home name = {(struct lockstep_module *)(uintptr_t)module, known->index};
    if (!module->shapes[known->index].trainable ||
        place_is_given(place_of(contribution, known->replica, known->index)))
        return false;
    place_watch(contribution, known->index);
    return place_is_claimed(&name, contribution, known->replica) || atomic_load(&gradient->used) ||
           atomic_load(&gradient->awaited) == 0;
}

static bool place_is_own(const struct placed *placed, const struct overlap_place *known,
                         const struct range *range)
{
    if (known->kind == OVERLAP_BUFFER || known->module != placed->contribution->module ||
        known->index != placed->parameter)
        return false;
    if (known->kind == OVERLAP_DATA)
        return known->begin == range->begin && known->end == range->end;
    return known->replica == placed->replica && placed->contribution->index == 0;
}

// Index of the first registered place that ends after the beginning of the range. The ends are
// sorted, too, because registered places do not overlap unless they are equal.
static size_t place_first_known(const struct lockstep_session *session, const struct range *range)
{
    size_t low = 0;
    size_t high = session->places.known_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (session->places.known[middle].end > range->begin)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int place_check_known(const struct lockstep_session *session, const struct placed *placed,
                             const struct range *range)
{
    char name[3 * LOCKSTEP_NAME_BYTES];
    for (size_t i = place_first_known(session, range);
         i < session->places.known_count && session->places.known[i].begin < range->end; i++) {
        const struct overlap_place *known = &session->places.known[i];
        if (place_is_own(placed, known, range) ||
            (known->kind == OVERLAP_GRADIENT && !place_is_taken(known)))
            continue;
        return place_overlap_error(placed, range, &(struct range){known->begin, known->end},
                                   overlap_name(known, name, sizeof(name)));
    }
    return 0;
}

int places_check_locked(struct lockstep_session *session, const struct placed *placed)
{
    struct given_place *own = place_of(placed->contribution, placed->replica, placed->parameter);
    const void *registered =
        place_registered(placed->contribution, placed->replica, placed->parameter);
    const void *memory = placed->memory ? placed->memory : registered;
    const struct range range = place_range(placed, memory);
    const bool given = place_is_given(own);
    int status;
    mutex_assert_held(&session->places.mutex);
    status = place_check_tied(placed, own, registered);
    if (status < 0 || !memory || range.begin == range.end ||
        (given && (!placed->memory || own->begin == range.begin)))
        return status;
    if (given) // The gradient already has a place: it is not compared with itself.
        tree_remove(&session->places.given, own);
    status = place_check_given(session, placed, &range);
    if (status == 0 && placed->memory)
        status = place_check_known(session, placed, &range);
    if (given)
        tree_insert(&session->places.given, own);
    return status;
}

void places_take_locked(struct lockstep_session *session, const struct placed *placed)
{
    struct given_place *own = place_of(placed->contribution, placed->replica, placed->parameter);
    const struct range range = place_range(placed, placed->memory);
    mutex_assert_held(&session->places.mutex);
    if (!placed->memory || range.begin == range.end ||
        (place_is_given(own) && own->begin == range.begin))
        return;
    if (place_is_given(own))
        tree_remove(&session->places.given, own);
    own->begin = range.begin;
    own->end = range.end;
    own->window = session->places.window;
    own->by = placed->by;
    tree_insert(&session->places.given, own);
    place_watch(placed->contribution, placed->parameter);
}

bool places_is_lost(struct lockstep_session *session, const struct placed *placed)
{
    const void *registered =
        place_registered(placed->contribution, placed->replica, placed->parameter);
    const struct range range = place_range(placed, registered);
    const struct given_place *other;
    bool lost;
    mutex_lock(&session->places.mutex);
    other = tree_find(session->places.given, range.begin);
    lost = registered && other && other->begin < range.end &&
           !place_is_given(place_of(placed->contribution, placed->replica, placed->parameter));
    mutex_unlock(&session->places.mutex);
    return lost;
}

int places_check_free(struct lockstep_session *session, uintptr_t begin, uintptr_t end)
{
    char name[4 * LOCKSTEP_NAME_BYTES];
    const struct given_place *place;
    int status = 0;
    if (!session->step.is_open && !session->step.window_open)
        return 0;
    mutex_lock(&session->places.mutex);
    place = tree_find(session->places.given, begin);
    if (place && place->begin < end)
        status = error_set(
            LOCKSTEP_E_INVALID,
            "step %" PRIu64 ": this memory was given for %s: free it after the end of the step",
            session->step.number,
            place_name(&place->by, place->contribution, place->replica, name, sizeof(name)));
    mutex_unlock(&session->places.mutex);
    return status;
}
