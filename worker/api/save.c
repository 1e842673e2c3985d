// SPDX-License-Identifier: Apache-2.0
//
// Saving and loading of files. A file has a checksum, and a save replaces it whole or not at all.
// saved.c writes and reads the content. Runs on the trainer's thread.

#include "base/file_limit.h"
#include "base/hash64.h"
#include "base/text.h"
#include "worker/api/saved.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

// The last line: "end " and the checksum of everything before it.
#define SAVE_END_BYTES 21
#define SAVE_PATH_BYTES 4096
static_assert(SAVE_PATH_BYTES >= PATH_MAX, "realpath fills so many bytes");

static int save_error(const char *what, const char *path)
{
    return error_set(LOCKSTEP_E_SYSTEM, "cannot %s '%s': %s", what, path, strerror(errno));
}

// ---- Writing -----------------------------------------------------------------------------------

static int save_write_all(int fd, const char *path, const char *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return save_error("write", path);
        bytes += written;
        size -= (size_t)written;
    }
    while (fsync(fd) < 0) {
        if (errno != EINTR)
            return save_error("write", path);
    }
    return 0;
}

// Syncs the directory of the file: only then the file's new name survives a crash of the system.
static void save_sync_directory(const char *path)
{
    char directory[SAVE_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    const size_t length = !slash ? 0 : (size_t)(slash - path) + 1;
    int fd;
    memcpy(directory, path, length);
    memcpy(directory + length, ".", 2);
    fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return; // No failure: a directory may be writable although it is not readable.
    (void)fsync(fd);
    (void)close(fd);
}

// Creates a temporary file in the directory of `path`, and writes its name to `beside`. The name is
// random: ranks in several containers or on several hosts may save to one path, and have the same
// pid. A file or a symbolic link that is already there is never used.
static int save_create(const char *path, char beside[SAVE_PATH_BYTES])
{
    uint64_t random;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return save_error("find a name beside", path);
    const int length = snprintf(beside, SAVE_PATH_BYTES, "%s.%016" PRIx64 ".tmp", path, random);
    if (length < 0 || length >= SAVE_PATH_BYTES)
        return error_set(LOCKSTEP_E_INVALID, "the path has more than %d bytes", SAVE_PATH_BYTES);
    const int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return fd < 0 ? save_error("create", beside) : fd;
}

// Writes to `target` the file that a save to `path` replaces: the one that a symbolic link names,
// as with open. The kernel's rules about links of other users apply to stat, too.
static int save_target(const char *path, char target[SAVE_PATH_BYTES])
{
    struct stat about;
    const bool is_link = lstat(path, &about) == 0 && S_ISLNK(about.st_mode);
    if (stat(path, &about) == 0) {
        if (!S_ISREG(about.st_mode))
            return error_set(LOCKSTEP_E_INVALID, "'%s' is not a regular file: save to another path",
                             path);
    } else if (errno != ENOENT || is_link) {
        return save_error("replace", path);
    }
    if (is_link && !realpath(path, target))
        return save_error("replace", path);
    if (!is_link && !text_copy(target, SAVE_PATH_BYTES, path))
        return error_set(LOCKSTEP_E_INVALID, "the path has more than %d bytes", SAVE_PATH_BYTES);
    return 0;
}

// Writes a temporary file and renames it to `path`.
static int save_replace(const char *path, const char *bytes, size_t size)
{
    struct file_limit limit;
    char beside[SAVE_PATH_BYTES];
    int status;
    const int fd = save_create(path, beside);
    if (fd < 0)
        return fd;
    file_limit_begin(&limit);
    status = save_write_all(fd, beside, bytes, size);
    file_limit_end(&limit);
    if (close(fd) < 0 && status == 0)
        status = save_error("write", beside);
    if (status == 0 && rename(beside, path) < 0)
        status = save_error("replace", path);
    if (status < 0)
        (void)unlink(beside);
    else
        save_sync_directory(path);
    return status;
}

static int save_check(lockstep_session *session, enum saved_kind kind, const char *path)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!path || path[0] == '\0')
        return error_set(LOCKSTEP_E_INVALID, "the path is %s", !path ? "NULL" : "empty");
    if (session->step.is_open)
        return error_set(LOCKSTEP_E_INVALID, "step %" PRIu64 " is open: save after its end",
                         session->step.number);
    if (kind == SAVED_SESSION && session->step.window_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "step %" PRIu64 " accumulates: save after the end of its window",
                         session->step.number);
    return 0;
}

static int save_save(lockstep_session *session, enum saved_kind kind, const char *path)
{
    char *bytes = NULL;
    size_t size = 0;
    FILE *file;
    bool whole;
    char target[SAVE_PATH_BYTES];
    int status = save_check(session, kind, path);
    if (status == 0)
        status = save_target(path, target);
    if (status < 0)
        return status;
    file = open_memstream(&bytes, &size);
    if (!file)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    saved_write(session, kind, file);
    whole = fflush(file) == 0;
    if (whole)
        fprintf(file, "end %016" PRIx64 "\n", hash64(bytes, size));
    whole = fclose(file) == 0 && whole;
    status = whole ? save_replace(target, bytes, size) : error_set(LOCKSTEP_E_SYSTEM, "no memory");
    free(bytes);
    return status;
}

// ---- Reading -----------------------------------------------------------------------------------

static int save_read_all(int fd, const char *path, char *bytes, size_t size)
{
    size_t done = 0;
    while (done < size) {
        const ssize_t got = read(fd, bytes + done, size - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return save_error("read", path);
        if (got == 0)
            return error_set(LOCKSTEP_E_CONFIG, "'%s' changes while it is read", path);
        done += (size_t)got;
    }
    return 0;
}

static int save_read_file(const char *path, char **bytes, size_t *size)
{
    struct stat about;
    int status = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) < 0)
        status = save_error("read", path);
    else if (!S_ISREG(about.st_mode) || about.st_size > LOCKSTEP_SAVED_BYTES)
        status = error_set(LOCKSTEP_E_CONFIG, "'%s' is not a file that Lockstep has saved", path);
    if (status == 0) {
        *size = (size_t)about.st_size;
        *bytes = malloc(*size + 1);
        status = !*bytes ? error_set(LOCKSTEP_E_SYSTEM, "no memory")
                         : save_read_all(fd, path, *bytes, *size);
    }
    if (fd >= 0)
        (void)close(fd);
    return status;
}

// Checks the last line, and reduces *size by it. A failure if it is missing or its checksum is
// wrong.
static int save_check_end(const char *path, const char *bytes, size_t *size)
{
    char end[SAVE_END_BYTES + 1];
    if (*size < SAVE_END_BYTES || memcmp(bytes, "lockstep-saved ", 15) != 0)
        return error_set(LOCKSTEP_E_CONFIG, "'%s' is not a file that Lockstep has saved", path);
    *size -= SAVE_END_BYTES;
    snprintf(end, sizeof(end), "end %016" PRIx64 "\n", hash64(bytes, *size));
    if (memcmp(bytes + *size, end, SAVE_END_BYTES) != 0)
        return error_set(LOCKSTEP_E_CONFIG, "'%s' is damaged: its checksum is wrong", path);
    return 0;
}

static int save_check_load(lockstep_session *session, const char *path)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!path || path[0] == '\0')
        return error_set(LOCKSTEP_E_INVALID, "the path is %s", !path ? "NULL" : "empty");
    if (session->training.loaded[0] != '\0')
        return error_set(LOCKSTEP_E_INVALID, "a file was loaded already");
    if (session->started || session->step.number > 0)
        return error_set(LOCKSTEP_E_INVALID, "files are loaded before lockstep_start, and before "
                                             "the first step");
    return 0;
}

static int save_load(lockstep_session *session, enum saved_kind kind, const char *path)
{
    char *bytes = NULL;
    size_t size = 0;
    int status = save_check_load(session, path);
    if (status == 0)
        status = save_read_file(path, &bytes, &size);
    if (status == 0)
        status = save_check_end(path, bytes, &size);
    if (status == 0)
        status = saved_read(session, kind, path, bytes, size);
    if (status == 0)
        snprintf(session->training.loaded, sizeof(session->training.loaded),
                 "checksum=%016" PRIx64 " step=%" PRIu64, hash64(bytes, size),
                 session->step.number);
    free(bytes);
    return status;
}

// ---- The public functions ----------------------------------------------------------------------

int lockstep_layout_save(lockstep_session *session, const char *path)
{
    return save_save(session, SAVED_LAYOUT, path);
}

int lockstep_layout_load(lockstep_session *session, const char *path)
{
    return save_load(session, SAVED_LAYOUT, path);
}

int lockstep_session_save(lockstep_session *session, const char *path)
{
    return save_save(session, SAVED_SESSION, path);
}

int lockstep_session_load(lockstep_session *session, const char *path)
{
    return save_load(session, SAVED_SESSION, path);
}
