// SPDX-License-Identifier: Apache-2.0
//
// Reads names as the Itanium C++ ABI forms them, as far as people need it. The names come from
// files and are not trusted: each step first looks whether the name goes on.

#include "worker/stacks/mangled.h"

#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct mangled {
    const char *at; // The part of the name that is not read yet.
    const char *last; // The last identifier, [last_bytes]. NULL: there was none.
    size_t last_bytes;
    struct text text;
};

static bool mangled_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// Reads an identifier behind its length: "3add". False: there is none.
static bool mangled_identifier(struct mangled *name)
{
    const char *at = name->at;
    size_t bytes = 0;
    while (mangled_is_digit(*at) && bytes < SIZE_MAX / 100)
        bytes = bytes * 10 + (size_t)(*at++ - '0');
    if (bytes == 0 || strnlen(at, bytes) < bytes)
        return false;
    name->last = at;
    name->last_bytes = bytes;
    name->at = at + bytes;
    return true;
}

// Skips up to a character, and that character. False: it does not come.
static bool mangled_skip_past(struct mangled *name, char last)
{
    const char *end = strchr(name->at, last);
    if (end)
        name->at = end + 1;
    return end != NULL;
}

// Skips a tag, as that of functions with strings of the new ABI: "B5cxx11".
static bool mangled_skip_tag(struct mangled *name)
{
    const struct mangled before = *name;
    name->at++;
    const bool good = mangled_identifier(name);
    name->last = before.last;
    name->last_bytes = before.last_bytes;
    return good;
}

// Skips template arguments, up to the E that ends them. Letters that open something which ends with
// an E of its own: I, N, J, X, F and L.
static bool mangled_skip_arguments(struct mangled *name)
{
    const struct mangled before = *name;
    bool good = true;
    name->at++;
    for (uint32_t depth = 1; depth > 0 && good;) {
        const char c = *name->at;
        const char next = c == '\0' ? c : name->at[1];
        if (mangled_is_digit(c))
            good = mangled_identifier(name);
        else if (c == 'L' && next >= 'a' && next <= 'z') // A value of a type with one letter.
            good = mangled_skip_past(name, 'E');
        else if (c == 'L' && mangled_is_digit(next)) { // A value of an enumeration.
            name->at++;
            good = mangled_identifier(name) && mangled_skip_past(name, 'E');
        } else if ((c == 'S' || c == 'T') && (next == '_' || mangled_is_digit(next)))
            good = mangled_skip_past(name, '_'); // Something that was named before.
        else if (c == '\0')
            good = false;
        else {
            depth += strchr("INJXFL", c) != NULL;
            depth -= c == 'E';
            name->at++;
        }
    }
    name->last = before.last;
    name->last_bytes = before.last_bytes;
    return good;
}

static void mangled_part(struct mangled *name, const char *before)
{
    const char *part = name->last;
    const bool unnamed = name->last_bytes >= 11 && strncmp(part, "_GLOBAL__N_", 11) == 0;
    text_append(&name->text, "%s%s%.*s", name->text.size > 0 ? "::" : "", before,
                unnamed ? 11 : (int)name->last_bytes, unnamed ? "(anonymous)" : part);
}

// Reads one part of a name. False: it is not understood.
static bool mangled_next(struct mangled *name)
{
    const char c = name->at[0];
    const char next = c == '\0' ? c : name->at[1];
    if (mangled_is_digit(c)) {
        if (!mangled_identifier(name))
            return false;
        mangled_part(name, "");
    } else if (c == 'S' && next == 't') {
        text_append(&name->text, "std");
        name->at += 2;
    } else if (c == 'B') {
        return mangled_skip_tag(name);
    } else if (c == 'I') {
        text_append(&name->text, "<>");
        return mangled_skip_arguments(name);
    } else if ((c == 'C' || c == 'D') && mangled_is_digit(next) && name->last) {
        mangled_part(name, c == 'C' ? "" : "~");
        name->at += 2;
    } else if (c >= 'a' && c <= 'z' && next >= 'a' && next <= 'z') {
        text_append(&name->text, "%soperator%s", name->text.size > 0 ? "::" : "",
                    c == 'c' && next == 'l' ? "()" : "");
        name->at += 2;
    } else {
        return false;
    }
    return true;
}

void mangled_read(const char *name, char *out, size_t bytes)
{
    struct mangled reading = {.at = name};
    bool good = true;
    bool inside = false; // True if the function lies inside of another one, which is shown.
    text_init(&reading.text, out, bytes);
    if (strncmp(name, "_Z", 2) != 0) {
        text_append(&reading.text, "%s", name);
        return;
    }
    for (reading.at += 2; *reading.at == 'Z'; reading.at++)
        inside = true;
    const bool nested = *reading.at == 'N';
    reading.at += nested;
    reading.at += strspn(reading.at, nested ? "rVKROL" : "L");
    if (strncmp(reading.at, "St", 2) == 0)
        good = mangled_next(&reading);
    do
        good = good && mangled_next(&reading);
    while (good && (nested ? *reading.at != 'E' : *reading.at == 'I' || *reading.at == 'B'));
    if (reading.text.size == 0)
        text_append(&reading.text, "%s", name);
    else if (!good || inside)
        text_append(&reading.text, "...");
}
