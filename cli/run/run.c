// SPDX-License-Identifier: Apache-2.0
//
// `lockstep run`: N workers and a coordinator on this machine, from start to last byte. This file
// is the launcher; options.c reads the arguments, supervisor.c does the work. Main thread.
//
// The processes:
//
//     launcher          what the user started; takes the terminal's signals
//       supervisor      its own process group; starts, relays, decides, reaps
//         coordinator   private, unless --coordinator; exits by itself with its parent
//         worker 0..    each leads a process group
//           ...         whatever a worker starts: data loaders, compilers, shells
//
// No process is left behind:
//
// - Launcher and supervisor are both "subreapers": a process whose parent died becomes a child of
//   the nearest of them. So processes that a worker started can be found and killed, too.
// - A pipe leads from launcher to supervisor. A signal travels through it as one byte. When the
//   launcher dies, even by SIGKILL, the supervisor reads the pipe's end, kills all processes and
//   exits.
// - When the supervisor dies by SIGKILL, the kernel kills the workers (their parent-death signal).
//   Processes that the workers had started become the launcher's children, and the launcher kills
//   them.
// - Only if launcher and supervisor are killed at the same instant can a process survive that a
//   worker has started; the workers and the coordinator do not. The private directory then stays,
//   with a dead socket in it.
//
// Signals. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 go to all workers' groups, not to
// the coordinator, which is only told that the user stops the job (joins.h). The second SIGINT,
// SIGTERM or SIGHUP kills, unless it comes within a second (verdict.h). Slurm may signal all
// processes of a step: the supervisor blocks these signals, and the coordinator takes none that is
// not from the supervisor (server/process.h). A signal that was ignored when the launcher was
// started is not taken.
//
// The end. The first worker that fails is the cause, and its status is the exit status. The other
// workers have --grace to fail by themselves, and are then killed. With --survive that begins only
// when too few workers are left. After a forwarded SIGINT, SIGTERM or SIGHUP they have unlimited
// time, because they may be writing a checkpoint. Only workers that ignore the signal are killed
// after a while (stop.c). With --max-restarts, a job that failed without such a signal is started
// again, with a new supervisor and a new coordinator.
//
// Hosts by ssh (--hosts). The supervisor (hosts.c) has ssh as children instead of workers:
//
//     launcher
//       supervisor      decides as on one host
//         ssh 0..       one for each host; its pipes carry relay.h
//
//     sshd
//       lockstep run-host   on each host (agent.c): a launcher that obeys the first one
//         supervisor, coordinator on host 0, workers: as above
//
// A pipe to ssh that ends, or 30 s of silence, means that the launcher is gone: the host kills all
// processes. A host that ssh loses is a failure of its ranks.
//
// Several hosts (--nnodes). Each host has a launcher. The launcher of host 0 also starts the
// coordinator, which listens on the network. After the workers of host 0 have ended, the
// coordinator stays until those of other hosts have left, but at most DAEMON_DRAIN_MS. A launcher
// signals only its own workers. The other workers learn of the end from the coordinator.

#include "cli/run/run.h"

#include "cli/common/cli.h"
#include "cli/run/descendants.h"
#include "cli/run/hosts.h"
#include "cli/run/log_file.h"
#include "cli/run/options.h"
#include "cli/run/report.h"
#include "cli/run/spawn.h"
#include "cli/run/supervisor.h"

#include "base/parse.h"
#include "cli/run/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void run_default_job(struct run_options *options)
{
    if (options->coordinator)
        snprintf(options->job, sizeof(options->job), "%s-%d-%llx", options->command, (int)getpid(),
                 (unsigned long long)time(NULL));
    else
        snprintf(options->job, sizeof(options->job), "%s-%d", options->command, (int)getpid());
}

// Checks that the name of the coordinator's host can be resolved, so that a misspelt one is
// reported once, and not by each worker.
static int check_coordinator(const struct run_options *options)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const char *address = options->serves && options->bind ? options->bind : options->coordinator;
    if (!address || !parse_address(address, host, sizeof(host), &port))
        return 0;
    const int unknown = getaddrinfo(host, NULL, &hints, &found);
    if (unknown == 0)
        freeaddrinfo(found);
    if (unknown != EAI_NONAME && unknown != EAI_NODATA && unknown != EAI_AGAIN)
        return 0;
    cli_say("run", "--coordinator %s: the host name '%s' cannot be resolved: %s", address, host,
            gai_strerror(unknown));
    return CLI_FAILED;
}

// Workers that cannot write their traces train without them, and only their logs say so.
static void check_traces(void)
{
    const char *directory = getenv("LOCKSTEP_TRACE_DIR");
    if (directory && directory[0] && access(directory, W_OK | X_OK) < 0)
        cli_say("run", "LOCKSTEP_TRACE_DIR=%s: %s; workers of this host keep no traces there",
                directory, strerror(errno));
}

// Slurm binds a task to one CPU unless it is asked for more.
static void check_cpus(const struct run_options *options)
{
    cpu_set_t allowed;
    if (!getenv("SLURM_JOB_ID") || sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
        return;
    const uint32_t count = (uint32_t)CPU_COUNT(&allowed);
    if (count < options->workers)
        cli_say("run",
                "Slurm lets the %u workers of this host use only %u CPU%s: give sbatch and srun "
                "--cpus-per-task=%u, or sbatch --exclusive",
                options->workers, count, count == 1 ? "" : "s", options->workers);
}

// ---- The launcher ------------------------------------------------------------------------------

static void forward(int control_fd, int signal_number)
{
    unsigned char byte = (unsigned char)signal_number;
    ssize_t ignored = write(control_fd, &byte, 1);
    (void)ignored; // The pipe is full of signals already, or the supervisor has ended.
}

// Waits for the supervisor and forwards signals. Returns its wait status. Sets *signalled to the
// last signal that ends the job.
static int watch(pid_t supervisor, int control_fd, const sigset_t *watched, int *signalled)
{
    int status = 0;
    for (;;) {
        int signal_number = sigwaitinfo(watched, NULL);
        if (signal_number == SIGCHLD) {
            if (waitpid(supervisor, &status, WNOHANG) == supervisor)
                return status;
        } else if (signal_number > 0) {
            if (signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP ||
                signal_number == SIGQUIT)
                *signalled = signal_number;
            forward(control_fd, signal_number);
        }
    }
}

// True if this process was started with the signal ignored: SIGINT and SIGQUIT in a background job
// of a script, SIGHUP after nohup.
static bool was_ignored(int signal_number)
{
    struct sigaction action;
    return sigaction(signal_number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

// A signal that was ignored when this process was started stays ignored, as everywhere: it does not
// stop the job.
static void block_signals(sigset_t *watched, sigset_t *before)
{
    static const int taken[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE};
    sigset_t blocked;
    sigemptyset(watched);
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        if (!was_ignored(taken[i]) || taken[i] == SIGPIPE)
            sigaddset(watched, taken[i]);
    blocked = *watched;
    sigaddset(&blocked, SIGXFSZ); // write reports EFBIG instead, and EPIPE.
    sigdelset(watched, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, before);
}

// Runs in the supervisor, which the terminal must neither interrupt nor stop.
static int become_supervisor(const struct run_options *options, const int control[2])
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTTOU);
    sigaddset(&blocked, SIGTSTP);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    close(control[1]);
    setpgid(0, 0);
    return options->host_count > 0 ? hosts_run(options, control[0])
                                   : supervisor_run(options, control[0]);
}

static int end_of_supervisor(const struct run_options *options, int status, bool signalled)
{
    struct descendants_left left; // The supervisor has named it.
    descendants_kill(&left);
    if (WIFSIGNALED(status)) {
        cli_say(options->command,
                "the supervising process was killed by signal %d; so were all workers",
                WTERMSIG(status));
        *options->again = run_may_restart(options, run_exit_code(status), signalled);
    }
    return run_exit_code(status);
}

// Forks the supervisor and waits for its end. Returns the exit status.
static int launch(const struct run_options *options, const int control[2], const sigset_t *watched,
                  int *signalled)
{
    int status = 0;
    pid_t supervisor = fork();
    if (supervisor < 0) {
        cli_say(options->command, "cannot start a process: %s", strerror(errno));
        close(control[0]);
        return CLI_FAILED;
    }
    if (supervisor == 0)
        exit(become_supervisor(options, control));
    close(control[0]);
    if (*signalled)
        forward(control[1], *signalled);
    status = watch(supervisor, control[1], watched, signalled);
    return end_of_supervisor(options, status, *signalled != 0);
}

// Runs the job once, with a coordinator of its own. *signalled: a signal that the supervisor before
// has not taken, or 0.
static int attempt(struct run_options *options, const sigset_t *watched, int *signalled)
{
    int control[2];
    if (pipe2(control, O_CLOEXEC | O_NONBLOCK) < 0) {
        cli_say(options->command, "cannot make a pipe: %s", strerror(errno));
        return CLI_FAILED;
    }
    // The launcher makes the directory, because it can also remove it if the supervisor was killed.
    const bool starts = options->host_count == 0 && (!options->coordinator || options->serves);
    int result = starts ? daemon_make_directory(options) : 0;
    if (result == 0)
        result = launch(options, control, watched, signalled);
    else
        close(control[0]);
    close(control[1]);
    daemon_forget(options->directory);
    return result;
}

bool run_may_restart(const struct run_options *options, int result, bool signalled)
{
    return result != 0 && !signalled && options->restarts < options->max_restarts;
}

int run_check_trainer(const char *name)
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

int run_launch(struct run_options *options)
{
    sigset_t watched;
    int signalled = 0;
    options->unwritten =
        mmap(NULL, 2 * sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (options->unwritten == MAP_FAILED) {
        cli_say(options->command, "cannot prepare: %s", strerror(errno));
        return CLI_FAILED;
    }
    options->again = options->unwritten + 1;
    // If the parent process had SIGCHLD ignored, the kernel would reap the children itself.
    signal(SIGCHLD, SIG_DFL);
    block_signals(&watched, &options->signals);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int result = attempt(options, &watched, &signalled);
    // After a signal that came too late for one attempt, the next one only reports it.
    while (*options->again) {
        *options->again = false;
        options->restarts += signalled == 0;
        if (!signalled)
            cli_say(options->command, "restart %u of %u", options->restarts, options->max_restarts);
        result = attempt(options, &watched, &signalled);
    }
    return result == 0 && *options->unwritten ? CLI_FAILED : result;
}

int run_main(int argc, char **argv)
{
    static struct run_options options; // Its lists stay until the process ends.
    int result = options_read(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    if (options.host_count == 0) // Else each host checks it.
        result = run_check_trainer(options.trainer[0]);
    if (result == 0 && options.host_count == 0)
        result = check_coordinator(&options);
    if (result == 0)
        check_traces();
    if (result == 0 && options.host_count == 0)
        check_cpus(&options);
    if (result == 0)
        result = log_file_make_directory(&options);
    return result != 0 ? result : run_launch(&options);
}
