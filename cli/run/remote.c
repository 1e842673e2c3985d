// SPDX-License-Identifier: Apache-2.0
//
// Starts ssh for one host and moves the bytes of its pipes; remote.h has the contract.

#include "cli/run/remote.h"

#include "base/text.h"
#include "cli/common/cli.h"
#include "cli/run/report.h"
#include "cli/run/run.h"
#include "cli/run/spawn.h"
#include "cli/run/verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 64 // Arguments of ssh at most, the words of --rsh included.

static const char *const ssh_options[] = {"-T", "-oBatchMode=yes", "-oConnectTimeout=15",
                                          "-oServerAliveInterval=5", "-oServerAliveCountMax=3"};

// ---- Starting ----------------------------------------------------------------------------------

// Writes the program lockstep as a word for the shell of the host. Returns false if it is too long.
static bool quote_program(const struct run_options *options, char *quoted, size_t capacity)
{
    static const char harmless[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-,@%:=~";
    char own[PATH_MAX] = "";
    const char *program = options->remote_program;
    if (!program) {
        const ssize_t size = readlink("/proc/self/exe", own, sizeof(own) - 1);
        own[size > 0 ? size : 0] = '\0';
        program = own;
    }
    const bool plain = program[strspn(program, harmless)] == '\0';
    return program[0] && !strchr(program, '\'') &&
           snprintf(quoted, capacity, plain ? "%s" : "'%s'", program) < (int)capacity;
}

// Fills in the arguments. words holds the words of --rsh. Returns false if there are too many.
static bool fill_arguments(const struct run_host *host, char *words, const char *program,
                           const char *arguments[WORDS + 1])
{
    static const size_t options = sizeof(ssh_options) / sizeof(ssh_options[0]);
    size_t count = 0;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        if (count + options + 3 >= WORDS)
            return false;
        arguments[count++] = word;
    }
    if (count == 0)
        return false;
    const char *slash = strrchr(arguments[0], '/');
    if (strcmp(slash ? slash + 1 : arguments[0], "ssh") == 0) {
        for (size_t i = 0; i < options; i++)
            arguments[count++] = ssh_options[i];
    }
    arguments[count++] = host->name;
    arguments[count++] = program;
    arguments[count++] = "run-host";
    arguments[count] = NULL;
    return true;
}

void remote_signals(sigset_t *set)
{
    // Not SIGHUP: ssh ends its proxy command by it.
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaddset(set, numbers[i]);
}

static void close_pair(const int fds[2])
{
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

// Starts the program with three pipes. Returns 0 or -1 with errno. The program does not end by
// signals that the launcher passes on to the workers: Slurm sends them to all processes of a step.
static int start(struct remote *remote, const struct run_options *options, const char *path,
                 const char *const *arguments)
{
    int control[2] = {-1, -1};
    int frames[2] = {-1, -1};
    int error[2] = {-1, -1};
    sigset_t signals = options->signals;
    remote_signals(&signals);
    if (pipe2(control, O_CLOEXEC) == 0 && pipe2(frames, O_CLOEXEC) == 0 &&
        pipe2(error, O_CLOEXEC) == 0) {
        const struct spawn request = {.program = path,
                                      .argv = (char *const *)(uintptr_t)arguments,
                                      .input = control[0],
                                      .output = frames[1],
                                      .error = error[1],
                                      .failure_fd = -1,
                                      .signals = &signals};
        remote->pid = spawn(&request);
    }
    if (remote->pid <= 0) {
        const int reason = errno;
        remote->pid = 0;
        close_pair(control);
        close_pair(frames);
        close_pair(error);
        errno = reason;
        return -1;
    }
    close(control[0]);
    close(frames[1]);
    close(error[1]);
    remote->control_fd = control[1];
    remote->frames_fd = frames[0];
    remote->error_fd = error[0];
    fcntl(control[1], F_SETFL, O_NONBLOCK);
    fcntl(frames[0], F_SETFL, O_NONBLOCK);
    fcntl(error[0], F_SETFL, O_NONBLOCK);
    return 0;
}

int remote_start(struct remote *remote, const struct run_options *options,
                 const struct run_host *host)
{
    char words[4096];
    char program[PATH_MAX + 3];
    char path[PATH_MAX];
    const char *arguments[WORDS + 1];
    *remote = (struct remote){.host = host, .control_fd = -1, .frames_fd = -1, .error_fd = -1};
    if (!quote_program(options, program, sizeof(program)) ||
        snprintf(words, sizeof(words), "%s", options->rsh) >= (int)sizeof(words) ||
        !fill_arguments(host, words, program, arguments)) {
        cli_say("run", "--rsh or --lockstep cannot be used: it is empty or too long, or the "
                       "program's path has a '");
        return CLI_MISUSE;
    }
    if (spawn_find(arguments[0], path, sizeof(path)) != 0) {
        cli_say("run",
                "host %s: there is no program '%s' here; install an SSH client, or name another "
                "remote shell with --rsh",
                host->name, arguments[0]);
        return CLI_NOT_FOUND;
    }
    if (start(remote, options, path, arguments) == 0)
        return 0;
    cli_say("run", "host %s: cannot start %s: %s", host->name, path, strerror(errno));
    return CLI_FAILED;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void remote_close(struct remote *remote)
{
    close_fd(&remote->control_fd);
    close_fd(&remote->frames_fd);
    close_fd(&remote->error_fd);
    free(remote->pending);
    remote->pending = NULL;
    remote->pending_size = 0;
}

// ---- To the host -------------------------------------------------------------------------------

void remote_flush(struct remote *remote)
{
    while (remote->pending_size > 0 && remote->control_fd >= 0) {
        const ssize_t size = write(remote->control_fd, remote->pending, remote->pending_size);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0) {
            if (errno != EAGAIN)
                close_fd(&remote->control_fd);
            return;
        }
        remote->pending_size -= (size_t)size;
        memmove(remote->pending, remote->pending + size, remote->pending_size);
    }
}

void remote_send(struct remote *remote, const void *bytes, size_t size)
{
    char *pending =
        remote->control_fd < 0 ? NULL : realloc(remote->pending, remote->pending_size + size);
    if (!pending)
        return;
    memcpy(pending + remote->pending_size, bytes, size);
    remote->pending = pending;
    remote->pending_size += size;
    remote_flush(remote);
}

void remote_tell_failure(struct remote *first, const struct run_options *options,
                         const struct verdict *verdict)
{
    const struct run_result *result = &verdict->result;
    char bytes[1 + RELAY_TEXT_BYTES] = {(char)RELAY_FAILED};
    struct text text;
    if (first->failure_told || result->first_failed == result->count)
        return;
    first->failure_told = true;
    if (result->first_failed < first->host->workers || verdict->interrupts > 0)
        return;
    text_init(&text, bytes + 1, RELAY_TEXT_BYTES);
    run_append_rank_end(&text, options, result, result->first_failed);
    remote_send(first, bytes, sizeof(bytes));
}

// ---- From the host -----------------------------------------------------------------------------

// Takes complete lines until one is the greeting. Lines before it are of the shell's own files, and
// are dropped, also if they are too long.
static void take_greeting(struct remote *remote)
{
    while (remote->state == REMOTE_CONNECTS) {
        unsigned char *end = memchr(remote->bytes, '\n', remote->size);
        if (!end) {
            if (remote->size == sizeof(remote->bytes))
                remote->size = 0;
            return;
        }
        int version = 0;
        int at = 0;
        *end = '\0';
        const char *line = (const char *)remote->bytes;
        if (sscanf(line, RELAY_GREETING " %d %n", &version, &at) == 1 && at > 0) {
            remote->state = REMOTE_GREETED;
            snprintf(remote->connection, sizeof(remote->connection), "%.500s", line + at);
            if (version != RELAY_VERSION) // No frame begins so.
                *end = 0xff;
        }
        const size_t taken = (size_t)(end - remote->bytes) + (*end == '\0');
        remote->size -= taken;
        memmove(remote->bytes, remote->bytes + taken, remote->size);
    }
}

void remote_read(struct remote *remote)
{
    const size_t room = sizeof(remote->bytes) - remote->size;
    if (remote->frames_fd < 0 || room == 0)
        return;
    const ssize_t size = read(remote->frames_fd, remote->bytes + remote->size, room);
    if (size > 0)
        remote->size += (size_t)size;
    else if (size == 0 || (errno != EAGAIN && errno != EINTR) ||
             (errno == EAGAIN && remote->pid == 0)) // A process that ssh left may hold the pipe.
        close_fd(&remote->frames_fd);
    if (remote->state == REMOTE_CONNECTS)
        take_greeting(remote);
}

enum remote_next remote_peek(const struct remote *remote, struct relay_header *header,
                             const unsigned char **payload)
{
    if (remote->state == REMOTE_CONNECTS || remote->size == 0)
        return REMOTE_NOTHING;
    if (remote->bytes[0] == 0xff)
        return REMOTE_FOREIGN;
    if (remote->size < RELAY_HEADER_BYTES)
        return REMOTE_NOTHING;
    if (!relay_get_header(remote->bytes, header))
        return REMOTE_FOREIGN;
    *payload = remote->bytes + RELAY_HEADER_BYTES;
    return remote->size - RELAY_HEADER_BYTES >= header->size ? REMOTE_FRAME : REMOTE_NOTHING;
}

void remote_drop(struct remote *remote, const struct relay_header *header)
{
    const size_t taken = RELAY_HEADER_BYTES + header->size;
    remote->size -= taken;
    memmove(remote->bytes, remote->bytes + taken, remote->size);
}

bool remote_has_ended(const struct remote *remote)
{
    struct relay_header header;
    const unsigned char *payload;
    return remote->pid == 0 && remote->frames_fd < 0 &&
           remote_peek(remote, &header, &payload) == REMOTE_NOTHING;
}

// Keeps the last line with text. "Try 'lockstep --help'." says nothing about a host.
static void keep_line(struct remote *remote)
{
    remote->line[remote->line_size] = '\0';
    remote->line_size = 0;
    if (remote->line[strspn(remote->line, " \t")] && strncmp(remote->line, "Try '", 5) != 0)
        memcpy(remote->said, remote->line, sizeof(remote->said));
}

static void note_error(struct remote *remote, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] == '\n' || bytes[i] == '\r')
            keep_line(remote);
        else if (remote->line_size < sizeof(remote->line) - 1)
            remote->line[remote->line_size++] = bytes[i];
    }
}

size_t remote_read_error(struct remote *remote, char *bytes, size_t capacity)
{
    const ssize_t size = remote->error_fd < 0 ? -1 : read(remote->error_fd, bytes, capacity);
    if (size > 0) {
        note_error(remote, bytes, (size_t)size);
        return (size_t)size;
    }
    if (remote->error_fd >= 0 && (size == 0 || (errno != EAGAIN && errno != EINTR))) {
        keep_line(remote);
        close_fd(&remote->error_fd);
    }
    return 0;
}

uint64_t remote_time(struct remote *remote, uint64_t at_ms, uint64_t now_ms)
{
    const int64_t offset = (int64_t)(now_ms - at_ms);
    if (!remote->clock_known || offset < remote->clock_offset_ms)
        remote->clock_offset_ms = offset;
    remote->clock_known = true;
    return at_ms + (uint64_t)remote->clock_offset_ms;
}

void remote_last_words(const struct remote *remote, char *words, size_t capacity)
{
    static const char *const starts[] = {"lockstep run: ", "lockstep run-host: ", "lockstep: "};
    const char *said = remote->said;
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (strncmp(said, starts[i], strlen(starts[i])) == 0)
            said += strlen(starts[i]);
    }
    if (said[0])
        snprintf(words, capacity, "%s", said);
    else if (WIFSIGNALED(remote->status))
        snprintf(words, capacity, "the remote shell was killed by signal %d",
                 WTERMSIG(remote->status));
    else
        snprintf(words, capacity, "the remote shell ended with status %d",
                 WEXITSTATUS(remote->status));
}
