// SPDX-License-Identifier: Apache-2.0
//
// The worker's end of the control stream over the gRPC C core (1.51). That API is semi-private, so
// only this file, channel.c and credentials.c use it. The file knows no protocol: messages come in
// as structs and go out as structs.
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
// A call is over when its status and all other batches have completed; only then is the call
// released. The status batch is started alone because it always "succeeds".
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
#include "worker/control/channel.h"
#include "worker/control/credentials.h"
#include "worker/control/mailbox.h"
#include "worker/control/reach.h"
#include "worker/control/sentences.h"

#include <assert.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METHOD "/lockstep.v1.Coordinator/Session"
#define RETRY_FIRST_MS 10
#define RETRY_LAST_MS 250
#define NEVER UINT64_MAX

// The operation that has completed. At most one batch of each kind is in flight.
enum tag {
    TAG_WAKE = 1,
    TAG_START, // The call's headers were written.
    TAG_HEADERS, // The peer's headers came. gRPC delivers no message until they are requested.
    TAG_STATUS,
    TAG_RECEIVE,
    TAG_SEND,
    TAG_HALF_CLOSE,
};

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
    grpc_call *call; // NULL between two attempts.
    unsigned pending; // Batches of the call that have not completed.
    bool cancelled; // True if this worker cancelled the call; then `reason` says why.
    bool has_status; // True if the status has completed; then no other batch is started.
    bool sending; // True while a TAG_SEND is in flight.
    bool half_closed; // True if TAG_HALF_CLOSE was started.
    uint64_t retry_at; // NEVER while a call is in progress.
    uint64_t retry_delay_ms;
    grpc_byte_buffer *received;
    grpc_metadata_array headers;
    grpc_metadata_array trailers;
    grpc_status_code status;
    grpc_slice status_details;
    char reason[LOCKSTEP_TEXT_BYTES];
    char ended_text[LOCKSTEP_TEXT_BYTES];
    struct down_message message;
    bool answered; // True if the coordinator has sent more than a welcome: no new stream is begun.
    char later[LOCKSTEP_TEXT_BYTES]; // Text of a refusal that asks to come later; "": none came.

    struct mailbox mailbox; // Used by any thread.
};

// ---- Sentences ---------------------------------------------------------------------------------

// Sets `reason` from the call's status: the peer's own words, or a shorter form of gRPC's words.
static void reason_from_status(struct control *control, bool *from_peer)
{
    char details[LOCKSTEP_TEXT_BYTES];
    size_t size = GRPC_SLICE_LENGTH(control->status_details);
    struct text text;
    text_init(&text, details, sizeof(details));
    text_append_bytes(&text, (const char *)GRPC_SLICE_START_PTR(control->status_details), size);
    *from_peer = !sentences_is_transport_error(details);
    if (*from_peer && control->stage == STANDING)
        text_copy(control->reason, sizeof(control->reason), details);
    else
        sentences_shorten(details, control->reason, sizeof(control->reason));
}

static enum ending_status ending_status(grpc_status_code status)
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
                           .reason = control->reason,
                           .refusal = reach_refusal(&control->reach),
                           .connect_timeout_ms = control->connect_timeout_ms,
                           .plaintext = !control->channel.credentials,
                           .connecting = control->stage == CONNECTING,
                           .cancelled = control->cancelled,
                           .from_peer = from_peer,
                           .status = ending_status(control->status)};
}

// ---- The call ----------------------------------------------------------------------------------

// Starts a batch of one operation. A refusal would be a bug in this file, so the function asserts.
static void start(struct control *control, grpc_op *op, enum tag tag)
{
    void *name = (void *)(uintptr_t)tag;
    grpc_call_error error = grpc_call_start_batch(control->call, op, 1, name, NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;
    control->pending++;
}

static void start_receive(struct control *control)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &control->received;
    start(control, &op, TAG_RECEIVE);
}

static void start_headers(struct control *control)
{
    grpc_op op = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    op.data.recv_initial_metadata.recv_initial_metadata = &control->headers;
    start(control, &op, TAG_HEADERS);
}

static void start_status(struct control *control)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &control->trailers;
    op.data.recv_status_on_client.status = &control->status;
    op.data.recv_status_on_client.status_details = &control->status_details;
    start(control, &op, TAG_STATUS);
}

static void attempt(struct control *control)
{
    channel_renew(&control->channel);
    // A channel that has failed reconnects only when it is asked to, and on its own schedule.
    grpc_channel_check_connectivity_state(control->channel.now, 1);
    control->retry_at = NEVER;
    control->has_status = false;
    grpc_metadata_array_init(&control->headers);
    grpc_metadata_array_init(&control->trailers);
    control->call = grpc_channel_create_call(
        control->channel.now, NULL, GRPC_PROPAGATE_DEFAULTS, control->channel.cq,
        grpc_slice_from_static_string(METHOD), NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    start_status(control);
    start_headers(control);
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    start(control, &op, TAG_START);
}

// Ends the call with a reason of this worker. All batches complete soon.
static void cancel(struct control *control, const char *reason)
{
    if (!control->call || control->cancelled || control->has_status)
        return;
    control->cancelled = true;
    text_copy(control->reason, sizeof(control->reason), reason);
    grpc_call_cancel(control->call, NULL);
}

static void release_call(struct control *control)
{
    grpc_metadata_array_destroy(&control->headers);
    grpc_metadata_array_destroy(&control->trailers);
    grpc_slice_unref(control->status_details);
    grpc_call_unref(control->call);
    control->call = NULL;
}

// Begins a new stream: a worker that waits for its world says hello again, to a coordinator that
// has restarted or now has room. All other queued messages were for the old stream and are dropped.
static bool begin_again(struct control *control, uint64_t now)
{
    if (control->stage != STANDING || control->answered || control->cancelled ||
        control->status == GRPC_STATUS_UNIMPLEMENTED ||
        control->status == GRPC_STATUS_PERMISSION_DENIED || now >= control->connect_deadline ||
        mailbox_is_closing(&control->mailbox))
        return false;
    if (!mailbox_begin_again(&control->mailbox, (uint32_t)(control->connect_deadline - now)))
        return false;
    control->stage = CONNECTING;
    control->has_status = control->sending = control->half_closed = false;
    return true;
}

// All batches of the call have completed: tries again, or ends the stream.
static void call_over(struct control *control)
{
    bool from_peer = false;
    if (!control->cancelled)
        reason_from_status(control, &from_peer);
    release_call(control);
    uint64_t now = clock_now_ms();
    if (control->stage == CONNECTING && !control->cancelled &&
        !mailbox_is_closing(&control->mailbox))
        reach_look(&control->reach, &control->channel, control->reason, now);
    if (control->stage == CONNECTING && !control->cancelled)
        control->later[0] = '\0'; // No coordinator answers now, so the old refusal is void.
    if (begin_again(control, now))
        control->retry_delay_ms = RETRY_FIRST_MS;
    if (control->stage == CONNECTING && !control->cancelled &&
        reach_may_retry(&control->reach, now, control->connect_deadline) &&
        !mailbox_is_closing(&control->mailbox)) {
        control->retry_at = now + control->retry_delay_ms;
        control->retry_delay_ms *= 2;
        if (control->retry_delay_ms > RETRY_LAST_MS)
            control->retry_delay_ms = RETRY_LAST_MS;
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

static void decode(struct control *control, const grpc_slice *bytes)
{
    const char *detail = NULL;
    if (codec_decode_down(GRPC_SLICE_START_PTR(*bytes), GRPC_SLICE_LENGTH(*bytes),
                          &control->message, &detail) == CODEC_OK) {
        if (comes_again(control))
            return;
        if (mailbox_report_begin(&control->mailbox)) {
            control->events.received(control->events.context, &control->message);
            mailbox_report_end(&control->mailbox);
        }
        return;
    }
    char text[LOCKSTEP_TEXT_BYTES];
    snprintf(text, sizeof(text), "coordinator %s sent a message that cannot be read: %s",
             control->address, detail ? detail : "malformed");
    cancel(control, text);
}

// A NULL buffer means that the peer sends no more messages; the status gives the reason.
static void on_receive(struct control *control)
{
    if (!control->received)
        return;
    grpc_byte_buffer_reader reader;
    if (grpc_byte_buffer_reader_init(&reader, control->received)) {
        grpc_slice bytes = grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
        decode(control, &bytes);
        grpc_slice_unref(bytes);
    }
    grpc_byte_buffer_destroy(control->received);
    control->received = NULL;
    start_receive(control);
}

// ---- Messages out ------------------------------------------------------------------------------

static void send_now(struct control *control, const struct outgoing *item)
{
    grpc_slice bytes = grpc_slice_from_copied_buffer((const char *)item->bytes, item->size);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&bytes, 1);
    grpc_slice_unref(bytes);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = buffer;
    start(control, &op, TAG_SEND);
    grpc_byte_buffer_destroy(buffer);
    control->sending = true;
}

// Sends the next message, or half-closes. One message is in flight at a time: gRPC completes a send
// when flow control has accepted it, so a peer that does not read fills only this worker's queue.
static void pump(struct control *control)
{
    if (control->stage != STANDING || !control->call || control->has_status || control->cancelled ||
        control->sending || control->half_closed)
        return;
    struct outgoing *item = mailbox_pop(&control->mailbox);
    if (item) {
        send_now(control, item);
        free(item);
    } else if (mailbox_is_closing(&control->mailbox)) {
        grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
        start(control, &op, TAG_HALF_CLOSE);
        control->half_closed = true;
    }
}

// Caller holds the mutex.
static void wake_locked(struct control *control)
{
    mutex_assert_held(&control->mailbox.mutex);
    if (control->mailbox.ended || control->mailbox.waking)
        return;
    control->mailbox.waking = true;
    channel_wake(&control->channel, (void *)(uintptr_t)TAG_WAKE);
}

// ---- Time --------------------------------------------------------------------------------------

static void connect_timed_out(struct control *control)
{
    struct text text;
    char sentence[LOCKSTEP_TEXT_BYTES];
    text_init(&text, sentence, sizeof(sentence));
    const struct ending ending = ending_of(control, false);
    sentences_connect_failure(&ending, &text);
    if (control->call) {
        cancel(control, sentence);
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
        cancel(control, "the session was closed");
        if (!control->call)
            control->stage = ENDED;
    }
    if (control->stage == CONNECTING && now >= control->connect_deadline)
        connect_timed_out(control);
    if (control->stage == CONNECTING && !control->call && now >= control->retry_at)
        attempt(control);
}

static uint64_t next_deadline(struct control *control)
{
    uint64_t at = control->retry_at;
    const uint64_t linger = mailbox_linger_until(&control->mailbox);
    if (!control->cancelled && linger < at)
        at = linger;
    if (!control->cancelled && control->stage == CONNECTING && control->connect_deadline < at)
        at = control->connect_deadline;
    if (control->stage == CONNECTING && control->reach.tell_at < at)
        at = control->reach.tell_at;
    return at;
}

// ---- The control thread ------------------------------------------------------------------------

static void on_start(struct control *control, bool ok)
{
    if (!ok || control->cancelled)
        return;
    control->stage = STANDING;
    start_receive(control);
}

static void on_completion(struct control *control, enum tag tag, bool ok)
{
    switch (tag) {
    case TAG_WAKE:
        mailbox_woken(&control->mailbox);
        return; // Not a batch of the call.
    case TAG_START:
        on_start(control, ok);
        break;
    case TAG_STATUS:
        control->has_status = true;
        break;
    case TAG_RECEIVE:
        on_receive(control);
        break;
    case TAG_SEND:
        control->sending = false;
        mailbox_sent(&control->mailbox);
        break;
    case TAG_HEADERS:
    case TAG_HALF_CLOSE:
        break;
    }
    control->pending--;
    if (control->pending == 0)
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
            on_completion(control, (enum tag)(uintptr_t)event.tag, event.success != 0);
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
    if (message->kind == UP_HELLO)
        control->mailbox.hello = *message;
    int result = mailbox_push_locked(&control->mailbox, message);
    if (result == 0)
        wake_locked(control);
    mutex_unlock(&control->mailbox.mutex);
    return result;
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
