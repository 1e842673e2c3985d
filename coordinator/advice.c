// SPDX-License-Identifier: Apache-2.0
// See advice.h. Runs inside coordinator_step.

#include "coordinator/advice.h"

#include "coordinator/beat.h"
#include "coordinator/core.h"
#include "coordinator/sentence.h"

// The words before and after the pid.
static const struct {
    bool ended;
    const char *before;
    const char *behind;
} advices[] = {
    [ADVICE_SEEN] = {true, "see why pid", "there ended"},
    [ADVICE_ENDED] = {true, "see why pid", "there ended or called exec"},
    [ADVICE_PARTED] = {true, "see whether pid", "there ended or the network to that host is cut"},
    [ADVICE_STOPPED] = {false, "see what stopped pid", "there"},
    [ADVICE_SILENT] = {false, "see whether pid", "there runs, and whether that host answers"},
    [ADVICE_LIAR] = {false, "pid",
                     "there broke the protocol: see that all ranks run the same Lockstep and that "
                     "nothing overwrites its memory"},
};

bool advice_is_of_an_end(enum advice advice)
{
    return advices[advice].ended;
}

const char *advice_again(const struct worker *worker)
{
    return worker->hello.on_failure == FAILURE_CONTINUE ? "" : ", then start the job again";
}

void advice_sentence(const struct worker *worker, const char *cause, enum advice advice,
                     struct text *sentence)
{
    if (worker->back.unseen) {
        text_append(sentence, "rank %" PRIu32 " was lost while the coordinator was away: %s",
                    worker->rank, cause);
        return;
    }
    text_append(sentence, "rank %" PRIu32 " on host %s was lost: %s", worker->rank,
                worker->hello.host, cause);
    if (!advices[advice].ended || worker->heartbeat.failure[0] == '\0')
        text_append(sentence, "; %s %" PRIu32 " %s%s", advices[advice].before, worker->hello.pid,
                    advices[advice].behind, advice_again(worker));
    else
        text_append(sentence, "; pid %" PRIu32 " ended without lockstep_close after %s",
                    worker->hello.pid, worker->heartbeat.failure);
}

// A process that was silent before may still exist and be stopped.
enum advice advice_of_silence(const struct coordinator *core, const struct worker *worker,
                              struct text *sentence)
{
    if (!beat_frozen(core, worker, core->now)) {
        text_append(sentence, "its control stream ended without a goodbye");
        return ADVICE_ENDED;
    }
    const bool stopped = beat_stopped(core, worker, core->now);
    if (stopped)
        text_append(sentence, "its process was stopped%s, and ",
                    worker->beat.traced ? " by a debugger" : "");
    text_append(sentence, "nothing was heard of it for ");
    sentence_seconds(sentence, core->now - worker->heard_ms);
    text_append(sentence, " when its control stream ended");
    return stopped ? ADVICE_STOPPED : ADVICE_SILENT;
}

enum advice advice_of_loss(const struct worker *witness, const struct worker *peer,
                           const struct up_lost *lost)
{
    if (lost->impossible)
        return ADVICE_LIAR;
    if (lost->silent)
        return ADVICE_SILENT;
    if (lost->proof == PROOF_PROCESS)
        return ADVICE_SEEN;
    return strcmp(peer->hello.host_id, witness->hello.host_id) == 0 ? ADVICE_ENDED : ADVICE_PARTED;
}
