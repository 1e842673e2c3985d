// SPDX-License-Identifier: Apache-2.0
//
// Reads the value of --hosts; host_list.h has the contract.

#include "cli/run/host_list.h"

#include "base/parse.h"
#include "cli/common/cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// ssh would take a name that begins with '-' as an option.
static bool is_name(const char *name)
{
    const char *at = strrchr(name, '@');
    const char *host = at ? at + 1 : name;
    if (name[0] == '-' || host[0] == '-' || host[0] == '\0' || at == name ||
        strlen(name) >= RUN_HOST_BYTES)
        return false;
    for (const char *character = name; *character; character++) {
        if (isspace((unsigned char)*character) || iscntrl((unsigned char)*character) ||
            strchr("'\"\\$`;&|<>()", *character))
            return false;
    }
    return true;
}

// Cuts the number of workers off. Returns it, or NULL if there is none. An address of IPv6 has
// brackets, which are removed too.
static char *cut_workers(char *item, bool *valid)
{
    char *at = strrchr(item, '@');
    char *host = at ? at + 1 : item;
    char *colon = strchr(host, ':');
    *valid = true;
    if (host[0] == '[') {
        char *close = strchr(host, ']');
        *valid = close && (close[1] == ':' || close[1] == '\0');
        if (!*valid)
            return NULL;
        colon = close[1] == ':' ? close + 1 : NULL;
        memmove(host, host + 1, (size_t)(close - host - 1));
        close[-1] = '\0';
    } else if (colon) {
        *valid = !strchr(colon + 1, ':');
        *colon = '\0';
    }
    return colon ? colon + 1 : NULL;
}

static int read_host(struct run_options *options, char *item, uint32_t each, struct run_host *host)
{
    bool valid = false;
    uint64_t number = each;
    char *given = strdup(item);
    if (!given)
        return cli_misuse("run", "--hosts: there is no memory for the list");
    const char *workers = cut_workers(item, &valid);
    const int result =
        valid && is_name(item) &&
                (!workers ||
                 (parse_u64(workers, &number) && number > 0 && number <= LOCKSTEP_MAX_WORLD))
            ? 0
            : cli_misuse("run",
                         "--hosts: '%s' is not HOST or HOST:WORKERS (an address of IPv6 has "
                         "brackets: [fe80::1]:4)",
                         given);
    free(given);
    *host = (struct run_host){
        .name = item, .workers = (uint32_t)number, .first_rank = options->world_size};
    options->world_size += host->workers;
    return result;
}

int host_list_read(struct run_options *options, const char *list)
{
    const uint32_t each = options->workers > 0 ? options->workers : 1;
    size_t count = 1;
    for (const char *at = list; *at; at++)
        count += *at == ',';
    struct run_host *hosts = calloc(count, sizeof(*hosts)); // Both stay until the process ends.
    char *rest = strdup(list);
    if (!hosts || !rest) {
        free(hosts);
        free(rest);
        return cli_misuse("run", "--hosts: there is no memory for the list");
    }
    options->hosts = hosts;
    options->host_count = 0;
    options->world_size = 0;
    while (rest) {
        char *item = strsep(&rest, ",");
        const int result = read_host(options, item, each, &hosts[options->host_count++]);
        if (result != 0)
            return result;
        if (options->world_size > LOCKSTEP_MAX_WORLD)
            return cli_misuse("run", "--hosts: a job has at most %d workers", LOCKSTEP_MAX_WORLD);
    }
    options->workers = options->world_size;
    return 0;
}
