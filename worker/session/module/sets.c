// SPDX-License-Identifier: Apache-2.0
//
// The set of parameters that are trained in a step, and the layout that was learned for each set.
// Declarations of the trainer (lockstep_module_freeze, lockstep_phase_unused) are noted at once and
// take effect when the next step begins. Trainer between steps; the driver calls a few functions at
// the beginning and the end of a step.
//
// A parameter is trained if it is floating point, not frozen, and not declared unused in the phase
// of the step. A module remembers the layouts of a few sets. If there is no room for a new set, the
// set that was in force longest ago is forgotten. Plans name buckets of layouts, so all plans are
// forgotten together with a learned layout. Sets, steps and layouts are the same on all ranks, so
// all ranks forget the same ones.
//
// A *view* is a number for the declarations of one phase: 0 for phases in which nothing is declared
// unused, 1 + i for declared phase i.

#include "worker/session/module/sets.h"

#include "base/hash64.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/kernels/kernels.h"
#include "worker/order/plan.h"
#include "worker/session/module/calls.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static_assert(LOCKSTEP_MAX_PHASES <= 32, "a declared phase is a bit of unused_in");

// ---- The sets of a module ----------------------------------------------------------------------

uint64_t sets_hash(const struct bucket_parameter *parameters, uint32_t count)
{
    struct hash64 hash;
    hash64_init(&hash, 0);
    for (uint32_t p = 0; p < count; p++)
        hash64_update(&hash, &parameters[p].trainable, sizeof(parameters[p].trainable));
    return hash64_final(&hash) | 1; // Never 0, which marks a free entry.
}

bool sets_allocate_layout(struct bucket_layout *layout, uint32_t count)
{
    const uint32_t buckets = count < LOCKSTEP_MAX_BUCKETS ? count : LOCKSTEP_MAX_BUCKETS;
    // calloc(0) may be NULL; every array has at least one element.
    layout->order = calloc((size_t)count + 1, sizeof(*layout->order));
    layout->buckets = calloc((size_t)buckets + 1, sizeof(*layout->buckets));
    layout->order_capacity = count;
    layout->bucket_capacity = buckets;
    return layout->order && layout->buckets;
}

void sets_free(struct lockstep_module *module)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SETS; i++) {
        free(module->sets.all[i].layout.order);
        free(module->sets.all[i].layout.buckets);
    }
}

// True if the parameter can be trained in some step. A shared parameter is trained as its owner.
static bool sets_possible(const struct lockstep_module *module, uint32_t parameter)
{
    const struct tensor *tensor = &module->parameters[parameter];
    return dtype_is_float(tensor->gradient_dtype) && !tensor->ignored &&
           home_is_own(module, parameter);
}

bool sets_may_train(const struct lockstep_module *module, uint32_t parameter)
{
    return sets_possible(module, parameter) && !module->frozen[parameter];
}

static bool sets_trains(const struct lockstep_module *module, uint32_t parameter, uint32_t view)
{
    const bool unused = view > 0 && (module->unused_in[parameter] >> (view - 1) & 1) != 0;
    return sets_may_train(module, parameter) && !unused;
}

// True if entry a is reused before entry b: first free entries, then sets that were not learned,
// then sets that were in force longer ago. Only loaded sets can have the same `used`.
static bool sets_before(const struct module_set *a, const struct module_set *b)
{
    if ((a->hash == 0) != (b->hash == 0))
        return a->hash == 0;
    if (a->learned != b->learned)
        return !a->learned;
    return a->used < b->used;
}

// The entry of a set. If the set has none, the entry to reuse for it.
static struct module_set *sets_place(struct lockstep_module *module, uint64_t hash)
{
    struct module_set *place = &module->sets.all[0];
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SETS; i++) {
        if (module->sets.all[i].hash == hash)
            return &module->sets.all[i];
        if (sets_before(&module->sets.all[i], place))
            place = &module->sets.all[i];
    }
    return place;
}

struct bucket_caps sets_caps(const struct lockstep_module *module)
{
    const struct config *config = &module->session->config;
    struct bucket_caps caps = module->caps;
    if (caps.first_bytes == 0)
        caps.first_bytes = config->buckets.first_bytes;
    if (caps.last_bytes == 0)
        caps.last_bytes = config->buckets.last_bytes;
    if (caps.bytes == 0)
        caps.bytes = config->buckets.bytes;
    if (caps.bytes == 0)
        caps.bytes = buckets_default_bytes(module->shapes, module->parameter_count,
                                           module->contribution_count);
    return caps;
}

// Makes the first layout of a new set: the reversed order of definition.
static int sets_make(struct lockstep_module *module, struct module_set *set, uint64_t hash)
{
    const struct bucket_caps caps = sets_caps(module);
    char text[LOCKSTEP_TEXT_BYTES];
    if (set->learned)
        order_forget_plans(module->session->engine.order);
    set->hash = 0;
    set->learned = false;
    if (!set->layout.order && !sets_allocate_layout(&set->layout, module->parameter_count))
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    if (buckets_layout(module->shapes, module->parameter_count, NULL, 0, caps, &set->layout, text,
                       sizeof(text)) != BUCKET_OK)
        return error_set(LOCKSTEP_E_INVALID, "module '%s' cannot be cut into buckets: %s",
                         module->name, text);
    if (set->layout.bucket_count * module->contribution_count > LOCKSTEP_MAX_SLOTS)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has %" PRIu32 " buckets in each of %" PRIu32
                         " separate calls; a step has at most %d",
                         module->name, set->layout.bucket_count, module->contribution_count,
                         LOCKSTEP_MAX_SLOTS);
    set->hash = hash;
    return 0;
}

static void sets_use(struct lockstep_module *module, struct module_set *set)
{
    const struct bucket_layout *layout = &set->layout;
    module->sets.set = set;
    module->layout = *layout;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        for (uint32_t i = 0; i < layout->buckets[b].count; i++)
            module->bucket_of[layout->order[layout->buckets[b].first + i]] = b;
    }
}

int sets_enter_module(struct lockstep_module *module, uint32_t view)
{
    struct module_set *set;
    uint64_t hash;
    int status = 0;
    module->trainable_count = 0;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        module->shapes[p].trainable = sets_trains(module, p, view);
        module->trainable_count += module->shapes[p].trainable;
    }
    hash = sets_hash(module->shapes, module->parameter_count);
    if (module->sets.set && module->sets.set->hash == hash)
        return 0;
    if (module->sets.set)
        module->sets.set->used = module->session->step.number;
    set = sets_place(module, hash);
    if (set->hash != hash)
        status = sets_make(module, set, hash);
    if (status == 0)
        sets_use(module, set);
    return status;
}

void sets_forget(struct lockstep_module *module)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SETS; i++) {
        module->sets.all[i].hash = module->sets.all[i].used = 0;
        module->sets.all[i].learned = false;
    }
    module->sets.set = NULL;
    module->session->training.changed = true;
}

bool sets_are_learned(const struct lockstep_module *module)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SETS; i++) {
        if (module->sets.all[i].hash != 0 && module->sets.all[i].learned)
            return true;
    }
    return false;
}

// A failure if a bucket of a loaded layout has a gradient on devices that is in host memory now, or
// the other way round.
static int sets_check_places(const struct lockstep_module *module,
                             const struct bucket_layout *layout)
{
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const struct bucket *bucket = &layout->buckets[b];
        for (uint32_t i = 0; i < bucket->count; i++) {
            const uint32_t parameter = layout->order[bucket->first + i];
            if (module->shapes[parameter].device != bucket->device)
                return error_set(LOCKSTEP_E_CONFIG,
                                 "the file that was loaded has the gradient of '%s' of module '%s' "
                                 "%s, and it is %s now",
                                 module->parameters[parameter].name, module->name,
                                 bucket->device ? "on devices" : "in host memory",
                                 bucket->device ? "in host memory" : "on devices");
        }
    }
    return 0;
}

int sets_renew(struct lockstep_module *module)
{
    int status = 0;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SETS && status == 0; i++) {
        if (module->sets.all[i].learned && module->sets.all[i].hash != 0)
            status = sets_check_places(module, &module->sets.all[i].layout);
        else
            module->sets.all[i].hash = 0;
    }
    module->sets.set = NULL;
    module->session->training.changed = true;
    return status < 0 ? status : sets_enter_module(module, 0);
}

void sets_install(struct lockstep_module *module, uint64_t hash, struct bucket_layout *layout)
{
    struct module_set *set = sets_place(module, hash);
    const struct bucket_layout old = set->layout;
    set->hash = hash;
    set->learned = true;
    set->layout = *layout;
    *layout = old;
    if (module->sets.set == set)
        sets_use(module, set);
}

bool sets_adopt_layouts(struct lockstep_session *session)
{
    bool any = false;
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        if (!module->sets.next_agreed)
            continue;
        module->sets.next_agreed = false;
        module->grouped.buckets = module->grouped.next_buckets;
        if (module->grouped.absent)
            continue;
        sets_install(module, module->sets.set->hash, &module->sets.next);
        any = true;
    }
    return any;
}

// ---- The set of a step -------------------------------------------------------------------------

// Index of the declared phase with this name; declared_count: there is none.
static uint32_t sets_declared(const struct lockstep_session *session, const char *phase)
{
    uint32_t i = 0;
    while (i < session->training.declared_count &&
           strcmp(session->training.declared[i].name, phase) != 0)
        i++;
    return i;
}

// Modules of groups always train the same parameters, and are not on all ranks: they are left out.
static void sets_gather(struct lockstep_session *session)
{
    uint32_t bit = 0;
    memset(session->training.bits, 0, ((size_t)session->tensor_count + 7) / 8);
    for (uint32_t m = 0; m < session->common_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t p = 0; p < module->parameter_count; p++, bit++)
            session->training.bits[bit / 8] |= (uint8_t)(module->shapes[p].trainable << bit % 8);
    }
    session->training.bytes = (bit + 7) / 8;
    session->training.hash = hash64(session->training.bits, session->training.bytes);
}

int sets_enter(struct lockstep_session *session, const char *phase)
{
    const uint32_t declared = sets_declared(session, phase);
    const uint32_t view = declared < session->training.declared_count ? 1 + declared : 0;
    int status = 0;
    if (view == session->training.view && !session->training.changed)
        return 0;
    session->training.changed = true; // Stays true if a module fails below.
    for (uint32_t m = 0; m < session->module_count && status == 0; m++)
        status = sets_enter_module(session->modules[m], view);
    if (status < 0)
        return status;
    sets_gather(session);
    session->training.view = view;
    session->training.changed = false;
    return 0;
}

uint64_t sets_phase(const struct lockstep_session *session)
{
    const uint64_t identity[] = {hash64(session->step.phase, strlen(session->step.phase)),
                                 session->training.hash};
    return hash64(identity, sizeof(identity));
}

// ---- Notes between ranks -----------------------------------------------------------------------

void sets_note(const struct lockstep_session *session, struct step_note *note)
{
    const size_t name_bytes = strlen(session->engine.phase) + 1;
    note->step = session->engine.order->step;
    note->count = (uint32_t)name_bytes + session->training.bytes;
    memcpy(note->bytes, session->engine.phase, name_bytes);
    memcpy(note->bytes + name_bytes, session->training.bits, session->training.bytes);
}

// The bits after the name in a note; NULL if no rank with the same modules can have sent the note.
static const uint8_t *sets_note_bits(const struct lockstep_session *session,
                                     const struct step_note *note)
{
    const uint8_t *end = memchr(note->bytes, '\0', note->count);
    if (note->step != session->engine.order->step || !end ||
        (size_t)(end - note->bytes) >= LOCKSTEP_NAME_BYTES ||
        !utf8_valid((const char *)note->bytes, (size_t)(end - note->bytes)) ||
        note->count - (uint32_t)(end + 1 - note->bytes) != session->training.bytes)
        return NULL;
    return end + 1;
}

// Finds the first parameter that only one of the two ranks trains. Returns how many there are.
static uint32_t sets_find_difference(const struct lockstep_session *session, const uint8_t *theirs,
                                     const struct lockstep_module **module, uint32_t *parameter)
{
    uint32_t count = 0;
    uint32_t bit = 0;
    for (uint32_t m = 0; m < session->common_count; m++) {
        for (uint32_t p = 0; p < session->modules[m]->parameter_count; p++, bit++) {
            if (((session->training.bits[bit / 8] ^ theirs[bit / 8]) >> bit % 8 & 1) == 0)
                continue;
            if (count++ > 0)
                continue;
            *module = session->modules[m];
            *parameter = p;
        }
    }
    return count;
}

static void sets_name_difference(const struct lockstep_session *session, const uint8_t *theirs,
                                 const char *predecessor, struct text *text)
{
    const struct lockstep_module *module = NULL;
    uint32_t parameter = 0;
    const uint32_t count = sets_find_difference(session, theirs, &module, &parameter);
    const bool mine = module && module->shapes[parameter].trainable;
    if (!module) {
        text_append(text, "began step %" PRIu64 " otherwise than %s, in a way that has no name",
                    session->engine.order->step, predecessor);
        return;
    }
    text_append(text, "%s parameter '%s' of module '%s' in step %" PRIu64 ", and %s %s",
                mine ? "trains" : "does not train", module->parameters[parameter].name,
                module->name, session->engine.order->step, predecessor,
                mine ? "does not: it is frozen or declared unused there" : "does");
    if (count > 1)
        text_append(text, " (%" PRIu32 " parameters differ in all)", count);
    text_append(text, "; freeze the same parameters on every rank before the same step");
}

void sets_difference(const struct lockstep_session *session, const char *predecessor, char *bytes,
                     size_t size)
{
    const struct step_note *note = &session->engine.heard[session->engine.order->step % 2];
    const uint8_t *theirs = sets_note_bits(session, note);
    struct text text;
    text_init(&text, bytes, size);
    if (theirs && strcmp((const char *)note->bytes, session->engine.phase) == 0)
        sets_name_difference(session, theirs, predecessor, &text);
    else
        text_append(&text,
                    "began phase '%s' in step %" PRIu64 ", and %s began %s%s%s: give every rank "
                    "the same phases in the same steps",
                    session->engine.phase, session->engine.order->step, predecessor,
                    theirs ? "phase '" : "another one", theirs ? (const char *)note->bytes : "",
                    theirs ? "'" : "");
}

// ---- The public functions ----------------------------------------------------------------------

static int sets_check_parameter(const struct lockstep_module *module, uint32_t parameter)
{
    if (parameter >= module->parameter_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has parameters 0 to %" PRId64 "; %" PRIu32 " is none of them",
                         module->name, (int64_t)module->parameter_count - 1, parameter);
    if (!home_is_own(module, parameter)) {
        const struct home *home = &module->homes[parameter];
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is shared: say it of parameter '%s' of "
                         "module '%s', which owns it",
                         module->name, module->parameters[parameter].name,
                         home->module->parameters[home->parameter].name, home->module->name);
    }
    if (!sets_possible(module, parameter))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is %s and is never trained", module->name,
                         module->parameters[parameter].name,
                         module->parameters[parameter].ignored
                             ? "ignored"
                             : dtype_name(module->parameters[parameter].dtype));
    return 0;
}

static int sets_check_change(struct lockstep_module *module, const char *function,
                             const uint32_t *parameters, uint32_t count)
{
    int status = module_check(module);
    if (status < 0)
        return status;
    if (module->session->step.is_open || module->session->step.window_open)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': %s inside %s, which is step %" PRIu64,
                         module->name, function,
                         module->session->step.is_open ? "a step" : "a window that accumulates",
                         module->session->step.number);
    if (module_is_grouped(module))
        return error_set(LOCKSTEP_E_UNSUPPORTED,
                         "module '%s' of group '%s': %s is not possible for a module with a group; "
                         "register the parameters with LOCKSTEP_PARAMETER_FROZEN",
                         module->name, module->grouped.name, function);
    if (!parameters && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "parameters is NULL and count is %" PRIu32, count);
    for (uint32_t i = 0; i < count && status == 0; i++)
        status = sets_check_parameter(module, parameters[i]);
    return status;
}

int lockstep_module_freeze(lockstep_module *module, const uint32_t *parameters, uint32_t count,
                           uint32_t frozen)
{
    int status = sets_check_change(module, "lockstep_module_freeze", parameters, count);
    if (status == 0 && frozen > 1)
        status = error_set(LOCKSTEP_E_INVALID, "frozen is 0 or 1, not %" PRIu32, frozen);
    if (status < 0)
        return status;
    for (uint32_t i = 0; i < count; i++) {
        bool *now = &module->frozen[parameters[i]];
        module->session->training.changed |= *now != (frozen != 0);
        *now = frozen != 0;
    }
    return 0;
}

int lockstep_phase_unused(lockstep_module *module, const char *phase, const uint32_t *parameters,
                          uint32_t count)
{
    struct lockstep_session *session;
    uint32_t declared;
    int status = sets_check_change(module, "lockstep_phase_unused", parameters, count);
    if (!phase)
        phase = "";
    if (status == 0 && (strlen(phase) >= LOCKSTEP_NAME_BYTES || !utf8_valid(phase, strlen(phase))))
        status = error_set(LOCKSTEP_E_INVALID, "a phase has at most %d bytes of UTF-8",
                           LOCKSTEP_NAME_BYTES - 1);
    if (status < 0)
        return status;
    session = module->session;
    declared = sets_declared(session, phase);
    if (declared == LOCKSTEP_MAX_PHASES)
        return error_set(LOCKSTEP_E_INVALID,
                         "parameters are declared unused in %d phases already; '%s' is one more",
                         LOCKSTEP_MAX_PHASES, phase);
    if (declared == session->training.declared_count)
        text_copy(session->training.declared[session->training.declared_count++].name,
                  LOCKSTEP_NAME_BYTES, phase);
    for (uint32_t i = 0; i < count; i++)
        module->unused_in[parameters[i]] |= UINT32_C(1) << declared;
    session->training.changed = true;
    return 0;
}
