// SPDX-License-Identifier: Apache-2.0
//
// The arguments of `lockstep run`; options.h has the contract. Most have the same names as in
// torchrun and mpirun.

#include "cli/run/options.h"

#include "base/address.h"
#include "base/parse.h"
#include "cli/common/cli.h"
#include "cli/run/host_list.h"
#include "protos/job_name.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help_text[] =
    "usage: lockstep run -n N [OPTIONS] [--] TRAINER [ARGUMENTS...]\n"
    "       lockstep run --hosts HOST:N,HOST:N [OPTIONS] [--] TRAINER [ARGUMENTS...]\n"
    "       lockstep run -n N --nnodes M --node-rank K --coordinator HOST:PORT [OPTIONS] ...\n"
    "\n"
    "Starts N workers and a private coordinator on this machine, prints what they print,\n"
    "and ends with the status of the first one that fails. With --hosts it starts the workers\n"
    "of all hosts by ssh. Without ssh, run it on each of the M hosts; host 0 starts the\n"
    "coordinator.\n"
    "\n"
    "  -n, -np, --workers N        How many workers on this host\n"
    "      --hosts LIST            Hosts and their workers: a:4,user@b:2 (-n workers, or 1)\n"
    "      --rsh COMMAND           The remote shell and its options (ssh)\n"
    "      --lockstep PATH         This program on the hosts of --hosts (its path here)\n"
    "      --nnodes M              How many hosts, each with N workers (1)\n"
    "      --node-rank K           Number of this host, from 0 to M - 1\n"
    "      --coordinator HOST:PORT With --nnodes: where host 0 starts the coordinator;\n"
    "                              without it: join this one instead of starting one\n"
    "      --join                  Several hosts: the coordinator runs already\n"
    "      --bind ADDRESS:PORT     Where the coordinator of host 0 listens (HOST:PORT if that\n"
    "                              is a number, else all addresses of the host)\n"
    "      --job NAME              Name of the job (default: run- and the process id)\n"
    "      --timeout DURATION      How long workers wait for each other (30, 30s, 5m)\n"
    "      --grace DURATION        From the first failure to killing the others (1500ms)\n"
    "      --survive[=MIN]         A worker that fails does not end the others, and the run\n"
    "                              succeeds if MIN of them end with status 0 (1)\n"
    "      --max-restarts N        How often a job that fails is started again (0)\n"
    "  -x, --env NAME=VALUE        Set a variable of the workers\n"
    "      --http HOST:PORT|off    Where the dashboard listens (127.0.0.1:0)\n"
    "      --log-dir DIRECTORY     Also write a file for each rank and one for the coordinator\n"
    "      --no-prefix             Lines without [rank]\n"
    "      --json                  End with one JSON object on standard output\n"
    "  -h, --help                  Show this\n"
    "\n"
    "Workers find their place in LOCKSTEP_COORDINATOR, LOCKSTEP_JOB, LOCKSTEP_WORLD_SIZE,\n"
    "LOCKSTEP_RANK_HINT and LOCKSTEP_DASHBOARD. docs/cli.md has the details.\n";

enum option_key {
    KEY_COORDINATOR = 256,
    KEY_HOSTS,
    KEY_RSH,
    KEY_LOCKSTEP,
    KEY_NNODES,
    KEY_NODE_RANK,
    KEY_JOIN,
    KEY_BIND,
    KEY_JOB,
    KEY_TIMEOUT,
    KEY_GRACE,
    KEY_SURVIVE,
    KEY_MAX_RESTARTS,
    KEY_HTTP,
    KEY_LOG_DIR,
    KEY_NO_PREFIX,
    KEY_JSON,
};

static const struct option long_options[] = {
    {"workers", required_argument, NULL, 'n'},
    {"hosts", required_argument, NULL, KEY_HOSTS},
    {"rsh", required_argument, NULL, KEY_RSH},
    {"lockstep", required_argument, NULL, KEY_LOCKSTEP},
    {"nnodes", required_argument, NULL, KEY_NNODES},
    {"node-rank", required_argument, NULL, KEY_NODE_RANK},
    {"coordinator", required_argument, NULL, KEY_COORDINATOR},
    {"join", no_argument, NULL, KEY_JOIN},
    {"bind", required_argument, NULL, KEY_BIND},
    {"job", required_argument, NULL, KEY_JOB},
    {"timeout", required_argument, NULL, KEY_TIMEOUT},
    {"grace", required_argument, NULL, KEY_GRACE},
    {"survive", optional_argument, NULL, KEY_SURVIVE},
    {"max-restarts", required_argument, NULL, KEY_MAX_RESTARTS},
    {"env", required_argument, NULL, 'x'},
    {"http", required_argument, NULL, KEY_HTTP},
    {"log-dir", required_argument, NULL, KEY_LOG_DIR},
    {"no-prefix", no_argument, NULL, KEY_NO_PREFIX},
    {"json", no_argument, NULL, KEY_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

#define NO_NODE UINT32_MAX // --node-rank was not given.

static int set_workers(const char *value, uint32_t *workers)
{
    uint64_t number = 0;
    if (!parse_u64(value, &number) || number < 1 || number > LOCKSTEP_MAX_WORLD)
        return cli_misuse("run", "-n %s: the number of workers is 1 to %d", value,
                          LOCKSTEP_MAX_WORLD);
    *workers = (uint32_t)number;
    return 0;
}

static int set_number(const char *name, const char *value, uint32_t least, uint32_t *number)
{
    uint64_t parsed = 0;
    if (!parse_u64(value, &parsed) || parsed < least || parsed > LOCKSTEP_MAX_WORLD)
        return cli_misuse("run", "--%s %s: not a number from %u to %d", name, value, least,
                          LOCKSTEP_MAX_WORLD);
    *number = (uint32_t)parsed;
    return 0;
}

static int set_survive(const char *value, uint32_t *survive)
{
    uint64_t number = 1;
    if (value && (!parse_u64(value, &number) || number < 1 || number > LOCKSTEP_MAX_WORLD))
        return cli_misuse("run", "--survive=%s: not a number of workers from 1 to %d", value,
                          LOCKSTEP_MAX_WORLD);
    *survive = (uint32_t)number;
    return 0;
}

static int set_duration(const char *name, const char *value, uint64_t *milliseconds)
{
    if (!parse_duration_ms(value, milliseconds) || *milliseconds > UINT32_MAX)
        return cli_misuse("run", "--%s %s: not a duration such as 500ms, 30s or 5m", name, value);
    return 0;
}

static int set_timeout(struct run_options *options, const char *value)
{
    const int result = set_duration("timeout", value, &options->timeout_ms);
    return result != 0 || options->timeout_ms > 0
               ? result
               : cli_misuse("run", "--timeout %s: workers have to wait for each other", value);
}

static int set_job(struct run_options *options, const char *value)
{
    if (value[0] == '\0' || strlen(value) >= sizeof(options->job))
        return cli_misuse("run", "--job %s: a job's name has 1 to %zu characters", value,
                          sizeof(options->job) - 1);
    if (!job_name_valid(value))
        return cli_misuse("run", "--job %s: a job's name has only " JOB_NAME_RULE, value);
    snprintf(options->job, sizeof(options->job), "%s", value);
    return 0;
}

static bool is_address(const char *value, bool port_zero)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    return parse_address(value, host, sizeof(host), &port) && (port != 0 || port_zero);
}

static int set_address(const char *name, const char *value, bool port_zero, const char **address)
{
    if (!is_address(value, port_zero))
        return cli_misuse("run", "--%s %s: not HOST:PORT or [IPV6]:PORT", name, value);
    *address = value;
    return 0;
}

static bool is_wildcard(const char *value)
{
    return strncmp(value, "0.0.0.0:", 8) == 0 || strncmp(value, "[::]:", 5) == 0;
}

// A list is for a coordinator that is joined; check_options refuses another one.
static int set_coordinator(struct run_options *options, const char *value)
{
    char address[LOCKSTEP_ADDRESS_BYTES];
    bool valid = strlen(value) < LOCKSTEP_COORDINATOR_BYTES;
    if (is_wildcard(value))
        return cli_misuse("run", "--coordinator %s: not an address that workers reach", value);
    options->coordinator = value;
    for (const char *rest = value; rest && valid;)
        valid = parse_next_address(&rest, address, sizeof(address)) && is_address(address, false);
    return valid ? 0
                 : cli_misuse("run",
                              "--coordinator %s: not HOST:PORT or [IPV6]:PORT, or a list of these",
                              value);
}

// Workers of host 0 also connect to this address, so it must not be a wildcard.
static int set_bind(struct run_options *options, const char *value)
{
    if (is_wildcard(value))
        return cli_misuse("run",
                          "--bind %s: not one address of this host; a coordinator that is "
                          "named by its host's name listens at all of them",
                          value);
    return set_address("bind", value, false, &options->bind);
}

static int set_http(struct run_options *options, const char *value)
{
    if (strcmp(value, "off") != 0)
        return set_address("http", value, true, &options->http);
    options->http = value;
    return 0;
}

// Returns true for the variables that every worker gets.
static bool is_own(const char *name, size_t size)
{
    static const char *const names[] = {"LOCKSTEP_COORDINATOR", "LOCKSTEP_JOB",
                                        "LOCKSTEP_RANK_HINT", "LOCKSTEP_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i]) == size && memcmp(names[i], name, size) == 0)
            return true;
    }
    return false;
}

// Sets the variable of NAME=VALUE. NAME alone is accepted, as by mpirun, which passes the variable
// on to other hosts. Here the workers have it anyway.
static int set_variable(char *value)
{
    char *equals = strchr(value, '=');
    if (value[0] == '\0' || equals == value)
        return cli_misuse("run", "--env %s: not NAME=VALUE", value);
    if (is_own(value, equals ? (size_t)(equals - value) : strlen(value)))
        return cli_misuse("run",
                          "--env %s: lockstep run itself sets this variable, by --coordinator, "
                          "--job, and the number of workers",
                          value);
    if (!equals)
        return getenv(value) ? 0 : cli_misuse("run", "--env %s: there is no such variable", value);
    *equals = '\0';
    const int result = setenv(value, equals + 1, 1);
    *equals = '=';
    return result == 0 ? 0 : cli_misuse("run", "--env %s: it cannot be set", value);
}

// Sets the number of workers. getopt takes mpirun's -np for -n with the value "p". Then the next
// argument is the number, and getopt is told that it was read.
static int set_n(struct run_options *options, const char *value)
{
    if (strcmp(value, "p") == 0 && strcmp(options->trainer[optind - 1], "-np") == 0) {
        value = options->trainer[optind];
        if (!value)
            return cli_misuse("run", "option '-np' needs a value");
        optind++;
    }
    return set_workers(value, &options->workers);
}

// Returns 0, an exit status, or -1 if the help was printed. While options are read,
// options->trainer is the whole argv.
static int set_option(void *given, int key, char *value)
{
    struct run_options *options = given;
    switch (key) {
    case 'n':
        return set_n(options, value);
    case 'x':
        options->variables[options->variable_count++] = value;
        return set_variable(value);
    case KEY_HOSTS:
        options->host_list = value;
        return 0;
    case KEY_RSH:
        options->rsh = value;
        return 0;
    case KEY_LOCKSTEP:
        options->remote_program = value;
        return 0;
    case KEY_NNODES:
        return set_number("nnodes", value, 1, &options->nodes);
    case KEY_NODE_RANK:
        return set_number("node-rank", value, 0, &options->node_rank);
    case KEY_COORDINATOR:
        return set_coordinator(options, value);
    case KEY_JOIN:
        options->join = true;
        return 0;
    case KEY_BIND:
        return set_bind(options, value);
    case KEY_JOB:
        return set_job(options, value);
    case KEY_TIMEOUT:
        return set_timeout(options, value);
    case KEY_GRACE:
        return set_duration("grace", value, &options->grace_ms);
    case KEY_SURVIVE:
        return set_survive(value, &options->survive);
    case KEY_MAX_RESTARTS:
        return set_number("max-restarts", value, 0, &options->max_restarts);
    case KEY_HTTP:
        return set_http(options, value);
    case KEY_LOG_DIR:
        options->log_dir = value;
        return 0;
    case KEY_NO_PREFIX:
        options->prefix = false;
        return 0;
    case KEY_JSON:
        options->json = true;
        return 0;
    default:
        return CLI_MISUSE; // The options table has no other key.
    }
}

static const struct cli_syntax syntax = {.name = "run",
                                         .letters = "+:n:x:h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// Checks the options of a job with --nnodes. A single host needs neither --node-rank nor
// --coordinator.
static int check_nodes(const struct run_options *options)
{
    const bool several = options->nodes > 1;
    if (options->node_rank == NO_NODE && several)
        return cli_misuse("run", "which of the %u hosts is this? --node-rank K is missing",
                          options->nodes);
    if (options->node_rank != NO_NODE && options->node_rank >= options->nodes)
        return cli_misuse("run", "--node-rank %u: the hosts are 0 to %u", options->node_rank,
                          options->nodes - 1);
    if (!options->coordinator && (several || options->join || options->bind))
        return cli_misuse("run", "where is the coordinator? --coordinator HOST:PORT, an address of "
                                 "host 0 that all hosts reach, is missing");
    if ((uint64_t)options->nodes * options->workers > LOCKSTEP_MAX_WORLD)
        return cli_misuse("run", "%u hosts with %u workers each: a job has at most %d workers",
                          options->nodes, options->workers, LOCKSTEP_MAX_WORLD);
    if (options->join && !options->job[0])
        return cli_misuse("run", "--join: all hosts need the same --job NAME");
    return 0;
}

// Checks the options of a job whose hosts this launcher starts.
static int check_hosts(const struct run_options *options)
{
    if (options->nodes > 0 || options->node_rank != NO_NODE)
        return cli_misuse("run", "--hosts starts the workers of all hosts, so --nnodes and "
                                 "--node-rank do not belong to it");
    if (options->bind && !options->coordinator)
        return cli_misuse("run", "--bind belongs to --coordinator NAME:PORT");
    if (options->join && (!options->coordinator || !options->job[0]))
        return cli_misuse("run", "--join: which coordinator and job? --coordinator HOST:PORT or "
                                 "--job NAME is missing");
    return 0;
}

// Two ports are right only where a forwarding leads from one to the other.
static void warn_of_ports(const struct run_options *options, bool starts)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t listens = 0;
    uint16_t named = 0;
    if (starts && options->bind && options->coordinator &&
        parse_address(options->bind, host, sizeof(host), &listens) &&
        parse_address(options->coordinator, host, sizeof(host), &named) && listens != named)
        cli_say("run",
                "the coordinator listens at port %u (--bind), and workers of other hosts connect "
                "to port %u (--coordinator): is one forwarded to the other?",
                listens, named);
}

static int check_options(const struct run_options *options)
{
    const bool several = options->nodes > 0 || options->host_list;
    if (!options->host_list && (options->rsh || options->remote_program))
        return cli_misuse("run", "--rsh and --lockstep belong to --hosts LIST, which is missing");
    if (options->workers == 0 && !options->host_list)
        return cli_misuse("run", "how many workers? -n N is missing");
    if (!options->trainer[0])
        return cli_misuse("run", "no trainer given");
    if (!several && (options->join || options->bind ||
                     (options->node_rank != NO_NODE && options->node_rank != 0)))
        return cli_misuse("run", "--node-rank, --join and --bind belong to a job on several hosts: "
                                 "--nnodes M is missing");
    if (several) {
        const int result = options->host_list ? check_hosts(options) : check_nodes(options);
        if (result != 0)
            return result;
    }
    const bool starts = !options->coordinator || (several && !options->join);
    if (starts && options->coordinator && strchr(options->coordinator, ','))
        return cli_misuse("run",
                          "--coordinator %s: the coordinator is started at one address; a "
                          "list is for one that runs already (--join)",
                          options->coordinator);
    warn_of_ports(options, starts);
    if (!starts && options->http)
        return cli_misuse("run",
                          "--http belongs to a coordinator that is started here, not to one that "
                          "is joined");
    return 0;
}

// Sets what follows from the options of a job on the hosts of --nnodes.
static void set_nodes(struct run_options *options)
{
    const uint32_t nodes = options->nodes > 0 ? options->nodes : 1;
    options->node_rank = options->node_rank == NO_NODE ? 0 : options->node_rank;
    options->world_size = nodes * options->workers;
    options->first_rank = options->node_rank * options->workers;
    options->serves =
        options->nodes > 0 && options->coordinator && options->node_rank == 0 && !options->join;
    if (!options->job[0] && (nodes > 1 || options->serves))
        // The default name must be the same on all hosts.
        snprintf(options->job, sizeof(options->job), "run");
    else if (!options->job[0])
        run_default_job(options);
}

// The same for --hosts.
static void set_hosts(struct run_options *options)
{
    options->node_rank = 0;
    options->serves = !options->join;
    if (!options->rsh)
        options->rsh = "ssh";
    if (!options->job[0])
        run_default_job(options);
}

const char *options_default_http(void)
{
    return strchr(address_loopback(), ':') ? "[::1]:0" : "127.0.0.1:0";
}

int options_read(struct run_options *options, int argc, char **argv)
{
    *options = (struct run_options){
        .command = "run", .prefix = true, .grace_ms = RUN_GRACE_MS, .node_rank = NO_NODE};
    options->variables = calloc((size_t)argc, sizeof(char *)); // Stays until the process ends.
    if (!options->variables)
        return CLI_FAILED;
    options->trainer = argv;
    int result = cli_read_options(&syntax, options, argc, argv);
    if (result != 0)
        return result;
    options->trainer = argv + optind;
    result = check_options(options);
    if (result == 0 && options->host_list)
        result = host_list_read(options, options->host_list);
    if (result == 0 && options->survive > options->workers)
        result = cli_misuse("run", "--survive=%u: there are only %u workers%s", options->survive,
                            options->workers, options->nodes > 1 ? " on this host" : "");
    if (result != 0)
        return result;
    if (options->host_list)
        set_hosts(options);
    else
        set_nodes(options);
    if (!options->http && !options->host_list) // Each host has a default of its own.
        options->http = options_default_http();
    return 0;
}
