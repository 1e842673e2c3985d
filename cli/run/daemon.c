// SPDX-License-Identifier: Apache-2.0
//
// Starts the private coordinator and reads its port; daemon.h has the contract.

#include "cli/run/daemon.h"

#include "cli/common/cli.h"
#include "cli/run/spawn.h"

#include "base/address.h"
#include "base/parse.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME "/lockstep-XXXXXX"
#define SOCKET "/socket"
#define PORT_FILE "/port"
#define TOKEN_FILE "/token"
#define PATH_BYTES (RUN_DIRECTORY_BYTES + 16)
#define FALLBACK "/tmp"

// ---- The directory -----------------------------------------------------------------------------

// Returns TMPDIR as an absolute path, or NULL if it does not exist, is too long for a socket in it,
// or has a character that gRPC does not take.
static const char *wanted_parent(char parent[PATH_MAX])
{
    const char *wanted = getenv("TMPDIR");
    if (!wanted || !wanted[0] || !realpath(wanted, parent) || parse_path_flaw(parent) != '\0')
        return NULL;
    return strlen(parent) + strlen(NAME SOCKET) < RUN_DIRECTORY_BYTES ? parent : NULL;
}

int daemon_make_directory(struct run_options *options)
{
    char resolved[PATH_MAX];
    const char *parent = wanted_parent(resolved);
    struct text path;
    text_init(&path, options->directory, sizeof(options->directory));
    text_append(&path, "%s" NAME, parent ? parent : FALLBACK);
    if (mkdtemp(options->directory))
        return 0;
    cli_say(options->command, "cannot make a directory like %s: %s", options->directory,
            strerror(errno));
    options->directory[0] = '\0';
    return CLI_FAILED;
}

void daemon_forget(const char *directory)
{
    DIR *inside = directory[0] ? opendir(directory) : NULL;
    if (!inside)
        return;
    // unlinkat fails for "." and "..", which are directories.
    for (struct dirent *entry = readdir(inside); entry; entry = readdir(inside))
        unlinkat(dirfd(inside), entry->d_name, 0);
    closedir(inside);
    rmdir(directory);
}

// ---- The token ---------------------------------------------------------------------------------

static bool make_token(char token[DAEMON_TOKEN_BYTES])
{
    unsigned char bytes[(DAEMON_TOKEN_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return false;
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

// Writes the token into a new file that only its owner can read.
static bool write_token(const char *path, const char *token)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    const bool written = dprintf(fd, "%s\n", token) == (int)strlen(token) + 1;
    return close(fd) == 0 && written;
}

static void path_in(const struct run_options *options, const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s%s", options->directory, name);
}

// ---- The coordinator of several hosts ---------------------------------------------------------

// Returns true if all addresses of the host name are loopback addresses. Returns false for an
// unknown name, which the coordinator then reports.
static bool is_local(const char *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    bool local = true;
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    for (const struct addrinfo *one = found; one; one = one->ai_next)
        local = local && address_is_loopback(one->ai_addr);
    freeaddrinfo(found);
    return local;
}

// Returns true if this machine can listen on [::], which also accepts IPv4.
static bool has_ipv6(void)
{
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&any, sizeof(any)) == 0;
    if (fd >= 0)
        close(fd);
    return has;
}

// Writes the address where the coordinator listens: the address that workers use if that is numeric
// or loopback, and all addresses if it is a name. Returns an exit status after a sentence on stderr
// if workers of other hosts could not use it.
static int served_address(const struct run_options *options, char *address, size_t capacity)
{
    char host[LOCKSTEP_ADDRESS_BYTES] = "";
    struct in6_addr number;
    uint16_t port = 0;
    const char *at = options->bind ? options->bind : options->coordinator;
    const char *plaintext = getenv("LOCKSTEP_INSECURE_PLAINTEXT");
    const char *certificates = getenv("LOCKSTEP_COORDINATOR_TLS_DIR");
    parse_address(at, host, sizeof(host), &port);
    const bool is_number =
        inet_pton(AF_INET, host, &number) == 1 || inet_pton(AF_INET6, host, &number) == 1;
    const bool local = is_local(host);
    if (local && !is_number && strcmp(host, "localhost") != 0) {
        cli_say(options->command,
                "--coordinator %s: on this host '%s' is a loopback address, which no other host "
                "reaches; add --bind ADDRESS:%u, with the address that other hosts use; a "
                "certificate of the coordinator has to name that address, too",
                options->coordinator, host, port);
        return CLI_MISUSE;
    }
    if (!local && (!plaintext || strcmp(plaintext, "1") != 0) &&
        (!certificates || !certificates[0])) {
        cli_say(options->command,
                "workers of other hosts reach the coordinator over the network: set "
                "LOCKSTEP_COORDINATOR_TLS_DIR to its certificates (lockstep certs init makes "
                "them); on a network where you trust everybody, set "
                "LOCKSTEP_INSECURE_PLAINTEXT=1 on all hosts");
        return CLI_MISUSE;
    }
    if (is_number || local)
        snprintf(address, capacity, "%s", at);
    else
        snprintf(address, capacity, has_ipv6() ? "[::]:%u" : "0.0.0.0:%u", port);
    return CLI_OK;
}

// Returns an exit status after a sentence on stderr if the page would listen in plaintext where
// other machines reach it, and the user has not allowed that.
static int check_http(const struct run_options *options)
{
    char host[LOCKSTEP_ADDRESS_BYTES] = "";
    const char *plaintext = getenv("LOCKSTEP_INSECURE_PLAINTEXT");
    uint16_t port = 0;
    if (!parse_address(options->http, host, sizeof(host), &port) || is_local(host) ||
        (plaintext && strcmp(plaintext, "1") == 0))
        return CLI_OK;
    cli_say(options->command,
            "--http %s: other machines reach this address, and the page and its token would pass "
            "in plaintext; leave --http out and forward the printed port by ssh -L, or, on a "
            "network where you trust everybody, set LOCKSTEP_INSECURE_PLAINTEXT=1",
            options->http);
    return CLI_MISUSE;
}

// ---- The process -------------------------------------------------------------------------------

int daemon_start(struct daemon *daemon, const struct run_options *options, int socket,
                 int output_fd)
{
    char program[PATH_MAX + 32];
    char address[LOCKSTEP_ADDRESS_BYTES];
    char drain[RUN_CODE_BYTES];
    char port_file[PATH_BYTES];
    char token_file[PATH_BYTES];
    int result = CLI_OK;
    if (spawn_find_coordinator(program, sizeof(program)) != 0) {
        cli_say(options->command,
                "lockstep-coordinator was found neither beside this program nor in PATH");
        return CLI_FAILED;
    }
    path_in(options, TOKEN_FILE, token_file);
    if (!make_token(daemon->token) || !write_token(token_file, daemon->token)) {
        cli_say(options->command, "cannot write %s: %s", token_file, strerror(errno));
        return CLI_FAILED;
    }
    if ((result = check_http(options)) != CLI_OK)
        return result;
    if (!options->serves)
        daemon_address(options, address, sizeof(address));
    else if ((result = served_address(options, address, sizeof(address))) != CLI_OK)
        return result;
    snprintf(drain, sizeof(drain), "%d", options->serves ? DAEMON_DRAIN_MS : 0);
    path_in(options, PORT_FILE, port_file);
    const char *level = getenv("LOCKSTEP_COORDINATOR_LOG_LEVEL");
    const char *argv[] = {program,
                          "--listen",
                          address,
                          "--http",
                          options->http,
                          "--http-token-file",
                          token_file,
                          "--port-file",
                          port_file,
                          "--log-level",
                          level && level[0] ? level : "warn",
                          "--drain-ms",
                          drain,
                          "--parent-death",
                          "--launcher",
                          NULL};
    // A private coordinator must not use this machine's certificates, which are for coordinators
    // that other hosts reach.
    static const struct spawn_variable plain = {"LOCKSTEP_COORDINATOR_TLS_DIR", NULL};
    struct spawn request = {.program = program,
                            .variables = &plain,
                            .variable_count = options->serves ? 0 : 1,
                            .argv = (char *const *)(uintptr_t)argv,
                            .input = socket,
                            .output = output_fd,
                            .error = output_fd,
                            .failure_fd = -1,
                            .signals = &options->signals};
    daemon->pid = spawn(&request);
    if (daemon->pid > 0)
        return 0;
    cli_say(options->command, "cannot start the coordinator: %s", strerror(errno));
    daemon->pid = 0;
    return CLI_FAILED;
}

// Notes the address for workers if any port was wanted.
static void note_served(struct daemon *daemon, const struct run_options *options, unsigned port)
{
    char host[LOCKSTEP_ADDRESS_BYTES] = "";
    uint16_t wanted = 0;
    if (!options->serves || !parse_address(options->coordinator, host, sizeof(host), &wanted) ||
        wanted != 0)
        return;
    snprintf(daemon->served, sizeof(daemon->served),
             strchr(host, ':') ? "[%.140s]:%u" : "%.140s:%u", host, port);
}

bool daemon_ready(struct daemon *daemon, const struct run_options *options)
{
    char path[PATH_BYTES];
    char line[128] = "";
    unsigned grpc = 0;
    unsigned http = 0;
    path_in(options, PORT_FILE, path);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool read = fgets(line, sizeof(line), file) != NULL;
    fclose(file);
    // A coordinator on a Unix socket writes 0 for the port of gRPC.
    if (!read || sscanf(line, "grpc=%u http=%u", &grpc, &http) != 2 || http > UINT16_MAX)
        return false;
    daemon->http_port = (uint16_t)http;
    note_served(daemon, options, grpc);
    return true;
}

void daemon_say_end(const struct run_options *options, int status, bool trains)
{
    const char *then = "";
    if (trains)
        then = "; workers that have formed their world train on, and stalls are not diagnosed";
    else if (options->serves)
        then = "; host 0 starts it: is --node-rank 0 given on another host or in another terminal?";
    if (WIFSIGNALED(status))
        cli_say(options->command, "the coordinator was killed by signal %d%s", WTERMSIG(status),
                then);
    else
        cli_say(options->command, "the coordinator ended with status %d%s", WEXITSTATUS(status),
                then);
}

// ---- Addresses ---------------------------------------------------------------------------------

void daemon_address(const struct run_options *options, char *address, size_t capacity)
{
    snprintf(address, capacity, "unix:%s" SOCKET, options->directory);
}

// Returns the address by which this machine reaches a listener on `host`.
static const char *own_host(const char *host)
{
    if (strcmp(host, "0.0.0.0") == 0)
        return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

bool daemon_dashboard(const struct daemon *daemon, const struct run_options *options, char *address,
                      size_t capacity)
{
    char host[LOCKSTEP_ADDRESS_BYTES] = "";
    uint16_t any = 0;
    if (daemon->http_port == 0 || !parse_address(options->http, host, sizeof(host), &any))
        return false;
    const bool six = strchr(host, ':') != NULL;
    snprintf(address, capacity, six ? "http://[%s]:%u/?token=%s" : "http://%s:%u/?token=%s",
             own_host(host), daemon->http_port, daemon->token);
    return true;
}
