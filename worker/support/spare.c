// SPDX-License-Identifier: Apache-2.0
//
// See spare.h. Another thread may take the free descriptor between the close of a spare one and the
// openat. Then the openat fails, as it would fail without spare descriptors.

#include "worker/support/spare.h"

#include "base/mutex.h"
#include "protos/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
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
