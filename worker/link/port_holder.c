// SPDX-License-Identifier: Apache-2.0
//
// See port_holder.h. The kernel's tables give the inode of the socket. The process is found by that
// inode among the descriptors of all processes that this user may inspect.

#include "worker/link/port_holder.h"

#include "base/parse.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HOLDER_LISTENS 0x0a // TCP_LISTEN, in the kernel's tables.

// Returns the inode of the listening socket in one table; 0 if there is none.
static uint64_t holder_inode_in(const char *table, uint16_t port)
{
    char line[512];
    uint64_t found = 0;
    FILE *file = fopen(table, "re");
    if (!file)
        return 0;
    while (found == 0 && fgets(line, sizeof(line), file)) {
        unsigned local_port = 0;
        unsigned state = 0;
        uint64_t inode = 0;
        if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*u %" SCNu64,
                   &local_port, &state, &inode) == 3 &&
            local_port == port && state == HOLDER_LISTENS)
            found = inode;
    }
    (void)fclose(file);
    return found;
}

static bool holder_has(const char *process, uint64_t inode)
{
    char path[64];
    char wanted[64];
    bool has = false;
    (void)snprintf(path, sizeof(path), "/proc/%.20s/fd", process);
    (void)snprintf(wanted, sizeof(wanted), "socket:[%" PRIu64 "]", inode);
    DIR *directory = opendir(path);
    if (!directory)
        return false;
    for (const struct dirent *entry = NULL; !has && (entry = readdir(directory));) {
        char target[64];
        const ssize_t length =
            readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1);
        if (length <= 0)
            continue;
        target[length] = '\0';
        has = strcmp(target, wanted) == 0;
    }
    (void)closedir(directory);
    return has;
}

// Returns the id of a process that has the socket; 0 if no process that this user may inspect has
// it.
static uint64_t holder_process(uint64_t inode)
{
    uint64_t found = 0;
    DIR *directory = opendir("/proc");
    if (!directory)
        return 0;
    for (const struct dirent *entry = NULL; found == 0 && (entry = readdir(directory));) {
        uint64_t number = 0;
        if (parse_u64(entry->d_name, &number) && holder_has(entry->d_name, inode))
            found = number;
    }
    (void)closedir(directory);
    return found;
}

static void holder_name(uint64_t process, char *name, size_t name_bytes)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%" PRIu64 "/comm", process);
    FILE *file = fopen(path, "re");
    if (!file || !fgets(name, (int)name_bytes, file))
        text_copy(name, name_bytes, "?");
    name[strcspn(name, "\n")] = '\0';
    if (file)
        (void)fclose(file);
}

void port_holder_append(struct text *text, uint16_t port)
{
    char name[32];
    uint64_t inode = holder_inode_in("/proc/thread-self/net/tcp", port);
    if (inode == 0)
        inode = holder_inode_in("/proc/thread-self/net/tcp6", port);
    const uint64_t process = inode == 0 ? 0 : holder_process(inode);
    if (process == 0) {
        text_append(text, "%u by %s", (unsigned)port,
                    inode == 0 ? "a socket that does not listen" : "a process of another user");
        return;
    }
    holder_name(process, name, sizeof(name));
    text_append(text, "%u by process %" PRIu64 " (%s)", (unsigned)port, process, name);
}
