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
#include "cli/run/frames.h"
#include "cli/run/joins.h"
#include "cli/run/output.h"
#include "cli/run/report.h"
#include "cli/run/run.h"
#include "cli/run/spawn.h"
#include "cli/run/stop.h"

#include "base/clock.h"
#include "cli/run/daemon.h"
#include "cli/run/place.h"
#include "cli/run/verdict.h"

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
#define LEFT_OUTPUT_MS 500

struct supervisor {
    // set at start, then constant
    const struct run_options *options;
    int control_fd;
    int child_fd; // signalfd for SIGCHLD
    int null_fd;
    char trainer[PATH_MAX];

    struct daemon daemon;
    struct joins joins;
    struct stop stop;
    int registered; // The descriptor from registry_add.
    bool daemon_wanted; // True while an end of the daemon is an error that must be reported.
    bool dismissed; // True once all hosts' ranks have ended. Of a hosted run only.
    uint64_t heard_at; // When the launcher's host sent its last byte. Of a hosted run only.
    struct verdict verdict;
    int (*failure_fds)[2]; // owned; a pipe for each rank, -1 once it is closed

    struct output output;
};

// ---- Killing -----------------------------------------------------------------------------------

static void signal_groups(struct supervisor *supervisor, int signal_number)
{
    for (uint32_t i = 0; i < supervisor->verdict.result.count; i++) {
        const struct run_rank *rank = &supervisor->verdict.result.ranks[i];
        if (rank->pid > 0 && !rank->end.ended)
            kill(-rank->pid, signal_number);
    }
}

static void stop_others(struct supervisor *supervisor)
{
    verdict_stop(&supervisor->verdict);
    signal_groups(supervisor, SIGKILL);
}

// ---- The launcher's pipe -----------------------------------------------------------------------

static void take_signal(struct supervisor *supervisor, int signal_number)
{
    struct verdict *verdict = &supervisor->verdict;
    const bool had_none = verdict->interrupts == 0;
    const int given = verdict_signal(verdict, signal_number, clock_now_ms());
    if (had_none && verdict->interrupts > 0) {
        stop_begin(&supervisor->stop, signal_number);
        joins_say_stopping(&supervisor->joins, signal_number);
    }
    signal_groups(supervisor, given);
    if (given != 0 && verdict_signalled(verdict))
        signal_groups(supervisor, SIGCONT); // A stopped process takes only SIGKILL.
}

// Returns the descriptor that the launcher's host writes to, or -1: this run is not hosted.
static int relay_fd(const struct supervisor *supervisor)
{
    return supervisor->options->hosted ? supervisor->options->control_fd : -1;
}

static void take_relay_byte(struct supervisor *supervisor, unsigned char byte)
{
    if (joins_take_text(&supervisor->joins, supervisor->options, byte))
        return;
    switch ((enum relay_control)byte) {
    case RELAY_ALIVE:
        break;
    case RELAY_FAILED:
        joins_expect_text(&supervisor->joins);
        break;
    case RELAY_BREAK_OUTPUT:
    case RELAY_BREAK_ERROR:
        output_break(&supervisor->output, byte - RELAY_BREAK_OUTPUT);
        break;
    case RELAY_DISMISS:
        supervisor->dismissed = true;
        break;
    case RELAY_STOP:
        joins_say_stopping(&supervisor->joins, supervisor->verdict.interrupted_by);
        stop_others(supervisor);
        break;
    default:
        take_signal(supervisor, byte);
    }
}

// Reads what the launcher's host sends to a hosted run.
static void read_relay(struct supervisor *supervisor)
{
    unsigned char bytes[64];
    const uint64_t now = clock_now_ms();
    const ssize_t size = read(supervisor->options->control_fd, bytes, sizeof(bytes));
    if (size > 0)
        supervisor->heard_at = now;
    if (size == 0 || now - supervisor->heard_at >= RELAY_SILENCE_MS)
        supervisor->verdict.orphaned = true;
    for (ssize_t i = 0; i < size; i++)
        take_relay_byte(supervisor, bytes[i]);
}

static void read_control(struct supervisor *supervisor)
{
    unsigned char bytes[64];
    ssize_t size = read(supervisor->control_fd, bytes, sizeof(bytes));
    if (size == 0)
        supervisor->verdict.orphaned = true;
    for (ssize_t i = 0; i < size; i++)
        take_signal(supervisor, bytes[i]);
    if (supervisor->options->hosted)
        read_relay(supervisor);
}

static bool given_up(const struct supervisor *supervisor)
{
    return verdict_given_up(&supervisor->verdict, clock_now_ms());
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

static void end_rank(struct supervisor *supervisor, uint32_t rank, int status, bool same_time)
{
    const uint64_t now = clock_now_ms();
    struct verdict *verdict = &supervisor->verdict;
    verdict->result.ranks[rank].end.exec_error = exec_error(supervisor, rank);
    // A rank that ends because of another one ends after the coordinator has named that one. A rank
    // of a host before this one becomes a number that no rank has.
    joins_read_all(&supervisor->joins);
    verdict_accuse(verdict, supervisor->joins.cause - supervisor->options->first_rank);
    verdict_end(verdict, rank, status, now, same_time, now);
    joins_note_end(&supervisor->joins, supervisor->options, verdict, rank);
    if (supervisor->options->hosted)
        frames_ended(&supervisor->output, rank, now, supervisor->joins.cause,
                     &verdict->result.ranks[rank].end);
    else
        run_report_end(supervisor->options, verdict, rank);
}

static void end_daemon(struct supervisor *supervisor, int status)
{
    supervisor->daemon.pid = 0;
    if (!supervisor->daemon_wanted)
        return;
    supervisor->daemon_wanted = false;
    output_dump(&supervisor->output); // The output may say why.
    daemon_say_end(supervisor->options, status, supervisor->verdict.running > 0);
}

static uint32_t rank_of(const struct supervisor *supervisor, pid_t pid)
{
    uint32_t rank = 0;
    while (rank < supervisor->verdict.result.count &&
           supervisor->verdict.result.ranks[rank].pid != pid)
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
    bool is_worker = rank < supervisor->verdict.result.count;
    if (is_worker && failed(&info))
        kill(-info.si_pid, SIGKILL);
    if (waitpid(info.si_pid, &status, 0) != info.si_pid)
        return false;
    if (is_worker && !supervisor->verdict.result.ranks[rank].end.ended)
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
    uint32_t first = supervisor->verdict.result.first_failed;
    bool had_failure = first < supervisor->verdict.result.count;
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
                             {.fd = relay_fd(supervisor), .events = POLLIN},
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
        poll(polls, 4, watch_fd < 0 ? 5 : (int)(deadline - now));
        ssize_t ignored = watch_fd < 0 ? 0 : read(watch_fd, events, sizeof(events));
        (void)ignored;
        read_control(supervisor);
        reap(supervisor);
        const int stopped = verdict_stopped_early(&supervisor->verdict);
        if (stopped)
            return stopped;
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
                                 {.fd = supervisor->child_fd, .events = POLLIN},
                                 {.fd = relay_fd(supervisor), .events = POLLIN}};
        poll(polls, 3, DAEMON_STOP_MS);
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
    supervisor->verdict.result.ranks[rank].pid = pid;
    supervisor->verdict.running++;
    if (supervisor->options->hosted)
        frames_started(&supervisor->output, rank, pid);
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
    supervisor->verdict.started_ms = clock_now_ms();
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
    const uint64_t now = clock_now_ms();
    const uint64_t due = stop_due(&supervisor->stop);
    int left = verdict_time_left(&supervisor->verdict, now);
    int most = supervisor->options->hosted ? RELAY_BEAT_MS : INT_MAX;
    if (due != UINT64_MAX)
        most = due <= now ? 0 : due - now < (uint64_t)most ? (int)(due - now) : most;
    else if (!supervisor->options->hosted)
        return left;
    return left >= 0 && left < most ? left : most;
}

// One turn of the loop: waits for an event and handles it.
static void turn(struct supervisor *supervisor)
{
    const int fds[] = {supervisor->control_fd, supervisor->child_fd, supervisor->joins.fd,
                       relay_fd(supervisor)};
    output_wait(&supervisor->output, fds, 4, time_left(supervisor));
    joins_read(&supervisor->joins);
    read_control(supervisor);
    reap(supervisor);
    output_relay(&supervisor->output);
    stop_turn(&supervisor->stop, supervisor->options, &supervisor->verdict.result);
    if (clock_now_ms() >= supervisor->verdict.kill_at)
        stop_others(supervisor);
}

// Writes the output that is still in pipes and buffers, after all processes were killed. A process
// that could not be killed may hold a pipe open; then only what comes within LEFT_OUTPUT_MS counts.
static void flush(struct supervisor *supervisor, bool all_killed)
{
    struct verdict *verdict = &supervisor->verdict;
    const uint64_t give_up_at = verdict->give_up_at;
    if (!all_killed && give_up_at == VERDICT_NEVER)
        verdict->give_up_at = clock_now_ms() + LEFT_OUTPUT_MS;
    while (output_has_streams(&supervisor->output) && !given_up(supervisor))
        turn(supervisor);
    if (!all_killed)
        output_end_streams(&supervisor->output);
    if (verdict->interrupts < 2)
        verdict->give_up_at = give_up_at;
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
    supervisor->heard_at = clock_now_ms();
    stop_init(&supervisor->stop);
    const bool ready = verdict_init(&supervisor->verdict, options);
    supervisor->failure_fds = calloc(options->workers, sizeof(*supervisor->failure_fds));
    supervisor->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    supervisor->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (ready && supervisor->failure_fds && supervisor->child_fd >= 0 && supervisor->null_fd >= 0 &&
        spawn_find(options->trainer[0], supervisor->trainer, sizeof(supervisor->trainer)) == 0)
        return output_open(&supervisor->output, options) ? 0 : CLI_FAILED;
    cli_say(options->command, "cannot prepare: %s", strerror(errno));
    return CLI_FAILED;
}

// Registers the job, so that commands such as `lockstep status` find it.
static void register_job(struct supervisor *supervisor)
{
    char page[DAEMON_DASHBOARD_BYTES];
    const struct run_options *options = supervisor->options;
    if (daemon_dashboard(&supervisor->daemon, options, page, sizeof(page)) &&
        (supervisor->registered = registry_add(options->job, page)) < 0)
        cli_say(options->command, "only --http finds this job, not --job: %s", strerror(errno));
}

static int start_all(struct supervisor *supervisor)
{
    int result = 0;
    if (!supervisor->options->coordinator || supervisor->options->serves)
        result = start_daemon(supervisor);
    read_control(supervisor);
    if (result == 0)
        result = verdict_stopped_early(&supervisor->verdict);
    if (result == 0) {
        place_announce(supervisor->options, &supervisor->daemon);
        if (supervisor->options->hosted)
            frames_place(&supervisor->output, &supervisor->daemon);
        register_job(supervisor);
        result = start_workers(supervisor);
    }
    return result == 0 ? start_output(supervisor) : result;
}

static int finish(struct supervisor *supervisor, bool all_killed)
{
    struct run_result *result = &supervisor->verdict.result;
    result->total_ms = clock_now_ms() - supervisor->verdict.started_ms;
    const int status = verdict_status(&supervisor->verdict);
    if (supervisor->joins.count > 0)
        verdict_note_absent(&supervisor->verdict);
    flush(supervisor, all_killed);
    // A write is stuck, and the supervisor no longer waits for it.
    if (!output_done(&supervisor->output))
        _exit(run_exit_code(status));
    output_close(&supervisor->output);
    run_report(supervisor->options, &supervisor->verdict, run_exit_code(status));
    return run_exit_code(status);
}

static void release(struct supervisor *supervisor)
{
    output_free(&supervisor->output);
    verdict_fini(&supervisor->verdict);
    free(supervisor->failure_fds);
    joins_close(&supervisor->joins);
    close(supervisor->child_fd);
    close(supervisor->null_fd);
}

// The coordinator of a hosted run, and processes that workers have left, stay until the workers of
// all hosts have ended.
static bool is_going_on(const struct supervisor *supervisor)
{
    return supervisor->verdict.running > 0 ||
           (supervisor->options->hosted && !supervisor->dismissed);
}

int supervisor_run(const struct run_options *options, int control_fd)
{
    struct supervisor supervisor = {
        .options = options,
        .control_fd = control_fd,
        .joins = {.fd = -1, .coordinator_fd = -1, .cause = JOINS_NO_RANK},
        .registered = -1};
    struct descendants_left left;
    int result = prepare(&supervisor);
    if (result == 0)
        result = start_all(&supervisor);
    if (result != 0) {
        close(supervisor.child_fd); // Descriptors may be what is lacking, and /proc needs two.
        close(supervisor.null_fd);
        descendants_kill(&left);
        output_dump(&supervisor.output);
        if (supervisor.verdict.orphaned)
            daemon_forget(options->directory);
        else
            run_report_early(options, &supervisor.verdict, result);
        _exit(result);
    }
    while (is_going_on(&supervisor) && !supervisor.verdict.orphaned)
        turn(&supervisor);
    registry_remove(supervisor.registered);
    if (!supervisor.verdict.orphaned)
        stop_daemon(&supervisor);
    const bool all_killed = descendants_kill(&left);
    if (!all_killed)
        descendants_say(&left, options->command);
    if (supervisor.verdict.orphaned) {
        daemon_forget(options->directory); // Normally the launcher does this, but it is dead.
        _exit(128 + SIGKILL);
    }
    result = finish(&supervisor, all_killed);
    release(&supervisor);
    return result;
}
