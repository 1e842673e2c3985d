// SPDX-License-Identifier: Apache-2.0
//
// The supervisor of `lockstep run --hosts`: one poll loop over the launcher's pipe, a signalfd, and
// the pipes of ssh to each host (remote.h). `lockstep run-host` runs the workers there (agent.c).
//
// The order of a start. All hosts greet before any of them is asked, so a host that cannot be
// reached ends the run before a worker exists. Host 0 is asked first, and starts the coordinator.
// The other hosts are asked once its address is known.
//
// The end. This supervisor decides as one on a single host does (verdict.h). Hosts stay until the
// workers of all hosts have ended, because host 0 has the coordinator; then they are dismissed.
// When a pipe to a host ends, ssh ends, and the host kills all that it has started.

#include "cli/run/hosts.h"

#include "base/clock.h"
#include "base/text.h"
#include "cli/common/cli.h"
#include "cli/run/daemon.h"
#include "cli/run/descendants.h"
#include "cli/run/output.h"
#include "cli/run/reach.h"
#include "cli/run/remote.h"
#include "cli/run/report.h"
#include "cli/run/request.h"
#include "cli/run/run.h"
#include "cli/run/spawn.h"
#include "cli/run/verdict.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOST_STATUS 255 // The status of ssh when it cannot connect is the same.
#define PENDING_MS 20 // How often bytes that ssh did not take are tried again.
#define GREETING_MS 60000 // From the start of ssh to the greeting at most.
#define DISMISSAL_MS 15000 // From the dismissal to the end of ssh at most.

struct hosts {
    // set at start, then constant
    const struct run_options *options;
    int control_fd;
    int child_fd; // signalfd for SIGCHLD
    struct remote *remotes; // owned; [options->host_count]
    int *fds; // owned; for output_wait

    struct verdict verdict;
    struct output output;
    uint64_t began_ms; // When ssh was started.
    uint64_t beat_at; // When the hosts hear next that the launcher is there.
    bool stopped; // True once the hosts were told to kill their workers.
    bool broken[2]; // True once the hosts know that nobody reads stdout or stderr.
    char coordinator[LOCKSTEP_COORDINATOR_BYTES]; // Its address, or where host 0 listens; "":
                                                  // private.
    char dashboard[DAEMON_DASHBOARD_BYTES];
    struct descendants_left left; // Ignored: ssh is always a process of this user.
    int failure; // The exit status of a host that failed before all ranks had started, or 0.
};

static bool all_reached(const struct hosts *hosts, enum remote_state state)
{
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        if (hosts->remotes[i].state < state)
            return false;
    }
    return true;
}

static void send_all(struct hosts *hosts, unsigned char byte)
{
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        if (hosts->remotes[i].state >= REMOTE_ASKED)
            remote_send(&hosts->remotes[i], &byte, 1);
    }
}

// ---- Asking ------------------------------------------------------------------------------------

// Port 0 lets the coordinator choose one.
static void choose_address(struct hosts *hosts)
{
    const struct run_options *options = hosts->options;
    char host[RUN_HOST_BYTES];
    if (options->coordinator) {
        snprintf(hosts->coordinator, sizeof(hosts->coordinator), "%s", options->coordinator);
    } else if (options->host_count > 1) {
        reach_host(hosts->remotes, options->host_count, host, sizeof(host));
        snprintf(hosts->coordinator, sizeof(hosts->coordinator),
                 strchr(host, ':') ? "[%.140s]:0" : "%.140s:0", host);
    }
}

static void ask(struct hosts *hosts, uint32_t number)
{
    const struct run_options *options = hosts->options;
    struct remote *remote = &hosts->remotes[number];
    const char *coordinator = hosts->coordinator[0] ? hosts->coordinator : NULL;
    size_t size = 0;
    const bool serves = number == 0 && options->serves && coordinator;
    char *request = request_make(options, number, coordinator, serves, &size);
    if (!request) {
        cli_say("run", "host %s: cannot make the request: %s", remote->host->name, strerror(errno));
        hosts->failure = CLI_FAILED;
        return;
    }
    remote_send(remote, request, size);
    free(request);
    remote->state = REMOTE_ASKED;
}

static void announce(const struct hosts *hosts)
{
    const struct run_options *options = hosts->options;
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "%u worker%s on %u host%s", options->workers,
                options->workers == 1 ? "" : "s", options->host_count,
                options->host_count == 1 ? "" : "s");
    if (hosts->coordinator[0])
        text_append(&text, ", coordinator %s", hosts->coordinator);
    if (hosts->dashboard[0])
        text_append(&text, ", on %s dashboard %s", options->hosts[0].name, hosts->dashboard);
    else if (options->serves)
        text_append(&text, ", no dashboard");
    cli_say("run", "job %s, %s", options->job, bytes);
}

// Takes the next step of the start, if its time has come.
static void advance(struct hosts *hosts)
{
    struct remote *first = &hosts->remotes[0];
    if (first->state == REMOTE_GREETED && all_reached(hosts, REMOTE_GREETED)) {
        choose_address(hosts);
        hosts->verdict.started_ms = clock_now_ms();
        ask(hosts, 0);
    }
    for (uint32_t i = 1; first->placed && i < hosts->options->host_count; i++) {
        if (hosts->remotes[i].state == REMOTE_GREETED)
            ask(hosts, i);
    }
}

// ---- Frames ------------------------------------------------------------------------------------

static void take_place(struct hosts *hosts, struct remote *remote, const char *bytes, size_t size)
{
    const char *end = memchr(bytes, '\n', size);
    if (remote != &hosts->remotes[0] || remote->placed || !end)
        return;
    remote->placed = true;
    if (hosts->coordinator[0])
        snprintf(hosts->coordinator, sizeof(hosts->coordinator), "%.*s", (int)(end - bytes), bytes);
    snprintf(hosts->dashboard, sizeof(hosts->dashboard), "%.*s", (int)(bytes + size - end - 1),
             end + 1);
    announce(hosts);
}

static bool take_started(struct hosts *hosts, struct remote *remote, uint32_t rank,
                         const unsigned char *bytes, size_t size)
{
    const unsigned char stop = RELAY_STOP;
    struct relay_started started;
    if (!relay_get_started(bytes, size, &started))
        return false;
    remote_time(remote, started.at_ms, clock_now_ms());
    hosts->verdict.result.ranks[rank].pid = (pid_t)started.pid;
    remote->started++;
    if (remote->started < remote->host->workers)
        return true;
    remote->state = REMOTE_RUNS;
    if (hosts->stopped)
        remote_send(remote, &stop, 1);
    return true;
}

static bool take_ended(struct hosts *hosts, struct remote *remote, uint32_t rank,
                       const unsigned char *bytes, size_t size, bool same_time)
{
    struct relay_ended ended;
    struct verdict *verdict = &hosts->verdict;
    struct run_end *end = &verdict->result.ranks[rank].end;
    const uint64_t now = clock_now_ms();
    if (!relay_get_ended(bytes, size, &ended) || end->ended)
        return false;
    end->exec_error = ended.exec_error;
    end->stopped = ended.stopped;
    remote->ended++;
    verdict_accuse(verdict, ended.cause);
    verdict_end(verdict, rank, ended.status, remote_time(remote, ended.at_ms, now), same_time, now);
    run_report_end(hosts->options, verdict, rank);
    return true;
}

// Returns true once the user has asked twice for the end. Output that nobody reads then no longer
// holds up the frames behind it.
static bool drops_output(const struct hosts *hosts)
{
    return verdict_given_up(&hosts->verdict, clock_now_ms());
}

// Returns false if the frame cannot be one of this host.
static bool take_frame(struct hosts *hosts, struct remote *remote,
                       const struct relay_header *header, const unsigned char *bytes,
                       bool same_time)
{
    const uint32_t first = remote->host->first_rank;
    const bool own = header->rank >= first && header->rank - first < remote->host->workers;
    const bool has_stream = own || header->rank == RELAY_COORDINATOR;
    struct stream *stream =
        has_stream ? output_stream(&hosts->output, header->rank, header->stream) : NULL;
    switch ((enum relay_kind)header->kind) {
    case RELAY_PLACE:
        take_place(hosts, remote, (const char *)bytes, header->size);
        return true;
    case RELAY_STARTED:
        return own && take_started(hosts, remote, header->rank, bytes, header->size);
    case RELAY_ENDED:
        return own && take_ended(hosts, remote, header->rank, bytes, header->size, same_time);
    case RELAY_OUTPUT:
        if (stream && stream->open && !drops_output(hosts))
            stream_feed(stream, (const char *)bytes, header->size);
        return has_stream;
    case RELAY_CLOSED:
        if (stream && stream->open)
            stream_end(stream);
        return has_stream;
    }
    return false;
}

// Takes frames while there is room for their output. Returns false after bytes that no host of this
// version sends.
static bool take_frames(struct hosts *hosts, struct remote *remote, bool same_time)
{
    struct relay_header header;
    const unsigned char *payload = NULL;
    enum remote_next next = REMOTE_NOTHING;
    while ((output_has_room(&hosts->output) || drops_output(hosts)) &&
           (next = remote_peek(remote, &header, &payload)) == REMOTE_FRAME) {
        if (!take_frame(hosts, remote, &header, payload, same_time))
            return false;
        remote_drop(remote, &header);
    }
    return next != REMOTE_FOREIGN;
}

// ---- The end of a host -------------------------------------------------------------------------

// The host has ended before all ranks of the job had started.
static void fail_start(struct hosts *hosts, const struct remote *remote)
{
    char words[LOCKSTEP_TEXT_BYTES];
    const char *name = remote->host->name;
    const int status = run_exit_code(remote->status);
    remote_last_words(remote, words, sizeof(words));
    if (hosts->failure)
        return; // The first host that fails is the cause.
    hosts->failure = status ? status : CLI_FAILED;
    if (remote->state != REMOTE_CONNECTS)
        cli_say("run", "host %s: %s", name, words);
    else if (status == LOST_STATUS)
        cli_say("run", "host %s: %s; '%s %s true' has to work without a password", name, words,
                hosts->options->rsh, name);
    else
        cli_say("run",
                "host %s: %s; install lockstep there in the same place as here, or name its path "
                "with --lockstep",
                name, words);
}

// The host has ended before its ranks.
static void lose(struct hosts *hosts, const struct remote *remote)
{
    char words[LOCKSTEP_TEXT_BYTES];
    const uint64_t now = clock_now_ms();
    struct verdict *verdict = &hosts->verdict;
    const bool killed = verdict->interrupts > 1; // As the user wanted.
    remote_last_words(remote, words, sizeof(words));
    if (!killed)
        cli_say("run", "host %s was lost: %s", remote->host->name, words);
    for (uint32_t i = 0; i < remote->host->workers; i++) {
        const uint32_t rank = remote->host->first_rank + i;
        struct run_end *end = &verdict->result.ranks[rank].end;
        if (end->ended)
            continue;
        end->lost = !killed;
        verdict_end(verdict, rank, killed ? SIGKILL : LOST_STATUS << 8, now, false, now);
        run_report_end(hosts->options, verdict, rank);
    }
}

static void end_streams(struct hosts *hosts, uint32_t number)
{
    const struct run_host *host = &hosts->options->hosts[number];
    for (uint32_t i = 0; i < 2 * host->workers; i++) {
        struct stream *stream = output_stream(&hosts->output, host->first_rank + i / 2, i % 2);
        if (stream->open)
            stream_end(stream);
    }
    struct stream *own = output_host_stream(&hosts->output, number);
    struct stream *coordinator = output_stream(&hosts->output, RELAY_COORDINATOR, 1);
    if (own->open)
        stream_end(own);
    if (number == 0 && coordinator->open)
        stream_end(coordinator);
}

// Ends a host whose ssh was reaped and whose frames were all taken.
static void settle(struct hosts *hosts, uint32_t number)
{
    struct remote *remote = &hosts->remotes[number];
    if (remote->state == REMOTE_ENDED || !remote_has_ended(remote))
        return;
    const bool started = all_reached(hosts, REMOTE_RUNS);
    end_streams(hosts, number);
    remote_close(remote);
    if (remote->ended < remote->host->workers && !hosts->verdict.orphaned) {
        if (started)
            lose(hosts, remote);
        else
            fail_start(hosts, remote);
    }
    remote->state = REMOTE_ENDED;
}

// ---- The loop ----------------------------------------------------------------------------------

static void read_control(struct hosts *hosts)
{
    unsigned char bytes[64];
    const ssize_t size = read(hosts->control_fd, bytes, sizeof(bytes));
    if (size == 0)
        hosts->verdict.orphaned = true;
    for (ssize_t i = 0; i < size; i++) {
        const int given = verdict_signal(&hosts->verdict, bytes[i], clock_now_ms());
        if (given)
            send_all(hosts, (unsigned char)given);
    }
}

static void reap(struct hosts *hosts)
{
    struct signalfd_siginfo info;
    int status = 0;
    const ssize_t ignored = read(hosts->child_fd, &info, sizeof(info));
    (void)ignored;
    for (pid_t pid = waitpid(-1, &status, WNOHANG); pid > 0; pid = waitpid(-1, &status, WNOHANG)) {
        for (uint32_t i = 0; i < hosts->options->host_count; i++) {
            if (hosts->remotes[i].pid == pid) {
                hosts->remotes[i].pid = 0;
                hosts->remotes[i].status = status;
            }
        }
    }
}

// Shows what ssh and the host say while the workers run. Before that the last line is kept, and is
// the reason if the start fails.
static void read_errors(struct hosts *hosts, uint32_t number)
{
    char bytes[4096];
    struct remote *remote = &hosts->remotes[number];
    struct stream *stream = output_host_stream(&hosts->output, number);
    const size_t size = remote_read_error(remote, bytes, sizeof(bytes));
    if (size > 0 && remote->state == REMOTE_RUNS && stream->open)
        stream_feed(stream, bytes, size);
}

static void read_remotes(struct hosts *hosts)
{
    const struct verdict *verdict = &hosts->verdict;
    const bool same_time = verdict->result.first_failed == verdict->result.count;
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        struct remote *remote = &hosts->remotes[i];
        remote_flush(remote);
        read_errors(hosts, i);
        remote_read(remote);
        if (!take_frames(hosts, remote, same_time)) {
            snprintf(remote->said, sizeof(remote->said),
                     "its lockstep is of another version; install the same one on all hosts");
            remote->size = 0;
            if (remote->pid > 0)
                kill(remote->pid, SIGKILL);
        }
        settle(hosts, i);
    }
}

static void beat(struct hosts *hosts, uint64_t now)
{
    const unsigned char alive = RELAY_ALIVE;
    if (now < hosts->beat_at)
        return;
    hosts->beat_at = now + RELAY_BEAT_MS;
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        if (hosts->remotes[i].pending_size == 0)
            remote_send(&hosts->remotes[i], &alive, 1);
    }
}

static void tell_broken(struct hosts *hosts)
{
    for (unsigned number = 0; number < 2; number++) {
        if (hosts->broken[number] || !output_broken(&hosts->output, number))
            continue;
        hosts->broken[number] = true;
        send_all(hosts, (unsigned char)(RELAY_BREAK_OUTPUT + number));
    }
}

static int time_left(const struct hosts *hosts)
{
    const int left = verdict_time_left(&hosts->verdict, clock_now_ms());
    int most = RELAY_BEAT_MS;
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        if (hosts->remotes[i].pending_size > 0)
            most = PENDING_MS;
    }
    return left >= 0 && left < most ? left : most;
}

static void turn(struct hosts *hosts)
{
    const bool room = output_has_room(&hosts->output) || drops_output(hosts);
    unsigned count = 0;
    hosts->fds[count++] = hosts->control_fd;
    hosts->fds[count++] = hosts->child_fd;
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        hosts->fds[count++] = room ? hosts->remotes[i].frames_fd : -1;
        hosts->fds[count++] = hosts->remotes[i].error_fd;
    }
    output_wait(&hosts->output, hosts->fds, count, time_left(hosts));
    read_control(hosts);
    reap(hosts);
    read_remotes(hosts);
    remote_tell_failure(hosts->remotes, hosts->options, &hosts->verdict);
    output_relay(&hosts->output);
    tell_broken(hosts);
    const uint64_t now = clock_now_ms();
    beat(hosts, now);
    if (now >= hosts->verdict.kill_at) {
        verdict_stop(&hosts->verdict);
        hosts->stopped = true;
        send_all(hosts, RELAY_STOP);
    }
}

// ---- Beginning and end -------------------------------------------------------------------------

static int prepare(struct hosts *hosts)
{
    const struct run_options *options = hosts->options;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    spawn_raise_file_limit();
    hosts->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    hosts->remotes = calloc(options->host_count, sizeof(*hosts->remotes));
    hosts->fds = calloc(OUTPUT_OTHER_FDS + 2 * (size_t)options->host_count, sizeof(int));
    if (!verdict_init(&hosts->verdict, options) || hosts->child_fd < 0 || !hosts->remotes ||
        !hosts->fds) {
        cli_say("run", "cannot prepare: %s", strerror(errno));
        return CLI_FAILED;
    }
    hosts->verdict.running = options->workers;
    if (!output_open(&hosts->output, options))
        return CLI_FAILED;
    output_add_fed(&hosts->output);
    return 0;
}

// Starts ssh to every host, and after that the threads of the output. Returns 0 or an exit status.
static int connect_all(struct hosts *hosts)
{
    hosts->began_ms = clock_now_ms();
    hosts->beat_at = hosts->began_ms + RELAY_BEAT_MS;
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        const int result =
            remote_start(&hosts->remotes[i], hosts->options, &hosts->options->hosts[i]);
        if (result != 0)
            return result;
    }
    if (output_start(&hosts->output) == 0)
        return 0;
    cli_say("run", "cannot start the output: %s", strerror(errno));
    return CLI_FAILED;
}

// Reports a host that has not greeted for too long. Returns true if there is one.
static bool is_late(const struct hosts *hosts)
{
    if (clock_now_ms() - hosts->began_ms < GREETING_MS)
        return false;
    for (uint32_t i = 0; i < hosts->options->host_count; i++) {
        const struct remote *remote = &hosts->remotes[i];
        if (remote->state != REMOTE_CONNECTS)
            continue;
        cli_say("run", "host %s: no answer for %d s; '%s %s true' has to work without a password",
                remote->host->name, GREETING_MS / 1000, hosts->options->rsh, remote->host->name);
        return true;
    }
    return false;
}

// Runs until all ranks have started. Returns 0 or an exit status.
static int start_all(struct hosts *hosts)
{
    int result = connect_all(hosts);
    while (result == 0 && !all_reached(hosts, REMOTE_RUNS)) {
        turn(hosts);
        advance(hosts);
        result = verdict_stopped_early(&hosts->verdict);
        if (result == 0 && hosts->failure)
            result = hosts->failure;
        else if (result == 0 && is_late(hosts))
            result = LOST_STATUS;
    }
    return result;
}

// Writes the output that is left, and drops it if the user asks again for the end.
static void flush(struct hosts *hosts)
{
    for (uint32_t i = 0; i < hosts->options->host_count; i++)
        end_streams(hosts, i);
    output_finish(&hosts->output);
    while (!output_done(&hosts->output) && !verdict_given_up(&hosts->verdict, clock_now_ms()))
        turn(hosts);
}

static void dismiss_all(struct hosts *hosts)
{
    const uint64_t deadline = clock_now_ms() + DISMISSAL_MS;
    send_all(hosts, RELAY_DISMISS);
    while (!all_reached(hosts, REMOTE_ENDED) && clock_now_ms() < deadline &&
           !verdict_given_up(&hosts->verdict, clock_now_ms()))
        turn(hosts);
}

static int finish(struct hosts *hosts)
{
    struct run_result *result = &hosts->verdict.result;
    const int status = run_exit_code(verdict_status(&hosts->verdict));
    result->total_ms = clock_now_ms() - hosts->verdict.started_ms;
    dismiss_all(hosts);
    descendants_kill(&hosts->left);
    flush(hosts);
    // A write is stuck, and the supervisor no longer waits for it.
    if (!output_done(&hosts->output))
        _exit(status);
    output_close(&hosts->output);
    run_report(hosts->options, &hosts->verdict, status);
    return status;
}

static void release(struct hosts *hosts)
{
    for (uint32_t i = 0; i < hosts->options->host_count; i++)
        remote_close(&hosts->remotes[i]);
    output_free(&hosts->output);
    verdict_fini(&hosts->verdict);
    free(hosts->remotes);
    free(hosts->fds);
    close(hosts->child_fd);
}

int hosts_run(const struct run_options *options, int control_fd)
{
    struct hosts hosts = {.options = options, .control_fd = control_fd};
    int result = prepare(&hosts);
    if (result == 0)
        result = start_all(&hosts);
    if (result != 0) {
        descendants_kill(&hosts.left);
        if (hosts.output.started && !hosts.verdict.orphaned) {
            flush(&hosts);
            if (output_done(&hosts.output)) // Else a write is stuck.
                output_close(&hosts.output);
        }
        if (!hosts.verdict.orphaned)
            run_report_early(options, &hosts.verdict, result);
        _exit(result);
    }
    while (hosts.verdict.running > 0 && !hosts.verdict.orphaned)
        turn(&hosts);
    if (hosts.verdict.orphaned) {
        descendants_kill(&hosts.left);
        _exit(128 + SIGKILL);
    }
    result = finish(&hosts);
    release(&hosts);
    return result;
}
