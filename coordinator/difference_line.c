// SPDX-License-Identifier: Apache-2.0
// See difference_line.h. Runs inside coordinator_step.

#include "coordinator/difference_line.h"

#include "coordinator/core.h"
#include "coordinator/names.h"

void difference_line(struct difference *difference, const char *line)
{
    const size_t reserve = 3 * LOCKSTEP_MARK_BYTES;
    const size_t room = difference->report.capacity - difference->report.size;
    difference->found++;
    if (difference->shown == CORE_REPORT_LINES || strlen(line) + reserve > room)
        return;
    difference->shown++;
    text_append(&difference->report, "\n  %s", line);
}

void difference_line_label(struct text *line, const struct difference *difference,
                           const char *module, const struct manifest_item *item)
{
    if (item->kind == MANIFEST_SESSION)
        text_append(line, "%s", item->name[0] == '\0' ? "session options" : item->name);
    else if (item->kind == MANIFEST_MODULE)
        text_append(line, "module %s", item->name);
    else
        text_append(line, "%s%s%s%s", item->kind == MANIFEST_BUFFER ? "buffer " : "",
                    difference->several_modules ? module : "",
                    difference->several_modules ? "/" : "", item->name);
}

void difference_line_numbers(struct text *line, const char *name, const int64_t *numbers,
                             uint32_t count)
{
    text_append(line, "%s [", name);
    for (uint32_t i = 0; i < count; i++)
        text_append(line, "%s%" PRId64, i == 0 ? "" : ", ", numbers[i]);
    text_append(line, "]");
}

enum attribute {
    ATTRIBUTE_DTYPE,
    ATTRIBUTE_SHAPE,
    ATTRIBUTE_STRIDES,
    ATTRIBUTE_FLAGS
};

static void attribute_add(struct text *line, enum attribute attribute,
                          const struct manifest_item *item)
{
    switch (attribute) {
    case ATTRIBUTE_DTYPE:
        text_append(line, "dtype %s", core_dtype_name(item->dtype));
        break;
    case ATTRIBUTE_SHAPE:
        difference_line_numbers(line, "shape", item->shape, item->dims);
        break;
    case ATTRIBUTE_STRIDES:
        difference_line_numbers(line, "strides", item->strides, item->dims);
        break;
    case ATTRIBUTE_FLAGS:
        text_append(line, "flags 0x%" PRIx32, item->flags);
        break;
    }
}

static void report_attribute(struct difference *difference, enum attribute attribute,
                             const struct manifest_item *a, const struct manifest_item *b)
{
    char text[CORE_LINE_BYTES];
    struct text line;
    text_init(&line, text, sizeof(text));
    difference_line_label(&line, difference, difference->sides[0].module, a);
    text_append(&line, ": ");
    attribute_add(&line, attribute, a);
    text_append(&line, " on rank %" PRIu32 ", ", difference->sides[0].worker->rank);
    attribute_add(&line, attribute, b);
    text_append(&line, " on rank %" PRIu32, difference->sides[1].worker->rank);
    difference_line(difference, text);
}

// ---- Options: "key=value key=value" ----------------------------------------------------------

static size_t option_size(const char *at)
{
    return strcspn(at, " ");
}

// Returns the size of an option's key with its '='; without '=', the size of the whole option.
static size_t option_key_size(const char *at)
{
    const size_t size = option_size(at);
    const char *equals = memchr(at, '=', size);
    return !equals ? size : (size_t)(equals - at) + 1;
}

// Returns the option with this key, or NULL.
static const char *option_find(const char *options, const char *key)
{
    const size_t size = option_key_size(key);
    for (const char *at = options; *at != '\0'; at += option_size(at), at += strspn(at, " "))
        if (option_key_size(at) == size && memcmp(at, key, size) == 0)
            return at;
    return NULL;
}

static void option_add(struct text *line, const char *option, uint32_t rank)
{
    if (!option)
        text_append(line, "unset on rank %" PRIu32, rank);
    else
        text_append(line, "%.*s on rank %" PRIu32, (int)option_size(option), option, rank);
}

static void report_option(struct difference *difference, const struct manifest_item *item,
                          const char *a, const char *b)
{
    char text[CORE_LINE_BYTES];
    struct text line;
    text_init(&line, text, sizeof(text));
    difference_line_label(&line, difference, difference->sides[0].module, item);
    text_append(&line, ": ");
    option_add(&line, a, difference->sides[0].worker->rank);
    text_append(&line, ", ");
    option_add(&line, b, difference->sides[1].worker->rank);
    difference->found_loaded +=
        item->kind == MANIFEST_SESSION && strcmp(item->name, MANIFEST_LOADED) == 0;
    difference_line(difference, text);
}

static void compare_options(struct difference *difference, const struct manifest_item *a,
                            const struct manifest_item *b)
{
    const char *at;
    for (at = a->value; *at != '\0'; at += option_size(at), at += strspn(at, " ")) {
        const char *other = option_find(b->value, at);
        if (!other || option_size(other) != option_size(at) ||
            memcmp(other, at, option_size(at)) != 0)
            report_option(difference, a, at, other);
    }
    for (at = b->value; *at != '\0'; at += option_size(at), at += strspn(at, " "))
        if (!option_find(a->value, at))
            report_option(difference, a, NULL, at);
}

// ---- Two items of one name --------------------------------------------------------------------

void difference_line_compare(struct difference *difference, const struct manifest_item *a,
                             const struct manifest_item *b)
{
    const size_t bytes = a->dims * sizeof(a->shape[0]);
    if (strcmp(a->value, b->value) != 0)
        compare_options(difference, a, b);
    if (a->kind != MANIFEST_PARAMETER && a->kind != MANIFEST_BUFFER)
        return;
    if (a->dtype != b->dtype)
        report_attribute(difference, ATTRIBUTE_DTYPE, a, b);
    if (a->dims != b->dims || memcmp(a->shape, b->shape, bytes) != 0)
        report_attribute(difference, ATTRIBUTE_SHAPE, a, b);
    else if (memcmp(a->strides, b->strides, bytes) != 0)
        report_attribute(difference, ATTRIBUTE_STRIDES, a, b);
    if (a->flags != b->flags)
        report_attribute(difference, ATTRIBUTE_FLAGS, a, b);
}
