// SPDX-License-Identifier: Apache-2.0
//
// See spare.h. Another thread may take the free descriptor between the close of a spare one and the
// openat. Then the openat fails, as it would fail without spare descriptors.

#include "worker/support/spare.h"

#include "base/mutex.h"
#include "protos/limits.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

static struct mutex spare_mutex = MUTEX_INITIALIZER;
static unsigned spare_sessions; // guarded by spare_mutex
static unsigned spare_count; // guarded by spare_mutex
static int spares[LOCKSTEP_SPARE_DESCRIPTORS]; // guarded by spare_mutex; the first spare_count

static void spare_fill_locked(void)
{
    mutex_assert_held(&spare_mutex);
    while (spare_sessions > 0 && spare_count < LOCKSTEP_SPARE_DESCRIPTORS) {
        const int fd = eventfd(0, EFD_CLOEXEC);
        if (fd < 0)
            return;
        spares[spare_count++] = fd;
    }
}

void spare_begin(void)
{
    mutex_lock(&spare_mutex);
    spare_sessions++;
    spare_fill_locked();
    mutex_unlock(&spare_mutex);
}

void spare_end(void)
{
    mutex_lock(&spare_mutex);
    spare_sessions--;
    while (spare_sessions == 0 && spare_count > 0)
        (void)close(spares[--spare_count]);
    mutex_unlock(&spare_mutex);
}

static bool spare_lend(void)
{
    bool lent;
    mutex_lock(&spare_mutex);
    lent = spare_count > 0;
    if (lent)
        (void)close(spares[--spare_count]);
    mutex_unlock(&spare_mutex);
    return lent;
}

int spare_open(int directory, const char *path, int flags)
{
    int fd = openat(directory, path, flags);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && spare_lend())
        fd = openat(directory, path, flags);
    return fd;
}

void spare_close(int fd)
{
    (void)close(fd);
    mutex_lock(&spare_mutex);
    spare_fill_locked();
    mutex_unlock(&spare_mutex);
}

uint32_t spare_room(uint32_t count)
{
    int held[LOCKSTEP_SESSION_DESCRIPTORS_MOST];
    uint32_t had = 0;
    int number;
    while (had < count && had < LOCKSTEP_SESSION_DESCRIPTORS_MOST) {
        held[had] = had == 0 ? eventfd(0, EFD_CLOEXEC) : fcntl(held[0], F_DUPFD_CLOEXEC, 0);
        if (held[had] < 0)
            break;
        had++;
    }
    number = errno;
    for (uint32_t i = 0; i < had; i++)
        (void)close(held[i]);
    errno = number;
    return had;
}

bool spare_is_room(uint32_t count)
{
    struct rlimit limit = {0};
    const struct dirent *entry;
    rlim_t used = 0;
    DIR *directory = opendir("/proc/thread-self/fd");
    if (!directory)
        return spare_room(count) == count;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    while ((entry = readdir(directory))) {
        char *end;
        const unsigned long fd = strtoul(entry->d_name, &end, 10);
        // "." and ".." are no descriptors. One above a limit that was lowered takes no place.
        used +=
            end != entry->d_name && fd != (unsigned long)dirfd(directory) && fd < limit.rlim_cur;
    }
    (void)closedir(directory);
    errno = EMFILE;
    return limit.rlim_cur - used >= count;
}
