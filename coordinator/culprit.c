// SPDX-License-Identifier: Apache-2.0
//
// The sentence about a stall, and the answers of culprits. The sentence says which rank is the
// culprit, on which host, for how long, what it does, how many ranks wait for it, and what the user
// should do. Texts from workers are cleaned before they are stored. Runs inside coordinator_step,
// and in views.

#include "coordinator/culprit.h"

#include "coordinator/beat.h"
#include "coordinator/core.h"
#include "coordinator/names.h"
#include "coordinator/sentence.h"
#include "coordinator/standing.h"

#include <string.h>

const char *coordinator_stall_kind_name(enum stall_kind kind)
{
    static const char *const names[] = {"none", "outside", "in_call", "frozen", "stopped",
                                        "lost", "link",    "unknown", "device"};
    return (size_t)kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown";
}

// ---- Pieces of the sentence --------------------------------------------------------------------

void culprit_name(struct text *sentence, const struct worker *worker)
{
    if (worker->back.unseen)
        text_append(sentence, "rank %" PRIu32 " (not seen since this coordinator started)",
                    worker->rank);
    else
        text_append(sentence, "rank %" PRIu32 " (%s, pid %" PRIu32 ")", worker->rank,
                    worker->hello.host, worker->hello.pid);
}

// Adds "lockstep_call_end of 'actor' (call 3)".
void culprit_api(struct text *sentence, const struct job *job, const struct place *place)
{
    if (place->api == API_COLLECTIVE)
        text_append(sentence, "a collective");
    else if (place->api == API_STATE)
        text_append(sentence, "a function that saves or loads");
    else
        text_append(sentence, "lockstep_%s", api_function_name(place->api));
    if (place->module >= LOCKSTEP_MAX_MODULES)
        return;
    text_append(sentence, " of ");
    core_call_name(sentence, job, (struct call_id){place->module, place->call});
}

// Adds " in step 12 of phase 'aux'". Adds nothing before the first step, which has number 1.
static void culprit_step(struct text *sentence, const struct culprit *culprit,
                         const struct worker *worker)
{
    if (worker->heartbeat.step == 0)
        return;
    text_append(sentence, " in step %" PRIu64, worker->heartbeat.step);
    if (culprit->phase[0] != '\0')
        text_append(sentence, " of phase '%s'", culprit->phase);
}

static void culprit_missing(struct text *sentence, const struct culprit *culprit)
{
    const uint32_t shown = culprit->missing_count < 3 ? culprit->missing_count : 3;
    for (uint32_t i = 0; i < shown; i++)
        text_append(sentence, i == 0 ? ", missing '%s'" : ", '%s'", culprit->missing[i]);
    if (shown > 0 && culprit->missing_total > shown)
        text_append(sentence, " and %" PRIu32 " more", culprit->missing_total - shown);
}

static void culprit_in_call(struct text *sentence, const struct job *job,
                            const struct culprit *culprit, const struct worker *worker,
                            uint64_t age_ms)
{
    const struct place *place = &worker->heartbeat.place;
    text_append(sentence, "has a call open");
    if (place->module < LOCKSTEP_MAX_MODULES) {
        text_append(sentence, " of ");
        core_call_name(sentence, job, (struct call_id){place->module, place->call});
    }
    culprit_step(sentence, culprit, worker);
    text_append(sentence, " and has reported nothing for ");
    sentence_seconds(sentence, age_ms);
    text_append(sentence, "; %" PRIu32 " of %" PRIu32 " gradients are ready", place->ready,
                place->gradients);
    culprit_missing(sentence, culprit);
}

static void culprit_link(const struct coordinator *core, const struct job *job,
                         struct text *sentence, const struct culprit *culprit)
{
    const struct worker *peer = &core->workers[job->workers[culprit->blame.peer]];
    text_append(sentence, "holds %" PRIu64 " bytes for ", culprit->blame.unsent);
    culprit_name(sentence, peer);
    text_append(sentence, ", which do not arrive");
}

static void culprit_device(struct text *sentence, const struct culprit *culprit,
                           const struct worker *worker, uint64_t age_ms)
{
    const struct place *place = &worker->heartbeat.place;
    const bool closes = place->inside && place->api == API_CLOSE;
    if (worker->heartbeat.held == DEVICE_HOLD_NCCL) {
        text_append(sentence, "has given its part to %s",
                    strncmp(culprit->awaited, "NCCL", 4) == 0 ? culprit->awaited : "NCCL");
        culprit_step(sentence, culprit, worker);
        text_append(sentence, ", which does not end; that is so for ");
    } else {
        text_append(sentence, "waits%s for %s", closes ? " in lockstep_close" : "",
                    culprit->awaited[0] == '\0' ? "what a stream of its device makes"
                                                : culprit->awaited);
        if (culprit->stream != 0)
            text_append(sentence, " on stream 0x%" PRIx64, culprit->stream);
        culprit_step(sentence, culprit, worker);
        text_append(sentence, ", which its device has not finished for ");
    }
    sentence_seconds(sentence, age_ms);
}

// Adds what a trainer in state D sleeps in. Such a thread takes no signal, so its frames may be
// missing.
static void culprit_sleeps(struct text *sentence, const struct worker *worker)
{
    const char *sleeps = worker->heartbeat.sleeps;
    text_append(sentence, "; it sleeps in the kernel%s%s", sleeps[0] == '\0' ? "" : ": ", sleeps);
}

// Adds ", since step 60", or ", since step 60 or 61" if the step is not certain.
static void culprit_since(const struct coordinator *core, const struct job *job,
                          struct text *sentence, const struct worker *worker)
{
    const struct beat_steps steps = beat_steps(core, job, worker);
    text_append(sentence, ", since step %" PRIu64, steps.least);
    if (steps.most > steps.least)
        text_append(sentence, " or %" PRIu64, steps.most);
}

static void culprit_stopped(const struct coordinator *core, const struct job *job,
                            struct text *sentence, const struct worker *worker, uint64_t now_ms)
{
    text_append(sentence, "is stopped");
    if (worker->beat.traced && worker->beat.tracer != 0)
        text_append(sentence, " by a debugger (pid %" PRIu32 ")", worker->beat.tracer);
    else if (worker->beat.traced)
        text_append(sentence, " by a debugger");
    text_append(sentence, ", as its mates see, for ");
    sentence_seconds(sentence, now_ms - worker->heard_ms);
    culprit_since(core, job, sentence, worker);
}

// Adds what this rank does, and since when.
static void culprit_does(const struct coordinator *core, const struct job *job,
                         struct text *sentence, const struct culprit *culprit, uint64_t now_ms)
{
    const struct worker *worker = &core->workers[job->workers[culprit->blame.rank]];
    const struct place *place = &worker->heartbeat.place;
    const uint64_t age_ms = beat_age_now(worker, now_ms);
    culprit_name(sentence, worker);
    text_append(sentence, " ");
    switch (culprit->blame.kind) {
    case STALL_OUTSIDE:
        text_append(sentence, "has been outside the library for ");
        sentence_seconds(sentence, age_ms);
        text_append(sentence, ", after ");
        culprit_api(sentence, job, place);
        culprit_step(sentence, culprit, worker);
        break;
    case STALL_IN_CALL:
        culprit_in_call(sentence, job, culprit, worker, age_ms);
        break;
    case STALL_STOPPED:
        culprit_stopped(core, job, sentence, worker, now_ms);
        break;
    case STALL_FROZEN:
        text_append(sentence, "has not been heard of for ");
        sentence_seconds(sentence, now_ms - worker->heard_ms);
        culprit_since(core, job, sentence, worker);
        text_append(sentence, "; its connections stand");
        break;
    case STALL_LINK:
        culprit_link(core, job, sentence, culprit);
        break;
    case STALL_UNKNOWN:
        text_append(sentence, "has been inside ");
        culprit_api(sentence, job, place);
        text_append(sentence, " for ");
        sentence_seconds(sentence, age_ms);
        // Several threads may wait for calls. The rank counts as waiting only if all of them wait.
        text_append(sentence, place->api == API_CALL_WAIT
                                  ? ", and another thread of its trainer does not wait"
                                  : " and waits for no rank");
        break;
    case STALL_DEVICE:
        culprit_device(sentence, culprit, worker, age_ms);
        break;
    case STALL_NONE:
    case STALL_LOST:
        break;
    }
    if (worker->heartbeat.mark[0] != '\0')
        text_append(sentence, "; mark '%s'", worker->heartbeat.mark);
    if ((worker->heartbeat.flags & PLACE_DISK) != 0)
        culprit_sleeps(sentence, worker);
    if (culprit->top[0] != '\0')
        text_append(sentence, "; it is in %s", culprit->top);
    if (culprit->awaits == AWAITS_LOCK && culprit->owner == culprit->tid)
        text_append(sentence, "; it waits for a lock that it holds itself");
    else if (culprit->awaits == AWAITS_LOCK)
        text_append(sentence, "; it waits for a lock that thread %" PRIu32 " (%s) holds",
                    culprit->owner, culprit->owner_name);
    if (culprit->awaits == AWAITS_END)
        text_append(sentence, "; it waits for the end of thread %" PRIu32 " (%s)", culprit->owner,
                    culprit->owner_name);
}

// Adds the command. Without --job the command uses the latest job.
void culprit_stacks(const struct coordinator *core, const struct job *job, struct text *sentence,
                    uint32_t rank)
{
    text_append(sentence, "lockstep stacks %" PRIu32, rank);
    if (core->job_count > 1)
        text_append(sentence, " --job %s", job->name);
}

static void culprit_hint(const struct coordinator *core, const struct job *job,
                         struct text *sentence, const struct worker *worker, enum stall_kind kind)
{
    const uint32_t pid = worker->hello.pid;
    switch (kind) {
    case STALL_OUTSIDE:
    case STALL_IN_CALL:
    case STALL_UNKNOWN:
        text_append(sentence, " Look at that process: ");
        culprit_stacks(core, job, sentence, worker->rank);
        text_append(sentence, ".");
        break;
    case STALL_STOPPED:
        if (worker->beat.traced)
            text_append(sentence,
                        " Let it go on in the debugger, or detach that from pid %" PRIu32 ".", pid);
        else
            text_append(sentence, " Let it run again there: kill -CONT %" PRIu32 ".", pid);
        break;
    case STALL_FROZEN:
        if (worker->back.unseen)
            text_append(sentence, " See whether its process runs, and whether its host answers.");
        else
            text_append(sentence,
                        " See whether pid %" PRIu32 " runs there, and whether that host answers.",
                        pid);
        break;
    case STALL_DEVICE:
        text_append(
            sentence,
            " See what pid %" PRIu32 " runs on its GPU, and whether that GPU is well: ", pid);
        culprit_stacks(core, job, sentence, worker->rank);
        text_append(sentence, ".");
        break;
    case STALL_LINK:
        text_append(sentence, " Look at the network between these two.");
        break;
    case STALL_NONE:
    case STALL_LOST:
        break;
    }
}

// ---- The sentence ------------------------------------------------------------------------------

void culprit_sentence(const struct coordinator *core, const struct job *job, uint64_t now_ms,
                      struct text *sentence)
{
    enum {
        TOLD = 3 // Culprits that the sentence describes; it only counts the others.
    };
    const struct stall *stall = &job->stall;
    const uint32_t told = stall->culprit_count < TOLD ? stall->culprit_count : TOLD;
    if (told == 0) {
        standing_sentence(core, job, now_ms, sentence);
        return;
    }
    for (uint32_t i = 0; i < told; i++) {
        if (i > 0)
            text_append(sentence, "; also ");
        culprit_does(core, job, sentence, &stall->culprits[i], now_ms);
    }
    if (stall->culprit_total > told)
        text_append(sentence, "; and %" PRIu32 " more ranks", stall->culprit_total - told);
    const char *whom = stall->culprit_total == 1 ? "it" : "them";
    if (stall->kind == STALL_LINK)
        text_append(sentence, "; %" PRIu32 " rank%s.", stall->waiting,
                    stall->waiting == 1 ? " waits" : "s wait");
    else if (stall->waiting == 0)
        text_append(sentence, "; nobody waits for %s.", whom);
    else if (stall->waiting == 1)
        text_append(sentence, "; 1 rank waits for %s.", whom);
    else
        text_append(sentence, "; %" PRIu32 " ranks wait for %s.", stall->waiting, whom);
    const struct blame *first = &stall->culprits[0].blame;
    culprit_hint(core, job, sentence, &core->workers[job->workers[first->rank]], first->kind);
}

// ---- Answers -----------------------------------------------------------------------------------

static void culprit_answer_begins(struct culprit *culprit, uint64_t id)
{
    culprit->answer = id;
    culprit->threads = 0;
    culprit->trainer = UINT32_MAX;
    culprit->silent = false;
    culprit->awaits = AWAITS_NOTHING;
    culprit->top_python = false;
    culprit->top_library = false;
    culprit->top[0] = '\0';
}

static void culprit_place(struct culprit *culprit, const struct answer_place *place)
{
    sentence_clean(culprit->phase, sizeof(culprit->phase), place->phase, sizeof(place->phase));
    sentence_clean(culprit->awaited, sizeof(culprit->awaited), place->awaited,
                   sizeof(place->awaited));
    culprit->stream = place->stream;
    culprit->missing_total = place->missing_total;
    culprit->missing_count = place->missing_count < LOCKSTEP_MISSING_NAMED ? place->missing_count
                                                                           : LOCKSTEP_MISSING_NAMED;
    for (uint32_t i = 0; i < culprit->missing_count; i++)
        sentence_clean(culprit->missing[i], sizeof(culprit->missing[i]), place->missing[i],
                       sizeof(place->missing[i]));
}

static void culprit_threads(struct culprit *culprit, const struct answer_threads *threads)
{
    for (uint32_t i = 0; i < threads->count && i < LOCKSTEP_THREADS_PART; i++) {
        if (!threads->threads[i].trainer || culprit->trainer != UINT32_MAX)
            continue;
        culprit->trainer = culprit->threads + i;
        culprit->silent =
            threads->threads[i].how == STACK_SILENT || threads->threads[i].how == STACK_LEFT_ALONE;
        culprit->tid = threads->threads[i].tid;
        culprit->awaits = threads->threads[i].awaits;
        culprit->owner = threads->threads[i].owner;
        sentence_clean(culprit->owner_name, sizeof(culprit->owner_name),
                       threads->threads[i].owner_name, sizeof(threads->threads[i].owner_name));
    }
    culprit->threads += threads->count;
}

static const char *const culprit_library = "lockstep_"; // Functions of Lockstep begin with this.

static bool culprit_begins(const char *text, const char *const *beginnings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(text, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

// True for a frame that says nothing about the trainer: of the C library, of Python, of Lockstep,
// or of a sanitizer. A sanitizer may be linked into the program, so its functions are found by
// name.
static bool culprit_plumbing(const char *object, const char *symbol)
{
    static const char *const objects[] = {
        "libc.",    "libc-",     "ld-",     "linux-vdso", "[vdso]",     "libpthread", "liblockstep",
        "libgcc_s", "libpython", "python",  "pypy",       "libffi",     "_ctypes",    "libasan",
        "libtsan",  "libubsan",  "liblsan", "libmsan",    "libclang_rt"};
    static const char *const symbols[] = {"interceptor_", "sanitizer_", "asan_",
                                          "tsan_",        "ubsan_",     "msan_"};
    const size_t underscores = strspn(symbol, "_");
    return culprit_begins(object, objects, sizeof(objects) / sizeof(objects[0])) ||
           culprit_begins(symbol, &culprit_library, 1) ||
           (underscores >= 2 &&
            culprit_begins(symbol + underscores, symbols, sizeof(symbols) / sizeof(symbols[0])));
}

// Adds the caller of a frame of Python's standard library: a lock, a queue or a selector alone says
// nothing about the trainer.
static void culprit_caller(struct culprit *culprit, const struct stack_frame *frame,
                           const char *object, const char *symbol)
{
    struct text top = {
        .bytes = culprit->top, .capacity = sizeof(culprit->top), .size = strlen(culprit->top)};
    if (!culprit->top_library || !frame->python || frame->library)
        return;
    culprit->top_library = false;
    text_append(&top, ", called from %s (%s:%" PRIu64 ")", symbol, object, frame->offset);
}

// Keeps the innermost frame of the trainer's own code; a Python frame is preferred. If the trainer
// is inside the library, this is the frame that called the library, also in a program that is
// statically linked with it.
static void culprit_frame(struct culprit *culprit, const struct stack_frame *frame)
{
    char object[LOCKSTEP_OBJECT_BYTES];
    char symbol[LOCKSTEP_SYMBOL_BYTES];
    struct text top;
    if (frame->thread != culprit->trainer)
        return;
    sentence_clean(object, sizeof(object), frame->object, sizeof(frame->object));
    sentence_clean(symbol, sizeof(symbol), frame->symbol, sizeof(frame->symbol));
    if (culprit->top_python && culprit->top[0] != '\0') {
        culprit_caller(culprit, frame, object, symbol);
        return;
    }
    const enum stall_kind kind = culprit->blame.kind;
    if (!frame->python && (kind == STALL_UNKNOWN || kind == STALL_DEVICE) &&
        culprit_begins(symbol, &culprit_library, 1))
        culprit->top[0] = '\0';
    if (!frame->python && (culprit->top[0] != '\0' || culprit_plumbing(object, symbol)))
        return;
    culprit->top_python = frame->python;
    culprit->top_library = frame->python && frame->library;
    text_init(&top, culprit->top, sizeof(culprit->top));
    if (frame->python)
        text_append(&top, "%s (%s:%" PRIu64 ")", symbol, object, frame->offset);
    else if (symbol[0] != '\0')
        text_append(&top, "%s (%s+0x%" PRIx64 ")", symbol, object, frame->offset);
    else if (object[0] != '\0')
        text_append(&top, "%s+0x%" PRIx64, object, frame->offset);
    else // The address is in no file: a compiler has made the code in memory.
        text_append(&top, "generated code at 0x%" PRIx64, frame->offset);
}

void culprit_answer(struct culprit *culprit, const struct up_answer *answer)
{
    if (culprit->answer != answer->id)
        culprit_answer_begins(culprit, answer->id);
    if (answer->kind == ANSWER_PLACE)
        culprit_place(culprit, &answer->u.place);
    else if (answer->kind == ANSWER_THREADS)
        culprit_threads(culprit, &answer->u.threads);
    else if (answer->kind == ANSWER_FRAMES)
        for (uint32_t i = 0; i < answer->u.frames.count && i < LOCKSTEP_FRAMES_PART; i++)
            culprit_frame(culprit, &answer->u.frames.frames[i]);
}
