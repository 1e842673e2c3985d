// SPDX-License-Identifier: Apache-2.0
// Numbers, durations and addresses from text that people or environments wrote. All of the string
// must match: no leading or trailing space, no sign where none belongs. On false the output is
// untouched. Any thread.
#ifndef LOCKSTEP_BASE_PARSE_H
#define LOCKSTEP_BASE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool parse_u64(const char *string, uint64_t *value); // decimal digits
bool parse_i64(const char *string, int64_t *value); // the same, perhaps after a minus

// "500ms", "30s", "5m", "2h" to milliseconds. A plain number is one of seconds.
bool parse_duration_ms(const char *string, uint64_t *value_ms);

// "host:port", "10.0.0.7:0", "[::1]:4000": copies the host, without brackets. A host that holds a
// colon needs the brackets. The host is not looked up; it must not be empty and must fit into
// host_capacity bytes with its NUL. The port is 0 to 65535.
bool parse_address(const char *string, char *host, size_t host_capacity, uint16_t *port);

#endif
