// SPDX-License-Identifier: Apache-2.0
//
// Describes the difference between two manifests. The coordinator requests the items of both sides
// in parts, and compares them as they arrive, in bounded memory. Runs inside coordinator_step.
//
// How. Both manifests are read side by side, like two sorted lists without a sort order. The *head*
// of a side is its first item that is not handled yet; the *look-ahead* is the head and the items
// after it, CORE_LOOKAHEAD together. Two items *match* if kind, module name and own name are equal.
// At each turn:
//
//   the heads match                         compare them, and go on to the next item of both sides
//   one head matches an item ahead          the other head is only on its own side
//   each head matches an item ahead         the order differs. The head whose match is further away
//                                           was moved: compare it with its match, remove both
//   neither head matches an item ahead      each head is only on its own side
//
// So a missing item takes one line of the report, and the items after it match again. A module that
// only one side has takes one line, without its items. While the look-ahead is compared, the next
// parts arrive, so CORE_LOOKAHEAD items take about one round trip. Timing changes no such line.
//
// An item that was moved further than the look-ahead counts as missing on both sides. Each side
// sums up the hashes of its missing items. If the sums are equal in the end, no item is missing:
// then one line about the order replaces all lines from the first missing item on.

#include "coordinator/difference.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/difference_line.h"
#include "coordinator/hash.h"
#include "coordinator/job.h"
#include "coordinator/names.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "coordinator/verify.h"

static struct difference *difference_of(struct job *job)
{
    return &job->difference;
}

static struct manifest_entry *side_entry(struct manifest_side *side, uint32_t index)
{
    return &side->entries[(side->head + index) % CORE_WINDOW];
}

static bool side_exhausted(const struct manifest_side *side)
{
    return side->received == side->item_count;
}

// True if the whole look-ahead of a side has arrived.
static bool side_primed(const struct manifest_side *side)
{
    return side_exhausted(side) || side->count >= CORE_LOOKAHEAD;
}

// ---- Comparing -------------------------------------------------------------------------------

static bool items_match(const struct manifest_entry *a, const struct manifest_entry *b)
{
    return a->item.kind == b->item.kind && a->scope == b->scope &&
           strcmp(a->item.name, b->item.name) == 0;
}

static void side_pop(struct manifest_side *side)
{
    const struct manifest_entry *entry = side_entry(side, 0);
    if (entry->item.kind == MANIFEST_MODULE)
        memcpy(side->module, entry->item.name, sizeof(side->module));
    side->head = (side->head + 1) % CORE_WINDOW;
    side->count--;
}

// Drops items at the head that are already handled: matched earlier, or of a missing module.
static void side_skip(struct manifest_side *side)
{
    while (side->count > 0) {
        const struct manifest_entry *entry = side_entry(side, 0);
        const bool implied = side->missing != 0 && entry->scope == side->missing;
        if (!entry->matched && !implied)
            return;
        side_pop(side);
    }
}

// Returns the index in the look-ahead of the item that matches `wanted`; 0: none. The caller has
// checked that the head, which has index 0, does not match.
static uint32_t side_find(struct manifest_side *side, const struct manifest_entry *wanted)
{
    for (uint32_t i = 1; i < side->count && i < CORE_LOOKAHEAD; i++) {
        const struct manifest_entry *entry = side_entry(side, i);
        if (!entry->matched && items_match(entry, wanted))
            return i;
    }
    return 0;
}

static uint64_t module_scope(const struct manifest_item *item)
{
    return hash_bytes(HASH_START, item->name, strlen(item->name));
}

// Before the first missing item: keeps where the report is and how the order differs, if it does.
static void report_mark(struct difference *difference)
{
    struct manifest_side *a = &difference->sides[0];
    struct manifest_side *b = &difference->sides[1];
    struct text line;
    if (difference->order[0] != '\0')
        return;
    difference->order_used = difference->report.size;
    difference->order_shown = difference->shown;
    difference->order_found = difference->found;
    text_init(&line, difference->order, sizeof(difference->order));
    text_append(&line, "the same names in another order: first ");
    difference_line_label(&line, difference, a->module, &side_entry(a, 0)->item);
    text_append(&line, " on rank %" PRIu32 ", where rank %" PRIu32 " has ", a->worker->rank,
                b->worker->rank);
    difference_line_label(&line, difference, b->module, &side_entry(b, 0)->item);
}

// Replaces the lines about missing items.
static void report_order(struct difference *difference)
{
    difference->report.size = difference->order_used;
    difference->report.truncated = false;
    difference->text[difference->order_used] = '\0';
    difference->shown = difference->order_shown;
    difference->found = difference->order_found;
    difference_line(difference, difference->order);
}

static void report_missing(struct difference *difference, uint32_t which)
{
    char text[CORE_LINE_BYTES];
    struct text line;
    struct manifest_side *side = &difference->sides[which];
    const struct manifest_item *item = &side_entry(side, 0)->item;
    text_init(&line, text, sizeof(text));
    text_append(&line, "only on rank %" PRIu32 ": ", side->worker->rank);
    difference_line_label(&line, difference, side->module, item);
    if (item->kind == MANIFEST_PARAMETER || item->kind == MANIFEST_BUFFER) {
        text_append(&line, " (");
        difference_line_numbers(&line, core_dtype_name(item->dtype), item->shape, item->dims);
        text_append(&line, ")");
    }
    difference_line(difference, text);
    side->missing_sum +=
        hash_bytes(side_entry(side, 0)->scope + item->kind, item->name, strlen(item->name));
    if (item->kind == MANIFEST_MODULE)
        side->missing = module_scope(item);
    side_pop(side);
}

// Reports an item in another order: the head of side `which` matches item `place` of the other
// side, where other items come before it.
static void report_moved(struct difference *difference, uint32_t which, uint32_t place)
{
    char text[CORE_LINE_BYTES];
    struct text line;
    struct manifest_side *near = &difference->sides[which];
    struct manifest_side *far = &difference->sides[1 - which];
    struct manifest_entry *moved = side_entry(near, 0);
    struct manifest_entry *match = side_entry(far, place);
    const struct manifest_entry *passed = side_entry(far, 0);
    // If the modules are in another order, the line of the module is enough.
    if (moved->scope == passed->scope) {
        text_init(&line, text, sizeof(text));
        difference_line_label(&line, difference, near->module, &moved->item);
        text_append(&line, ": before %s on rank %" PRIu32 ", after it on rank %" PRIu32,
                    passed->item.name, near->worker->rank, far->worker->rank);
        difference_line(difference, text);
    }
    if (which == 0)
        difference_line_compare(difference, &moved->item, &match->item);
    else
        difference_line_compare(difference, &match->item, &moved->item);
    match->matched = true;
    side_pop(near);
}

// Reports both heads as missing on the other side. If only one head is a module, reports only the
// other head, because its side still has items of an earlier module.
static void report_both_missing(struct difference *difference)
{
    const bool first = side_entry(&difference->sides[0], 0)->item.kind == MANIFEST_MODULE;
    const bool second = side_entry(&difference->sides[1], 0)->item.kind == MANIFEST_MODULE;
    if (!first || second)
        report_missing(difference, 0);
    if (!second || first)
        report_missing(difference, 1);
}

static void compare_heads(struct difference *difference)
{
    struct manifest_side *a = &difference->sides[0];
    struct manifest_side *b = &difference->sides[1];
    if (items_match(side_entry(a, 0), side_entry(b, 0))) {
        difference_line_compare(difference, &side_entry(a, 0)->item, &side_entry(b, 0)->item);
        side_pop(a);
        side_pop(b);
        return;
    }
    const uint32_t in_b = side_find(b, side_entry(a, 0));
    const uint32_t in_a = side_find(a, side_entry(b, 0));
    if (in_a == 0 || in_b == 0)
        report_mark(difference);
    if (in_a == 0 && in_b == 0)
        report_both_missing(difference);
    else if (in_a == 0)
        report_missing(difference, 1);
    else if (in_b == 0)
        report_missing(difference, 0);
    else if (in_b >= in_a)
        report_moved(difference, 0, in_b);
    else
        report_moved(difference, 1, in_a);
}

// Compares as far as both look-aheads have arrived. Returns true if both manifests are compared
// completely.
static bool difference_advance(struct difference *difference)
{
    struct manifest_side *a = &difference->sides[0];
    struct manifest_side *b = &difference->sides[1];
    for (;;) {
        side_skip(a);
        side_skip(b);
        if (!side_primed(a) || !side_primed(b))
            return false;
        if (a->count > 0 && b->count > 0)
            compare_heads(difference);
        else if (a->count > 0)
            report_missing(difference, 0);
        else if (b->count > 0)
            report_missing(difference, 1);
        else
            return true;
    }
}

// ---- Requests, and the end of the report -----------------------------------------------------

static void difference_pull(struct coordinator *core, struct job *job, struct manifest_side *side)
{
    for (;;) {
        const uint32_t flying = side->requested - side->received;
        const uint32_t rest = side->item_count - side->requested;
        const uint32_t count = rest < LOCKSTEP_MANIFEST_PART ? rest : LOCKSTEP_MANIFEST_PART;
        if (count == 0 || side->count + flying + count > CORE_WINDOW)
            return;
        struct down_message *message = core_message(core, job, DOWN_MANIFEST_REQUEST);
        message->u.manifest_request.first = side->requested;
        message->u.manifest_request.count = count;
        side->requested += count;
        core_send(core, side->worker);
    }
}

static void difference_finish(struct coordinator *core, struct job *job, const char *closing)
{
    struct difference *difference = difference_of(job);
    const struct worker *a = difference->sides[0].worker;
    const uint32_t more = difference->found - difference->shown;
    difference->active = false;
    if (more > 0)
        text_append(&difference->report, "\n  ... and %" PRIu32 " more difference%s", more,
                    more == 1 ? "" : "s");
    verify_alike(core, job, a, difference->sides[1].worker, &difference->report);
    text_append(&difference->report, "\n%s", closing);
    const struct verdict verdict = {
        .kind = HALT_MANIFEST, .step = job_start_step(job, a), .text = difference->text};
    verdict_halt(core, job, &verdict);
}

// Returns the advice for manifests that were compared completely.
static const char *difference_closing(struct difference *difference)
{
    const struct manifest_side *a = &difference->sides[0];
    const struct manifest_side *b = &difference->sides[1];
    if (difference->found == 0)
        return "the hashes differ, but no item does: this is a bug in the worker";
    if (difference->found == difference->found_loaded)
        return "load the same file on every rank, or on none";
    // A look-ahead that holds the whole manifest finds every match.
    const bool whole = a->item_count <= CORE_LOOKAHEAD && b->item_count <= CORE_LOOKAHEAD;
    if (whole || a->missing_sum == 0 || b->missing_sum == 0)
        return "register the same modules and options, in the same order, on every rank";
    if (a->missing_sum != b->missing_sum)
        return "register the same modules and options, in the same order, on every rank (what is "
               "far away in the other rank's order counts as missing there)";
    report_order(difference);
    return "register in one order on every rank, as in sorted order; a set has none";
}

static void difference_go_on(struct coordinator *core, struct job *job)
{
    struct difference *difference = difference_of(job);
    if (!difference_advance(difference)) {
        difference_pull(core, job, &difference->sides[0]);
        difference_pull(core, job, &difference->sides[1]);
    } else {
        difference_finish(core, job, difference_closing(difference));
    }
}

static void side_begin(struct manifest_side *side, struct worker *worker)
{
    side->worker = worker;
    side->item_count = worker->start.item_count;
    side->requested = 0;
    side->received = 0;
    side->head = side->count = 0;
    side->modules = 0;
    side->scope = 0;
    side->missing = side->missing_sum = 0;
    side->module[0] = '\0';
}

void difference_begin(struct coordinator *core, struct job *job, struct worker *a, struct worker *b)
{
    char text[CORE_LINE_BYTES];
    struct text line;
    struct difference *difference = difference_of(job);
    const bool items = a->start.manifest_hash != b->start.manifest_hash ||
                       a->start.item_count != b->start.item_count;
    difference->active = true;
    difference->several_modules = false;
    difference->found = difference->found_loaded = 0;
    difference->shown = 0;
    difference->order[0] = '\0';
    difference->deadline_ms = core->now + CORE_ANSWER_MS;
    side_begin(&difference->sides[0], a);
    side_begin(&difference->sides[1], b);
    text_init(&difference->report, difference->text, sizeof(difference->text));
    text_append(&difference->report, "manifests differ: ");
    core_rank_name(&difference->report, a);
    text_append(&difference->report, " and ");
    core_rank_name(&difference->report, b);
    if (a->start.root != b->start.root) {
        text_init(&line, text, sizeof(text));
        text_append(&line,
                    "config.root: %" PRIu32 " on rank %" PRIu32 ", %" PRIu32 " on rank %" PRIu32,
                    a->start.root, a->rank, b->start.root, b->rank);
        difference_line(difference, text);
    }
    if (items)
        difference_go_on(core, job);
    else
        difference_finish(core, job, "give config.root the same value on every rank");
}

void difference_tick(struct coordinator *core, struct job *job)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    struct difference *difference = difference_of(job);
    if (!difference->active || core->now < difference->deadline_ms)
        return;
    const struct manifest_side *late = &difference->sides[0];
    if (late->received == late->requested)
        late = &difference->sides[1];
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "the comparison is not complete: ");
    core_rank_name(&sentence, late->worker);
    text_append(&sentence, " did not answer for ");
    sentence_seconds(&sentence, CORE_ANSWER_MS);
    difference_finish(core, job, text);
}

// ---- Arriving items --------------------------------------------------------------------------

// True if the item may come now: items of the session come first, then each module, followed by its
// parameters and buffers.
static bool item_in_place(const struct manifest_side *side, const struct manifest_item *item)
{
    switch (item->kind) {
    case MANIFEST_SESSION:
        return side->modules == 0;
    case MANIFEST_MODULE:
        return item->module == side->modules && side->modules < LOCKSTEP_MAX_MODULES;
    case MANIFEST_PARAMETER:
    case MANIFEST_BUFFER:
        return side->modules > 0 && item->module == side->modules - 1 &&
               item->dims <= LOCKSTEP_MAX_DIMS;
    }
    return false;
}

static void side_push(struct difference *difference, struct manifest_side *side,
                      const struct manifest_item *item)
{
    struct manifest_entry *entry = side_entry(side, side->count++);
    entry->item = *item;
    sentence_clean(entry->item.name, sizeof(entry->item.name), item->name, sizeof(item->name));
    sentence_clean(entry->item.value, sizeof(entry->item.value), item->value, sizeof(item->value));
    entry->matched = false;
    entry->scope = 0;
    if (item->kind == MANIFEST_MODULE) {
        side->scope = module_scope(&entry->item);
        side->modules++;
        difference->several_modules |= side->modules > 1;
    } else if (item->kind != MANIFEST_SESSION) {
        entry->scope = side->scope;
    }
    side->received++;
}

void difference_part(struct coordinator *core, struct worker *worker,
                     const struct up_manifest_part *part)
{
    struct job *job = core_job_of(core, worker);
    struct difference *difference = difference_of(job);
    struct manifest_side *side = &difference->sides[difference->sides[0].worker == worker ? 0 : 1];
    if (job->state != JOB_STARTING || !difference->active || side->worker != worker) {
        verdict_protocol(core, worker, "sent manifest items that nobody asked for");
        return;
    }
    const uint32_t flying = side->requested - side->received;
    const uint32_t wanted = flying < LOCKSTEP_MANIFEST_PART ? flying : LOCKSTEP_MANIFEST_PART;
    if (wanted == 0 || part->first != side->received || part->count != wanted) {
        verdict_protocol(core, worker,
                         "sent %" PRIu32 " manifest items from item %" PRIu32
                         "; asked were %" PRIu32 " from item %" PRIu32,
                         part->count, part->first, wanted, side->received);
        return;
    }
    for (uint32_t i = 0; i < part->count; i++) {
        if (!item_in_place(side, &part->items[i])) {
            verdict_protocol(core, worker, "sent manifest item %" PRIu32 " out of place",
                             part->first + i);
            return;
        }
        side_push(difference, side, &part->items[i]);
    }
    difference->deadline_ms = core->now + CORE_ANSWER_MS;
    difference_go_on(core, job);
}
