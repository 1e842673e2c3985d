// SPDX-License-Identifier: Apache-2.0
// Parses numbers, durations and addresses from text of users or of the environment. The whole
// string must match: no leading or trailing spaces, and a sign only where one is allowed. A
// function that returns false leaves its outputs unchanged. Any thread.
#ifndef LOCKSTEP_BASE_PARSE_H
#define LOCKSTEP_BASE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool parse_u64(const char *string, uint64_t *value); // Decimal digits.
// Decimal digits, with a minus sign in front or without one.
bool parse_i64(const char *string, int64_t *value);

// "500ms", "30s", "5m", "2h" to milliseconds. A number without a unit is in seconds.
bool parse_duration_ms(const char *string, uint64_t *value_ms);

// Parses "host:port", "10.0.0.7:0" or "[::1]:4000", and copies the host without brackets. A host
// that contains a colon needs the brackets. The host is not resolved. It must not be empty, and
// must fit into host_capacity bytes with its NUL. The port is 0 to 65535.
bool parse_address(const char *string, char *host, size_t host_capacity, uint16_t *port);

// Takes the first address off a list such as "a:1,b:2" or "a:1, unix:/path": copies it, and sets
// *list to the rest, NULL after the last one. A path is the last of its list, because it may
// contain commas. Spaces after a comma are skipped. The address is not checked. Returns false if it
// is empty, or does not fit into `capacity` bytes with its NUL.
bool parse_next_address(const char **list, char *address, size_t capacity);

// Returns the first character of "unix:/path" that gRPC does not take as a part of the path: ',',
// '#', '?' or '%'. '\0': none.
char parse_path_flaw(const char *address);

// True if two attempts at such a list may reach two hosts: it has several addresses, or a name.
bool parse_has_choice(const char *list);

#endif
