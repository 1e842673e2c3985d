// SPDX-License-Identifier: Apache-2.0
//
// Starting the private coordinator and learning its ports; daemon.h has the contract.

#include "cli/daemon.h"

#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void port_file(const char *directory, char *path, size_t capacity)
{
    snprintf(path, capacity, "%s/port", directory);
}

static int make_directory(const struct run_options *options, char *directory, size_t capacity)
{
    const char *parent = getenv("TMPDIR");
    snprintf(directory, capacity, "%s/lockstep-XXXXXX", parent && parent[0] ? parent : "/tmp");
    if (mkdtemp(directory))
        return 0;
    cli_say(options->command, "cannot make a directory like %s: %s", directory, strerror(errno));
    directory[0] = '\0';
    return CLI_FAILED;
}

int daemon_start(struct daemon *daemon, const struct run_options *options, int error_fd,
                 char *directory, size_t capacity)
{
    char program[PATH_MAX + 32];
    char path[PATH_MAX];
    if (find_coordinator(program, sizeof(program)) != 0) {
        cli_say(options->command,
                "lockstep-coordinator was found neither beside this program nor in PATH");
        return CLI_FAILED;
    }
    if (make_directory(options, directory, capacity) != 0)
        return CLI_FAILED;
    port_file(directory, path, sizeof(path));
    const char *argv[] = {program,       "--listen",    "127.0.0.1:0", "--http",
                          options->http, "--port-file", path,          "--parent-death",
                          "--log-level", "warn",        "--drain-ms",  "0",
                          NULL};
    // Certificates of this machine are for a coordinator that others reach.
    static const struct spawn_variable plain = {"LOCKSTEP_COORDINATOR_TLS_DIR", NULL};
    struct spawn request = {.program = program,
                            .variables = &plain,
                            .variable_count = 1,
                            .argv = (char *const *)(uintptr_t)argv,
                            .input = -1,
                            .output = error_fd,
                            .error = error_fd,
                            .failure_fd = -1,
                            .signals = &options->signals};
    daemon->pid = spawn(&request);
    if (daemon->pid > 0)
        return 0;
    cli_say(options->command, "cannot start the coordinator: %s", strerror(errno));
    daemon->pid = 0;
    return CLI_FAILED;
}

bool daemon_ports(struct daemon *daemon, const char *directory)
{
    char path[PATH_MAX];
    char line[128] = "";
    unsigned grpc = 0;
    unsigned http = 0;
    port_file(directory, path, sizeof(path));
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool read = fgets(line, sizeof(line), file) != NULL;
    fclose(file);
    if (!read || sscanf(line, "grpc=%u http=%u", &grpc, &http) < 1 || grpc > UINT16_MAX ||
        http > UINT16_MAX)
        return false;
    daemon->grpc_port = (uint16_t)grpc;
    daemon->http_port = (uint16_t)http;
    return grpc != 0;
}

void daemon_forget(const char *directory)
{
    char path[PATH_MAX];
    if (!directory[0])
        return;
    port_file(directory, path, sizeof(path));
    unlink(path);
    rmdir(directory);
}
