// SPDX-License-Identifier: Apache-2.0
//
// The supervisor of `lockstep run`: one poll loop over the launcher's pipe, a signalfd for ended
// children and the workers' output. run.c explains why this process exists. The sinks' own threads
// (sink.h) write the output. They are started after the last fork.
//
// When a child fails, its process group is killed before the child is reaped: while the leader is a
// zombie, its group's number cannot belong to another group.

#include "cli/run/supervisor.h"

#include "cli/common/cli.h"
#include "cli/common/registry.h"
#include "cli/run/descendants.h"
#include "cli/run/joins.h"
#include "cli/run/output.h"
#include "cli/run/report.h"
#include "cli/run/run.h"
#include "cli/run/spawn.h"
#include "cli/run/stop.h"

#include "base/clock.h"
#include "cli/run/daemon.h"
#include "cli/run/place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DAEMON_STOP_MS 300
#define GIVE_UP_MS 500
#define NEVER UINT64_MAX

struct supervisor {
    // set at start, then constant
    const struct run_options *options;
    int control_fd;
    int child_fd; // signalfd for SIGCHLD
    int null_fd;
    char trainer[PATH_MAX];
    uint64_t started_ms;

    struct daemon daemon;
    struct joins joins;
    int registered; // The descriptor from registry_add.
    bool daemon_wanted; // True while an end of the daemon is an error that must be reported.
    struct run_result result;
    uint32_t running; // Workers that were not reaped yet.
    unsigned interrupts; // How many SIGINT, SIGTERM and SIGHUP were received.
    bool quit; // True once SIGQUIT was received.
    bool orphaned; // True once the launcher is dead.
    struct stop stop;
    uint64_t kill_at; // When the other workers are killed; NEVER until the first failure.
    uint64_t give_up_at; // When unwritten output is dropped; NEVER until the second interrupt.
    int (*failure_fds)[2]; // owned; a pipe for each rank, -1 once it is closed

    struct output output;
};

// ---- Killing -----------------------------------------------------------------------------------

static void signal_groups(struct supervisor *supervisor, int signal_number)
{
    for (uint32_t i = 0; i < supervisor->result.count; i++) {
        const struct run_rank *rank = &supervisor->result.ranks[i];
        if (rank->pid > 0 && !rank->end.ended)
            kill(-rank->pid, signal_number);
    }
}

static void stop_others(struct supervisor *supervisor)
{
    for (uint32_t i = 0; i < supervisor->result.count; i++) {
        if (!supervisor->result.ranks[i].end.ended)
            supervisor->result.ranks[i].end.stopped = true;
    }
    signal_groups(supervisor, SIGKILL);
    supervisor->kill_at = NEVER;
}

// ---- The launcher's pipe -----------------------------------------------------------------------

static bool ends(int signal_number)
{
    return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP;
}

static void take_signal(struct supervisor *supervisor, int signal_number)
{
    if (ends(signal_number) && ++supervisor->interrupts > 1) {
        supervisor->give_up_at = clock_now_ms() + GIVE_UP_MS;
        signal_groups(supervisor, SIGKILL);
        return;
    }
    if (ends(signal_number)) {
        stop_begin(&supervisor->stop, signal_number);
        supervisor->kill_at = NEVER;
        if (supervisor->result.first_failed == supervisor->result.count)
            supervisor->result.stopped_by = signal_number;
        joins_say_stopping(&supervisor->joins, signal_number);
    }
    supervisor->quit |= signal_number == SIGQUIT;
    signal_groups(supervisor, signal_number);
}

static void read_control(struct supervisor *supervisor)
{
    unsigned char bytes[64];
    ssize_t size = read(supervisor->control_fd, bytes, sizeof(bytes));
    if (size == 0)
        supervisor->orphaned = true;
    for (ssize_t i = 0; i < size; i++)
        take_signal(supervisor, bytes[i]);
}

// True once the launcher is dead, or the user has asked twice for the end and some time has passed.
static bool given_up(const struct supervisor *supervisor)
{
    return supervisor->orphaned || clock_now_ms() >= supervisor->give_up_at;
}

// ---- Ended children ----------------------------------------------------------------------------

// Returns the errno value of a failed exec, else 0. A successful exec closes the pipe without a
// value.
static int exec_error(struct supervisor *supervisor, uint32_t rank)
{
    int failure = 0;
    int *fd = &supervisor->failure_fds[rank][0];
    if (*fd < 0)
        return 0;
    if (read(*fd, &failure, sizeof(failure)) != (ssize_t)sizeof(failure))
        failure = 0;
    close(*fd);
    *fd = -1;
    return failure;
}

static bool failed(const siginfo_t *info)
{
    return info->si_code != CLD_EXITED || info->si_status != 0;
}

// Returns true if this rank's end is a better cause than the first failure. Ranks exit because
// another rank died, some by a signal, but never by SIGKILL. So a SIGKILL that the supervisor did
// not send is the cause, even if the kernel reported the ends of other ranks first.
static bool is_stronger(const struct supervisor *supervisor, uint32_t rank, bool same_time)
{
    const struct run_end *end = &supervisor->result.ranks[rank].end;
    const struct run_end *first = &supervisor->result.ranks[supervisor->result.first_failed].end;
    if (!WIFSIGNALED(end->status) || end->stopped || WIFSIGNALED(first->status))
        return false;
    return same_time || (WTERMSIG(end->status) == SIGKILL && supervisor->interrupts == 0);
}

// Records a failure. The first failure is the cause. Among failures seen at the same time, a signal
// counts before a status.
static void note_failure(struct supervisor *supervisor, uint32_t rank, bool same_time)
{
    struct run_result *result = &supervisor->result;
    bool none = result->first_failed == result->count;
    if (none || is_stronger(supervisor, rank, same_time))
        result->first_failed = rank;
    if (none && supervisor->interrupts == 0)
        supervisor->kill_at = clock_now_ms() + supervisor->options->grace_ms;
}

// Notes a rank that has ended without a session, and tells the coordinator, because no world can
// form without it. A child in the rank's process group may still open the session.
static void note_unjoined(struct supervisor *supervisor, uint32_t rank)
{
    struct run_result *result = &supervisor->result;
    struct run_end *end = &result->ranks[rank].end;
    joins_read(&supervisor->joins);
    end->unjoined = supervisor->interrupts == 0 && !end->stopped &&
                    joins_lacks(&supervisor->joins, supervisor->options->first_rank + rank) &&
                    kill(-result->ranks[rank].pid, 0) < 0;
    if (end->unjoined)
        joins_say_absent(&supervisor->joins, supervisor->options, result, rank);
}

static void end_rank(struct supervisor *supervisor, uint32_t rank, int status, bool same_time)
{
    struct run_end *end = &supervisor->result.ranks[rank].end;
    end->ended = true;
    end->status = status;
    end->after_ms = clock_now_ms() - supervisor->started_ms;
    end->exec_error = exec_error(supervisor, rank);
    end->stopped = end->stopped && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    supervisor->running--;
    note_unjoined(supervisor, rank);
    if (status != 0)
        note_failure(supervisor, rank, same_time);
}

static void end_daemon(struct supervisor *supervisor, int status)
{
    const bool trains = supervisor->running > 0;
    const char *then = "";
    supervisor->daemon.pid = 0;
    if (!supervisor->daemon_wanted)
        return;
    supervisor->daemon_wanted = false;
    output_dump(&supervisor->output); // It may have said why.
    if (trains)
        then = "; workers that have formed their world train on, and stalls are not diagnosed";
    else if (supervisor->options->serves)
        then = "; host 0 starts it: is --node-rank 0 given on another host or in another terminal?";
    if (WIFSIGNALED(status))
        cli_say(supervisor->options->command, "the coordinator was killed by signal %d%s",
                WTERMSIG(status), then);
    else
        cli_say(supervisor->options->command, "the coordinator ended with status %d%s",
                WEXITSTATUS(status), then);
}

static uint32_t rank_of(const struct supervisor *supervisor, pid_t pid)
{
    uint32_t rank = 0;
    while (rank < supervisor->result.count && supervisor->result.ranks[rank].pid != pid)
        rank++;
    return rank;
}

// Reaps one ended child. Returns false if there is none.
static bool reap_one(struct supervisor *supervisor, bool same_time)
{
    siginfo_t info = {.si_pid = 0};
    int status = 0;
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
        return false;
    uint32_t rank = rank_of(supervisor, info.si_pid);
    bool is_worker = rank < supervisor->result.count;
    if (is_worker && failed(&info))
        kill(-info.si_pid, SIGKILL);
    if (waitpid(info.si_pid, &status, 0) != info.si_pid)
        return false;
    if (is_worker && !supervisor->result.ranks[rank].end.ended)
        end_rank(supervisor, rank, status, same_time);
    else if (info.si_pid == supervisor->daemon.pid)
        end_daemon(supervisor, status);
    return true;
}

static void reap(struct supervisor *supervisor)
{
    struct signalfd_siginfo info;
    ssize_t ignored = read(supervisor->child_fd, &info, sizeof(info));
    (void)ignored;
    uint32_t first = supervisor->result.first_failed;
    bool had_failure = first < supervisor->result.count;
    while (reap_one(supervisor, !had_failure))
        ;
}

// ---- The coordinator ---------------------------------------------------------------------------

// Handles signals and ended children until the coordinator has written its ports. Returns 0, or an
// exit status.
static int await_ports(struct supervisor *supervisor, int watch_fd)
{
    struct pollfd polls[] = {{.fd = supervisor->control_fd, .events = POLLIN},
                             {.fd = supervisor->child_fd, .events = POLLIN},
                             {.fd = watch_fd, .events = POLLIN}};
    uint64_t deadline = clock_now_ms() + DAEMON_START_MS;
    while (!daemon_ready(&supervisor->daemon, supervisor->options)) {
        char events[4096];
        uint64_t now = clock_now_ms();
        if (now >= deadline) {
            cli_say(supervisor->options->command, "the coordinator was not ready within %d s",
                    DAEMON_START_MS / 1000);
            return CLI_FAILED;
        }
        // Without inotify (a limit was reached), the file is checked every 5 ms.
        poll(polls, watch_fd < 0 ? 2 : 3, watch_fd < 0 ? 5 : (int)(deadline - now));
        ssize_t ignored = watch_fd < 0 ? 0 : read(watch_fd, events, sizeof(events));
        (void)ignored;
        read_control(supervisor);
        reap(supervisor);
        if (supervisor->orphaned || supervisor->interrupts > 0)
            return 128 + (supervisor->interrupts ? supervisor->stop.by : SIGKILL);
        if (supervisor->daemon.pid == 0)
            return CLI_FAILED;
    }
    return 0;
}

// Starts the coordinator, with a pipe for its output if that is relayed.
static int start_daemon_process(struct supervisor *supervisor)
{
    int fds[2] = {-1, -1};
    if (output_takes_coordinator(&supervisor->output) && pipe2(fds, O_CLOEXEC) < 0) {
        cli_say(supervisor->options->command, "cannot make a pipe: %s", strerror(errno));
        return CLI_FAILED;
    }
    const int result = daemon_start(&supervisor->daemon, supervisor->options,
                                    supervisor->joins.coordinator_fd, fds[1]);
    if (fds[1] >= 0) {
        close(fds[1]);
        output_add_coordinator(&supervisor->output, fds[0]);
    }
    return result;
}

static int start_daemon(struct supervisor *supervisor)
{
    if (joins_open(&supervisor->joins) < 0) {
        cli_say(supervisor->options->command, "cannot make a socket: %s", strerror(errno));
        return CLI_FAILED;
    }
    int result = start_daemon_process(supervisor);
    close(supervisor->joins.coordinator_fd);
    supervisor->joins.coordinator_fd = -1;
    supervisor->daemon_wanted = true;
    if (result != 0)
        return result;
    int watch_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch_fd >= 0)
        inotify_add_watch(watch_fd, supervisor->options->directory, IN_MOVED_TO | IN_CLOSE_WRITE);
    result = await_ports(supervisor, watch_fd);
    if (watch_fd >= 0)
        close(watch_fd);
    return result;
}

// Sends SIGTERM to the coordinator and waits a moment, because descendants_kill would kill it at
// once. Workers of other hosts have DAEMON_DRAIN_MS to learn how the job ended.
static void stop_daemon(struct supervisor *supervisor)
{
    uint64_t deadline =
        clock_now_ms() + DAEMON_STOP_MS + (supervisor->options->serves ? DAEMON_DRAIN_MS : 0);
    supervisor->daemon_wanted = false;
    if (supervisor->daemon.pid > 0)
        kill(supervisor->daemon.pid, SIGTERM);
    while (supervisor->daemon.pid > 0 && clock_now_ms() < deadline && !given_up(supervisor)) {
        struct pollfd polls[] = {{.fd = supervisor->control_fd, .events = POLLIN},
                                 {.fd = supervisor->child_fd, .events = POLLIN}};
        poll(polls, 2, DAEMON_STOP_MS);
        read_control(supervisor);
        reap(supervisor);
    }
}

// ---- Workers -----------------------------------------------------------------------------------

static void close_both(int fds[2])
{
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

// Forks one worker. Returns 0 or -1 with errno.
static int start_rank(struct supervisor *supervisor, uint32_t rank)
{
    struct place_text text;
    struct spawn_variable variables[PLACE_VARIABLES];
    int *failure = supervisor->failure_fds[rank];
    int output[2] = {-1, -1};
    int error[2] = {-1, -1};
    if (pipe2(failure, O_CLOEXEC | O_NONBLOCK) < 0 ||
        (supervisor->output.relaying &&
         (pipe2(output, O_CLOEXEC) < 0 || pipe2(error, O_CLOEXEC) < 0)))
        return -1;
    struct spawn request = {
        .program = supervisor->trainer,
        .argv = supervisor->options->trainer,
        .variables = variables,
        .variable_count =
            place_variables(supervisor->options, &supervisor->daemon, rank, &text, variables),
        .input = supervisor->null_fd,
        .output = output[1],
        .error = error[1],
        .failure_fd = failure[1],
        .signals = &supervisor->options->signals,
    };
    pid_t pid = spawn(&request);
    close(failure[1]);
    if (pid < 0) {
        close_both(output);
        close_both(error);
        return -1;
    }
    supervisor->result.ranks[rank].pid = pid;
    supervisor->running++;
    if (supervisor->output.relaying) {
        close(output[1]);
        close(error[1]);
        output_add(&supervisor->output, rank, 0, output[0]);
        output_add(&supervisor->output, rank, 1, error[0]);
    }
    return 0;
}

static int start_workers(struct supervisor *supervisor)
{
    supervisor->started_ms = clock_now_ms();
    for (uint32_t rank = 0; rank < supervisor->options->workers; rank++) {
        if (start_rank(supervisor, rank) < 0) {
            cli_say(supervisor->options->command, "cannot start rank %u: %s",
                    supervisor->options->first_rank + rank, strerror(errno));
            return CLI_FAILED;
        }
    }
    return 0;
}

// ---- The loop ----------------------------------------------------------------------------------

static int time_left(const struct supervisor *supervisor)
{
    uint64_t now = clock_now_ms();
    uint64_t at = supervisor->kill_at;
    if (supervisor->give_up_at < at)
        at = supervisor->give_up_at;
    if (stop_due(&supervisor->stop) < at)
        at = stop_due(&supervisor->stop);
    if (at == NEVER)
        return -1;
    uint64_t left = at > now ? at - now : 0;
    return left < INT_MAX ? (int)left : INT_MAX;
}

// One turn of the loop: waits for an event and handles it.
static void turn(struct supervisor *supervisor)
{
    const int fds[OUTPUT_OTHER_FDS] = {supervisor->control_fd, supervisor->child_fd,
                                       supervisor->joins.fd};
    output_wait(&supervisor->output, fds, time_left(supervisor));
    joins_read(&supervisor->joins);
    read_control(supervisor);
    reap(supervisor);
    output_relay(&supervisor->output);
    stop_turn(&supervisor->stop, supervisor->options, &supervisor->result);
    if (clock_now_ms() >= supervisor->kill_at)
        stop_others(supervisor);
}

// Writes the output that is still in pipes and buffers, after all processes were killed.
static void flush(struct supervisor *supervisor)
{
    while (output_has_streams(&supervisor->output) && !given_up(supervisor))
        turn(supervisor);
    output_finish(&supervisor->output);
    while (!output_done(&supervisor->output) && !given_up(supervisor))
        turn(supervisor);
}

// ---- Beginning and end -------------------------------------------------------------------------

static int start_output(struct supervisor *supervisor)
{
    if (output_start(&supervisor->output) == 0)
        return 0;
    cli_say(supervisor->options->command, "cannot start the output: %s", strerror(errno));
    return CLI_FAILED;
}

static int prepare(struct supervisor *supervisor)
{
    const struct run_options *options = supervisor->options;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    spawn_raise_file_limit();
    supervisor->kill_at = NEVER;
    supervisor->give_up_at = NEVER;
    stop_init(&supervisor->stop);
    supervisor->result.absent = options->workers;
    supervisor->result.count = options->workers;
    supervisor->result.first_failed = options->workers;
    supervisor->result.ranks = calloc(options->workers, sizeof(*supervisor->result.ranks));
    supervisor->failure_fds = calloc(options->workers, sizeof(*supervisor->failure_fds));
    supervisor->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    supervisor->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (supervisor->result.ranks && supervisor->failure_fds && supervisor->child_fd >= 0 &&
        supervisor->null_fd >= 0 &&
        spawn_find(options->trainer[0], supervisor->trainer, sizeof(supervisor->trainer)) == 0)
        return output_open(&supervisor->output, options) ? 0 : CLI_FAILED;
    cli_say(options->command, "cannot prepare: %s", strerror(errno));
    return CLI_FAILED;
}

// Registers the job, so that commands such as `lockstep status` find it. If this fails, they need
// --http.
static void register_job(struct supervisor *supervisor)
{
    char dashboard[DAEMON_DASHBOARD_BYTES];
    if (daemon_dashboard(&supervisor->daemon, supervisor->options, dashboard, sizeof(dashboard)))
        supervisor->registered = registry_add(supervisor->options->job, dashboard);
}

static int start_all(struct supervisor *supervisor)
{
    int result = 0;
    if (!supervisor->options->coordinator || supervisor->options->serves)
        result = start_daemon(supervisor);
    if (result == 0) {
        place_announce(supervisor->options, &supervisor->daemon);
        register_job(supervisor);
        result = start_workers(supervisor);
    }
    return result == 0 ? start_output(supervisor) : result;
}

static int finish(struct supervisor *supervisor)
{
    struct run_result *result = &supervisor->result;
    result->total_ms = clock_now_ms() - supervisor->started_ms;
    int status =
        result->first_failed == result->count ? 0 : result->ranks[result->first_failed].end.status;
    for (uint32_t i = result->count; i-- > 0;) {
        const struct run_end *end = &result->ranks[i].end;
        if (end->unjoined && end->status == 0 && supervisor->joins.count > 0)
            result->absent = i;
    }
    flush(supervisor);
    // A write is stuck, and the supervisor no longer waits for it.
    if (!output_done(&supervisor->output))
        _exit(run_exit_code(status));
    output_close(&supervisor->output);
    run_report(supervisor->options, result);
    // If a job is started again, only the last attempt is reported.
    if (supervisor->options->json &&
        !run_may_restart(supervisor->options, run_exit_code(status),
                         supervisor->interrupts > 0 || supervisor->quit))
        run_report_json(supervisor->options, result);
    return run_exit_code(status);
}

static void release(struct supervisor *supervisor)
{
    output_free(&supervisor->output);
    free(supervisor->result.ranks);
    free(supervisor->failure_fds);
    joins_close(&supervisor->joins);
    close(supervisor->child_fd);
    close(supervisor->null_fd);
}

int supervisor_run(const struct run_options *options, int control_fd)
{
    struct supervisor supervisor = {.options = options,
                                    .control_fd = control_fd,
                                    .joins = {.fd = -1, .coordinator_fd = -1},
                                    .registered = -1};
    int result = prepare(&supervisor);
    if (result == 0)
        result = start_all(&supervisor);
    if (result != 0) {
        descendants_kill();
        output_dump(&supervisor.output);
        if (supervisor.orphaned)
            daemon_forget(options->directory);
        _exit(result);
    }
    while (supervisor.running > 0 && !supervisor.orphaned)
        turn(&supervisor);
    registry_remove(supervisor.registered);
    if (!supervisor.orphaned)
        stop_daemon(&supervisor);
    if (!descendants_kill())
        cli_say(options->command, "a process could not be killed; it is stuck in the kernel");
    if (supervisor.orphaned) {
        daemon_forget(options->directory); // Normally the launcher does this, but it is dead.
        _exit(128 + SIGKILL);
    }
    result = finish(&supervisor);
    release(&supervisor);
    return result;
}
