// SPDX-License-Identifier: Apache-2.0
//
// The life of control streams, on the control thread; the head of grpc.c has the words.

#include "worker/control/streams.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "base/text.h"
#include "protos/codec/codec.h"
#include "worker/control/credentials.h"

#include <grpc/grpc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_LAST_MS 250
#define AGAIN_LAST_MS 1000 // The longest pause between two attempts to reach the coordinator again.
#define ATTEMPT_MS 3000 // How long one of these attempts may take.

// ---- Sentences ---------------------------------------------------------------------------------

static struct ending ending_of(struct control *control, bool from_peer)
{
    const struct address *address = addresses_now(&control->addresses);
    struct text text;
    text_init(&text, control->tried, sizeof(control->tried));
    if (control->addresses.count > 1)
        addresses_say(&control->addresses, &text);
    return (struct ending){.address = address->text,
                           .reason = control->call.reason,
                           .refusal = reach_refusal(&address->reach),
                           .tried = control->tried,
                           .connect_timeout_ms = control->connect_timeout_ms,
                           .plaintext = !control->channel.credentials,
                           .connecting = control->stage == CONNECTING,
                           .kept = control->kept,
                           .cancelled = control->call.cancelled,
                           .from_peer = from_peer,
                           .status = control->status};
}

// ---- The call ----------------------------------------------------------------------------------

static void attempt(struct control *control)
{
    char error[LOCKSTEP_TEXT_BYTES];
    // control_open has checked all addresses.
    (void)channel_aim(&control->channel, addresses_now(&control->addresses)->text, error,
                      sizeof(error));
    control->sent_away = control->skips = false;
    channel_renew(&control->channel, control->again);
    // A channel that has failed reconnects only when it is asked to, and on its own schedule.
    grpc_channel_check_connectivity_state(control->channel.now, 1);
    control->pause.until_ms = STREAMS_NEVER;
    control->attempt_until = clock_now_ms() + ATTEMPT_MS;
    if (!call_begin(&control->call, &control->channel))
        pause_begin(&control->pause, clock_now_ms(), RETRY_LAST_MS);
}

// Begins a new stream: a worker that waits for its world says hello again, to a coordinator that
// has restarted or now has room. All other queued messages were for the old stream and are dropped.
static bool begin_again(struct control *control, uint64_t now)
{
    if (control->stage != STANDING || control->answered || control->call.cancelled ||
        control->status == ENDING_UNKNOWN_METHOD || control->status == ENDING_REFUSED ||
        now >= control->connect_deadline || mailbox_is_closing(&control->mailbox))
        return false;
    if (!mailbox_begin_again(&control->mailbox, (uint32_t)(control->connect_deadline - now)))
        return false;
    control->stage = CONNECTING;
    return true;
}

// The call of a kept stream is over. Says so if the stream stood, or there is something new to say.
static void call_over_again(struct control *control, const char *text, uint64_t now)
{
    const bool says = control->stage == STANDING || strcmp(text, control->ended_text) != 0;
    mailbox_break(&control->mailbox);
    if (!control->again)
        pause_reset(&control->pause);
    control->again = true;
    control->stage = CONNECTING;
    control->pause.until_ms = STREAMS_NEVER;
    if (!addresses_rest(&control->addresses))
        pause_begin(&control->pause, now, AGAIN_LAST_MS);
    text_copy(control->ended_text, sizeof(control->ended_text), text);
    if (says && mailbox_report_begin(&control->mailbox)) {
        control->events.broke(control->events.context, text);
        mailbox_report_end(&control->mailbox);
    }
}

// Stores why an attempt failed, and goes to the next address.
static void learn_of_failure(struct control *control, uint64_t now)
{
    if (control->stage != CONNECTING)
        return;
    addresses_failed(&control->addresses, control->call.reason);
    if (!control->call.cancelled && !mailbox_is_closing(&control->mailbox))
        reach_look(&addresses_now(&control->addresses)->reach, &control->channel,
                   control->call.reason, control->kept, now);
}

static void say_end(struct control *control, bool from_peer, char *bytes, size_t size)
{
    struct ending ending = ending_of(control, from_peer);
    struct text text;
    ending.cancelled = ending.cancelled && !control->skips;
    text_init(&text, bytes, size);
    sentences_end(&ending, &text);
}

// All batches of the call have completed: tries again, or ends the stream.
static void call_over(struct control *control)
{
    char text[LOCKSTEP_TEXT_BYTES];
    bool from_peer = false;
    if (!control->call.cancelled)
        call_learn_reason(&control->call, control->stage == STANDING, &from_peer);
    control->status = call_status(&control->call);
    call_end(&control->call);
    ask_renew(&control->ask, clock_now_ms());
    channel_rest(&control->channel, control->kept || control->addresses.count > 1);
    uint64_t now = clock_now_ms();
    const bool turns = control->stage == CONNECTING || control->sent_away;
    const bool cancelled = control->call.cancelled && !control->skips;
    learn_of_failure(control, now);
    say_end(control, from_peer, text, sizeof(text));
    if (turns && !mailbox_is_closing(&control->mailbox))
        addresses_turn(&control->addresses);
    if (control->kept && !mailbox_is_closing(&control->mailbox)) {
        call_over_again(control, text, now);
        return;
    }
    if (control->stage == CONNECTING && !cancelled)
        control->later[0] = '\0'; // No coordinator answers now, so the old refusal is void.
    // A worker that was sent away is patient: the name of its job may be taken for a long time.
    if (begin_again(control, now) && control->later[0] == '\0')
        pause_reset(&control->pause);
    if (control->stage == CONNECTING && !cancelled &&
        addresses_may_retry(&control->addresses, now, control->connect_deadline) &&
        !mailbox_is_closing(&control->mailbox)) {
        pause_begin(&control->pause, now, RETRY_LAST_MS);
        return;
    }
    text_copy(control->ended_text, sizeof(control->ended_text), text);
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
        control->addresses.tell_at = STREAMS_NEVER;
    } else if (message->kind == DOWN_WELCOME) {
        pause_reset(&control->pause);
    } else if (message->kind == DOWN_REFUSED) {
        addresses_now(&control->addresses)->rests = message->u.refused.refusal == REFUSAL_INVALID ||
                                                    message->u.refused.refusal == REFUSAL_VERSION;
    }
}

static void decode(struct control *control, size_t size)
{
    const char *detail = NULL;
    if (codec_decode_down(control->bytes, size, &control->message, &detail) == CODEC_OK) {
        control->sent_away = control->sent_away || control->message.kind == DOWN_REFUSED;
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
             addresses_now(&control->addresses)->text, detail ? detail : "malformed");
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

void streams_wake_locked(struct control *control)
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

static void warn(struct control *control, const char *event, const char *text)
{
    if (!control->events.warned || !mailbox_report_begin(&control->mailbox))
        return;
    control->events.warned(control->events.context, event, text);
    mailbox_report_end(&control->mailbox);
}

// The stream goes on, but a later handshake would fail.
static void tell_expired(struct control *control)
{
    char sentence[LOCKSTEP_TEXT_BYTES];
    if (control_credentials_expired(control->channel.credentials, sentence, sizeof(sentence)))
        warn(control, "certificate_expired", sentence);
}

// Reports once that the coordinator is not reached yet, or sends this worker away, and why.
static void tell_unreached(struct control *control)
{
    struct text text;
    char sentence[LOCKSTEP_TEXT_BYTES];
    const struct ending ending = ending_of(control, false);
    text_init(&text, sentence, sizeof(sentence));
    if (control->later[0] != '\0')
        text_append(&text, "the coordinator will have this worker later: %s", control->later);
    else
        sentences_unreached(&ending, &text);
    warn(control, "coordinator_unreached", sentence);
}

// True if the present attempt is given up at attempt_until: another one follows.
static bool attempt_is_limited(const struct control *control)
{
    const bool tries = control->stage == CONNECTING && control->call.parts;
    return tries && !control->call.cancelled && (control->again || control->addresses.count > 1);
}

// Asks whether the coordinator answers, if another address may have another one.
static void check_answers(struct control *control, uint64_t now)
{
    ask_need(&control->ask,
             control->stage == STANDING && control->kept && control->addresses.count > 1 &&
                 mailbox_is_needed(&control->mailbox),
             now);
    ask_tick(&control->ask, &control->channel, now);
}

// If no stream stands, the answer that was awaited cannot come, and broke() was reported.
static void check_renewal(struct control *control)
{
    if (!mailbox_take_renewal(&control->mailbox) || control->stage != STANDING || !control->kept)
        return;
    control->skips = true;
    call_cancel(&control->call, "it does not answer");
}

// Returns when a close gives the stream up.
static uint64_t linger_until(struct control *control)
{
    const struct call *call = &control->call;
    const bool stands =
        control->stage == STANDING && call->parts && !call->cancelled && !call->has_status;
    return mailbox_linger_until(&control->mailbox, stands);
}

static void check_time(struct control *control)
{
    uint64_t now = clock_now_ms();
    check_answers(control, now);
    check_renewal(control);
    if (control->stage == CONNECTING && addresses_tells(&control->addresses, now))
        tell_unreached(control);
    if (control->stage == STANDING)
        tell_expired(control);
    if (now >= linger_until(control) ||
        (control->again && control->stage == CONNECTING && mailbox_is_closing(&control->mailbox))) {
        mailbox_give_up(&control->mailbox);
        call_cancel(&control->call, "the session was closed");
        if (!control->call.parts)
            control->stage = ENDED;
    } else if (!control->again && control->stage == CONNECTING &&
               now >= control->connect_deadline) {
        connect_timed_out(control);
    }
    if (attempt_is_limited(control) && now >= control->attempt_until) {
        control->skips = true;
        call_cancel(&control->call, "no answer");
    }
    if (control->stage == CONNECTING && !control->call.parts && now >= control->pause.until_ms)
        attempt(control);
}

static uint64_t next_deadline(struct control *control)
{
    uint64_t at = control->pause.until_ms;
    const uint64_t linger = linger_until(control);
    if (!control->call.cancelled && linger < at)
        at = linger;
    if (attempt_is_limited(control) && control->attempt_until < at)
        at = control->attempt_until;
    if (!control->call.cancelled && control->stage == CONNECTING && !control->again &&
        control->connect_deadline < at)
        at = control->connect_deadline;
    if (ask_deadline(&control->ask) < at)
        at = ask_deadline(&control->ask);
    if (control->stage == CONNECTING && control->addresses.tell_at < at)
        at = control->addresses.tell_at;
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

// The coordinator is silent: another address may have another one. This one may only be stopped; it
// learns from the end of the stream that this worker is away.
static void on_answer(struct control *control)
{
    if (!ask_over(&control->ask, clock_now_ms()) || control->stage != STANDING)
        return;
    control->sent_away = control->skips = true;
    call_cancel(&control->call, "it does not answer");
}

static void on_completion(struct control *control, enum call_tag tag, bool ok)
{
    switch (tag) {
    case CALL_WAKE:
        mailbox_woken(&control->mailbox);
        return; // Not a batch of the call.
    case CALL_ASK:
        on_answer(control);
        return; // The same.
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

void streams_release(struct control *control)
{
    control_credentials_close(control->channel.credentials);
    mailbox_fini(&control->mailbox);
    free(control);
}

// The last use of the control by its thread.
static void finish(struct control *control)
{
    mailbox_ends(&control->mailbox);
    channel_end();
    if (mailbox_finish(&control->mailbox))
        streams_release(control);
}

void streams_run(void *argument)
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
    ask_close(&control->ask, &control->channel);
    channel_close(&control->channel);
    finish(control);
}
