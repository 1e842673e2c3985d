// SPDX-License-Identifier: Apache-2.0
//
// The list of known variables, and the search for the name most similar to an unknown one.

#include "base/variables.h"

#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PREFIX "LOCKSTEP_"
#define DAEMON_PREFIX "COORDINATOR_"
#define NAME_BYTES 64 // A longer name is compared by its first bytes.

// The names without the prefix. docs/environment.md explains each. Names that begin with
// COORDINATOR_ are the daemon's flags that take a value (server/options.c).
static const char *const known[] = {
    "ABORT_MS",
    "ADVERTISE",
    "ALGORITHM",
    "AWAY_TIMEOUT_MS",
    "COORDINATOR",
    "COORDINATOR_CHUNK_BYTES",
    "COORDINATOR_DRAIN_MS",
    "COORDINATOR_HTTP",
    "COORDINATOR_HTTP_HOST",
    "COORDINATOR_HTTP_TOKEN_FILE",
    "COORDINATOR_LISTEN",
    "COORDINATOR_LOG_LEVEL",
    "COORDINATOR_MEMORY_MIB",
    "COORDINATOR_OUTLIVE_MS",
    "COORDINATOR_PORT_FILE",
    "COORDINATOR_STALL_FLOOR_MS",
    "COORDINATOR_TLS_DIR",
    "CUDA_LIBRARY",
    "DASHBOARD",
    "DATA_ENCRYPTION",
    "DATA_PORTS",
    "DEVICE",
    "ENGINE_CPUS",
    "ENGINE_NICE",
    "HALT_TIMEOUT_MS",
    "INSECURE_PLAINTEXT",
    "JOB",
    "LIBRARY",
    "LINK",
    "LOG",
    "NCCL_LIBRARY",
    "ON_FAILURE",
    "OPEN_TIMEOUT_MS",
    "ORDER",
    "RANK_HINT",
    "SLOTS",
    "SUM",
    "TLS_DIR",
    "TORCH_BACKEND",
    "TORCH_HOOKS",
    "TRACE_DIR",
    "TRANSPORT",
    "UNPLANNED",
    "VIRTUAL_RANKS",
    "WORLD_MAX",
    "WORLD_MIN",
    "WORLD_SIZE",
    "WORLD_WINDOW_MS",
};
#define KNOWN (sizeof(known) / sizeof(known[0]))

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Returns how many letters must be added and removed. A replaced letter counts as both, so that a
// short name is similar only to names with nearly the same letters.
static size_t distance(const char *from, size_t from_size, const char *to)
{
    const size_t to_size = strlen(to);
    size_t row[NAME_BYTES + 1];
    for (size_t j = 0; j <= to_size; j++)
        row[j] = j;
    for (size_t i = 1; i <= from_size; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= to_size; j++) {
            const size_t above = row[j];
            row[j] =
                least(least(above, row[j - 1]) + 1, diagonal + (from[i - 1] == to[j - 1] ? 0 : 2));
            diagonal = above;
        }
    }
    return row[to_size];
}

// Returns true if the known name is that of the daemon's flag `name`: COORDINATOR_HTTP of HTTP.
static bool is_daemons(const char *one, const char *name, size_t size)
{
    const size_t prefix = strlen(DAEMON_PREFIX);
    return has_prefix(one, DAEMON_PREFIX) && strlen(one) == prefix + size &&
           memcmp(one + prefix, name, size) == 0;
}

static const char *nearest(const char *name, size_t size)
{
    const char *best = known[0];
    const char *flag = NULL; // The daemon's flag of this name.
    size_t best_distance = SIZE_MAX;
    for (size_t i = 0; i < KNOWN; i++) {
        if (is_daemons(known[i], name, size))
            flag = known[i];
        const size_t found = distance(name, least(size, NAME_BYTES), known[i]);
        if (found > best_distance || (found == best_distance && strlen(known[i]) < strlen(best)))
            continue; // A longer name at the same distance shares more letters.
        best_distance = found;
        best = known[i];
    }
    // LOCKSTEP_LOG_LEVEL of a worker is LOCKSTEP_LOG.
    return flag && !has_prefix(name, best) ? flag : best;
}

static bool is_known(const char *name, size_t size)
{
    for (size_t i = 0; i < KNOWN; i++) {
        if (strlen(known[i]) == size && memcmp(known[i], name, size) == 0)
            return true;
    }
    return false;
}

static bool ends_with(const char *name, size_t size, const char *end)
{
    const size_t length = strlen(end);
    return size >= length && memcmp(name + size - length, end, length) == 0;
}

// Returns true if the name contains the pattern. The name has no NUL at its end.
static bool contains(const char *name, size_t size, const char *pattern)
{
    const size_t length = strlen(pattern);
    for (size_t at = 0; at + length <= size; at++) {
        if (memcmp(name + at, pattern, length) == 0)
            return true;
    }
    return false;
}

// Kubernetes describes every service of a namespace to its pods in variables of these forms.
static bool is_of_kubernetes(const char *name, size_t size, const char *value)
{
    return contains(name, size, "SERVICE_HOST") || contains(name, size, "SERVICE_PORT") ||
           contains(name, size, "PORT_") ||
           (ends_with(name, size, "_PORT") && strstr(value, "://") != NULL);
}

int variables_check(char *const *environment, char *error, size_t error_bytes)
{
    for (; *environment; environment++) {
        const char *name = *environment + strlen(PREFIX);
        const size_t size = has_prefix(*environment, PREFIX) ? strcspn(name, "=") : 0;
        struct text text;
        if (size == 0 || name[size] == '\0' || name[size + 1] == '\0' || is_known(name, size) ||
            has_prefix(name, "TEST_") || is_of_kubernetes(name, size, name + size + 1))
            continue;
        text_init(&text, error, error_bytes);
        text_append(&text,
                    PREFIX "%.*s is set, and Lockstep has no such variable: is " PREFIX
                           "%s meant? Otherwise unset it",
                    (int)least(size, NAME_BYTES), name, nearest(name, size));
        return -1;
    }
    return 0;
}
