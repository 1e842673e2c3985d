// SPDX-License-Identifier: Apache-2.0
//
// Files of running jobs; registry.h has the contract.

#include "cli/common/registry.h"

#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLACES 2 // Directories, in the order in which they are tried.

static char own_path[PATH_MAX]; // The file of this process; "": none.

// Opens a directory and writes its path. Returns -1 with errno if there is none, or another user
// could write into it.
static int open_directory(unsigned place, bool make, char path[PATH_MAX])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat info;
    errno = ENOENT;
    if (place > 0)
        snprintf(path, PATH_MAX, "/tmp/lockstep-%u", (unsigned)geteuid());
    else if (!runtime || runtime[0] != '/' ||
             snprintf(path, PATH_MAX, "%s/lockstep", runtime) >= PATH_MAX)
        return -1;
    if (make && mkdir(path, 0700) < 0 && errno != EEXIST)
        return -1;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && (info.st_mode & 022) == 0)
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

// Makes this process's file in a directory. Its name is random, because launchers in several PID
// namespaces can have the same process id and share the directory.
static int make_file(unsigned place)
{
    char directory[PATH_MAX];
    uint64_t number = 0;
    const int opened = open_directory(place, true, directory);
    if (opened < 0)
        return -1;
    close(opened);
    errno = ENAMETOOLONG;
    if (getrandom(&number, sizeof(number), 0) != sizeof(number) ||
        snprintf(own_path, sizeof(own_path), "%s/%016" PRIx64, directory, number) >=
            (int)sizeof(own_path))
        return -1;
    return open(own_path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

int registry_add(const char *name, const char *address)
{
    int fd = -1;
    for (unsigned place = 0; place < PLACES && fd < 0; place++)
        fd = make_file(place);
    if (fd < 0)
        return -1;
    // The file is locked before it is written. A reader treats an empty file as one that is being
    // written.
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && dprintf(fd, "%s\n%s\n", name, address) > 0)
        return fd;
    const int failure = errno;
    registry_remove(fd);
    errno = failure;
    return -1;
}

void registry_remove(int fd)
{
    if (fd < 0)
        return;
    unlink(own_path);
    close(fd);
}

// Copies the next line of the text and advances *at.
static bool take_line(char **at, char *line, size_t capacity)
{
    char *end = strchr(*at, '\n');
    if (!end)
        return false;
    *end = '\0';
    const bool fits = text_copy(line, capacity, *at);
    *at = end + 1;
    return fits && line[0];
}

// Reads one file. Returns false if it belongs to no running job. A file that no process locks is
// removed.
static bool read_job(int directory, const char *file, struct registry_job *job)
{
    char bytes[sizeof(*job) + 2];
    char *at = bytes;
    const int fd = openat(directory, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t size = read(fd, bytes, sizeof(bytes) - 1);
    bytes[size > 0 ? size : 0] = '\0';
    const bool old = size > 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
    if (old)
        unlinkat(directory, file, 0);
    close(fd);
    return !old && take_line(&at, job->name, sizeof(job->name)) &&
           take_line(&at, job->address, sizeof(job->address));
}

// Reads the files of a directory. Returns the new number of jobs.
static unsigned list_place(unsigned place, const char *name, struct registry_job *jobs,
                           unsigned count)
{
    char path[PATH_MAX];
    const int fd = open_directory(place, false, path);
    DIR *inside = fd < 0 ? NULL : fdopendir(fd);
    if (!inside) {
        if (fd >= 0)
            close(fd);
        return count;
    }
    for (struct dirent *entry = readdir(inside); entry && count < REGISTRY_MAX;
         entry = readdir(inside)) {
        if (entry->d_name[0] != '.' && read_job(dirfd(inside), entry->d_name, &jobs[count]) &&
            (!name[0] || strcmp(jobs[count].name, name) == 0))
            count++;
    }
    closedir(inside);
    return count;
}

unsigned registry_list(const char *name, struct registry_job jobs[REGISTRY_MAX])
{
    unsigned count = 0;
    for (unsigned place = 0; place < PLACES; place++)
        count = list_place(place, name, jobs, count);
    return count;
}
