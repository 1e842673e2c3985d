// SPDX-License-Identifier: Apache-2.0
//
// One table holds the flags: their names, help and functions. getopt_long reads the command line,
// getenv the variables. Main thread.

#include "server/options.h"

#include "base/address.h"
#include "base/parse.h"
#include "base/text.h"
#include "base/variables.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_DEFAULT "127.0.0.1:50051"
#define HTTP_DEFAULT "127.0.0.1:8080"
#define DRAIN_DEFAULT_MS 5000
#define WAIT_MAX_MS 600000
#define CHUNK_MIN_BYTES 1024
#define STALL_FLOOR_MIN_MS 100
#define STALL_FLOOR_MAX_MS 3600000
#define MEMORY_DEFAULT_MIB 544 // Enough for 4096 workers. The manifests allow 768 MiB.
#define MEMORY_MIN_MIB 96
#define MEMORY_MAX_MIB 1048576

// The name has no COORDINATOR in it, because the variable is meant for every program of Lockstep
// that could send plaintext.
#define INSECURE_VARIABLE "LOCKSTEP_INSECURE_PLAINTEXT"
#define GIVEN_BYTES 64

struct parse {
    struct options *options;
    const char *given; // "--listen" or the variable's name.
    char listen_given[GIVEN_BYTES]; // `given` of the --listen address that is used.
    char http_given[GIVEN_BYTES];
    char *error;
    size_t error_bytes;
};

static bool refuse(struct parse *parse, const char *value, const char *why)
{
    snprintf(parse->error, parse->error_bytes, "%s '%s': %s", parse->given, value, why);
    return false;
}

// ---- addresses --------------------------------------------------------------------------------

// Resolves numeric hosts and localhost only, so that no name server decides where the daemon
// listens.
static struct addrinfo *resolve(const char *host)
{
    bool local = strcmp(host, "localhost") == 0;
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (getaddrinfo(local ? address_loopback() : host, NULL, &hints, &found) != 0)
        return NULL;
    return found;
}

// The directory of the path decides who can connect, so a path never counts as exposed.
static bool set_unix(struct parse *parse, const char *value, struct endpoint *endpoint, char *given)
{
    const char *path = value + strlen(ENDPOINT_UNIX);
    if (path[0] != '/' || strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path)
        return refuse(parse, value, "a path from the root is needed, of at most 107 characters");
    if (parse_path_flaw(path) != '\0')
        return refuse(parse, value, "workers find no path that has ',', '#', '?' or '%'");
    *endpoint = (struct endpoint){0};
    text_copy(endpoint->host, sizeof(endpoint->host), value);
    text_copy(given, GIVEN_BYTES, parse->given);
    return true;
}

static bool set_endpoint(struct parse *parse, const char *value, struct endpoint *endpoint,
                         char *given)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    if (!parse_address(value, host, sizeof(host), &endpoint->port))
        return refuse(parse, value, "an address is HOST:PORT, as in 127.0.0.1:50051 or [::1]:0");
    struct addrinfo *found = resolve(host);
    if (!found)
        return refuse(parse, value, "the host must be a numeric address or localhost");
    endpoint->exposed = !address_is_loopback(found->ai_addr);
    getnameinfo(found->ai_addr, found->ai_addrlen, endpoint->host, sizeof(endpoint->host), NULL, 0,
                NI_NUMERICHOST);
    freeaddrinfo(found);
    text_copy(given, GIVEN_BYTES, parse->given);
    return true;
}

// Called after all flags are read, because the flag that allows an address may follow the address.
static bool allowed(struct parse *parse, const struct endpoint *endpoint, const char *given,
                    bool encrypted, const char *hint)
{
    char text[LOCKSTEP_ADDRESS_BYTES + 16];
    char why[512];
    if (!endpoint->exposed || encrypted || parse->options->insecure_plaintext)
        return true;
    endpoint_text(endpoint, text, sizeof(text));
    parse->given = given;
    snprintf(why, sizeof(why),
             "only loopback addresses are allowed in plaintext; %s; on a network where you trust "
             "everybody, allow it with --insecure-plaintext",
             hint);
    return refuse(parse, text, why);
}

// Checks the options together, after all of them are read.
static bool consistent(struct parse *parse)
{
    const struct options *options = parse->options;
    if (options->http_tls && !options->tls_dir) {
        snprintf(parse->error, parse->error_bytes,
                 "--http-tls needs --tls-dir, whose certificate it shows");
        return false;
    }
    if (options->outlive_ms > 0 && !options->parent_death) {
        snprintf(
            parse->error, parse->error_bytes,
            "--outlive-ms %u (LOCKSTEP_COORDINATOR_OUTLIVE_MS) needs --parent-death: it counts "
            "from the end of the parent process",
            options->outlive_ms);
        return false;
    }
    return allowed(parse, &options->listen, parse->listen_given, options->tls_dir != NULL,
                   "give certificates with --tls-dir (lockstep certs makes them), so that only "
                   "workers that have one can join") &&
           allowed(parse, &options->http, parse->http_given, options->http_tls,
                   "encrypt it with --http-tls and the certificate of --tls-dir");
}

// ---- one function for each flag ---------------------------------------------------------------

static bool set_listen(struct parse *parse, const char *value)
{
    struct endpoint *listen = &parse->options->listen;
    if (strncmp(value, ENDPOINT_UNIX, strlen(ENDPOINT_UNIX)) == 0)
        return set_unix(parse, value, listen, parse->listen_given);
    return set_endpoint(parse, value, listen, parse->listen_given);
}

static bool set_http(struct parse *parse, const char *value)
{
    parse->options->http_off = strcmp(value, "off") == 0;
    if (parse->options->http_off)
        parse->options->http.exposed = false;
    return parse->options->http_off ||
           set_endpoint(parse, value, &parse->options->http, parse->http_given);
}

static bool set_insecure(struct parse *parse, const char *value)
{
    bool on = !value || strcmp(value, "1") == 0;
    if (!on && value[0] != '\0' && strcmp(value, "0") != 0)
        return refuse(parse, value, "1 allows addresses that are not loopback, 0 does not");
    parse->options->insecure_plaintext = on;
    return true;
}

static bool set_log_level(struct parse *parse, const char *value)
{
    return log_level_parse(value, &parse->options->log_level) ||
           refuse(parse, value, "a level is error, warn, info or debug");
}

static bool set_port_file(struct parse *parse, const char *value)
{
    if (value[0] == '\0')
        return refuse(parse, value, "a path is needed");
    parse->options->port_file = value;
    return true;
}

static bool set_token_file(struct parse *parse, const char *value)
{
    if (value[0] == '\0')
        return refuse(parse, value, "a path is needed");
    parse->options->token_file = value;
    return true;
}

static bool set_tls_dir(struct parse *parse, const char *value)
{
    if (value[0] == '\0')
        return refuse(parse, value, "a directory is needed");
    parse->options->tls_dir = value;
    return true;
}

static bool set_http_tls(struct parse *parse, const char *value)
{
    (void)value;
    parse->options->http_tls = true;
    return true;
}

static bool set_http_host(struct parse *parse, const char *value)
{
    if (value[0] == '\0' || value[strcspn(value, " /:[]")] != '\0')
        return refuse(parse, value, "names are needed, without ports, separated by commas");
    parse->options->http_hosts = value;
    return true;
}

static bool set_parent_death(struct parse *parse, const char *value)
{
    uint64_t pid = 0;
    if (value && (!parse_u64(value, &pid) || pid == 0 || pid > INT32_MAX))
        return refuse(parse, value, "a process id is needed, or no value for the present parent");
    parse->options->parent_death = true;
    parse->options->parent = (pid_t)pid;
    return true;
}

static bool set_launcher(struct parse *parse, const char *value)
{
    (void)value;
    parse->options->launcher = true;
    return true;
}

static bool set_wait(struct parse *parse, const char *value, uint32_t *wait_ms)
{
    uint64_t ms;
    if (!parse_u64(value, &ms) || ms > WAIT_MAX_MS)
        return refuse(parse, value, "milliseconds are needed, 0 to 600000");
    *wait_ms = (uint32_t)ms;
    return true;
}

static bool set_drain(struct parse *parse, const char *value)
{
    return set_wait(parse, value, &parse->options->drain_ms);
}

static bool set_outlive(struct parse *parse, const char *value)
{
    return set_wait(parse, value, &parse->options->outlive_ms);
}

static bool set_chunk(struct parse *parse, const char *value)
{
    uint64_t bytes;
    if (!parse_u64(value, &bytes) || bytes < CHUNK_MIN_BYTES || bytes > LOCKSTEP_FRAME_BYTES ||
        bytes % 64 != 0)
        return refuse(parse, value, "a multiple of 64 is needed, 1024 to 1048576 bytes");
    parse->options->chunk_bytes = (uint32_t)bytes;
    return true;
}

static bool set_stall_floor(struct parse *parse, const char *value)
{
    uint64_t floor_ms;
    if (!parse_u64(value, &floor_ms) || floor_ms < STALL_FLOOR_MIN_MS ||
        floor_ms > STALL_FLOOR_MAX_MS)
        return refuse(parse, value, "milliseconds are needed, 100 to 3600000");
    parse->options->stall_floor_ms = (uint32_t)floor_ms;
    return true;
}

static bool set_memory(struct parse *parse, const char *value)
{
    uint64_t mib;
    if (!parse_u64(value, &mib) || mib < MEMORY_MIN_MIB || mib > MEMORY_MAX_MIB)
        return refuse(parse, value, "mebibytes are needed, 96 to 1048576");
    parse->options->memory_mib = (uint32_t)mib;
    return true;
}

static bool set_json(struct parse *parse, const char *value)
{
    (void)value;
    parse->options->json = true;
    return true;
}

// ---- the table --------------------------------------------------------------------------------

struct flag {
    const char *name;
    int argument; // no_argument or required_argument, as for getopt_long.
    bool (*set)(struct parse *parse, const char *value);
    const char *value; // Its name in the help.
    const char *help;
};

static const struct flag flags[] = {
    {"listen", required_argument, set_listen, "HOST:PORT",
     "where workers connect (" LISTEN_DEFAULT "), or unix:PATH; port 0 takes any"},
    {"tls-dir", required_argument, set_tls_dir, "DIR",
     "tls.crt, tls.key, ca.crt: workers need a certificate"},
    {"http", required_argument, set_http, "HOST:PORT",
     "status page, API and metrics (" HTTP_DEFAULT "), or off"},
    {"http-token-file", required_argument, set_token_file, "PATH",
     "what names a job needs the token in it"},
    {"http-tls", no_argument, set_http_tls, NULL, "HTTPS, with the certificate of --tls-dir"},
    {"http-host", required_argument, set_http_host, "NAMES",
     "further names by which browsers may ask without --http-tls"},
    {"insecure-plaintext", no_argument, set_insecure, NULL,
     "allow other addresses than loopback, without encryption"},
    {"log-level", required_argument, set_log_level, "LEVEL",
     "error, warn, info (default) or debug"},
    {"port-file", required_argument, set_port_file, "PATH",
     "write 'grpc=PORT http=PORT' there when ready"},
    {"parent-death", optional_argument, set_parent_death, "[=PID]",
     "end when the parent process has ended"},
    {"outlive-ms", required_argument, set_outlive, "MS",
     "then serve on until no worker has been there for so long (0)"},
    {"launcher", no_argument, set_launcher, NULL,
     "standard input is a socket to lockstep run, which passes this flag"},
    {"drain-ms", required_argument, set_drain, "MS",
     "how long SIGTERM waits for workers to leave (5000)"},
    {"chunk-bytes", required_argument, set_chunk, "BYTES",
     "payload of a ring frame (chosen by the coordinator)"},
    {"stall-floor-ms", required_argument, set_stall_floor, "MS",
     "no rank counts as stalled earlier (10000)"},
    {"memory-mib", required_argument, set_memory, "MIB",
     "above it connections end (544); a third less than the container may have"},
    {"json", no_argument, set_json, NULL, "print one JSON line to stdout when ready"},
    {"version", no_argument, NULL, NULL, "print the version and exit"},
    {"help", no_argument, NULL, NULL, "print this and exit"},
};

#define FLAG_COUNT (sizeof(flags) / sizeof(flags[0]))

static void print_help(FILE *out)
{
    fprintf(out, "Usage: lockstep-coordinator [flags]\n\n"
                 "Gives the workers of training jobs their ranks and one order of work, and "
                 "watches them.\n\nFlags:\n");
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        char left[64];
        const char *gap = flags[i].argument == required_argument ? " " : "";
        snprintf(left, sizeof(left), "--%s%s%s", flags[i].name, gap,
                 flags[i].value ? flags[i].value : "");
        fprintf(out, "  %-22s %s\n", left, flags[i].help);
    }
    fprintf(out,
            "\nEvery flag with a value, but --parent-death, is also read from the environment:\n"
            "--log-level from LOCKSTEP_COORDINATOR_LOG_LEVEL. " INSECURE_VARIABLE
            "=1 is --insecure-plaintext.\n"
            "SIGTERM drains and ends; a second one ends at once.\n"
            "Exit status: 0 after a drain, 1 when it could not start, 2 for wrong usage.\n");
}

// ---- environment and command line -------------------------------------------------------------

static void variable_name(const struct flag *flag, char *name, size_t name_bytes)
{
    snprintf(name, name_bytes, "LOCKSTEP_COORDINATOR_%s", flag->name);
    for (char *c = name; *c; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

// Reads the flags' variables. An empty one counts as not set. An unknown variable is an error,
// because it is probably a misspelling, perhaps of the variable for the certificates.
static bool read_environment(struct parse *parse)
{
    if (variables_check(environ, parse->error, parse->error_bytes) < 0)
        return false;
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        char name[64];
        variable_name(&flags[i], name, sizeof(name));
        const char *value = getenv(name);
        if (!value || !*value || flags[i].argument != required_argument)
            continue;
        parse->given = name;
        if (!flags[i].set(parse, value))
            return false;
    }
    const char *insecure = getenv(INSECURE_VARIABLE);
    parse->given = INSECURE_VARIABLE;
    return !insecure || set_insecure(parse, insecure);
}

static void fill_long_options(struct option *longs)
{
    for (size_t i = 0; i < FLAG_COUNT; i++)
        longs[i] = (struct option){.name = flags[i].name, .has_arg = flags[i].argument};
    longs[FLAG_COUNT] = (struct option){0};
}

static enum options_result usage(struct parse *parse, const char *what, const char *argument)
{
    snprintf(parse->error, parse->error_bytes, "%s '%s'; --help lists the flags", what, argument);
    return OPTIONS_USAGE;
}

// Answers --help and --version. Returns true if the flag is one of them.
static bool answered(const struct flag *flag, FILE *out)
{
    if (strcmp(flag->name, "help") == 0)
        print_help(out);
    else if (strcmp(flag->name, "version") == 0)
        fprintf(out, "lockstep-coordinator " SERVER_VERSION "\n");
    else
        return false;
    return true;
}

static enum options_result read_arguments(struct parse *parse, int argc, char **argv, FILE *out)
{
    struct option longs[FLAG_COUNT + 1];
    fill_long_options(longs);
    opterr = 0;
    optind = 0; // The value 0 also resets getopt, for tests.
    for (;;) {
        int index = -1;
        int code = getopt_long(argc, argv, "+:", longs, &index);
        if (code == -1)
            break;
        if (code == ':')
            return usage(parse, "a value is missing after", argv[optind - 1]);
        if (code != 0)
            return usage(parse, "unknown or ambiguous flag", argv[optind - 1]);
        const struct flag *flag = &flags[index];
        if (answered(flag, out))
            return OPTIONS_DONE;
        char given[64];
        snprintf(given, sizeof(given), "--%s", flag->name);
        parse->given = given;
        if (!flag->set(parse, optarg))
            return OPTIONS_USAGE;
    }
    return optind < argc ? usage(parse, "unexpected argument", argv[optind]) : OPTIONS_RUN;
}

enum options_result options_parse(int argc, char **argv, struct options *options, FILE *out,
                                  char *error, size_t error_bytes)
{
    struct parse parse = {.options = options, .error = error, .error_bytes = error_bytes};
    *options = (struct options){.log_level = LOG_LEVEL_INFO,
                                .drain_ms = DRAIN_DEFAULT_MS,
                                .memory_mib = MEMORY_DEFAULT_MIB};
    parse.given = "default";
    set_listen(&parse, LISTEN_DEFAULT);
    set_http(&parse, HTTP_DEFAULT);
    if (!read_environment(&parse))
        return OPTIONS_USAGE;
    enum options_result result = read_arguments(&parse, argc, argv, out);
    return result == OPTIONS_RUN && !consistent(&parse) ? OPTIONS_USAGE : result;
}
