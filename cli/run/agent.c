// SPDX-License-Identifier: Apache-2.0
//
// `lockstep run-host`, which `lockstep run --hosts` starts on each host by ssh: greets, takes the
// request from stdin and runs the workers of this host. The launcher's host decides about the job;
// relay.h has the bytes between the two. When stdin ends, or is silent for RELAY_SILENCE_MS, the
// launcher is gone, and all processes are killed. Main thread.

#include "cli/run/agent.h"

#include "cli/common/cli.h"
#include "cli/run/options.h"
#include "cli/run/relay.h"
#include "cli/run/remote.h"
#include "cli/run/request.h"
#include "cli/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Moves stdin and stdout to descriptors that no child inherits. What children write to stdout goes
// to stderr, since stdout has frames. Returns false with errno.
static bool take_descriptors(struct run_options *options)
{
    options->control_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    options->frames_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    const int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    return options->control_fd >= 0 && options->frames_fd >= 0 && null_fd >= 0 &&
           dup2(null_fd, STDIN_FILENO) >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

static bool greet(const struct run_options *options)
{
    char line[RELAY_GREETING_BYTES];
    const char *connection = getenv("SSH_CONNECTION");
    // The line ends first what a file of the shell may have written.
    const int size = snprintf(line, sizeof(line), "\n%s %d %.128s\n", RELAY_GREETING, RELAY_VERSION,
                              connection ? connection : "");
    return write(options->frames_fd, line, (size_t)size) == size;
}

// Reads exactly size bytes. Returns false if the launcher is gone.
static bool read_all(int fd, char *bytes, size_t size)
{
    while (size > 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, RELAY_SILENCE_MS) <= 0)
            return false;
        const ssize_t got = read(fd, bytes, size);
        if (got <= 0)
            return false;
        bytes += got;
        size -= (size_t)got;
    }
    return true;
}

// Reads the request, which follows bytes that say only that the launcher is there. Returns NULL if
// there is none.
static char *read_request(int fd, size_t *size)
{
    char digits[REQUEST_SIZE_BYTES] = {RELAY_ALIVE};
    while (digits[0] == RELAY_ALIVE) {
        if (!read_all(fd, digits, 1))
            return NULL;
    }
    if (!read_all(fd, digits + 1, sizeof(digits) - 1) || !request_size(digits, size))
        return NULL;
    char *bytes = malloc(*size);
    if (bytes && read_all(fd, bytes, *size))
        return bytes;
    free(bytes);
    return NULL;
}

int agent_main(int argc, char **argv)
{
    static struct run_options options = {.command = "run", .quiet = true, .hosted = true};
    sigset_t blocked;
    size_t size = 0;
    (void)argv;
    if (argc > 1 || isatty(STDIN_FILENO))
        return cli_misuse("run-host", "only lockstep run --hosts starts this");
    sigemptyset(&blocked);
    remote_signals(&blocked);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    if (!take_descriptors(&options) || !greet(&options)) {
        cli_say("run", "cannot answer the launcher: %s", strerror(errno));
        return CLI_FAILED;
    }
    char *request = read_request(options.control_fd, &size);
    if (!request)
        return CLI_FAILED; // The launcher is gone.
    int result = request_take(request, size, &options);
    if (result == 0)
        result = run_check_trainer(options.trainer[0]);
    if (!options.http)
        options.http = options_default_http();
    fcntl(options.control_fd, F_SETFL, O_NONBLOCK);
    if (result == 0)
        result = run_launch(&options);
    free(options.trainer);
    free(request);
    return result;
}
