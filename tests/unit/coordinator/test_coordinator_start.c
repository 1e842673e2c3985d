// SPDX-License-Identifier: Apache-2.0
//
// lockstep_start: equal manifests are verified; different ones are told apart, item by item.

#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- Manifests -------------------------------------------------------------------------------

enum {
    MANIFEST_MAX = 2 + LOCKSTEP_MAX_MODULES + LOCKSTEP_MAX_PARAMETERS
};

struct manifest {
    uint32_t count;
    uint32_t modules;
    struct manifest_item *items;
};

static struct manifest_item *add(struct manifest *manifest, enum manifest_kind kind,
                                 const char *name, const char *value)
{
    struct manifest_item *item = &manifest->items[manifest->count++];
    assert_true(manifest->count <= MANIFEST_MAX);
    memset(item, 0, sizeof(*item));
    manifest->modules += kind == MANIFEST_MODULE;
    item->kind = kind;
    item->module = manifest->modules == 0 ? 0 : manifest->modules - 1;
    snprintf(item->name, sizeof(item->name), "%s", name);
    snprintf(item->value, sizeof(item->value), "%s", value);
    return item;
}

static struct manifest_item *parameter(struct manifest *manifest, const char *name, int64_t rows,
                                       int64_t columns)
{
    struct manifest_item *item = add(manifest, MANIFEST_PARAMETER, name, "");
    item->dtype = DTYPE_FLOAT32;
    item->dims = columns == 0 ? 1 : 2;
    item->shape[0] = rows;
    item->shape[1] = columns;
    item->strides[0] = columns == 0 ? 1 : columns;
    item->strides[1] = columns == 0 ? 0 : 1;
    return item;
}

static struct manifest_item *buffer(struct manifest *manifest, const char *name, int64_t size)
{
    struct manifest_item *item = parameter(manifest, name, size, 0);
    item->kind = MANIFEST_BUFFER;
    return item;
}

static void net(struct manifest *manifest)
{
    add(manifest, MANIFEST_SESSION, "", "wire=float32 unplanned=fail");
    add(manifest, MANIFEST_MODULE, "net", "unused=accept");
    parameter(manifest, "fc1.weight", 256, 64);
    parameter(manifest, "fc1.bias", 256, 0);
    parameter(manifest, "fc2.weight", 10, 256);
    parameter(manifest, "fc2.bias", 10, 0);
    buffer(manifest, "norm.mean", 256);
}

static struct manifest_item *find(struct manifest *manifest, const char *name)
{
    for (uint32_t i = 0; i < manifest->count; i++)
        if (strcmp(manifest->items[i].name, name) == 0)
            return &manifest->items[i];
    fail();
    return NULL;
}

static void drop(struct manifest *manifest, const char *name)
{
    struct manifest_item *item = find(manifest, name);
    const struct manifest_item *end = manifest->items + manifest->count--;
    memmove(item, item + 1, (size_t)(end - item - 1) * sizeof(*item));
}

static void swap(struct manifest *manifest, const char *a, const char *b)
{
    const struct manifest_item kept = *find(manifest, a);
    struct manifest_item *second = find(manifest, b);
    *find(manifest, a) = *second;
    *second = kept;
}

static void manifest_begin(struct manifest *manifest)
{
    memset(manifest, 0, sizeof(*manifest));
    manifest->items = malloc(MANIFEST_MAX * sizeof(manifest->items[0]));
    assert_non_null(manifest->items);
}

// Streams 1 and 3, ranks 0 and 2, start with these and answer what they are asked until the
// verdict; returns its text. The streams are asked in turns, or the second only when the first has
// nothing to say, to show that timing does not matter.
static const char *difference(struct story *story, const struct manifest *a,
                              const struct manifest *b, bool in_turns)
{
    const struct manifest *const manifests[2] = {a, b};
    const uint32_t peers[2] = {1, 3};
    uint32_t answered[2] = {0, 0};
    story_form(story, 3);
    story->quiet = true;
    story_start(story, 1, 1, a->count, 0);
    story_start(story, 3, 2, b->count, 0);
    for (uint32_t turn = 0; story_job(story, 0).state == JOB_STARTING; turn++) {
        const uint32_t which = in_turns ? turn % 2 : turn % 7 == 0;
        const struct down_message *last = &story->last[peers[which]];
        const struct down_manifest_request *request = &last->u.manifest_request;
        struct up_message message = {.kind = UP_MANIFEST_PART};
        struct up_manifest_part *part = &message.u.manifest_part;
        assert_true(turn < 100000);
        if (last->kind != DOWN_MANIFEST_REQUEST ||
            answered[which] == request->first + request->count)
            continue;
        part->first = answered[which];
        part->count = request->first + request->count - answered[which];
        if (part->count > LOCKSTEP_MANIFEST_PART)
            part->count = LOCKSTEP_MANIFEST_PART;
        memcpy(part->items, manifests[which]->items + part->first,
               part->count * sizeof(part->items[0]));
        answered[which] += part->count;
        story_say(story, peers[which], &message);
    }
    // The one that has not started is told too.
    assert_int_equal(story->last[2].kind, DOWN_HALT);
    assert_int_equal(story->last[2].u.halt.kind, HALT_MANIFEST);
    assert_memory_equal(&story->last[1], &story->last[2], sizeof(story->last[1]));
    assert_memory_equal(&story->last[3], &story->last[2], sizeof(story->last[1]));
    return story->last[2].u.halt.text;
}

struct kind_of_difference {
    void (*change)(struct manifest *a, struct manifest *b);
    const char *lines;
};

static void change_shape(struct manifest *a, struct manifest *b)
{
    (void)a;
    find(b, "fc2.weight")->shape[1] = 128;
    find(b, "fc2.weight")->strides[0] = 128;
}
static void change_dims(struct manifest *a, struct manifest *b)
{
    (void)b;
    find(a, "fc2.bias")->dims = 0;
}
static void change_strides(struct manifest *a, struct manifest *b)
{
    (void)a;
    find(b, "fc2.weight")->strides[0] = 1;
    find(b, "fc2.weight")->strides[1] = 10;
}
static void change_dtype(struct manifest *a, struct manifest *b)
{
    (void)a;
    find(b, "norm.mean")->dtype = DTYPE_BFLOAT16;
}
static void change_flags(struct manifest *a, struct manifest *b)
{
    (void)a;
    find(b, "fc1.bias")->flags = 1;
}
static void change_options(struct manifest *a, struct manifest *b)
{
    snprintf(find(b, "")->value, LOCKSTEP_OPTIONS_BYTES, "wire=bfloat16 unplanned=fail");
    snprintf(find(a, "net")->value, LOCKSTEP_OPTIONS_BYTES, "average=sum");
}
static void change_missing(struct manifest *a, struct manifest *b)
{
    (void)a;
    drop(b, "fc1.bias");
}
static void change_extra(struct manifest *a, struct manifest *b)
{
    (void)a;
    parameter(b, "fc3.bias", 10, 0);
}
static void change_kind(struct manifest *a, struct manifest *b)
{
    (void)a;
    find(b, "norm.mean")->kind = MANIFEST_PARAMETER;
}
static void change_order(struct manifest *a, struct manifest *b)
{
    (void)a;
    swap(b, "fc1.weight", "fc1.bias");
}
static void change_order_and_shape(struct manifest *a, struct manifest *b)
{
    (void)a;
    swap(b, "fc1.weight", "fc2.bias");
    find(b, "fc2.bias")->shape[0] = 11;
}
static void change_module(struct manifest *a, struct manifest *b)
{
    add(a, MANIFEST_MODULE, "critic", "");
    parameter(a, "weight", 2, 0);
    parameter(a, "bias", 2, 0);
    add(a, MANIFEST_MODULE, "last", "");
    parameter(a, "weight", 3, 0);
    add(b, MANIFEST_MODULE, "last", "");
    parameter(b, "weight", 4, 0);
}
static void change_module_order(struct manifest *a, struct manifest *b)
{
    static const char *const order[2][2] = {{"actor", "critic"}, {"critic", "actor"}};
    struct manifest *const both[2] = {a, b};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 2; i++) {
            add(both[side], MANIFEST_MODULE, order[side][i], "");
            parameter(both[side], "weight", 2, 0);
            parameter(both[side], "bias", 2, 0);
        }
}
static void change_everything(struct manifest *a, struct manifest *b)
{
    for (int i = 0; i < 19; i++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", i);
        parameter(a, name, i + 1, 0);
        parameter(b, name, i + 2, 0);
    }
}
static void change_nothing(struct manifest *a, struct manifest *b)
{
    (void)a;
    (void)b;
}
static void change_empty(struct manifest *a, struct manifest *b)
{
    b->count = 2;
    a->count = 3;
}

#define SAME_ORDER "\nregister the same modules and options, in the same order, on every rank"

static const struct kind_of_difference kinds[] = {
    {change_shape, "\n  fc2.weight: shape [10, 256] on rank 0, shape [10, 128] on rank 2"},
    {change_dims, "\n  fc2.bias: shape [] on rank 0, shape [10] on rank 2"},
    {change_strides, "\n  fc2.weight: strides [256, 1] on rank 0, strides [1, 10] on rank 2"},
    {change_dtype, "\n  buffer norm.mean: dtype float32 on rank 0, dtype bfloat16 on rank 2"},
    {change_flags, "\n  fc1.bias: flags 0x0 on rank 0, flags 0x1 on rank 2"},
    {change_options, "\n  session options: wire=float32 on rank 0, wire=bfloat16 on rank 2"
                     "\n  module net: average=sum on rank 0, unset on rank 2"
                     "\n  module net: unset on rank 0, unused=accept on rank 2"},
    {change_missing, "\n  only on rank 0: fc1.bias (float32 [256])"},
    {change_extra, "\n  only on rank 2: fc3.bias (float32 [10])"},
    {change_kind, "\n  only on rank 0: buffer norm.mean (float32 [256])"
                  "\n  only on rank 2: norm.mean (float32 [256])"},
    {change_order, "\n  fc1.weight: before fc1.bias on rank 0, after it on rank 2"},
    {change_order_and_shape, "\n  fc1.weight: before fc2.bias on rank 0, after it on rank 2"
                             "\n  fc2.bias: before fc1.bias on rank 2, after it on rank 0"
                             "\n  fc2.bias: shape [10] on rank 0, shape [11] on rank 2"},
    {change_module, "\n  only on rank 0: module critic"
                    "\n  last/weight: shape [3] on rank 0, shape [4] on rank 2"},
    {change_module_order, "\n  module actor: before critic on rank 0, after it on rank 2"},
    {change_everything, "\n  p0: shape [1] on rank 0, shape [2] on rank 2"
                        "\n  p1: shape [2] on rank 0, shape [3] on rank 2"
                        "\n  p2: shape [3] on rank 0, shape [4] on rank 2"
                        "\n  p3: shape [4] on rank 0, shape [5] on rank 2"
                        "\n  p4: shape [5] on rank 0, shape [6] on rank 2"
                        "\n  p5: shape [6] on rank 0, shape [7] on rank 2"
                        "\n  p6: shape [7] on rank 0, shape [8] on rank 2"
                        "\n  p7: shape [8] on rank 0, shape [9] on rank 2"
                        "\n  p8: shape [9] on rank 0, shape [10] on rank 2"
                        "\n  p9: shape [10] on rank 0, shape [11] on rank 2"
                        "\n  p10: shape [11] on rank 0, shape [12] on rank 2"
                        "\n  p11: shape [12] on rank 0, shape [13] on rank 2"
                        "\n  ... and 7 more differences"},
    {change_nothing, NULL},
    {change_empty, "\n  only on rank 0: fc1.weight (float32 [256, 64])"},
};

static void test_each_kind_of_difference_has_its_sentence(void **state)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        static struct story story;
        struct manifest a;
        struct manifest b;
        char expected[LOCKSTEP_REPORT_BYTES];
        for (int in_turns = 0; in_turns < 2; in_turns++) {
            story_begin(&story);
            manifest_begin(&a);
            manifest_begin(&b);
            net(&a);
            net(&b);
            kinds[i].change(&a, &b);
            snprintf(expected, sizeof(expected),
                     "manifests differ: rank 0 (host h1) and rank 2 (host h3)%s%s",
                     kinds[i].lines ? kinds[i].lines : "",
                     kinds[i].lines
                         ? SAME_ORDER
                         : "\nthe hashes differ, but no item does: this is a bug in the worker");
            assert_string_equal(difference(&story, &a, &b, in_turns != 0), expected);
            free(a.items);
            free(b.items);
            story_end(&story);
        }
    }
    (void)state;
}

// One missing parameter near the beginning of a manifest of every size must not make the rest
// differ, and everything that differs is counted.
static void test_the_largest_manifest_finds_its_way_back(void **state)
{
    struct manifest a;
    struct manifest b;
    const char *text = NULL;
    manifest_begin(&a);
    manifest_begin(&b);
    struct manifest *const both[2] = {&a, &b};
    for (int side = 0; side < 2; side++) {
        add(both[side], MANIFEST_SESSION, "", "");
        for (int i = 0; i < LOCKSTEP_MAX_PARAMETERS; i++) {
            char name[32];
            snprintf(name, sizeof(name), "layer%d", i);
            if (i % (LOCKSTEP_MAX_PARAMETERS / LOCKSTEP_MAX_MODULES) == 0)
                add(both[side], MANIFEST_MODULE, name, "");
            if (side == 1 && (i == 3 || i == 700))
                continue;
            parameter(both[side], name, side == 1 && i == 16000 ? 5 : 4, 0);
        }
    }
    text = difference(*state, &a, &b, true);
    assert_string_equal(
        text, "manifests differ: rank 0 (host h1) and rank 2 (host h3)"
              "\n  only on rank 0: layer3 (float32 [4])"
              "\n  only on rank 0: layer700 (float32 [4])"
              "\n  layer12288/layer16000: shape [4] on rank 0, shape [5] on rank 2" SAME_ORDER);
    free(a.items);
    free(b.items);
}

#define ONE_ORDER "\nregister in one order on every rank, as in sorted order; a set has none"

// A name beyond the look-ahead is not found. That nothing is missing is known in the end.
static void test_what_moved_far_is_not_missing(void **state)
{
    struct manifest a;
    struct manifest b;
    manifest_begin(&a);
    manifest_begin(&b);
    struct manifest *const both[2] = {&a, &b};
    for (int side = 0; side < 2; side++) {
        add(both[side], MANIFEST_SESSION, "", "");
        add(both[side], MANIFEST_MODULE, "net", "");
        if (side == 0)
            parameter(both[side], "moved", 1, 0);
        for (int i = 0; i < 200; i++) {
            char name[32];
            snprintf(name, sizeof(name), "p%d", i);
            parameter(both[side], name, 4, 0);
        }
        if (side == 1)
            parameter(both[side], "moved", 1, 0);
    }
    assert_string_equal(difference(*state, &a, &b, true),
                        "manifests differ: rank 0 (host h1) and rank 2 (host h3)"
                        "\n  the same names in another order: first moved on rank 0, where rank 2 "
                        "has p0" ONE_ORDER);
    free(a.items);
    free(b.items);
}

// 199 parameters, in the order of their numbers and in another one; the last one has another name
// on rank 2 if `spoilt`.
static const char *shuffled(struct story *story, bool spoilt)
{
    struct manifest a;
    struct manifest b;
    manifest_begin(&a);
    manifest_begin(&b);
    struct manifest *const both[2] = {&a, &b};
    for (int side = 0; side < 2; side++) {
        add(both[side], MANIFEST_SESSION, "", "");
        add(both[side], MANIFEST_MODULE, "net", "");
        for (int i = 0; i < 199; i++) {
            char name[32];
            const int number = side == 0 ? i : i * 70 % 199;
            snprintf(name, sizeof(name), "%s%d", spoilt && side == 1 && i == 198 ? "q" : "w",
                     number);
            parameter(both[side], name, 4, 0);
        }
    }
    const char *text = difference(story, &a, &b, true);
    free(a.items);
    free(b.items);
    return text;
}

static void test_names_in_any_order_are_not_missing(void **state)
{
    const char *text = shuffled(*state, false);
    assert_non_null(strstr(text, "\n  the same names in another order: first w"));
    assert_non_null(strstr(text, ONE_ORDER));
    assert_null(strstr(text, "only on rank"));
    assert_null(strstr(text, "more difference"));
}

static void test_far_and_missing_names_say_what_missing_means(void **state)
{
    const char *text = shuffled(*state, true);
    assert_non_null(strstr(text, "only on rank 2: "));
    assert_non_null(strstr(text, "(what is far away in the other rank's order counts as missing "));
}

static void test_long_names_fit_in_the_report(void **state)
{
    struct manifest a;
    struct manifest b;
    manifest_begin(&a);
    manifest_begin(&b);
    struct manifest *const both[2] = {&a, &b};
    for (int side = 0; side < 2; side++) {
        char name[LOCKSTEP_NAME_BYTES];
        memset(name, 'x', sizeof(name));
        name[sizeof(name) - 1] = '\0';
        add(both[side], MANIFEST_MODULE, name, "");
        add(both[side], MANIFEST_MODULE, "second", "");
        for (int i = 0; i < 30; i++) {
            name[0] = (char)('A' + i);
            parameter(both[side], name, 1 + side, 0);
        }
    }
    const char *text = difference(*state, &a, &b, true);
    assert_non_null(strstr(text, " more differences\nregister the same modules"));
    assert_true(strlen(text) < LOCKSTEP_REPORT_BYTES);
    free(a.items);
    free(b.items);
}

// ---- The story around it ---------------------------------------------------------------------

static void test_equal_manifests_are_verified_when_all_have_started(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_start(story, 2, 7, 3, 1);
    story_expect(story, "2 > start hash 7 items 3 root 1\n");
    story_start(story, 1, 7, 3, 1);
    story_expect(story, "1 > start hash 7 items 3 root 1\n"
                        "1 < verified\n"
                        "2 < verified\n");
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

static void test_another_root_needs_no_items(void **state)
{
    struct story *story = *state;
    story_form(story, 3);
    story_start(story, 2, 7, 3, 1);
    story_forget(story);
    story_start(story, 1, 7, 3, 0);
    story_expect(
        story, "1 > start hash 7 items 3 root 0\n"
               "1 < halt manifest step 0: manifests differ: rank 0 (host h1) and rank 1 (host h2)\n"
               "  config.root: 0 on rank 0, 1 on rank 1\n"
               "give config.root the same value on every rank\n"
               "2 < halt manifest step 0: manifests differ: rank 0 (host h1) and rank 1 (host h2)\n"
               "  config.root: 0 on rank 0, 1 on rank 1\n"
               "give config.root the same value on every rank\n"
               "3 < halt manifest step 0: manifests differ: rank 0 (host h1) and rank 1 (host h2)\n"
               "  config.root: 0 on rank 0, 1 on rank 1\n"
               "give config.root the same value on every rank\n");
}

// Condition: a third rank has started, and declares the same as one of the two that differ.
// Decision: the text says which rank is alone.
static void test_the_odd_one_of_three_is_named(void **state)
{
    struct story *story = *state;
    story_form(story, 3);
    story_start(story, 1, 1, 3, 0);
    story_start(story, 2, 2, 20, 0);
    story_start(story, 3, 1, 3, 0);
    story_sleep(story, 5000);
    story_expect_piece(story, "manifests differ: rank 0 (host h1) and rank 1 (host h2)\n"
                              "rank 2 declares the same as rank 0\n"
                              "the comparison is not complete");
}

static void test_a_rank_that_does_not_answer_is_named(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_start(story, 1, 1, 3, 0);
    story_start(story, 2, 2, 20, 0);
    story_expect(story, "1 > start hash 1 items 3 root 0\n"
                        "2 > start hash 2 items 20 root 0\n"
                        "1 < request manifest items 0 to 3\n"
                        "2 < request manifest items 0 to 12\n"
                        "2 < request manifest items 12 to 20\n");
    story_sleep(story, 5000);
    story_expect_piece(story, "manifests differ: rank 0 (host h1) and rank 1 (host h2)\n"
                              "the comparison is not complete: rank 0 (host h1) did not answer for "
                              "5.0 s\n");
}

static void test_a_second_start_in_one_round_is_named(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_start(story, 2, 7, 3, 0);
    story_forget(story);
    story_start(story, 2, 7, 3, 0);
    story_expect(story,
                 "2 > start hash 7 items 3 root 0\n"
                 "1 < halt protocol step 0: rank 1 (host h2) called lockstep_start a second time "
                 "before all others did; this is misuse or a bug there: look at that rank first\n"
                 "2 < halt protocol step 0: rank 1 (host h2) called lockstep_start a second time "
                 "before all others did; this is misuse or a bug there: look at that rank first\n"
                 "2 closed\n");
}

static void test_a_rank_that_left_is_missed_in_start(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_leave(story, 2, 0);
    story_expect(story, "2 > leave settled 0\n2 closed\n");
    story_start(story, 1, 7, 3, 0);
    story_expect(story,
                 "1 > start hash 7 items 3 root 0\n"
                 "1 < halt left step 0: rank 1 (host h2) closed its session while rank 0 "
                 "(host h1) still needed it before the first step: every rank must make the same "
                 "steps and collectives\n");
}

static void test_leaving_while_another_is_in_start_is_named_at_once(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_start(story, 1, 7, 3, 0);
    story_forget(story);
    story_leave(story, 2, 0);
    story_expect_piece(story, "2 closed\n1 < halt left step 0: rank 1 (host h2) closed");
}

// ---- Starting again --------------------------------------------------------------------------

static void start_again(struct story *story, uint32_t peer, uint64_t hash, uint64_t settled)
{
    struct up_message message = {
        .kind = UP_START,
        .u.start = {.manifest_hash = hash, .item_count = 3, .settled = settled},
    };
    story_say(story, peer, &message);
}

// Step `step` of two ranks with one slot, and a layout of one bucket.
static void learn(struct story *story, uint64_t step)
{
    static const uint32_t words[] = {1, 1, 0};
    story_layout(story, 1, 0, words, 3);
    for (uint32_t peer = 1; peer <= 2; peer++)
        story_ready(story, peer, step, slot(0, 0, 0));
    story_step_end(story, 1, step);
    story_forget(story);
    story_step_end(story, 2, step);
}

static void test_a_running_job_starts_again(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    learn(story, 1);
    story_forget(story);
    start_again(story, 2, 8, 4);
    assert_int_equal(story_job(story, 0).state, JOB_STARTING);
    start_again(story, 1, 8, 4);
    story_expect(story, "2 > start hash 8 items 3 root 0 after step 4\n"
                        "1 > start hash 8 items 3 root 0 after step 4\n"
                        "1 < verified\n"
                        "2 < verified\n");
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    // At once again, and once more.
    for (uint64_t hash = 9; hash < 12; hash++) {
        start_again(story, 1, hash, 4);
        start_again(story, 2, hash, 4);
        story_expect_piece(story, "1 < verified\n2 < verified\n");
    }
}

// Modules are proposed anew, plans are numbered on, and learned steps stay learned.
static void test_what_was_learned_is_forgotten(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    learn(story, 1);
    story_expect_piece(story, "1 < layout of module 0, words 0 to 3 of 3\n1 < plan 1 ");
    start_again(story, 1, 8, 1);
    start_again(story, 2, 8, 1);
    learn(story, 2);
    story_expect_piece(story, "1 < layout of module 0, words 0 to 3 of 3\n1 < plan 2 ");
    start_again(story, 1, 8, 2);
    start_again(story, 2, 8, 2);
    story_forget(story);
    story_step_end(story, 1, 2);
    story_expect_piece(story, "learns step 2, but step 2 is learned already");
}

static void test_differences_of_a_later_start_wait_for_the_step_before(void **state)
{
    struct story *story = *state;
    struct manifest items[2];
    story_run(story, 3);
    start_again(story, 1, 8, 4);
    start_again(story, 3, 9, 4);
    for (int i = 0; i < 2; i++) {
        manifest_begin(&items[i]);
        add(&items[i], MANIFEST_SESSION, "", "");
        add(&items[i], MANIFEST_MODULE, "net", "");
        parameter(&items[i], i == 0 ? "a" : "b", 2, 0);
        struct up_message part = {.kind = UP_MANIFEST_PART, .u.manifest_part = {.count = 3}};
        memcpy(part.u.manifest_part.items, items[i].items, 3 * sizeof(struct manifest_item));
        story_forget(story);
        story_say(story, i == 0 ? 1 : 3, &part);
        free(items[i].items);
    }
    story_expect_piece(
        story, "2 < halt manifest step 5: manifests differ: rank 0 (host h1) and rank 2 (host h3)\n"
               "  only on rank 0: a (float32 [2])\n"
               "  only on rank 2: b (float32 [2])\n"
               "register the same modules");
}

#define PARTED \
    "halt manifest step 5: rank 0 (host h1) called lockstep_start again after step 4, rank 1 " \
    "(host h2) began step 5 instead: close the same modules and call lockstep_start on every " \
    "rank\n"

static void test_a_rank_that_learns_instead_is_named(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    start_again(story, 1, 8, 4);
    story_forget(story);
    story_ready(story, 2, 5, slot(0, 0, 0));
    story_expect(story, "2 > ready step 5 slot 0#0.0\n"
                        "1 < " PARTED "2 < " PARTED);
    story_end(story);
    story_begin(story);
    story_run(story, 2);
    start_again(story, 1, 8, 4);
    story_forget(story);
    story_step_end(story, 2, 5); // Nothing was ready.
    story_expect(story, "2 > end step 5\n"
                        "1 < " PARTED "2 < " PARTED);
}

static void test_a_rank_that_starts_while_another_learns_is_named(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_ready(story, 2, 5, slot(0, 0, 0));
    story_forget(story);
    start_again(story, 1, 8, 4);
    story_expect(story, "1 > start hash 8 items 3 root 0 after step 4\n"
                        "1 < " PARTED "2 < " PARTED);
}

// The first that rank 0 says in a learning step may be a layout.
static void test_a_layout_in_a_later_start_is_named(void **state)
{
    static const uint32_t words[] = {1, 1, 0};
    struct story *story = *state;
    story_run(story, 2);
    start_again(story, 2, 8, 4);
    story_forget(story);
    story_layout(story, 1, 0, words, 3);
    story_expect_piece(story, "2 < halt manifest step 5: rank 1 (host h2) called lockstep_start "
                              "again after step 4, rank 0 (host h1) began step 5 instead");
    story_end(story);
    story_begin(story);
    story_run(story, 2);
    story_layout(story, 1, 0, words, 3);
    start_again(story, 2, 8, 4);
    story_forget(story);
    story_step_end(story, 1, 5);
    story_expect_piece(story, "rank 0 (host h1) began step 5 instead");
}

static void test_who_says_it_in_another_step_is_named(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    start_again(story, 1, 8, 4);
    story_forget(story);
    start_again(story, 2, 8, 3);
    story_expect_piece(story, "1 < halt protocol step 0: rank 1 (host h2) called lockstep_start "
                              "after step 3, rank 0 after step 4; this is misuse");
}

static void test_a_rank_that_has_started_learns_nothing(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    start_again(story, 1, 8, 4);
    story_forget(story);
    story_ready(story, 1, 5, slot(0, 0, 0));
    story_expect_piece(story, "rank 0 (host h1) learns a step before lockstep_start has completed");
}

static void test_deaths_and_goodbyes_in_a_later_start(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    start_again(story, 1, 8, 4);
    story_forget(story);
    story_close(story, 2, "connection reset");
    story_expect_piece(story, "1 < halt lost step 0: rank 1 on host h2 was lost");
    story_end(story);
    story_begin(story);
    story_run(story, 3);
    start_again(story, 1, 8, 4);
    story_forget(story);
    story_leave(story, 2, 4);
    story_expect_piece(story, "3 < halt left step 5: rank 1 (host h2) closed its session while "
                              "rank 0 (host h1) still needed it in lockstep_start after step 4");
    story_end(story);
    story_begin(story);
    story_run(story, 3);
    story_leave(story, 2, 4);
    story_forget(story);
    start_again(story, 1, 8, 4);
    story_expect_piece(story, "3 < halt left step 5: rank 1 (host h2) closed its session while "
                              "rank 0 (host h1) still needed it in lockstep_start after step 4");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_equal_manifests_are_verified_when_all_have_started),
        TEST(test_each_kind_of_difference_has_its_sentence),
        TEST(test_the_largest_manifest_finds_its_way_back),
        TEST(test_names_in_any_order_are_not_missing),
        TEST(test_far_and_missing_names_say_what_missing_means),
        TEST(test_what_moved_far_is_not_missing),
        TEST(test_long_names_fit_in_the_report),
        TEST(test_another_root_needs_no_items),
        TEST(test_the_odd_one_of_three_is_named),
        TEST(test_a_rank_that_does_not_answer_is_named),
        TEST(test_a_second_start_in_one_round_is_named),
        TEST(test_a_rank_that_left_is_missed_in_start),
        TEST(test_leaving_while_another_is_in_start_is_named_at_once),
        TEST(test_a_running_job_starts_again),
        TEST(test_what_was_learned_is_forgotten),
        TEST(test_differences_of_a_later_start_wait_for_the_step_before),
        TEST(test_a_rank_that_learns_instead_is_named),
        TEST(test_a_rank_that_starts_while_another_learns_is_named),
        TEST(test_a_layout_in_a_later_start_is_named),
        TEST(test_who_says_it_in_another_step_is_named),
        TEST(test_a_rank_that_has_started_learns_nothing),
        TEST(test_deaths_and_goodbyes_in_a_later_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
