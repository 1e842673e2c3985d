// SPDX-License-Identifier: Apache-2.0
//
// Decides how a run ends; verdict.h has the contract.

#include "cli/run/verdict.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define GIVE_UP_MS 500
#define APART_MS 1000 // From the first signal that ends the job to the second one at least.

// Returns how many ranks have to end with status 0. A hosted run leaves it to the launcher's host.
static uint32_t needed(const struct run_options *options)
{
    if (options->survive == 0)
        return options->workers;
    return options->hosted ? 0 : options->survive;
}

bool verdict_init(struct verdict *verdict, const struct run_options *options)
{
    const uint32_t count = options->workers;
    memset(verdict, 0, sizeof(*verdict));
    verdict->grace_ms = options->grace_ms;
    verdict->needed = needed(options);
    verdict->kill_at = VERDICT_NEVER;
    verdict->give_up_at = VERDICT_NEVER;
    verdict->result.count = count;
    verdict->result.absent = count;
    verdict->result.first_failed = count;
    verdict->result.accused = count;
    verdict->result.ranks = calloc(count, sizeof(*verdict->result.ranks));
    return verdict->result.ranks != NULL;
}

void verdict_fini(struct verdict *verdict)
{
    free(verdict->result.ranks);
}

// ---- Signals -----------------------------------------------------------------------------------

static bool ends(int signal_number)
{
    return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGHUP;
}

int verdict_signal(struct verdict *verdict, int signal_number, uint64_t now_ms)
{
    const bool again = ends(signal_number) && verdict->interrupts > 0;
    if (again && now_ms - verdict->interrupted_at < APART_MS)
        return 0;
    if (again || signal_number == SIGKILL) {
        verdict->interrupts = 2;
        verdict->give_up_at = now_ms + GIVE_UP_MS;
        return SIGKILL;
    }
    if (ends(signal_number)) {
        verdict->interrupts = 1;
        verdict->interrupted_at = now_ms;
        verdict->interrupted_by = signal_number;
        if (verdict->running > 0 && !verdict_doomed(verdict)) // Else only output is left.
            verdict->result.stopped_by = signal_number;
        verdict->kill_at = VERDICT_NEVER;
    }
    verdict->quit |= signal_number == SIGQUIT;
    return signal_number;
}

// ---- Ends --------------------------------------------------------------------------------------

static bool is_killed(const struct run_end *end)
{
    return WIFSIGNALED(end->status) && WTERMSIG(end->status) == SIGKILL;
}

// Returns true if this rank's failure is a better cause than the one that counts as the first.
static bool is_stronger(const struct verdict *verdict, uint32_t rank, bool same_time)
{
    const struct run_end *end = &verdict->result.ranks[rank].end;
    const struct run_end *first = &verdict->result.ranks[verdict->result.first_failed].end;
    const bool all_needed = verdict->needed == verdict->result.count;
    if (verdict->result.first_failed == verdict->result.count)
        return true; // No rank has failed before.
    if (end->stopped || is_killed(first))
        return false;
    // The rank that the coordinator accuses may take longer to end than the ranks that it fails.
    if (rank == verdict->result.accused)
        return true;
    if (WIFSIGNALED(first->status))
        return false;
    // Ranks exit because another rank died, some by a signal, but never by SIGKILL. So a SIGKILL
    // that the supervisor did not send is the cause, even if the kernel reported other ends first.
    if (is_killed(end) && verdict->interrupts == 0 && all_needed)
        return true;
    if (verdict->result.first_failed == verdict->result.accused)
        return false;
    if (WIFSIGNALED(end->status))
        return same_time;
    return end->after_ms < first->after_ms; // An end on another host may be reported late.
}

// Records a failure. The first failure is the cause. Among failures seen at the same time, a signal
// counts before a status.
static void note_failure(struct verdict *verdict, uint32_t rank, bool same_time, uint64_t now_ms)
{
    struct run_result *result = &verdict->result;
    const bool was_doomed = verdict_doomed(verdict);
    verdict->failed++;
    if (verdict->interrupts > 0 && verdict->stopped_status == 0)
        verdict->stopped_status = result->ranks[rank].end.status;
    if (is_stronger(verdict, rank, same_time))
        result->first_failed = rank;
    if (!was_doomed && verdict_doomed(verdict) && verdict->interrupts == 0)
        verdict->kill_at = now_ms + verdict->grace_ms;
}

void verdict_end(struct verdict *verdict, uint32_t rank, int status, uint64_t at_ms, bool same_time,
                 uint64_t now_ms)
{
    struct run_end *end = &verdict->result.ranks[rank].end;
    end->ended = true;
    end->status = status;
    end->after_ms = at_ms > verdict->started_ms ? at_ms - verdict->started_ms : 0;
    end->stopped = end->stopped && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    verdict->running--;
    if (status != 0)
        note_failure(verdict, rank, same_time, now_ms);
    verdict->result.status = verdict_status(verdict);
}

void verdict_accuse(struct verdict *verdict, uint32_t rank)
{
    struct run_result *result = &verdict->result;
    const bool others_go_on = verdict->needed < result->count;
    if (rank >= result->count)
        return;
    verdict->halted = true;
    if (others_go_on && result->first_failed < result->count)
        return;
    result->accused = rank;
    const bool has_failed = result->ranks[rank].end.status != 0;
    if (has_failed && is_stronger(verdict, rank, false))
        result->first_failed = rank;
    result->status = verdict_status(verdict);
}

void verdict_note_absent(struct verdict *verdict)
{
    struct run_result *result = &verdict->result;
    for (uint32_t i = result->count; i-- > 0;) {
        if (result->ranks[i].end.unjoined && result->ranks[i].end.status == 0)
            result->absent = i;
    }
}

void verdict_stop(struct verdict *verdict)
{
    for (uint32_t i = 0; i < verdict->result.count; i++) {
        if (!verdict->result.ranks[i].end.ended)
            verdict->result.ranks[i].end.stopped = true;
    }
    verdict->kill_at = VERDICT_NEVER;
}

// ---- Questions ---------------------------------------------------------------------------------

bool verdict_given_up(const struct verdict *verdict, uint64_t now_ms)
{
    return verdict->orphaned || now_ms >= verdict->give_up_at;
}

int verdict_time_left(const struct verdict *verdict, uint64_t now_ms)
{
    const uint64_t at =
        verdict->give_up_at < verdict->kill_at ? verdict->give_up_at : verdict->kill_at;
    if (at == VERDICT_NEVER)
        return -1;
    const uint64_t left = at > now_ms ? at - now_ms : 0;
    return left < INT_MAX ? (int)left : INT_MAX;
}

bool verdict_signalled(const struct verdict *verdict)
{
    return verdict->interrupts > 0 || verdict->quit;
}

int verdict_stopped_early(const struct verdict *verdict)
{
    if (verdict->interrupts > 0)
        return 128 + verdict->interrupted_by;
    if (verdict->quit)
        return 128 + SIGQUIT;
    return verdict->orphaned ? 128 + SIGKILL : 0;
}

bool verdict_doomed(const struct verdict *verdict)
{
    return verdict->failed > verdict->result.count - verdict->needed;
}

int verdict_status(const struct verdict *verdict)
{
    const struct run_result *result = &verdict->result;
    if (verdict->needed < result->count && result->stopped_by != 0)
        return verdict->stopped_status;
    return verdict_doomed(verdict) ? result->ranks[result->first_failed].end.status : 0;
}
