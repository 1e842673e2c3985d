// SPDX-License-Identifier: Apache-2.0
// Strict parsers for configuration. Any thread.
#include "base/parse.h"

#include <string.h>

// Parses the decimal digits at the beginning of the string. Returns the first byte after them, or
// NULL if there are none or the number is too large.
static const char *parse_digits(const char *string, uint64_t *value)
{
    uint64_t sum = 0;
    const char *at = string;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(sum, (uint64_t)10, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(*at - '0'), &sum))
            return NULL;
    }
    if (at == string)
        return NULL;
    *value = sum;
    return at;
}

bool parse_u64(const char *string, uint64_t *value)
{
    uint64_t found = 0;
    const char *end = parse_digits(string, &found);
    if (!end || *end != '\0')
        return false;
    *value = found;
    return true;
}

bool parse_i64(const char *string, int64_t *value)
{
    bool negative = string[0] == '-';
    uint64_t magnitude = 0;
    if (!parse_u64(string + negative, &magnitude))
        return false;
    if (magnitude > (uint64_t)INT64_MAX + negative)
        return false;
    if (negative && magnitude > 0)
        *value = -(int64_t)(magnitude - 1) - 1; // -INT64_MIN does not fit into int64_t.
    else
        *value = (int64_t)magnitude;
    return true;
}

bool parse_duration_ms(const char *string, uint64_t *value_ms)
{
    static const struct {
        const char *name;
        uint64_t unit_ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 60 * 60 * 1000}};
    uint64_t count = 0;
    const char *unit = parse_digits(string, &count);
    if (!unit)
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) != 0)
            continue;
        uint64_t product = 0;
        if (__builtin_mul_overflow(count, units[i].unit_ms, &product))
            return false;
        *value_ms = product;
        return true;
    }
    return false;
}

// Finds the text of the host and of the port. Returns the host's length, or 0 on a mistake.
static size_t parse_split(const char *string, const char **host, const char **port)
{
    const char *end = NULL;
    if (string[0] == '[') {
        *host = string + 1;
        end = strchr(*host, ']');
        if (!end || end[1] != ':')
            return 0;
        *port = end + 2;
    } else {
        *host = string;
        end = strchr(string, ':');
        if (!end || strchr(end + 1, ':'))
            return 0;
        *port = end + 1;
    }
    return (size_t)(end - *host);
}

bool parse_address(const char *string, char *host, size_t host_capacity, uint16_t *port)
{
    const char *host_at = NULL;
    const char *port_at = NULL;
    uint64_t number = 0;
    size_t length = parse_split(string, &host_at, &port_at);
    if (length == 0 || length >= host_capacity)
        return false;
    if (!parse_u64(port_at, &number) || number > UINT16_MAX)
        return false;
    memcpy(host, host_at, length);
    host[length] = '\0';
    *port = (uint16_t)number;
    return true;
}

bool parse_next_address(const char **list, char *address, size_t capacity)
{
    const char *first = *list + strspn(*list, " ");
    const size_t length = strncmp(first, "unix:", 5) == 0 ? strlen(first) : strcspn(first, ",");
    if (length == 0 || length >= capacity)
        return false;
    memcpy(address, first, length);
    address[length] = '\0';
    *list = first[length] == ',' ? first + length + 1 : NULL;
    return true;
}

char parse_path_flaw(const char *address)
{
    return address[strcspn(address, ",#?%")];
}

bool parse_has_choice(const char *list)
{
    const bool is_path = strncmp(list, "unix:", 5) == 0;
    const bool is_number = list[0] == '[' || list[strspn(list, "0123456789.:")] == '\0';
    return strchr(list, ',') || (!is_path && !is_number);
}
