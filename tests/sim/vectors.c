// SPDX-License-Identifier: Apache-2.0
//
// Reader of the vectors of the order; see vectors.h.

#include "tests/sim/vectors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    VECTOR_OUTCOME = 1024
};

// Cuts the next field off a text and returns it. NULL: no field is left.
static char *field(char **rest, const char *separator)
{
    char *start = *rest;
    char *end = !start ? NULL : strstr(start, separator);
    *rest = !end ? NULL : end + strlen(separator);
    if (end)
        *end = '\0';
    return start;
}

// ---- Lines -----------------------------------------------------------------------------------

// Parses a list of plans such as "A B, :x B + B A".
static bool read_plans(struct world_config *config, char *text)
{
    uint32_t count = 0;
    char *known = field(&text, " + ");
    config->publish = text;
    while (strcmp(known, "-") != 0 && known && count < WORLD_PLANS) {
        config->plans[count++] = field(&known, ", ");
        if (!known)
            return true;
    }
    return count == 0;
}

// Parses the name of a variant such as "w2-ee".
static bool read_variant(struct vector_case *one, const char *name, uint32_t ranks)
{
    struct world_config *config = &one->config;
    const char *policies = strchr(name, '-');
    const char *const unplanned = "efd"; // As in enum order_unplanned.
    if (!policies || strlen(policies) != 3 || strlen(name) >= sizeof(one->name) ||
        !strchr(unplanned, policies[2]) || !strchr("ez", policies[1]))
        return false;
    memcpy(one->name, name, strlen(name) + 1);
    config->zero_defer = policies[1] == 'z';
    config->unplanned = (enum order_unplanned)(strchr(unplanned, policies[2]) - unplanned);
    if (name[0] == 's')
        config->strict = (1u << ranks) - 1;
    return name[0] == 's' || sscanf(name, "w%" SCNu32, &config->window) == 1;
}

// Parses variants and their outcome such as "s-ee w2-ee => E0:ORDER".
static bool read_cases(struct vector *vector, const struct world_config *config, char *text)
{
    char *names = field(&text, " => ");
    char *name;
    while ((name = field(&names, " "))) {
        struct vector_case *one = &vector->cases[vector->case_count];
        if (vector->case_count++ == VECTOR_CASES)
            return false;
        one->config = *config;
        one->outcome = text;
        if (!read_variant(one, name, config->ranks))
            return false;
    }
    return true;
}

bool vector_read(struct vector *vector, const char *line)
{
    struct world_config config = {.ranks = 0};
    char *rest = vector->text;
    char *text;
    memset(vector, 0, sizeof(*vector));
    if (strlen(line) >= sizeof(vector->text))
        return false;
    memcpy(vector->text, line, strcspn(line, "\n"));
    text = field(&rest, " | ");
    snprintf(vector->family, sizeof(vector->family), "%.15s", text);
    text = field(&rest, " | ");
    if (!text || !read_plans(&config, text))
        return false;
    while ((text = field(&rest, " | "))) {
        const bool is_case = strstr(text, " => ") != NULL;
        if (!is_case && config.ranks == WORLD_RANKS)
            return false;
        if (!is_case)
            config.programs[config.ranks++] = text;
        else if (!read_cases(vector, &config, text))
            return false;
    }
    return config.ranks > 0 && vector->case_count > 0;
}

// ---- Outcomes --------------------------------------------------------------------------------

// True if the expected text allows the outcome: "E0:ORDER|PHASE" allows "error 0 order".
static bool allows_error(const char *expected, const char *outcome)
{
    char text[64];
    char *rest = text;
    snprintf(text, sizeof(text), "%s", expected + 1);
    const char *step = field(&rest, ":");
    const char *kind;
    while ((kind = field(&rest, "|"))) {
        char allowed[96];
        // A wait for a call outside the plan is the same verdict as the call.
        snprintf(allowed, sizeof(allowed), "error %s %s", step,
                 strcmp(kind, "ORDER") == 0   ? "order"
                 : strcmp(kind, "PHASE") == 0 ? "phase"
                                              : "unplanned");
        if (strcmp(allowed, outcome) == 0)
            return true;
    }
    return false;
}

struct text {
    char bytes[VECTOR_OUTCOME];
    size_t used;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    text->used += (size_t)vsnprintf(text->bytes + text->used, sizeof(text->bytes) - text->used,
                                    format, arguments);
    va_end(arguments);
    if (text->used >= sizeof(text->bytes))
        text->used = sizeof(text->bytes) - 1;
}

// "0", or "1.0A0" where another call than the slot's was deferred.
static void expand_parts(struct text *text, char *parts, uint32_t step, const char *call)
{
    const char *part;
    const char *comma = "";
    while (parts[0] != '\0' && (part = field(&parts, "+"))) {
        if (part[1] == '.')
            add(text, "%s%c:%s", comma, part[0], part + 2);
        else
            add(text, "%s%c:%" PRIu32 "%s", comma, part[0], step, call);
        comma = ",";
        if (!parts)
            break;
    }
}

// An outcome of the file in the notation of world_outcome, but for deferred parts.
static void expand(struct text *text, char *steps)
{
    char *slots;
    char *slot;
    add(text, "ok");
    for (uint32_t step = 0; (slots = field(&steps, "/")); step++) {
        while (slots && slots[0] != '\0') {
            slot = field(&slots, ",");
            const char *call = field(&slot, "=");
            add(text, " %" PRIu32 "%s={", step, call);
            if (slot)
                expand_parts(text, slot, step, call);
            add(text, "}");
        }
    }
    add(text, " stash={");
}

// True if two lists, "0.0A0,1.0B0" and "1:0B0,0:0A0}", hold the same. Deferred parts have no order.
static bool same_list(char *expected, const char *outcome)
{
    const size_t length = !expected ? 0 : strlen(expected);
    char *part;
    if (strlen(outcome) != length + 1)
        return false;
    while (expected && (part = field(&expected, ","))) {
        part[1] = ':';
        if (!strstr(outcome, part))
            return false;
    }
    return true;
}

static bool allows_one(char *expected, const char *outcome)
{
    struct text text = {.used = 0};
    if (expected[0] == 'E')
        return allows_error(expected, outcome);
    char *steps = field(&expected, ";") + strlen("ok:");
    expand(&text, steps);
    return strncmp(text.bytes, outcome, text.used) == 0 && same_list(expected, outcome + text.used);
}

bool vector_allows(const char *expected, const char *outcome)
{
    char copy[VECTOR_LINE];
    char *rest = copy;
    char *one;
    snprintf(copy, sizeof(copy), "%s", expected);
    while ((one = field(&rest, " or ")))
        if (allows_one(one, outcome))
            return true;
    return false;
}
