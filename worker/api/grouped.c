// SPDX-License-Identifier: Apache-2.0
//
// The table of modules with a group: grouped.h has the contract. Only the members of a group
// register its modules, but a plan names modules by their index, which is the same on all ranks. So
// lockstep_start puts them into one list: every rank sends a *record* of each of its modules with a
// group, and all ranks sort the records by module, group and rank. The members' records of one
// module are a *row* of that list; the rows have the indices after those of the modules that all
// ranks have. A rank that is no member has an absent module in its place.
//
// All ranks see all records, so all of them find the same difference, and return the same text.
// Runs on the trainer's thread.

#include "worker/api/grouped.h"

#include "base/bits.h"
#include "base/hash64.h"
#include "base/text.h"
#include "worker/api/module.h"
#include "worker/kernels/dtype.h"
#include "worker/session/group.h"
#include "worker/session/module/manifest.h"
#include "worker/session/module/residency.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// What a rank tells of a module. It travels as words that are added up; all others give zeros.
struct grouped_record {
    char name[LOCKSTEP_NAME_BYTES];
    char group[LOCKSTEP_GROUP_NAME_BYTES];
    uint64_t space; // As in struct lockstep_group.
    uint64_t manifest; // Hash of the module's manifest items.
    uint64_t members[LOCKSTEP_RANK_WORDS];
    uint32_t items; // Of the manifest. 0: there is no record here.
    uint32_t parameters;
    uint32_t calls; // Contributions in a step.
    uint32_t rank;
};
#define RECORD_WORDS (sizeof(struct grouped_record) / sizeof(uint64_t))
static_assert(sizeof(struct grouped_record) % sizeof(uint64_t) == 0, "it travels in words");

struct grouped_table {
    struct grouped_record *records; // [count], sorted.
    size_t count;
};

// ---- What such a module cannot have ------------------------------------------------------------

int grouped_check(struct lockstep_module *module)
{
    for (uint32_t b = 0; b < module->buffer_count; b++) {
        const struct tensor *buffer = &module->buffers[b];
        if (!buffer->ignored && buffer->flags >= LOCKSTEP_BUFFER_BROADCAST)
            return error_set(LOCKSTEP_E_UNSUPPORTED,
                             "module '%s' of group '%s': buffer '%s' cannot be exchanged in steps; "
                             "use LOCKSTEP_BUFFER_AT_START or _IGNORE, and lockstep_collective_run",
                             module->name, module->grouped.name, buffer->name);
    }
    if (module->session->devices.first && residency_is_on_device(module))
        return error_set(LOCKSTEP_E_UNSUPPORTED,
                         "module '%s' of group '%s': it has tensors in the memory of a device; a "
                         "module with a group has to be in host memory",
                         module->name, module->grouped.name);
    return 0;
}

void grouped_forget(struct lockstep_session *session)
{
    uint32_t count = session->common_count;
    for (uint32_t i = session->common_count; i < session->module_count; i++) {
        struct lockstep_module *module = session->modules[i];
        if (module->grouped.absent)
            module_free(module);
        else
            module_place(session, count++, module);
    }
    session->module_count = count;
}

// ---- Records -----------------------------------------------------------------------------------

static int grouped_allreduce(struct lockstep_session *session, const char *name, void *words,
                             size_t count, enum reduce_op op)
{
    const struct collective like = {.kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT64, .op = op};
    struct lockstep_work *work;
    return work_call(session, name, words, count, &like, LOCKSTEP_WAIT_FOREVER, &work);
}

static uint64_t grouped_item_hash(const struct lockstep_module *module, uint32_t index)
{
    struct manifest_item item;
    manifest_module_item(module, index, &item);
    return hash64(&item, sizeof(item)); // The item was zeroed, so its padding is equal.
}

static void grouped_record(const struct lockstep_module *module, struct grouped_record *record)
{
    const struct lockstep_group *group = module->grouped.group;
    struct hash64 hash;
    text_copy(record->name, sizeof(record->name), module->name);
    text_copy(record->group, sizeof(record->group), group->name);
    record->space = group->space;
    memcpy(record->members, group->members, sizeof(record->members));
    record->items = manifest_module_count(module);
    record->parameters = module->parameter_count;
    record->calls = module->contribution_count;
    record->rank = module->session->world.rank;
    hash64_init(&hash, 0);
    for (uint32_t i = 0; i < record->items; i++) {
        const uint64_t item = grouped_item_hash(module, i);
        hash64_update(&hash, &item, sizeof(item));
    }
    record->manifest = hash64_final(&hash);
}

static int grouped_compare_rows(const struct grouped_record *a, const struct grouped_record *b)
{
    int order = strcmp(a->name, b->name);
    if (order == 0)
        order = strcmp(a->group, b->group);
    if (order == 0 && a->space != b->space)
        order = a->space < b->space ? -1 : 1;
    return order;
}

static int grouped_compare(const void *one, const void *other)
{
    const struct grouped_record *a = one;
    const struct grouped_record *b = other;
    const int order = grouped_compare_rows(a, b);
    if (order != 0 || a->rank == b->rank)
        return order;
    return a->rank < b->rank ? -1 : 1;
}

// Returns the end of the row that begins at `first`.
static size_t grouped_row_end(const struct grouped_table *table, size_t first)
{
    size_t end = first + 1;
    while (end < table->count &&
           grouped_compare_rows(&table->records[first], &table->records[end]) == 0)
        end++;
    return end;
}

// Exchanges the records of all ranks. The caller frees table->records.
static int grouped_exchange(struct lockstep_session *session, struct grouped_table *table)
{
    const uint32_t own = session->module_count - session->common_count;
    int64_t most = own;
    int status = grouped_allreduce(session, "lockstep/state/groups", &most, 1, REDUCE_MAX);
    if (status < 0)
        return status;
    const size_t room = (size_t)most * session->world.size;
    table->records = calloc(room + 1, sizeof(*table->records));
    if (!table->records)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (uint32_t i = 0; i < own; i++)
        grouped_record(session->modules[session->common_count + i],
                       &table->records[session->world.rank * (size_t)most + i]);
    status = grouped_allreduce(session, "lockstep/state/grouped", table->records,
                               room * RECORD_WORDS, REDUCE_SUM);
    for (size_t i = 0; i < room; i++) {
        if (table->records[i].items > 0)
            table->records[table->count++] = table->records[i];
    }
    qsort(table->records, table->count, sizeof(*table->records), grouped_compare);
    return status;
}

// ---- Differences -------------------------------------------------------------------------------

static const struct grouped_record *grouped_find(const struct grouped_table *table,
                                                 const char *name, uint64_t space, uint32_t rank)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct grouped_record *record = &table->records[i];
        if (record->rank == rank && record->space == space &&
            (!name || strcmp(record->name, name) == 0))
            return record;
    }
    return NULL;
}

// Rank `missing` is a member of the group and has not registered the module. Names a module that it
// has registered instead, if there is one.
static int grouped_missing(const struct grouped_table *table, const struct grouped_record *record,
                           uint32_t missing)
{
    const struct grouped_record *other = NULL;
    for (size_t i = 0; i < table->count && !other; i++) {
        const struct grouped_record *one = &table->records[i];
        if (one->rank == missing && one->space == record->space &&
            !grouped_find(table, one->name, one->space, record->rank))
            other = one;
    }
    return error_set(LOCKSTEP_E_MISMATCH,
                     "module '%s' of group '%s': rank %" PRIu32 " has registered it, and rank "
                     "%" PRIu32 ", a member of the group, has not%s%s%s; register it on every "
                     "member",
                     record->name, record->group, record->rank, missing, other ? ", but has '" : "",
                     other ? other->name : "", other ? "'" : "");
}

static void grouped_tell(const struct manifest_item *item, uint32_t rank, struct text *text)
{
    static const char *const kinds[] = {[MANIFEST_MODULE] = "options",
                                        [MANIFEST_PARAMETER] = "parameter",
                                        [MANIFEST_BUFFER] = "buffer"};
    if (item->kind < MANIFEST_MODULE || item->kind > MANIFEST_BUFFER) {
        text_append(text, "rank %" PRIu32 " has no more", rank);
        return;
    }
    text_append(text, "rank %" PRIu32 " has %s", rank, kinds[item->kind]);
    if (item->kind != MANIFEST_MODULE) {
        text_append(text, " '%s' of %s [", item->name, dtype_name(item->dtype));
        for (uint32_t i = 0; i < item->dims && i < LOCKSTEP_MAX_DIMS; i++)
            text_append(text, "%s%" PRId64, i > 0 ? ", " : "", item->shape[i]);
        text_append(text, "]");
        if (item->flags != 0)
            text_append(text, " flags=%" PRIu32, item->flags);
    }
    text_append(text, " %s", item->value);
}

// Two members have registered the module differently. They send the hashes of their items, and then
// the first item that differs.
static int grouped_differs(struct lockstep_session *session, const struct grouped_record *a,
                           const struct grouped_record *b)
{
    const uint32_t own = session->world.rank;
    const uint32_t side = own == b->rank;
    const uint32_t most = a->items > b->items ? a->items : b->items;
    const struct lockstep_module *module = NULL;
    struct manifest_item items[2] = {{0}};
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    uint64_t *hashes = calloc(2 * (size_t)most, sizeof(*hashes));
    uint32_t first = 0;
    if (!hashes)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (uint32_t i = session->common_count; i < session->module_count; i++) {
        if ((own == a->rank || own == b->rank) && strcmp(session->modules[i]->name, a->name) == 0)
            module = session->modules[i];
    }
    for (uint32_t i = 0; module && i < manifest_module_count(module); i++)
        hashes[side * most + i] = grouped_item_hash(module, i);
    int status =
        grouped_allreduce(session, "lockstep/state/items", hashes, 2 * (size_t)most, REDUCE_SUM);
    while (first + 1 < most && hashes[first] == hashes[most + first])
        first++;
    free(hashes);
    if (module && first < manifest_module_count(module))
        manifest_module_item(module, first, &items[side]);
    if (status == 0)
        status = grouped_allreduce(session, "lockstep/state/item", items,
                                   2 * sizeof(items[0]) / (sizeof(uint64_t)), REDUCE_SUM);
    if (status < 0)
        return status;
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "module '%s' of group '%s' differs among its members: ", a->name, a->group);
    grouped_tell(&items[0], a->rank, &text);
    text_append(&text, "; ");
    grouped_tell(&items[1], b->rank, &text);
    return error_set(LOCKSTEP_E_MISMATCH, "%s", bytes);
}
static_assert(sizeof(struct manifest_item) % sizeof(uint64_t) == 0, "it travels in words");

static int grouped_check_row(struct lockstep_session *session, const struct grouped_table *table,
                             size_t first, size_t end)
{
    const struct grouped_record *record = &table->records[first];
    for (uint32_t rank = 0; rank < session->world.size; rank++) {
        if (bits_has(record->members, rank) &&
            !grouped_find(table, record->name, record->space, rank))
            return grouped_missing(table, record, rank);
    }
    for (size_t i = first + 1; i < end; i++) {
        if (table->records[i].manifest != record->manifest)
            return grouped_differs(session, record, &table->records[i]);
    }
    return 0;
}

static int grouped_check_table(struct lockstep_session *session, const struct grouped_table *table,
                               uint32_t *rows)
{
    int status = 0;
    *rows = 0;
    for (size_t first = 0, end; first < table->count && status == 0; first = end) {
        end = grouped_row_end(table, first);
        status = grouped_check_row(session, table, first, end);
        (*rows)++;
    }
    if (status == 0 && session->common_count + *rows > LOCKSTEP_MAX_MODULES)
        return error_set(LOCKSTEP_E_INVALID,
                         "the job has %" PRIu32 " modules and %" PRIu32
                         " more in groups; at most %d in all",
                         session->common_count, *rows, LOCKSTEP_MAX_MODULES);
    return status;
}

// ---- Indices -----------------------------------------------------------------------------------

static struct lockstep_module *grouped_own(const struct lockstep_session *session,
                                           const struct grouped_record *record)
{
    for (uint32_t i = session->common_count; i < session->module_count; i++) {
        struct lockstep_module *module = session->modules[i];
        if (module->grouped.group->space == record->space &&
            strcmp(module->name, record->name) == 0)
            return module;
    }
    return NULL;
}

static int grouped_make_absent(struct lockstep_session *session,
                               const struct grouped_record *record, struct lockstep_module **made)
{
    struct grouped grouped = {.absent = true, .parameters = record->parameters};
    text_copy(grouped.name, sizeof(grouped.name), record->group);
    return module_make_absent(session, &grouped, record->name, record->calls, made);
}

static int grouped_place(struct lockstep_session *session, const struct grouped_table *table,
                         uint32_t rows)
{
    struct lockstep_module *modules[LOCKSTEP_MAX_MODULES] = {NULL};
    int status = 0;
    uint32_t row = 0;
    for (size_t first = 0; row < rows && status == 0; first = grouped_row_end(table, first)) {
        const struct grouped_record *record = &table->records[first];
        struct lockstep_module *module = grouped_own(session, record);
        if (!module)
            status = grouped_make_absent(session, record, &module);
        modules[row++] = module;
    }
    for (uint32_t i = 0; i < row && status < 0; i++) {
        if (modules[i] && modules[i]->grouped.absent)
            module_free(modules[i]);
    }
    if (status < 0)
        return status;
    for (uint32_t i = 0; i < row; i++)
        module_place(session, session->common_count + i, modules[i]);
    session->module_count = session->common_count + row;
    // A rank without modules of its own has no training.hash yet.
    session->training.changed = true;
    return 0;
}

int grouped_agree(struct lockstep_session *session, void *context)
{
    (void)context;
    struct grouped_table table = {0};
    uint32_t rows = 0;
    int status = grouped_exchange(session, &table);
    if (status == 0)
        status = grouped_check_table(session, &table, &rows);
    if (status == 0)
        status = grouped_place(session, &table, rows);
    free(table.records);
    if (status == 0)
        session_post(session, (struct command){.kind = COMMAND_GROUPED});
    return status;
}
