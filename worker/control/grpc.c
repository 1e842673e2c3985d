// SPDX-License-Identifier: Apache-2.0
//
// The worker's end of the control stream over the gRPC C core (1.51, a semi-private API: nothing of
// it leaves this file and credentials.c). Not a protocol: messages come as structs and
// leave as structs.
//
// Threads. control_open's caller prepares everything; from then on one control thread runs the
// completion queue, drives the call and reports events. The other public functions only touch the
// mailbox (a mutex, a queue, some wishes) and wake the control thread. I/O happens only inside
// grpc_completion_queue_next, so an event function that blocks stops the stream.
//
// Waking. A completion queue has no public alarm. A call on a lame channel is bound to the queue
// and never started; an empty batch on it completes at once. Batches on one call must not overlap,
// so they are started under the mailbox's mutex, at most one at a time.
//
// The life of a stream:
//
//     CONNECTING  a call is tried. While the coordinator is not there it fails at once, its
//                 sentence is remembered, and it is tried again until the connect deadline.
//                 Nothing is taken from the queue yet, so nothing is lost by a new attempt.
//     STANDING    the transport took the call's headers. From here the first failure is the end.
//     ENDED       reported; everything of gRPC's is gone but the library itself.
//
// A call is over when its status and all other batches have come back: then, and only then, is it
// released. The status batch is posted alone because it always "succeeds".
//
// The end of a stream whose socket is full: gRPC gives a cancelled call back only when the kernel
// has taken what was being written, which a coordinator that is stopped prevents until TCP gives up
// (KEEPALIVE_TIMEOUT_MS). control_close does not wait for that: it leaves the control to its
// thread, which reports nothing any more and frees it.
//
// In a trainer's process: gRPC's threads are started with all signals blocked, its log goes
// nowhere (this copy of gRPC is our own), proxies and service configs of the environment are
// ignored. gRPC does not survive fork: a child must not call anything here.

#include "worker/control/grpc.h"

#include "protos/codec_down.h"
#include "protos/codec_up.h"
#include "worker/control/control.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/parse.h"
#include "base/text.h"
#include "base/thread.h"
#include "protos/codec.h"
#include "worker/control/credentials.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METHOD "/lockstep.v1.Coordinator/Session"
#define KEEPALIVE_MS 20000 // The server permits pings 10 s apart.
#define KEEPALIVE_TIMEOUT_MS 10000
#define RETRY_FIRST_MS 10
#define RETRY_LAST_MS 250
#define EXPLAIN_EVERY_MS 2000 // How often the reason is looked for while certificates are refused.
#define REFUSED_MS 10000 // For how long they may be, as while they are replaced.
#define CANCEL_MS 200 // A cancelled call is back long before, unless its socket is full.
#define NEVER UINT64_MAX
#define UNIX_PREFIX "unix:"
#define UNIX_HOST "localhost" // What a certificate has to name for a path.

// What completed. One batch of each kind at most is in flight.
enum tag {
    TAG_WAKE = 1,
    TAG_START, // The call's headers were written.
    TAG_HEADERS, // The peer's: without asking for them no message is ever given out.
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

// One encoded message that waits to be sent.
struct outgoing {
    struct list link;
    bool heartbeat;
    size_t size;
    uint8_t bytes[];
};

struct control {
    // set at open, then constant
    struct control_events events;
    char address[LOCKSTEP_ADDRESS_BYTES];
    char target[LOCKSTEP_ADDRESS_BYTES + 32]; // The address as gRPC has it.
    uint64_t connect_timeout_ms;
    uint64_t connect_deadline;
    struct control_credentials *credentials; // NULL: plaintext.
    grpc_completion_queue *cq;
    grpc_channel *lame;
    struct thread thread;

    // control thread only
    enum stage stage;
    grpc_channel *channel; // Another one when certificates have changed.
    uint64_t explain_at; // When the reason of a failure is looked for again.
    uint64_t refused_since; // 0: no certificate was refused in the last attempt.
    grpc_call *call; // NULL between two attempts.
    unsigned pending; // Batches of call that have not come back.
    bool cancelled; // By us; `reason` says why.
    bool has_status; // The status has come back: nothing more is started.
    bool sending; // A TAG_SEND is in flight.
    bool half_closed; // TAG_HALF_CLOSE was started.
    uint64_t retry_at; // NEVER while a call is in progress.
    uint64_t retry_delay_ms;
    grpc_byte_buffer *received;
    grpc_metadata_array headers;
    grpc_metadata_array trailers;
    grpc_status_code status;
    grpc_slice status_details;
    char reason[LOCKSTEP_TEXT_BYTES];
    char refusal[LOCKSTEP_TEXT_BYTES]; // While refused_since.
    char ended_text[LOCKSTEP_TEXT_BYTES];
    struct down_message message;
    bool answered; // The coordinator has said more than welcome: the stream is not begun again.
    char later[LOCKSTEP_TEXT_BYTES]; // It asked to come again later, and why; "": it did not.

    // guarded by mutex
    struct mutex mutex;
    struct list queue; // of struct outgoing
    struct up_message hello; // What the stream begins with, each time; kind UP_NONE: not known.
    unsigned queued;
    bool sends; // gRPC has not taken the message that left the queue last.
    bool heartbeat_queued; // One that waits is enough.
    bool waking; // A TAG_WAKE is in flight.
    bool ended; // Nothing is accepted, and wake_call is gone.
    bool closing; // control_close was called: no more events.
    bool reporting; // An event function runs: control_close waits for it.
    uint64_t linger_until; // While closing.
    bool finished; // The thread is done with everything but `abandoned`.
    bool abandoned; // control_close has gone: the thread frees.
    struct cond changed; // `finished` or `reporting`
    grpc_call *wake_call;
    uint8_t scratch[LOCKSTEP_MESSAGE_BYTES];
};

// ---- Sentences ---------------------------------------------------------------------------------

// The last part of "failed to connect to all addresses; last error: UNKNOWN: ipv4:...: Failed to
// connect to remote host: Connection refused", in lower case unless it begins with an acronym.
static void plain_reason(const char *details, char *text, size_t capacity)
{
    const char *last = details;
    for (const char *found = strstr(details, ": "); found; found = strstr(found + 1, ": ")) {
        if (found[2])
            last = found + 2;
    }
    const char *call = strstr(last, "recvmsg:");
    text_copy(text, capacity, call ? call + strlen("recvmsg:") : last);
    if (isupper((unsigned char)text[0]) && !isupper((unsigned char)text[1]))
        text[0] = (char)tolower((unsigned char)text[0]);
}

// gRPC 1.51 tells a status that the peer sent from one that it made up when the connection went
// away by nothing but the words.
static bool is_transport_error(const char *details)
{
    static const char *const signs[] = {
        "recvmsg:",         "sendmsg:",  "Socket closed", "Broken pipe",
        "Connection reset", "keepalive", "GOAWAY",        "Endpoint read failed"};
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        if (strstr(details, signs[i]))
            return true;
    }
    return false;
}

// The call's status as a reason: the peer's own words as they are, gRPC's shortened.
static void reason_from_status(struct control *control, bool *from_peer)
{
    char details[LOCKSTEP_TEXT_BYTES];
    size_t size = GRPC_SLICE_LENGTH(control->status_details);
    struct text text;
    text_init(&text, details, sizeof(details));
    text_append_bytes(&text, (const char *)GRPC_SLICE_START_PTR(control->status_details), size);
    *from_peer = !is_transport_error(details);
    if (*from_peer && control->stage == STANDING)
        text_copy(control->reason, sizeof(control->reason), details);
    else
        plain_reason(details, control->reason, sizeof(control->reason));
}

// A coordinator that wants TLS hangs up on who does not speak it.
static const char *plaintext_hint(const struct control *control)
{
    return !control->credentials && strstr(control->reason, "closed")
               ? "; if it was started with --tls-dir, set LOCKSTEP_TLS_DIR to certificates for it"
               : "";
}

static void describe_connect_failure(struct control *control, struct text *text)
{
    text_append(text, "cannot reach coordinator %s: ", control->address);
    if (control->refused_since > 0)
        text_append(text, "%s", control->refusal);
    else if (control->reason[0])
        text_append(text, "%s%s", control->reason, plaintext_hint(control));
    else
        text_append(text, "no answer within %.1f s", (double)control->connect_timeout_ms / 1000.0);
}

static void describe_end(struct control *control, bool from_peer)
{
    struct text text;
    text_init(&text, control->ended_text, sizeof(control->ended_text));
    if (control->cancelled)
        text_append(&text, "%s", control->reason);
    else if (control->status == GRPC_STATUS_PERMISSION_DENIED && from_peer)
        text_append(&text, "coordinator %s refused this worker: %s", control->address,
                    control->reason);
    else if (control->stage == CONNECTING)
        describe_connect_failure(control, &text);
    else if (control->status == GRPC_STATUS_UNIMPLEMENTED)
        text_append(&text, "%s is not a Lockstep coordinator of this version: %s", control->address,
                    control->reason);
    else if (control->status != GRPC_STATUS_OK && !from_peer)
        text_append(&text, "lost the connection to coordinator %s: %s", control->address,
                    control->reason);
    else
        text_append(&text, "the coordinator closed the stream%s%s", control->reason[0] ? ": " : "",
                    control->reason);
}

// ---- The channel --------------------------------------------------------------------------------

static grpc_arg integer_arg(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key};
    arg.value.integer = value;
    return arg;
}

// Of the host that was asked for, whatever the address that it led to.
static grpc_arg host_arg(const struct control_credentials *credentials)
{
    grpc_arg arg = {.type = GRPC_ARG_STRING,
                    .key = (char *)(uintptr_t)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG};
    arg.value.string = (char *)(uintptr_t)control_credentials_host(credentials);
    return arg;
}

static grpc_channel *create_channel(struct control *control)
{
    grpc_arg list[] = {
        integer_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        integer_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        integer_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        integer_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
        integer_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        integer_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        integer_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        integer_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
        integer_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        integer_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, LOCKSTEP_MESSAGE_BYTES),
        {0}, // With certificates: the host.
    };
    grpc_channel_args args = {.num_args = sizeof(list) / sizeof(list[0]) - 1, .args = list};
    if (control->credentials)
        list[args.num_args++] = host_arg(control->credentials);
    grpc_channel_credentials *credentials = control_credentials_make(control->credentials);
    grpc_channel *channel = grpc_channel_create(control->target, credentials, &args);
    grpc_channel_credentials_release(credentials);
    return channel;
}

// ---- The call ----------------------------------------------------------------------------------

// Starts a batch of one operation. A refusal is a bug of ours and asserts.
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
    if (control_credentials_renew(control->credentials)) {
        grpc_channel_destroy(control->channel);
        control->channel = create_channel(control);
    }
    // A channel that failed reconnects on its own schedule only while somebody asks for it.
    grpc_channel_check_connectivity_state(control->channel, 1);
    control->retry_at = NEVER;
    control->has_status = false;
    grpc_metadata_array_init(&control->headers);
    grpc_metadata_array_init(&control->trailers);
    control->call = grpc_channel_create_call(control->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                             control->cq, grpc_slice_from_static_string(METHOD),
                                             NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    start_status(control);
    start_headers(control);
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    start(control, &op, TAG_START);
}

// Ends the call with a reason of our own; its batches come back soon.
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

static bool is_closing(struct control *control)
{
    mutex_lock(&control->mutex);
    bool closing = control->closing;
    mutex_unlock(&control->mutex);
    return closing;
}

// Round every event function. False: nothing may be reported any more.
static bool report_begin(struct control *control)
{
    mutex_lock(&control->mutex);
    control->reporting = !control->closing;
    bool allowed = control->reporting;
    mutex_unlock(&control->mutex);
    return allowed;
}

static void report_end(struct control *control)
{
    mutex_lock(&control->mutex);
    control->reporting = false;
    cond_signal(&control->changed);
    mutex_unlock(&control->mutex);
}

// gRPC knows that a handshake failed and not why. Only before the stream stands.
static void look_for_reason(struct control *control, uint64_t now)
{
    char reason[LOCKSTEP_TEXT_BYTES];
    if (now < control->explain_at)
        return;
    control->explain_at = now + EXPLAIN_EVERY_MS;
    if (!control_credentials_explain(control->credentials, reason, sizeof(reason))) {
        control->refused_since = 0;
        return;
    }
    text_copy(control->refusal, sizeof(control->refusal), reason);
    if (control->refused_since == 0)
        control->refused_since = now;
}

// Time is left, and whoever refuses somebody's certificate has not done so for too long.
static bool may_retry(const struct control *control, uint64_t now)
{
    return now < control->connect_deadline &&
           (control->refused_since == 0 || now < control->refused_since + REFUSED_MS);
}

static int queue_push_locked(struct control *control, const struct up_message *message)
{
    const bool heartbeat = message->kind == UP_HEARTBEAT;
    mutex_assert_held(&control->mutex);
    if (control->ended || control->closing)
        return -1;
    if (control->queued == LOCKSTEP_SEND_QUEUE || (heartbeat && control->heartbeat_queued))
        return -2;
    size_t size = 0;
    if (codec_encode_up(message, control->scratch, sizeof(control->scratch), &size) != CODEC_OK)
        return -3;
    struct outgoing *item = malloc(sizeof(*item) + size);
    if (!item)
        return -4;
    item->heartbeat = heartbeat;
    item->size = size;
    memcpy(item->bytes, control->scratch, size);
    list_push_back(&control->queue, &item->link);
    control->queued++;
    control->heartbeat_queued |= heartbeat;
    return 0;
}

static void drop_queue_locked(struct control *control)
{
    mutex_assert_held(&control->mutex);
    list_for_each_safe (node, &control->queue) {
        list_remove(node);
        free(list_entry(node, struct outgoing, link));
    }
    control->queued = 0;
    control->heartbeat_queued = false;
}

// A worker that waits for its world to form says hello to a coordinator that has come back, or that
// has room now. What else was to be said to the old one is of no use.
static bool begin_again(struct control *control, uint64_t now)
{
    if (control->stage != STANDING || control->answered || control->cancelled ||
        control->status == GRPC_STATUS_UNIMPLEMENTED ||
        control->status == GRPC_STATUS_PERMISSION_DENIED || now >= control->connect_deadline ||
        is_closing(control))
        return false;
    mutex_lock(&control->mutex);
    const bool known = control->hello.kind == UP_HELLO;
    drop_queue_locked(control);
    control->sends = false;
    if (known) {
        control->hello.u.hello.open_timeout_ms = (uint32_t)(control->connect_deadline - now);
        (void)queue_push_locked(control, &control->hello);
    }
    mutex_unlock(&control->mutex);
    if (!known)
        return false;
    control->stage = CONNECTING;
    control->has_status = control->sending = control->half_closed = false;
    return true;
}

// All batches of the call have come back: try again, or end.
static void call_over(struct control *control)
{
    bool from_peer = false;
    if (!control->cancelled)
        reason_from_status(control, &from_peer);
    release_call(control);
    uint64_t now = clock_now_ms();
    if (control->stage == CONNECTING && !control->cancelled && !is_closing(control))
        look_for_reason(control, now);
    if (control->stage == CONNECTING && !control->cancelled)
        control->later[0] = '\0'; // There is none that says so now.
    if (begin_again(control, now))
        control->retry_delay_ms = RETRY_FIRST_MS;
    if (control->stage == CONNECTING && !control->cancelled && may_retry(control, now) &&
        !is_closing(control)) {
        control->retry_at = now + control->retry_delay_ms;
        control->retry_delay_ms *= 2;
        if (control->retry_delay_ms > RETRY_LAST_MS)
            control->retry_delay_ms = RETRY_LAST_MS;
        return;
    }
    describe_end(control, from_peer);
    control->stage = ENDED;
}

// ---- Messages in -------------------------------------------------------------------------------

// The coordinator goes away, or the job's old world has not ended: not an answer while there is
// time.
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
        if (report_begin(control)) {
            control->events.received(control->events.context, &control->message);
            report_end(control);
        }
        return;
    }
    char text[LOCKSTEP_TEXT_BYTES];
    snprintf(text, sizeof(text), "coordinator %s sent a message that cannot be read: %s",
             control->address, detail ? detail : "malformed");
    cancel(control, text);
}

// No buffer means that the peer will send nothing more; the status says why.
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

static struct outgoing *queue_pop(struct control *control)
{
    mutex_lock(&control->mutex);
    struct list *node = list_pop_front(&control->queue);
    struct outgoing *item = node ? list_entry(node, struct outgoing, link) : NULL;
    if (item) {
        control->queued--;
        control->sends = true;
        if (item->heartbeat)
            control->heartbeat_queued = false;
    }
    mutex_unlock(&control->mutex);
    return item;
}

static void sent(struct control *control)
{
    control->sending = false;
    mutex_lock(&control->mutex);
    control->sends = false;
    mutex_unlock(&control->mutex);
}

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

// Sends the next message, or says that there will be none. One at a time: gRPC completes a send
// when flow control took it, so a peer that does not read fills our queue and nothing else.
static void pump(struct control *control)
{
    if (control->stage != STANDING || !control->call || control->has_status || control->cancelled ||
        control->sending || control->half_closed)
        return;
    struct outgoing *item = queue_pop(control);
    if (item) {
        send_now(control, item);
        free(item);
    } else if (is_closing(control)) {
        grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
        start(control, &op, TAG_HALF_CLOSE);
        control->half_closed = true;
    }
}

// An empty batch on the wake call: it completes at once. Held: mutex.
static void wake_locked(struct control *control)
{
    mutex_assert_held(&control->mutex);
    if (control->ended || control->waking)
        return;
    control->waking = true;
    grpc_call_error error =
        grpc_call_start_batch(control->wake_call, NULL, 0, (void *)(uintptr_t)TAG_WAKE, NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

// ---- Time --------------------------------------------------------------------------------------

// control_close gives the stream until then; NEVER before it is called.
static uint64_t linger_until(struct control *control)
{
    mutex_lock(&control->mutex);
    uint64_t until = control->closing ? control->linger_until : NEVER;
    mutex_unlock(&control->mutex);
    return until;
}

static void connect_timed_out(struct control *control)
{
    struct text text;
    char sentence[LOCKSTEP_TEXT_BYTES];
    text_init(&text, sentence, sizeof(sentence));
    describe_connect_failure(control, &text);
    if (control->call) {
        cancel(control, sentence);
    } else {
        text_copy(control->ended_text, sizeof(control->ended_text), sentence);
        control->stage = ENDED;
    }
}

static void check_time(struct control *control)
{
    uint64_t now = clock_now_ms();
    if (now >= linger_until(control)) {
        cancel(control, "the session was closed");
        if (!control->call)
            control->stage = ENDED;
    }
    if (control->stage == CONNECTING && now >= control->connect_deadline)
        connect_timed_out(control);
    if (control->stage == CONNECTING && !control->call && now >= control->retry_at)
        attempt(control);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static gpr_timespec next_deadline(struct control *control)
{
    uint64_t at = control->retry_at;
    if (!control->cancelled) {
        at = earlier(at, linger_until(control));
        if (control->stage == CONNECTING)
            at = earlier(at, control->connect_deadline);
    }
    if (at == NEVER)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    uint64_t now = clock_now_ms();
    uint64_t wait_ms = at > now ? at - now : 0;
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_millis((int64_t)wait_ms, GPR_TIMESPAN));
}

// ---- The control thread ------------------------------------------------------------------------

static void on_start(struct control *control, bool ok)
{
    if (!ok || control->cancelled)
        return;
    control->stage = STANDING;
    start_receive(control);
}

static void on_wake(struct control *control)
{
    mutex_lock(&control->mutex);
    control->waking = false;
    mutex_unlock(&control->mutex);
}

static void on_completion(struct control *control, enum tag tag, bool ok)
{
    switch (tag) {
    case TAG_WAKE:
        on_wake(control);
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
        sent(control);
        break;
    case TAG_HEADERS:
    case TAG_HALF_CLOSE:
        break;
    }
    control->pending--;
    if (control->pending == 0)
        call_over(control);
}

// From here on nothing is accepted, nothing wakes, and the control thread alone has gRPC's objects.
static void close_mailbox(struct control *control)
{
    mutex_lock(&control->mutex);
    control->ended = true;
    drop_queue_locked(control);
    mutex_unlock(&control->mutex);
}

static void destroy_transport(struct control *control)
{
    if (control->wake_call)
        grpc_call_unref(control->wake_call);
    if (control->lame)
        grpc_channel_destroy(control->lame);
    if (control->channel)
        grpc_channel_destroy(control->channel);
    if (!control->cq)
        return;
    grpc_completion_queue_shutdown(control->cq);
    gpr_timespec forever = gpr_inf_future(GPR_CLOCK_REALTIME);
    while (grpc_completion_queue_next(control->cq, forever, NULL).type != GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(control->cq);
}

static void release(struct control *control)
{
    control_credentials_close(control->credentials);
    cond_fini(&control->changed);
    mutex_fini(&control->mutex);
    free(control);
}

// The last thing that the thread does with the control.
static void finish(struct control *control)
{
    mutex_lock(&control->mutex);
    control->finished = true;
    bool abandoned = control->abandoned;
    cond_signal(&control->changed);
    mutex_unlock(&control->mutex);
    if (!abandoned)
        return;
    grpc_shutdown();
    release(control);
}

static void run(void *argument)
{
    struct control *control = argument;
    attempt(control);
    while (control->stage != ENDED) {
        grpc_event event = grpc_completion_queue_next(control->cq, next_deadline(control), NULL);
        if (event.type == GRPC_OP_COMPLETE)
            on_completion(control, (enum tag)(uintptr_t)event.tag, event.success != 0);
        check_time(control);
        pump(control);
    }
    close_mailbox(control);
    if (control->later[0] != '\0' && report_begin(control)) {
        control->message = (struct down_message){.kind = DOWN_REFUSED};
        control->message.u.refused.refusal = REFUSAL_DRAINING;
        text_copy(control->message.u.refused.text, sizeof(control->message.u.refused.text),
                  control->later);
        control->events.received(control->events.context, &control->message);
        report_end(control);
    }
    if (report_begin(control)) {
        control->events.ended(control->events.context, control->ended_text);
        report_end(control);
    }
    destroy_transport(control);
    finish(control);
}

// ---- Opening -----------------------------------------------------------------------------------

static void swallow_log(gpr_log_func_args *args)
{
    (void)args;
}

static void silence_grpc(void)
{
    gpr_set_log_function(swallow_log);
}

// gRPC starts threads of its own in grpc_init and later; they inherit this mask. What a fault
// raises stays deliverable, so that a trainer's crash handler still sees it.
static void block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

static void restore_signals(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

// host NULL: the address is a path. An address that gRPC need not look up is given as such; a name
// goes to DNS. localhost is the same address as for the daemon; Debian's c-ares would leak its name
// at every look.
static void target_of(const char *address, const char *host, uint16_t port, char *target,
                      size_t capacity)
{
    unsigned char binary[sizeof(struct in6_addr)];
    if (host && strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    if (!host)
        text_copy(target, capacity, address);
    else if (inet_pton(AF_INET, host, binary) == 1)
        snprintf(target, capacity, "ipv4:%s:%u", host, port);
    else if (strchr(host, ':'))
        snprintf(target, capacity, "ipv6:[%s]:%u", host, port);
    else
        snprintf(target, capacity, "dns:///%s:%u", host, port);
}

static int create_transport(struct control *control)
{
    control->cq = grpc_completion_queue_create_for_next(NULL);
    control->channel = create_channel(control);
    control->lame = grpc_lame_client_channel_create("wake", GRPC_STATUS_UNAVAILABLE, "wake");
    if (!control->cq || !control->channel || !control->lame)
        return -1;
    control->wake_call = grpc_channel_create_call(
        control->lame, NULL, GRPC_PROPAGATE_DEFAULTS, control->cq,
        grpc_slice_from_static_string("/wake"), NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    return control->wake_call ? 0 : -1;
}

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
    control->retry_at = NEVER;
    control->retry_delay_ms = RETRY_FIRST_MS;
    mutex_init(&control->mutex);
    cond_init(&control->changed);
    list_init(&control->queue);
    return control;
}

// With signals blocked. Returns 0 or -2 with everything undone.
static int start_thread(struct control *control, char *error, size_t error_bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, silence_grpc);
    grpc_init();
    int failure = 0;
    if (create_transport(control) < 0)
        snprintf(error, error_bytes, "gRPC cannot make a channel to %s", control->address);
    else if ((failure = thread_start(&control->thread, "lockstep-ctl", run, control)) != 0)
        snprintf(error, error_bytes, "cannot start the control thread: %s", strerror(failure));
    else
        return 0;
    destroy_transport(control);
    grpc_shutdown();
    return -2;
}

// Where it is for gRPC, and its certificates.
static int locate(struct control *control, const struct control_target *target, char *error,
                  size_t error_bytes)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    const bool local = strncmp(target->address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0;
    if (local) {
        text_copy(host, sizeof(host), UNIX_HOST);
    } else if (!parse_address(target->address, host, sizeof(host), &port) || port == 0) {
        snprintf(error, error_bytes,
                 "the coordinator's address \"%s\" is not HOST:PORT, [IPV6]:PORT or unix:PATH",
                 target->address);
        return -1;
    }
    target_of(target->address, local ? NULL : host, port, control->target, sizeof(control->target));
    if (!target->tls_dir || target->tls_dir[0] == '\0')
        return 0;
    return control_credentials_open(target->tls_dir, target->job, host, port, &control->credentials,
                                    error, error_bytes);
}

int control_open(const struct control_target *target, const struct control_events *events,
                 struct control **control, char *error, size_t error_bytes)
{
    struct control *opened = allocate(target, events);
    if (!opened) {
        snprintf(error, error_bytes, "out of memory for the control stream");
        return -2;
    }
    if (locate(opened, target, error, error_bytes) < 0) {
        release(opened);
        return -1;
    }
    sigset_t before;
    block_signals(&before);
    int result = start_thread(opened, error, error_bytes);
    restore_signals(&before);
    if (result < 0)
        release(opened);
    else
        *control = opened;
    return result;
}

// ---- Any thread --------------------------------------------------------------------------------

int control_send(struct control *control, const struct up_message *message)
{
    mutex_lock(&control->mutex);
    if (message->kind == UP_HELLO)
        control->hello = *message;
    int result = queue_push_locked(control, message);
    if (result == 0)
        wake_locked(control);
    mutex_unlock(&control->mutex);
    return result;
}

bool control_is_idle(struct control *control)
{
    mutex_lock(&control->mutex);
    const bool idle = control->ended || (control->queued == 0 && !control->sends);
    mutex_unlock(&control->mutex);
    return idle;
}

// Nothing is reported from the moment this is called; an event function that runs is waited for.
void control_close(struct control *control, uint64_t linger_ms)
{
    mutex_lock(&control->mutex);
    control->closing = true;
    control->linger_until = clock_now_ms() + linger_ms;
    wake_locked(control);
    uint64_t patience = control->linger_until + CANCEL_MS;
    while (!control->finished && cond_wait_until(&control->changed, &control->mutex, patience))
        ;
    while (control->reporting)
        cond_wait(&control->changed, &control->mutex);
    bool abandoned = !control->finished;
    control->abandoned = abandoned;
    if (abandoned)
        pthread_detach(control->thread.id);
    mutex_unlock(&control->mutex);
    if (abandoned)
        return;
    thread_join(&control->thread);
    sigset_t before;
    block_signals(&before);
    grpc_shutdown();
    restore_signals(&before);
    release(control);
}
