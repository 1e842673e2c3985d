// SPDX-License-Identifier: Apache-2.0
//
// The result of a run: one line for people, one object for machines.

#include "cli/run/report.h"

#include "cli/common/cli.h"
#include "cli/run/run.h"
#include "cli/run/run_set.h"
#include "cli/run/verdict.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define JSON_BYTES (512 * 1024)

static_assert(LOCKSTEP_MAX_WORLD * (200 + RUN_HOST_BYTES) < JSON_BYTES,
              "a member of ranks has under 200 bytes and the name of a host");

int run_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void run_append_signal_name(struct text *text, int signal_number)
{
    const char *name = sigabbrev_np(signal_number);
    if (name)
        text_append(text, "SIG%s", name);
    else
        text_append(text, "signal %d", signal_number);
}

static void append_signal(struct text *text, int signal_number)
{
    const char *name = sigabbrev_np(signal_number);
    text_append(text, "signal %d", signal_number);
    if (name)
        text_append(text, " (SIG%s)", name);
}

static void append_end(struct text *text, const struct run_end *end, const char *plural)
{
    if (end->stopped) {
        text_append(text, "%s stopped", plural);
    } else if (end->lost) {
        text_append(text, "%s lost with %s host", plural, plural[2] == 's' ? "its" : "their");
    } else if (WIFSIGNALED(end->status)) {
        text_append(text, "%s killed by ", plural);
        append_signal(text, WTERMSIG(end->status));
    } else {
        text_append(text, "ended with status %d", WEXITSTATUS(end->status));
    }
}

// The trainer's file was there when the launcher looked, so ENOENT is about a file that it names.
static void append_exec_error(struct text *text, const char *trainer, int error)
{
    text_append(text, "could not be started: %s", strerror(error));
    if (error == ENOENT)
        text_append(text,
                    ": the interpreter that '%s' names in its first line, or its dynamic "
                    "loader, is missing",
                    trainer);
    if (error == ENOEXEC)
        text_append(text,
                    ": '%s' is not a program of this machine, or it is a script without a first "
                    "line such as #!/bin/sh",
                    trainer);
}

// Returns the host of a rank of --hosts.
static const char *host_name(const struct run_options *options, uint32_t rank)
{
    uint32_t host = options->host_count - 1;
    while (options->hosts[host].first_rank > rank)
        host--;
    return options->hosts[host].name;
}

void run_append_rank_end(struct text *text, const struct run_options *options,
                         const struct run_result *result, uint32_t index)
{
    const struct run_end *end = &result->ranks[index].end;
    text_append(text, "rank %u ", options->first_rank + index);
    if (options->host_count > 1)
        text_append(text, "on %s ", host_name(options, index));
    if (end->exec_error) {
        append_exec_error(text, options->trainer[0], end->exec_error);
        return;
    }
    append_end(text, end, "was");
    text_append(text, " after %.1f s", (double)end->after_ms / 1000.0);
    if (end->unjoined && !end->stopped)
        text_append(text, ", before it joined the job");
    else if (end->forming && !end->stopped)
        text_append(text, ", before all ranks had joined the job");
}

// Returns true if the job ended because of a rank that has not failed: it ended with status 0, or
// still ran when the supervisor stopped it. The first failure is then one of a rank that needed it,
// and neither killed nor lost with its host.
static bool is_left_by(const struct run_result *result, uint32_t rank)
{
    if (rank == result->count || rank != result->accused || result->first_failed == result->count)
        return false;
    const struct run_end *end = &result->ranks[rank].end;
    const struct run_end *failed = &result->ranks[result->first_failed].end;
    const bool killed = WIFSIGNALED(failed->status) && WTERMSIG(failed->status) == SIGKILL;
    return end->ended && (end->status == 0 || end->stopped) && !killed && !failed->lost &&
           !failed->exec_error;
}

// Returns the rank that is the cause. A rank that has never opened a session, and ended with status
// 0, is the cause of the failures of the ranks that waited for it.
static uint32_t cause_of(const struct run_result *result)
{
    if (result->stopped_by)
        return result->count;
    if (is_left_by(result, result->accused))
        return result->accused;
    if (result->absent == result->count || result->first_failed == result->count)
        return result->first_failed;
    const struct run_end *failed = &result->ranks[result->first_failed].end;
    const bool earlier = result->ranks[result->absent].end.after_ms <= failed->after_ms;
    return earlier && !failed->exec_error && !WIFSIGNALED(failed->status) ? result->absent
                                                                          : result->first_failed;
}

static bool same_end(const struct run_end *a, const struct run_end *b)
{
    return a->stopped == b->stopped && a->lost == b->lost && (a->stopped || a->status == b->status);
}

// `cause` is the rank that is not counted with the others; result->count: none is left out.
static bool is_other(const struct run_result *result, uint32_t cause, uint32_t rank)
{
    return rank != cause && result->ranks[rank].end.ended;
}

// Returns how many other ranks ended like this one. Returns 0 if an earlier rank was already
// counted with them.
static uint32_t count_like(const struct run_result *result, uint32_t cause, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < result->count; i++) {
        if (!is_other(result, cause, i) ||
            !same_end(&result->ranks[i].end, &result->ranks[rank].end))
            continue;
        if (i < rank)
            return 0;
        count++;
    }
    return count;
}

// Appends the other ranks, grouped by how they ended: "; 3 other ranks ended with status 1, 1 was
// stopped".
static void append_others(struct text *text, const struct run_result *result, uint32_t cause)
{
    bool first = true;
    const char *other = cause == result->count ? "" : "other ";
    for (uint32_t i = 0; i < result->count; i++) {
        uint32_t count = is_other(result, cause, i) ? count_like(result, cause, i) : 0;
        if (count == 0)
            continue;
        text_append(text, "%s%u ", first ? "; " : ", ", count);
        if (first)
            text_append(text, "%srank%s ", other, count == 1 ? "" : "s");
        append_end(text, &result->ranks[i].end, count == 1 ? "was" : "were");
        first = false;
    }
}

// Names the ranks of a run without failures that have ended and never opened a session.
static void note_strangers(const struct run_options *options, const struct run_result *result)
{
    struct run_set set;
    char ranks[RUN_SET_BYTES];
    run_set_clear(&set);
    for (uint32_t i = 0; i < result->count; i++) {
        if (result->ranks[i].end.unjoined)
            run_set_add(&set, options->first_rank + i);
    }
    if (set.count == 0)
        return;
    run_set_text(&set, ranks, sizeof(ranks));
    cli_say(options->command,
            "%s ended without a session (lockstep_open was never called): is '%s' a Lockstep "
            "trainer?",
            ranks, options->trainer[0]);
}

// ---- A rank that others outlive ----------------------------------------------------------------

static uint32_t count_good(const struct run_result *result)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < result->count; i++)
        count += result->ranks[i].end.ended && result->ranks[i].end.status == 0;
    return count;
}

void run_report_end(const struct run_options *options, const struct verdict *verdict,
                    uint32_t index)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    const uint32_t others = verdict->running;
    // So many workers may fail.
    const uint32_t most = verdict->result.count - verdict->needed;
    // The last line of the run says the rest: run_report.
    if (options->survive == 0 || verdict->result.ranks[index].end.status == 0 || others == 0 ||
        verdict->interrupts > 0 || verdict->failed > most + 1)
        return;
    text_init(&text, bytes, sizeof(bytes));
    run_append_rank_end(&text, options, &verdict->result, index);
    const char *s = others == 1 ? "" : "s";
    const char *runs = others == 1 ? "s" : "";
    if (verdict->result.ranks[index].end.forming)
        text_append(&text, "; a world of %u cannot form without it, and %u rank%s still run%s",
                    options->world_size, others, s, runs);
    else if (verdict->halted)
        text_append(&text, "; the job has ended, and %u rank%s still run%s", others, s, runs);
    else
        text_append(&text, "; %u rank%s go%s on", others, s, others == 1 ? "es" : "");
    if (verdict_doomed(verdict))
        text_append(&text, ", too few for --survive=%u: the end follows in %.1f s",
                    options->survive, (double)options->grace_ms / 1000.0);
    cli_say(options->command, "%s", bytes);
}

// ---- The last line -----------------------------------------------------------------------------

// Appends whether enough ranks have ended well.
static void append_survival(struct text *text, const struct run_options *options,
                            const struct run_result *result)
{
    if (options->survive > 0 && result->stopped_by == 0)
        text_append(text, "; %s for --survive=%u",
                    count_good(result) >= options->survive ? "enough" : "not enough",
                    options->survive);
}

static void say_end(const struct run_options *options, const struct run_result *result)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    const uint32_t cause = cause_of(result);
    if (cause == result->count && !result->stopped_by) {
        note_strangers(options, result);
        return;
    }
    text_init(&text, bytes, sizeof(bytes));
    if (result->stopped_by) {
        text_append(&text, "the job was stopped by ");
        run_append_signal_name(&text, result->stopped_by);
        text_append(&text, " after %.1f s", (double)result->total_ms / 1000.0);
    } else {
        run_append_rank_end(&text, options, result, cause);
        if (is_left_by(result, cause))
            text_append(&text, ", and the job ended because of it");
    }
    append_others(&text, result, cause);
    append_survival(&text, options, result);
    cli_say(options->command, "%s", bytes);
}

// ---- JSON --------------------------------------------------------------------------------------

static void json_end(struct json *json, const struct run_end *end)
{
    bool signalled = end->ended && WIFSIGNALED(end->status);
    if (!end->ended || signalled || end->lost)
        json_null(json, "exit_code");
    else
        json_i64(json, "exit_code", WEXITSTATUS(end->status));
    if (signalled)
        json_i64(json, "signal", WTERMSIG(end->status));
    else
        json_null(json, "signal");
    json_bool(json, "stopped", end->stopped);
    json_double(json, "seconds", (double)end->after_ms / 1000.0);
}

static void json_ranks(struct json *json, const struct run_options *options,
                       const struct run_result *result)
{
    json_array_begin(json, "ranks");
    for (uint32_t i = 0; i < result->count; i++) {
        json_object_begin(json, NULL);
        json_u64(json, "rank", options->first_rank + i);
        json_i64(json, "pid", result->ranks[i].pid);
        if (options->host_count > 0)
            json_string(json, "host", host_name(options, i));
        json_end(json, &result->ranks[i].end);
        json_object_end(json);
    }
    json_array_end(json);
}

static void json_failure(struct json *json, const struct run_options *options,
                         const struct run_result *result)
{
    const bool failed = result->first_failed < result->count;
    const uint32_t cause = cause_of(result);
    int status = failed ? result->ranks[result->first_failed].end.status : 0;
    json_i64(json, "exit_code", run_exit_code(result->status));
    json_double(json, "seconds", (double)result->total_ms / 1000.0);
    if (failed)
        json_u64(json, "failed_rank", options->first_rank + result->first_failed);
    else
        json_null(json, "failed_rank");
    if (failed && WIFSIGNALED(status))
        json_i64(json, "failed_signal", WTERMSIG(status));
    else
        json_null(json, "failed_signal");
    if (cause < result->count)
        json_u64(json, "cause_rank", options->first_rank + cause);
    else
        json_null(json, "cause_rank");
}

static void report_json(const struct run_options *options, const struct run_result *result)
{
    struct json json;
    json_init(&json, JSON_BYTES);
    json_object_begin(&json, NULL);
    json_string(&json, "job", options->job);
    json_u64(&json, "world_size", options->world_size);
    json_u64(&json, "restarts", options->restarts);
    if (options->survive > 0)
        json_u64(&json, "survive", options->survive);
    else
        json_null(&json, "survive");
    json_u64(&json, "survivors", count_good(result));
    json_failure(&json, options, result);
    json_ranks(&json, options, result);
    json_object_end(&json);
    const char *text = json_text(&json, NULL);
    if (text)
        printf("%s\n", text);
    if (!cli_flush(options->command))
        *options->unwritten = true;
    json_fini(&json);
}

// ---- The end of an attempt ---------------------------------------------------------------------

// Returns true if the trainer or lockstep could not be started, which another attempt does not
// change.
static bool is_not_startable(const struct run_result *result, int code)
{
    if (result->first_failed < result->count)
        return result->ranks[result->first_failed].end.exec_error != 0;
    return code == CLI_NOT_EXECUTABLE || code == CLI_NOT_FOUND;
}

// A rank has failed before the user's signal, which kept the job from being started again.
static void say_no_restart(const struct run_options *options, const struct verdict *verdict)
{
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    run_append_signal_name(&text, verdict->interrupts > 0 ? verdict->interrupted_by : SIGQUIT);
    cli_say(options->command, "the job was stopped by %s, and is not started again", bytes);
}

void run_report(const struct run_options *options, const struct verdict *verdict, int code)
{
    if (options->hosted)
        return;
    say_end(options, &verdict->result);
    *options->again =
        !is_not_startable(&verdict->result, code) && run_may_restart(options, code, false);
    if (*options->again && verdict_signalled(verdict)) {
        *options->again = false;
        if (verdict->result.stopped_by == 0)
            say_no_restart(options, verdict);
    }
    if (options->json && !*options->again)
        report_json(options, &verdict->result);
}

void run_report_early(const struct run_options *options, struct verdict *verdict, int code)
{
    struct run_result *result = &verdict->result;
    if (!result->ranks)
        return;
    result->status = code << 8;
    if (verdict->started_ms > 0)
        result->total_ms = clock_now_ms() - verdict->started_ms;
    if (verdict->quit && result->stopped_by == 0)
        result->stopped_by = SIGQUIT;
    run_report(options, verdict, code);
}
