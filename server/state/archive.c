// SPDX-License-Identifier: Apache-2.0
//
// See archive.h. The parts of a new answer are collected beside the shown answer, and replace it
// together when the last part has come.

#include "server/state/archive.h"

#include <stdlib.h>
#include <string.h>

struct archive_entry {
    struct archive_entry *next; // The next older entry.
    uint64_t arriving; // The number of the question whose answer is arriving; 0: none.
    struct archived shown;
    struct archived parts;
};

static const size_t sizes[] = {sizeof(struct stack_thread), sizeof(struct stack_frame),
                               sizeof(struct trace_event)};

static struct archived_list *list_of(struct archived *archived, int which)
{
    struct archived_list *const lists[] = {&archived->threads, &archived->frames,
                                           &archived->events};
    return lists[which];
}

void archive_copy_fini(struct archived *archived)
{
    for (int i = 0; i < 3; i++) {
        free(list_of(archived, i)->items);
        *list_of(archived, i) = (struct archived_list){0};
    }
}

void archive_init(struct archive *archive)
{
    archive->newest = NULL;
    archive->bytes = 0;
    mutex_init(&archive->mutex);
}

// ---- making room ------------------------------------------------------------------------------

static size_t bytes_of(struct archived *archived)
{
    size_t bytes = 0;
    for (int i = 0; i < 3; i++)
        bytes += list_of(archived, i)->capacity * sizes[i];
    return bytes;
}

static void forget(struct archive *archive, struct archive_entry **place)
{
    struct archive_entry *entry = *place;
    *place = entry->next;
    archive->bytes -= sizeof(*entry) + bytes_of(&entry->shown) + bytes_of(&entry->parts);
    archive_copy_fini(&entry->shown);
    archive_copy_fini(&entry->parts);
    free(entry);
}

// Drops the oldest entries until the archive is within its bound. The newest entry stays, because
// the room is needed for it.
static void make_room(struct archive *archive)
{
    while (archive->bytes > ARCHIVE_BYTES && archive->newest && archive->newest->next) {
        struct archive_entry **place = &archive->newest->next;
        while ((*place)->next)
            place = &(*place)->next;
        forget(archive, place);
    }
}

void archive_fini(struct archive *archive)
{
    while (archive->newest)
        forget(archive, &archive->newest);
    mutex_fini(&archive->mutex);
}

static struct archive_entry **find(struct archive *archive, const char *job, uint32_t rank)
{
    struct archive_entry **place = &archive->newest;
    while (*place &&
           ((*place)->shown.who.rank != rank || strcmp((*place)->shown.who.job, job) != 0))
        place = &(*place)->next;
    return place;
}

static bool is_of(const struct archive_entry *entry, uint64_t number, uint64_t incarnation)
{
    return entry->shown.who.generation == number && entry->shown.who.incarnation == incarnation;
}

// Returns the entry of a rank in this generation of its job, or NULL.
static struct archive_entry *find_job(struct archive *archive, const struct archive_job *job,
                                      uint32_t rank)
{
    struct archive_entry *entry = *find(archive, job->name, rank);
    return entry && is_of(entry, job->generation.number, job->generation.incarnation) ? entry
                                                                                      : NULL;
}

// Returns the worker's entry after moving it to the front. Creates it if needed. Returns NULL if
// there is no memory.
static struct archive_entry *entry_of(struct archive *archive, const struct peer_view *who)
{
    struct archive_entry **place = find(archive, who->job, who->rank);
    if (*place && !is_of(*place, who->generation, who->incarnation)) {
        forget(archive, place);
        place = find(archive, who->job, who->rank);
    }
    struct archive_entry *entry = *place;
    if (entry) {
        *place = entry->next;
    } else {
        entry = calloc(1, sizeof(*entry));
        if (!entry)
            return NULL;
        entry->shown.who = *who;
        archive->bytes += sizeof(*entry);
    }
    entry->next = archive->newest;
    archive->newest = entry;
    return entry;
}

// ---- parts of an answer -----------------------------------------------------------------------

// Appends items up to a bound. Items above the bound are left out.
static void append(struct archive *archive, struct archived *parts, int which, const void *items,
                   uint32_t count, uint32_t most)
{
    struct archived_list *list = list_of(parts, which);
    if (count > most - list->count)
        count = most - list->count;
    if (list->count + count > list->capacity) {
        uint32_t wanted = list->capacity ? list->capacity : 16;
        while (wanted < list->count + count)
            wanted *= 2;
        void *more = realloc(list->items, wanted * sizes[which]);
        if (!more)
            return;
        archive->bytes += (wanted - list->capacity) * sizes[which];
        list->items = more;
        list->capacity = wanted;
    }
    if (count > 0)
        memcpy((char *)list->items + list->count * sizes[which], items, count * sizes[which]);
    list->count += count;
}

static void append_part(struct archive *archive, struct archived *parts,
                        const struct up_answer *answer)
{
    switch (answer->kind) {
    case ANSWER_PLACE:
        parts->place = answer->u.place;
        break;
    case ANSWER_THREADS:
        append(archive, parts, 0, answer->u.threads.threads, answer->u.threads.count,
               LOCKSTEP_STACK_THREADS);
        break;
    case ANSWER_FRAMES:
        append(archive, parts, 1, answer->u.frames.frames, answer->u.frames.count, ARCHIVE_FRAMES);
        break;
    case ANSWER_EVENTS:
        append(archive, parts, 2, answer->u.events.events, answer->u.events.count,
               LOCKSTEP_TRACE_EVENTS);
        break;
    }
}

static void swap_lists(struct archived_list *one, struct archived_list *other)
{
    const struct archived_list kept = *one;
    *one = *other;
    *other = kept;
}

// The collected parts replace the shown ones of the same kind.
static void finish(struct archive_entry *entry, const struct peer_view *who, uint64_t clock_ns,
                   uint64_t now_ms)
{
    struct archived *shown = &entry->shown;
    struct archived *parts = &entry->parts;
    shown->who = *who;
    if (parts->threads.count > 0) {
        swap_lists(&shown->threads, &parts->threads);
        swap_lists(&shown->frames, &parts->frames);
        shown->place = parts->place;
        shown->stacks_ms = now_ms;
    }
    if (parts->events.count > 0) {
        swap_lists(&shown->events, &parts->events);
        shown->clock_ns = clock_ns;
        shown->events_ms = now_ms;
    }
    entry->arriving = 0;
}

void archive_put(struct archive *archive, const struct peer_view *who,
                 const struct up_answer *answer, uint64_t now_ms)
{
    mutex_lock(&archive->mutex);
    struct archive_entry *entry = entry_of(archive, who);
    if (entry) {
        if (entry->arriving != answer->id) {
            entry->arriving = answer->id;
            archive->bytes -= bytes_of(&entry->parts);
            archive_copy_fini(&entry->parts);
            entry->parts.place = (struct answer_place){0};
        }
        append_part(archive, &entry->parts, answer);
        if (answer->last)
            finish(entry, who, answer->clock_ns, now_ms);
        make_room(archive);
    }
    mutex_unlock(&archive->mutex);
}

// ---- copies -----------------------------------------------------------------------------------

static bool copy_list(struct archived_list *to, const struct archived_list *from, size_t bytes)
{
    *to = (struct archived_list){.count = from->count, .capacity = from->count};
    if (from->count == 0)
        return true;
    to->items = malloc(from->count * bytes);
    if (!to->items)
        return false;
    memcpy(to->items, from->items, from->count * bytes);
    return true;
}

static bool copy_all(struct archived *to, struct archived *from)
{
    bool copied = true;
    *to = *from;
    for (int i = 0; i < 3; i++)
        copied = copy_list(list_of(to, i), list_of(from, i), sizes[i]) && copied;
    if (!copied)
        archive_copy_fini(to);
    return copied;
}

bool archive_copy(struct archive *archive, const struct archive_job *job, uint32_t rank,
                  struct archived *copy)
{
    mutex_lock(&archive->mutex);
    struct archive_entry *entry = find_job(archive, job, rank);
    const bool copied = entry && copy_all(copy, &entry->shown);
    mutex_unlock(&archive->mutex);
    return copied;
}

uint64_t archive_time(struct archive *archive, const struct archive_job *job, uint32_t rank,
                      uint32_t what)
{
    mutex_lock(&archive->mutex);
    const struct archive_entry *entry = find_job(archive, job, rank);
    uint64_t time_ms = 0;
    if (entry)
        time_ms = what == INSPECT_EVENTS ? entry->shown.events_ms : entry->shown.stacks_ms;
    mutex_unlock(&archive->mutex);
    return time_ms;
}
