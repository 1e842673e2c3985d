// SPDX-License-Identifier: Apache-2.0
//
// `lockstep run`: N workers and a coordinator on this machine, from start to last byte. This file
// reads the options and is the launcher; supervisor.c does the work. Main thread.
//
// The processes:
//
//     launcher          what the user started; takes the terminal's signals
//       supervisor      its own process group; starts, relays, decides, reaps
//         coordinator   private, unless --coordinator; exits by itself with its parent
//         worker 0..    each leads a process group
//           ...         whatever a worker starts: data loaders, compilers, shells
//
// Nothing is ever left behind:
//
// - Launcher and supervisor are both "subreapers": a process whose parent died becomes a child of
//   the nearest of them, so that even what a worker started can be found and killed.
// - A pipe leads from launcher to supervisor. A signal travels through it as one byte. When the
//   launcher dies, even by SIGKILL, the supervisor reads its end, kills all and exits.
// - When the supervisor dies by SIGKILL, the kernel kills the workers (their parent-death signal),
//   what they had started becomes the launcher's, and the launcher kills it.
// - Only if both are killed at the same instant can a worker's own child survive; the workers and
//   the coordinator do not. The private directory then stays, with a dead socket in it.
//
// Signals. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 go to all workers' groups, not to
// the coordinator. The second SIGINT, SIGTERM or SIGHUP kills.
//
// The end. The first worker to fail is the cause: its status is ours. The others get --grace to
// fail by themselves, then are killed; after a forwarded SIGINT, SIGTERM or SIGHUP they get the
// time they need, because they may be writing a checkpoint.

#include "cli/run/run.h"

#include "cli/common/cli.h"
#include "cli/run/descendants.h"
#include "cli/run/report.h"
#include "cli/run/spawn.h"
#include "cli/run/supervisor.h"

#include "base/parse.h"
#include "cli/run/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char help_text[] =
    "usage: lockstep run -n N [OPTIONS] [--] TRAINER [ARGUMENTS...]\n"
    "\n"
    "Starts N workers and a private coordinator on this machine, prints what they print,\n"
    "and ends with the status of the first one that fails.\n"
    "\n"
    "  -n, --workers N             How many workers: the world size\n"
    "      --coordinator HOST:PORT Join this coordinator instead of starting one\n"
    "      --job NAME              Name of the job (default: run- and the process id)\n"
    "      --timeout DURATION      How long workers wait for each other (30s, 5m)\n"
    "      --grace DURATION        From the first failure to killing the others (1500ms)\n"
    "      --http HOST:PORT|off    Where the dashboard listens (127.0.0.1:0)\n"
    "      --no-prefix             Lines without [rank]\n"
    "      --json                  End with one JSON object on standard output\n"
    "  -h, --help                  Show this\n"
    "\n"
    "Workers find their place in LOCKSTEP_COORDINATOR, LOCKSTEP_JOB, LOCKSTEP_WORLD_SIZE,\n"
    "LOCKSTEP_RANK_HINT and LOCKSTEP_DASHBOARD. docs/cli.md has the details.\n";

// ---- Options -----------------------------------------------------------------------------------

enum option_key {
    KEY_COORDINATOR = 256,
    KEY_JOB,
    KEY_TIMEOUT,
    KEY_GRACE,
    KEY_HTTP,
    KEY_NO_PREFIX,
    KEY_JSON,
};

static const struct option long_options[] = {
    {"workers", required_argument, NULL, 'n'},
    {"coordinator", required_argument, NULL, KEY_COORDINATOR},
    {"job", required_argument, NULL, KEY_JOB},
    {"timeout", required_argument, NULL, KEY_TIMEOUT},
    {"grace", required_argument, NULL, KEY_GRACE},
    {"http", required_argument, NULL, KEY_HTTP},
    {"no-prefix", no_argument, NULL, KEY_NO_PREFIX},
    {"json", no_argument, NULL, KEY_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int set_world_size(struct run_options *options, const char *value)
{
    uint64_t number = 0;
    if (!parse_u64(value, &number) || number < 1 || number > LOCKSTEP_MAX_WORLD)
        return cli_misuse("run", "-n %s: the number of workers is 1 to %d", value,
                          LOCKSTEP_MAX_WORLD);
    options->world_size = (uint32_t)number;
    return 0;
}

static int set_duration(const char *name, const char *value, uint64_t *milliseconds)
{
    if (!parse_duration_ms(value, milliseconds) || *milliseconds > UINT32_MAX)
        return cli_misuse("run", "--%s %s: not a duration such as 500ms, 30s or 5m", name, value);
    return 0;
}

static int set_job(struct run_options *options, const char *value)
{
    if (value[0] == '\0' || strlen(value) >= sizeof(options->job))
        return cli_misuse("run", "--job %s: a job's name has 1 to %zu characters", value,
                          sizeof(options->job) - 1);
    snprintf(options->job, sizeof(options->job), "%s", value);
    return 0;
}

static int set_address(const char *name, const char *value, bool port_zero, const char **address)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    if (!parse_address(value, host, sizeof(host), &port) || (port == 0 && !port_zero))
        return cli_misuse("run", "--%s %s: not HOST:PORT or [IPV6]:PORT", name, value);
    *address = value;
    return 0;
}

static int set_http(struct run_options *options, const char *value)
{
    if (strcmp(value, "off") != 0)
        return set_address("http", value, true, &options->http);
    options->http = value;
    return 0;
}

// 0, or an exit status; -1: the help was printed.
static int set_option(void *given, int key, char *value)
{
    struct run_options *options = given;
    switch (key) {
    case 'n':
        return set_world_size(options, value);
    case KEY_COORDINATOR:
        return set_address("coordinator", value, false, &options->coordinator);
    case KEY_JOB:
        return set_job(options, value);
    case KEY_TIMEOUT:
        return set_duration("timeout", value, &options->timeout_ms);
    case KEY_GRACE:
        return set_duration("grace", value, &options->grace_ms);
    case KEY_HTTP:
        return set_http(options, value);
    case KEY_NO_PREFIX:
        options->prefix = false;
        return 0;
    case KEY_JSON:
        options->json = true;
        return 0;
    default:
        return CLI_MISUSE; // No other key is in the table.
    }
}

static const struct cli_syntax syntax = {.name = "run",
                                         .letters = "+:n:h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

static int check_options(const struct run_options *options)
{
    if (options->world_size == 0)
        return cli_misuse("run", "how many workers? -n N is missing");
    if (!options->trainer[0])
        return cli_misuse("run", "no trainer given");
    if (options->coordinator && options->http)
        return cli_misuse("run", "--http belongs to a private coordinator, not to --coordinator");
    return 0;
}

void run_default_job(struct run_options *options)
{
    if (options->coordinator)
        snprintf(options->job, sizeof(options->job), "%s-%d-%llx", options->command, (int)getpid(),
                 (unsigned long long)time(NULL));
    else
        snprintf(options->job, sizeof(options->job), "%s-%d", options->command, (int)getpid());
}

static int read_options(struct run_options *options, int argc, char **argv)
{
    *options = (struct run_options){.command = "run", .prefix = true, .grace_ms = RUN_GRACE_MS};
    const int read = cli_read_options(&syntax, options, argc, argv);
    if (read != 0)
        return read;
    options->trainer = argv + optind;
    int result = check_options(options);
    if (result != 0)
        return result;
    if (!options->job[0])
        run_default_job(options);
    if (!options->http)
        options->http = "127.0.0.1:0";
    return 0;
}

// A wrong name is told before anything is started.
static int check_trainer(const char *name)
{
    char path[4096];
    switch (spawn_find(name, path, sizeof(path))) {
    case 0:
        return 0;
    case EISDIR:
        cli_say("run", "the trainer '%s' is a directory", name);
        return CLI_NOT_EXECUTABLE;
    case ENOENT:
        cli_say("run", "the trainer '%s' was not found%s", name,
                strchr(name, '/') ? "" : " in PATH (a program of this directory is ./NAME)");
        return CLI_NOT_FOUND;
    default:
        cli_say("run", "the trainer '%s' is not executable", name);
        return CLI_NOT_EXECUTABLE;
    }
}

// ---- The launcher ------------------------------------------------------------------------------

static void forward(int control_fd, int signal_number)
{
    unsigned char byte = (unsigned char)signal_number;
    ssize_t ignored = write(control_fd, &byte, 1);
    (void)ignored; // Full of signals already, or the supervisor is gone.
}

// Waits for the supervisor and passes signals on. Returns its wait status.
static int watch(pid_t supervisor, int control_fd, const sigset_t *watched)
{
    int status = 0;
    for (;;) {
        int signal_number = sigwaitinfo(watched, NULL);
        if (signal_number == SIGCHLD) {
            if (waitpid(supervisor, &status, WNOHANG) == supervisor)
                return status;
        } else if (signal_number > 0) {
            forward(control_fd, signal_number);
        }
    }
}

static void block_signals(sigset_t *watched, sigset_t *before)
{
    static const int taken[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE};
    sigset_t blocked;
    sigemptyset(watched);
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        sigaddset(watched, taken[i]);
    blocked = *watched;
    sigdelset(watched, SIGPIPE); // Seen as EPIPE.
    sigprocmask(SIG_BLOCK, &blocked, before);
}

// In the supervisor, which the terminal must neither interrupt nor stop.
static int become_supervisor(const struct run_options *options, const int control[2])
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTTOU);
    sigaddset(&blocked, SIGTSTP);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    close(control[1]);
    setpgid(0, 0);
    return supervisor_run(options, control[0]);
}

static int end_of_supervisor(const struct run_options *options, int status)
{
    descendants_kill();
    if (WIFSIGNALED(status))
        cli_say(options->command,
                "the supervising process was killed by signal %d; so were all workers",
                WTERMSIG(status));
    return run_exit_code(status);
}

// Forks the supervisor and waits for its end. Returns the exit status.
static int launch(const struct run_options *options, const int control[2], const sigset_t *watched)
{
    pid_t supervisor = fork();
    if (supervisor < 0) {
        cli_say(options->command, "cannot start a process: %s", strerror(errno));
        return CLI_FAILED;
    }
    if (supervisor == 0)
        exit(become_supervisor(options, control));
    close(control[0]);
    return end_of_supervisor(options, watch(supervisor, control[1], watched));
}

int run_launch(struct run_options *options)
{
    sigset_t watched;
    int control[2];
    signal(SIGCHLD, SIG_DFL); // Ignored by a parent, it would reap in our place.
    block_signals(&watched, &options->signals);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (pipe2(control, O_CLOEXEC | O_NONBLOCK) < 0) {
        cli_say(options->command, "cannot make a pipe: %s", strerror(errno));
        return CLI_FAILED;
    }
    // Made here, because the launcher can also remove it when the supervisor has been killed.
    int result = options->coordinator ? 0 : daemon_make_directory(options);
    if (result == 0)
        result = launch(options, control, &watched);
    daemon_forget(options->directory);
    return result;
}

int run_main(int argc, char **argv)
{
    struct run_options options;
    int result = read_options(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    result = check_trainer(options.trainer[0]);
    return result != 0 ? result : run_launch(&options);
}
