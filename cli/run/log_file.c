// SPDX-License-Identifier: Apache-2.0
//
// The files of --log-dir; log_file.h has the contract. Writes go to files, so they block for a disk
// at most, and have no thread of their own.

#include "cli/run/log_file.h"

#include "cli/common/cli.h"
#include "cli/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Makes one directory. A directory that exists is fine. Returns false with errno.
static bool make_one(const char *path)
{
    struct stat info;
    if (mkdir(path, 0777) == 0)
        return true;
    const int reason = errno;
    if (stat(path, &info) == 0) {
        errno = ENOTDIR;
        return S_ISDIR(info.st_mode);
    }
    errno = reason;
    return false;
}

int log_file_make_directory(const struct run_options *options)
{
    char path[PATH_MAX];
    if (!options->log_dir)
        return CLI_OK;
    const size_t size = strlen(options->log_dir);
    if (size == 0 || size >= sizeof(path)) {
        cli_say(options->command, "--log-dir: a directory's name has 1 to %d bytes", PATH_MAX - 1);
        return CLI_MISUSE;
    }
    for (size_t end = 1; end <= size; end++) {
        if (end < size && options->log_dir[end] != '/')
            continue;
        memcpy(path, options->log_dir, end);
        path[end] = '\0';
        if (!make_one(path)) {
            cli_say(options->command, "--log-dir %s: cannot make the directory %s: %s",
                    options->log_dir, path, strerror(errno));
            return CLI_MISUSE;
        }
    }
    return CLI_OK;
}

bool log_file_open(struct log_file *file, const struct run_options *options, const char *name)
{
    char attempt[RUN_CODE_BYTES + 16] = "";
    *file = (struct log_file){.fd = -1, .command = options->command};
    if (options->restarts > 0)
        snprintf(attempt, sizeof(attempt), ".restart-%u", options->restarts);
    if (asprintf(&file->path, "%s/%s%s.log", options->log_dir, name, attempt) < 0)
        file->path = NULL;
    else
        file->fd = open(file->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (file->fd >= 0)
        return true;
    cli_say(options->command, "cannot write %s/%s%s.log: %s", options->log_dir, name, attempt,
            strerror(errno));
    return false;
}

void log_file_write(struct log_file *file, const char *bytes, size_t size)
{
    while (size > 0 && file->fd >= 0) {
        const ssize_t written = write(file->fd, bytes, size);
        if (written >= 0) {
            bytes += written;
            size -= (size_t)written;
        } else if (errno != EINTR) {
            if (!file->failed)
                cli_say(file->command, "cannot write %s: %s; the job goes on, and output is lost",
                        file->path, strerror(errno));
            file->failed = true;
            return;
        }
    }
}

void log_file_close(struct log_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    free(file->path);
    file->path = NULL;
}
