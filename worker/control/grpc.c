// SPDX-License-Identifier: Apache-2.0
//
// The worker's end of the control stream over the gRPC C core (1.51). That API is semi-private, so
// only this file, call.c, channel.c and credentials.c use it. The file knows no protocol: messages
// come in as structs and go out as structs. It only looks at what a message means for the stream.
//
// Threads. The caller of control_open prepares everything; from then on one control thread runs the
// completion queue, drives the call and reports events. The other public functions only use the
// mailbox (a mutex, a queue, some flags) and wake the control thread. I/O happens only inside
// grpc_completion_queue_next, so an event function that blocks stops the stream.
//
// The life of a stream:
//
//     CONNECTING  a call is tried. If the coordinator cannot be reached, the call fails at once.
//                 The control keeps the reason and tries again until the connect deadline. No
//                 message is taken from the queue yet, so a new attempt loses no message.
//     STANDING    gRPC has sent the call's headers. From here the first failure ends the stream.
//     ENDED       the end was reported; all gRPC objects are freed.
//
// A stream is *kept* once the world has formed (DOWN_TUNING), if the user handles broke() and
// stands(). The end of a kept stream is reported as broke(), and the control begins another one, to
// the next address, with a new channel, which looks the name up again. It goes on until it is
// closed: pauses between attempts grow to AGAIN_LAST_MS and are random, so that the workers of a
// job do not come all at once. When a stream stands again, stands() is reported, and the first
// message must be a hello. Only a refusal that no attempt can change ends the attempts.
//
// gRPC does not survive fork: a child process must not call any function of this file.

#include "worker/control/grpc.h"

#include "protos/codec/down.h"
#include "worker/control/control.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"
#include "protos/codec/codec.h"
#include "worker/control/call.h"
#include "worker/control/channel.h"
#include "worker/control/credentials.h"
#include "worker/control/mailbox.h"
#include "worker/control/reach.h"
#include "worker/control/sentences.h"

#include <assert.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_FIRST_MS 10
#define RETRY_LAST_MS 250
#define AGAIN_LAST_MS 1000 // The longest pause between two attempts to reach the coordinator again.
#define ATTEMPT_MS 3000 // How long one of these attempts may take.
#define NEVER UINT64_MAX

enum stage {
    CONNECTING,
    STANDING,
    ENDED,
};

struct control {
    // set at open, then constant
    struct control_events events;
    char address[LOCKSTEP_ADDRESS_BYTES];
    uint64_t connect_timeout_ms;
    uint64_t connect_deadline;
    struct thread thread;

    // control thread only
    enum stage stage;
    struct channel channel;
    struct reach reach;
    struct call call;
    uint64_t retry_at; // NEVER while a call is in progress.
    uint64_t retry_delay_ms;
    char ended_text[LOCKSTEP_TEXT_BYTES];
    struct down_message message;
    int status; // The last call's status.
    bool answered; // True if the coordinator has sent more than a welcome: no new stream is begun.
    char later[LOCKSTEP_TEXT_BYTES]; // Text of a refusal that asks to come later; "": none came.
    bool kept; // True once the world has formed.
    bool again; // True from the first end of a kept stream on.
    bool rests; // True after a refusal that no attempt can change: none is made any more.
    uint64_t attempt_until; // When the present attempt to reach the coordinator again is given up.
    uint8_t bytes[LOCKSTEP_MESSAGE_BYTES]; // The message that came last.

    struct mailbox mailbox; // Used by any thread.
};

// ---- Sentences ---------------------------------------------------------------------------------

// Sets `reason` from the call's status: the peer's own words, or a shorter form of gRPC's words.
static void reason_from_status(struct control *control, bool *from_peer)
{
    char details[LOCKSTEP_TEXT_BYTES];
    call_details(&control->call, details, sizeof(details));
    *from_peer = !sentences_is_transport_error(details);
    if (*from_peer && control->stage == STANDING)
        text_copy(control->call.reason, sizeof(control->call.reason), details);
    else
        sentences_shorten(details, control->call.reason, sizeof(control->call.reason));
}

static enum ending_status ending_status(int status)
{
    if (status == GRPC_STATUS_OK)
        return ENDING_OK;
    if (status == GRPC_STATUS_PERMISSION_DENIED)
        return ENDING_REFUSED;
    return status == GRPC_STATUS_UNIMPLEMENTED ? ENDING_UNKNOWN_METHOD : ENDING_OTHER;
}

static struct ending ending_of(const struct control *control, bool from_peer)
{
    return (struct ending){.address = control->address,
                           .reason = control->call.reason,
                           .refusal = reach_refusal(&control->reach),
                           .connect_timeout_ms = control->connect_timeout_ms,
                           .plaintext = !control->channel.credentials,
                           .connecting = control->stage == CONNECTING,
                           .cancelled = control->call.cancelled,
                           .from_peer = from_peer,
                           .status = ending_status(control->status)};
}

// ---- The call ----------------------------------------------------------------------------------

static void attempt(struct control *control)
{
    channel_renew(&control->channel, control->again);
    // A channel that has failed reconnects only when it is asked to, and on its own schedule.
    grpc_channel_check_connectivity_state(control->channel.now, 1);
    control->retry_at = NEVER;
    control->attempt_until = clock_now_ms() + ATTEMPT_MS;
    if (!call_begin(&control->call, &control->channel))
        control->retry_at = clock_now_ms() + control->retry_delay_ms;
}

// Begins a new stream: a worker that waits for its world says hello again, to a coordinator that
// has restarted or now has room. All other queued messages were for the old stream and are dropped.
static bool begin_again(struct control *control, uint64_t now)
{
    if (control->stage != STANDING || control->answered || control->call.cancelled ||
        control->status == GRPC_STATUS_UNIMPLEMENTED ||
        control->status == GRPC_STATUS_PERMISSION_DENIED || now >= control->connect_deadline ||
        mailbox_is_closing(&control->mailbox))
        return false;
    if (!mailbox_begin_again(&control->mailbox, (uint32_t)(control->connect_deadline - now)))
        return false;
    control->stage = CONNECTING;
    return true;
}

// Sets when the coordinator is tried again: after a random time of half the pause at least.
static void retry_later(struct control *control, uint64_t now, uint64_t longest_ms)
{
    const uint64_t half_ms = control->retry_delay_ms / 2;
    uint64_t moment = clock_now_us() ^ (uint64_t)(uintptr_t)control;
    moment = (moment ^ moment >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    control->retry_at = now + half_ms + (moment >> 32) % (half_ms + 1);
    control->retry_delay_ms *= 2;
    if (control->retry_delay_ms > longest_ms)
        control->retry_delay_ms = longest_ms;
}

// The call of a kept stream is over. Says so if the stream stood.
static void call_over_again(struct control *control, const char *text, uint64_t now)
{
    const bool stood = control->stage == STANDING;
    mailbox_break(&control->mailbox);
    if (!control->again)
        control->retry_delay_ms = RETRY_FIRST_MS;
    control->again = true;
    control->stage = CONNECTING;
    control->retry_at = NEVER;
    if (!control->rests)
        retry_later(control, now, AGAIN_LAST_MS);
    if (stood && mailbox_report_begin(&control->mailbox)) {
        control->events.broke(control->events.context, text);
        mailbox_report_end(&control->mailbox);
    }
}

// All batches of the call have completed: tries again, or ends the stream.
static void call_over(struct control *control)
{
    bool from_peer = false;
    if (!control->call.cancelled)
        reason_from_status(control, &from_peer);
    control->status = call_status(&control->call);
    call_end(&control->call);
    uint64_t now = clock_now_ms();
    if (control->kept && !mailbox_is_closing(&control->mailbox)) {
        char text_of_end[LOCKSTEP_TEXT_BYTES];
        const struct ending broken = ending_of(control, from_peer);
        struct text words;
        text_init(&words, text_of_end, sizeof(text_of_end));
        sentences_end(&broken, &words);
        call_over_again(control, text_of_end, now);
        return;
    }
    if (control->stage == CONNECTING && !control->call.cancelled &&
        !mailbox_is_closing(&control->mailbox))
        reach_look(&control->reach, &control->channel, control->call.reason, now);
    if (control->stage == CONNECTING && !control->call.cancelled)
        control->later[0] = '\0'; // No coordinator answers now, so the old refusal is void.
    if (begin_again(control, now))
        control->retry_delay_ms = RETRY_FIRST_MS;
    if (control->stage == CONNECTING && !control->call.cancelled &&
        reach_may_retry(&control->reach, now, control->connect_deadline) &&
        !mailbox_is_closing(&control->mailbox)) {
        retry_later(control, now, RETRY_LAST_MS);
        return;
    }
    const struct ending ending = ending_of(control, from_peer);
    struct text text;
    text_init(&text, control->ended_text, sizeof(control->ended_text));
    sentences_end(&ending, &text);
    control->stage = ENDED;
}

// ---- Messages in -------------------------------------------------------------------------------

// True if the coordinator shuts down, or if the job's old world has not ended. Such a refusal is
// not reported while there is time; the worker tries again.
static bool comes_again(struct control *control)
{
    const struct down_message *message = &control->message;
    if (message->kind != DOWN_REFUSED || message->u.refused.refusal != REFUSAL_DRAINING ||
        control->answered) {
        control->answered |= message->kind != DOWN_WELCOME;
        return false;
    }
    text_copy(control->later, sizeof(control->later), message->u.refused.text);
    return true;
}

// What the message means for the stream: the world has formed; the coordinator is back; or it will
// not have this worker.
static void look(struct control *control)
{
    const struct down_message *message = &control->message;
    if (message->kind == DOWN_TUNING) {
        control->kept = control->events.broke && control->events.stands;
        control->reach.tell_at = NEVER;
    } else if (message->kind == DOWN_WELCOME) {
        control->retry_delay_ms = RETRY_FIRST_MS;
    } else if (message->kind == DOWN_REFUSED) {
        control->rests = message->u.refused.refusal == REFUSAL_INVALID ||
                         message->u.refused.refusal == REFUSAL_VERSION;
    }
}

static void decode(struct control *control, size_t size)
{
    const char *detail = NULL;
    if (codec_decode_down(control->bytes, size, &control->message, &detail) == CODEC_OK) {
        if (!control->kept && comes_again(control))
            return;
        look(control);
        if (mailbox_report_begin(&control->mailbox)) {
            control->events.received(control->events.context, &control->message);
            mailbox_report_end(&control->mailbox);
        }
        return;
    }
    char text[LOCKSTEP_TEXT_BYTES];
    snprintf(text, sizeof(text), "coordinator %s sent a message that cannot be read: %s",
             control->address, detail ? detail : "malformed");
    call_cancel(&control->call, text);
}

static void on_receive(struct control *control)
{
    const size_t size = call_take(&control->call, control->bytes, sizeof(control->bytes));
    if (size != SIZE_MAX)
        decode(control, size);
}

// ---- Messages out ------------------------------------------------------------------------------

// Sends the next message, or half-closes. One message is in flight at a time: gRPC completes a send
// when flow control has accepted it, so a peer that does not read fills only this worker's queue.
static void pump(struct control *control)
{
    if (control->stage != STANDING || !control->call.parts || control->call.has_status ||
        control->call.cancelled || control->call.sending || control->call.half_closed)
        return;
    struct outgoing *item = mailbox_pop(&control->mailbox);
    if (item) {
        call_send(&control->call, item->bytes, item->size);
        free(item);
    } else if (mailbox_is_closing(&control->mailbox)) {
        call_half_close(&control->call);
    }
}

// Caller holds the mutex.
static void wake_locked(struct control *control)
{
    mutex_assert_held(&control->mailbox.mutex);
    if (control->mailbox.ended || control->mailbox.waking)
        return;
    control->mailbox.waking = true;
    channel_wake(&control->channel, (void *)(uintptr_t)CALL_WAKE);
}

// ---- Time --------------------------------------------------------------------------------------

static void connect_timed_out(struct control *control)
{
    struct text text;
    char sentence[LOCKSTEP_TEXT_BYTES];
    text_init(&text, sentence, sizeof(sentence));
    const struct ending ending = ending_of(control, false);
    sentences_connect_failure(&ending, &text);
    if (control->call.parts) {
        call_cancel(&control->call, sentence);
    } else {
        text_copy(control->ended_text, sizeof(control->ended_text), sentence);
        control->stage = ENDED;
    }
}

// Reports once that the coordinator is not reached yet, and why.
static void tell_unreached(struct control *control)
{
    struct text text;
    char sentence[LOCKSTEP_TEXT_BYTES];
    const struct ending ending = ending_of(control, false);
    text_init(&text, sentence, sizeof(sentence));
    sentences_unreached(&ending, &text);
    if (control->events.unreached && mailbox_report_begin(&control->mailbox)) {
        control->events.unreached(control->events.context, sentence);
        mailbox_report_end(&control->mailbox);
    }
}

static void check_time(struct control *control)
{
    uint64_t now = clock_now_ms();
    if (control->stage == CONNECTING && reach_tells(&control->reach, now))
        tell_unreached(control);
    if (now >= mailbox_linger_until(&control->mailbox)) {
        call_cancel(&control->call, "the session was closed");
        if (!control->call.parts)
            control->stage = ENDED;
    }
    if (control->again && control->stage == CONNECTING) {
        if (mailbox_is_closing(&control->mailbox))
            call_cancel(&control->call, "the session was closed");
        if (mailbox_is_closing(&control->mailbox) && !control->call.parts)
            control->stage = ENDED;
        else if (control->call.parts && now >= control->attempt_until)
            call_cancel(&control->call, "no answer");
    } else if (control->stage == CONNECTING && now >= control->connect_deadline) {
        connect_timed_out(control);
    }
    if (control->stage == CONNECTING && !control->call.parts && now >= control->retry_at)
        attempt(control);
}

static uint64_t next_deadline(struct control *control)
{
    uint64_t at = control->retry_at;
    const uint64_t linger = mailbox_linger_until(&control->mailbox);
    if (!control->call.cancelled && linger < at)
        at = linger;
    const uint64_t attempt = !control->again       ? control->connect_deadline
                             : control->call.parts ? control->attempt_until
                                                   : NEVER;
    if (!control->call.cancelled && control->stage == CONNECTING && attempt < at)
        at = attempt;
    if (control->stage == CONNECTING && control->reach.tell_at < at)
        at = control->reach.tell_at;
    return at;
}

// ---- The control thread ------------------------------------------------------------------------

static void on_start(struct control *control, bool ok)
{
    if (!ok || control->call.cancelled)
        return;
    control->stage = STANDING;
    call_receive(&control->call);
    if (!control->again)
        return;
    mailbox_stand(&control->mailbox);
    if (mailbox_report_begin(&control->mailbox)) {
        control->events.stands(control->events.context);
        mailbox_report_end(&control->mailbox);
    }
}

static void on_completion(struct control *control, enum call_tag tag, bool ok)
{
    switch (tag) {
    case CALL_WAKE:
        mailbox_woken(&control->mailbox);
        return; // Not a batch of the call.
    case CALL_START:
        on_start(control, ok);
        break;
    case CALL_STATUS:
        control->call.has_status = true;
        break;
    case CALL_RECEIVE:
        on_receive(control);
        break;
    case CALL_SEND:
        control->call.sending = false;
        mailbox_sent(&control->mailbox);
        break;
    case CALL_HEADERS:
    case CALL_HALF_CLOSE:
        break;
    }
    control->call.pending--;
    if (control->call.pending == 0)
        call_over(control);
}

static void release(struct control *control)
{
    control_credentials_close(control->channel.credentials);
    mailbox_fini(&control->mailbox);
    free(control);
}

// The last use of the control by its thread.
static void finish(struct control *control)
{
    if (!mailbox_finish(&control->mailbox))
        return;
    grpc_shutdown();
    release(control);
}

static void run(void *argument)
{
    struct control *control = argument;
    attempt(control);
    while (control->stage != ENDED) {
        grpc_event event = channel_next(&control->channel, next_deadline(control));
        if (event.type == GRPC_OP_COMPLETE)
            on_completion(control, (enum call_tag)(uintptr_t)event.tag, event.success != 0);
        check_time(control);
        pump(control);
    }
    mailbox_close(&control->mailbox);
    if (control->later[0] != '\0' && mailbox_report_begin(&control->mailbox)) {
        control->message = (struct down_message){.kind = DOWN_REFUSED};
        control->message.u.refused.refusal = REFUSAL_DRAINING;
        text_copy(control->message.u.refused.text, sizeof(control->message.u.refused.text),
                  control->later);
        control->events.received(control->events.context, &control->message);
        mailbox_report_end(&control->mailbox);
    }
    if (mailbox_report_begin(&control->mailbox)) {
        control->events.ended(control->events.context, control->ended_text);
        mailbox_report_end(&control->mailbox);
    }
    channel_close(&control->channel);
    finish(control);
}

// ---- Opening -----------------------------------------------------------------------------------

static struct control *allocate(const struct control_target *target,
                                const struct control_events *events)
{
    struct control *control = calloc(1, sizeof(*control));
    if (!control)
        return NULL;
    control->events = *events;
    text_copy(control->address, sizeof(control->address), target->address);
    control->connect_timeout_ms = target->connect_timeout_ms;
    uint64_t now = clock_now_ms();
    control->connect_deadline =
        target->connect_timeout_ms < NEVER - now ? now + target->connect_timeout_ms : NEVER;
    control->reach.tell_at = now + REACH_TELL_MS;
    control->retry_at = NEVER;
    control->retry_delay_ms = RETRY_FIRST_MS;
    mailbox_init(&control->mailbox);
    return control;
}

// Called with signals blocked. Returns 0; -2 after undoing everything.
static int start_thread(struct control *control, char *error, size_t error_bytes)
{
    int failure = 0;
    if (channel_open(&control->channel) < 0)
        snprintf(error, error_bytes, "gRPC cannot make a channel to %s", control->address);
    else if ((failure = thread_start(&control->thread, "lockstep-ctl", run, control)) != 0)
        snprintf(error, error_bytes, "cannot start the control thread: %s", strerror(failure));
    else
        return 0;
    channel_close(&control->channel);
    grpc_shutdown();
    return -2;
}

int control_open(const struct control_target *target, const struct control_events *events,
                 struct control **control, char *error, size_t error_bytes)
{
    struct control *opened = allocate(target, events);
    if (!opened) {
        snprintf(error, error_bytes, "out of memory for the control stream");
        return -2;
    }
    if (channel_locate(&opened->channel, target, error, error_bytes) < 0) {
        release(opened);
        return -1;
    }
    sigset_t before;
    channel_block_signals(&before);
    int result = start_thread(opened, error, error_bytes);
    channel_restore_signals(&before);
    if (result < 0)
        release(opened);
    else
        *control = opened;
    return result;
}

// ---- Any thread --------------------------------------------------------------------------------

int control_send(struct control *control, const struct up_message *message)
{
    mutex_lock(&control->mailbox.mutex);
    if (message->kind == UP_HELLO && !message->u.hello.resumes)
        control->mailbox.hello = *message;
    int result = mailbox_push_locked(&control->mailbox, message);
    if (result == 0)
        wake_locked(control);
    mutex_unlock(&control->mailbox.mutex);
    return result;
}

bool control_hello(struct control *control, struct up_message *hello)
{
    mutex_lock(&control->mailbox.mutex);
    *hello = control->mailbox.hello;
    mutex_unlock(&control->mailbox.mutex);
    return hello->kind == UP_HELLO;
}

bool control_is_idle(struct control *control)
{
    return mailbox_is_idle(&control->mailbox);
}

// From this call on no event is reported. The function waits for a running event function.
void control_close(struct control *control, uint64_t linger_ms)
{
    mutex_lock(&control->mailbox.mutex);
    control->mailbox.closing = true;
    control->mailbox.linger_until = clock_now_ms() + linger_ms;
    wake_locked(control);
    const bool abandoned = !mailbox_await_end_locked(&control->mailbox);
    if (abandoned)
        pthread_detach(control->thread.id);
    mutex_unlock(&control->mailbox.mutex);
    if (abandoned)
        return;
    thread_join(&control->thread);
    channel_end();
    release(control);
}
