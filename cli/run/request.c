// SPDX-License-Identifier: Apache-2.0
//
// Writes and reads the request; request.h has the contract.

#include "cli/run/request.h"

#include "base/parse.h"
#include "cli/common/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

// ---- Writing -----------------------------------------------------------------------------------

// Appends one text and its NUL.
static void __attribute__((format(printf, 2, 3))) put(FILE *file, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\0', file);
}

// Appends the variables of --env, and all LOCKSTEP_ variables of this process, as settings of the
// library have to be the same on all hosts. --env comes last, so it wins.
static void put_variables(FILE *file, const struct run_options *options)
{
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, "LOCKSTEP_", 9) == 0)
            put(file, "env=%s", *variable);
    }
    for (uint32_t i = 0; i < options->variable_count; i++) {
        const char *variable = options->variables[i];
        const char *value = strchr(variable, '=') ? NULL : getenv(variable);
        if (value)
            put(file, "env=%s=%s", variable, value);
        else
            put(file, "env=%s", variable);
    }
}

static void put_request(FILE *file, const struct run_options *options, uint32_t number,
                        const char *coordinator, bool serves)
{
    const struct run_host *host = &options->hosts[number];
    char *directory = get_current_dir_name(); // As the shell names it, symbolic links included.
    if (directory)
        put(file, "directory=%s", directory);
    free(directory);
    put(file, "job=%s", options->job);
    put(file, "workers=%u", host->workers);
    put(file, "first-rank=%u", host->first_rank);
    put(file, "world-size=%u", options->world_size);
    put(file, "nodes=%u", options->host_count);
    put(file, "node-rank=%u", number);
    put(file, "timeout-ms=%llu", (unsigned long long)options->timeout_ms);
    put(file, "grace-ms=%llu", (unsigned long long)options->grace_ms);
    if (options->survive > 0)
        put(file, "survive=%u", options->survive);
    if (options->http)
        put(file, "http=%s", options->http);
    put(file, "serves=%d", serves);
    if (coordinator)
        put(file, "coordinator=%s", coordinator);
    if (serves && options->bind)
        put(file, "bind=%s", options->bind);
    put_variables(file, options);
    for (char **argument = options->trainer; *argument; argument++)
        put(file, "argument=%s", *argument);
}

char *request_make(const struct run_options *options, uint32_t host, const char *coordinator,
                   bool serves, size_t *size)
{
    char *bytes = NULL;
    char digits[REQUEST_SIZE_BYTES + 1];
    FILE *file = open_memstream(&bytes, size);
    if (!file)
        return NULL;
    fputs("00000000", file);
    put_request(file, options, host, coordinator, serves);
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed || *size - REQUEST_SIZE_BYTES > REQUEST_BYTES) {
        errno = failed ? errno : E2BIG;
        free(bytes);
        return NULL;
    }
    snprintf(digits, sizeof(digits), "%08x", (unsigned)(*size - REQUEST_SIZE_BYTES));
    memcpy(bytes, digits, REQUEST_SIZE_BYTES);
    return bytes;
}

// ---- Reading -----------------------------------------------------------------------------------

bool request_size(const char digits[REQUEST_SIZE_BYTES], size_t *size)
{
    *size = 0;
    for (size_t i = 0; i < REQUEST_SIZE_BYTES; i++) {
        const char *digit = digits[i] ? strchr("0123456789abcdef", digits[i]) : NULL;
        if (!digit)
            return false;
        *size = *size * 16 + (size_t)(digit - "0123456789abcdef");
    }
    return *size > 0 && *size <= REQUEST_BYTES;
}

static int enter(const char *directory)
{
    if (chdir(directory) == 0) {
        setenv("PWD", directory, 1);
        return 0;
    }
    cli_say("run",
            "cannot enter the working directory %s: %s; make it there, or start "
            "lockstep run in a directory that all hosts have",
            directory, strerror(errno));
    return CLI_FAILED;
}

static bool set_number(const char *value, uint32_t *number)
{
    uint64_t parsed = 0;
    const bool valid = parse_u64(value, &parsed) && parsed <= UINT32_MAX;
    *number = (uint32_t)parsed;
    return valid;
}

static bool set_variable(char *value)
{
    char *equals = strchr(value, '=');
    if (!equals || equals == value)
        return false;
    *equals = '\0';
    return setenv(value, equals + 1, 1) == 0;
}

// Takes one text. Returns false if its name or value is unknown.
static bool take(struct run_options *options, const char *name, char *value)
{
    uint32_t serves = 0;
    if (strcmp(name, "env") == 0)
        return set_variable(value);
    if (strcmp(name, "workers") == 0)
        return set_number(value, &options->workers);
    if (strcmp(name, "first-rank") == 0)
        return set_number(value, &options->first_rank);
    if (strcmp(name, "world-size") == 0)
        return set_number(value, &options->world_size);
    if (strcmp(name, "nodes") == 0)
        return set_number(value, &options->nodes);
    if (strcmp(name, "node-rank") == 0)
        return set_number(value, &options->node_rank);
    if (strcmp(name, "timeout-ms") == 0)
        return parse_u64(value, &options->timeout_ms);
    if (strcmp(name, "grace-ms") == 0)
        return parse_u64(value, &options->grace_ms);
    if (strcmp(name, "survive") == 0)
        return set_number(value, &options->survive);
    if (strcmp(name, "http") == 0)
        options->http = value;
    else if (strcmp(name, "coordinator") == 0)
        options->coordinator = value;
    else if (strcmp(name, "bind") == 0)
        options->bind = value;
    else if (strcmp(name, "job") == 0 && strlen(value) < sizeof(options->job))
        snprintf(options->job, sizeof(options->job), "%s", value);
    else if (strcmp(name, "serves") == 0 && set_number(value, &serves))
        options->serves = serves == 1;
    else
        return false;
    return true;
}

static bool is_complete(const struct run_options *options)
{
    return options->workers >= 1 && options->workers <= LOCKSTEP_MAX_WORLD &&
           options->world_size <= LOCKSTEP_MAX_WORLD &&
           (uint64_t)options->first_rank + options->workers <= options->world_size &&
           options->trainer[0] && options->job[0] && (!options->serves || options->coordinator);
}

// Sets options and the trainer's arguments. Returns false if a text is not as it has to be.
static bool take_all(char *bytes, size_t size, struct run_options *options, const char **directory)
{
    size_t arguments = 0;
    size_t next = 0;
    for (size_t at = 0; at < size; at = next) {
        const char *name = bytes + at;
        char *value = strchr(name, '=');
        next = at + strlen(name) + 1;
        if (!value)
            return false;
        *value++ = '\0';
        if (strcmp(name, "argument") == 0)
            options->trainer[arguments++] = value;
        else if (strcmp(name, "directory") == 0)
            *directory = value;
        else if (!take(options, name, value))
            return false;
    }
    return is_complete(options);
}

int request_take(char *bytes, size_t size, struct run_options *options)
{
    const char *directory = NULL;
    size_t texts = 0;
    for (size_t i = 0; i < size; i++)
        texts += bytes[i] == '\0';
    options->trainer = calloc(texts + 1, sizeof(char *));
    if (!options->trainer || size == 0 || bytes[size - 1] != '\0' ||
        !take_all(bytes, size, options, &directory)) {
        cli_say("run", "the request is not one of this version of lockstep");
        return CLI_FAILED;
    }
    return directory ? enter(directory) : CLI_OK;
}
