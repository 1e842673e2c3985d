// SPDX-License-Identifier: Apache-2.0
//
// The worker's end of the control stream over the gRPC C core (1.51). That API is semi-private, so
// only files of this folder use it. They know no protocol: messages come in as structs and go out
// as structs. They only look at what a message means for the stream.
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
// stands(). Its end is broke(), and another one begins with a new channel, which looks a name up
// again. Pauses between attempts (pause.h) grow to AGAIN_LAST_MS. When a stream stands again,
// stands() is reported, and its first message must be a hello. A refusal may end the attempts.
//
// Several addresses are tried in turn (addresses.h). An attempt that fails, or a coordinator that
// sends the worker away, leads to the next address; the end of a stream that stood does not. A
// coordinator that is needed and does not answer (ask.h) leads there, too.
//
// Here is what other threads call. streams.c has the life of streams.
//
// gRPC does not survive fork: a child process must not call any function of this file.

#include "worker/control/grpc.h"

#include "worker/control/control.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "protos/types.h"
#include "worker/control/streams.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Opening -----------------------------------------------------------------------------------

static struct control *allocate(const struct control_target *target,
                                const struct control_events *events)
{
    struct control *control = calloc(1, sizeof(*control));
    if (!control)
        return NULL;
    control->events = *events;
    control->connect_timeout_ms = target->connect_timeout_ms;
    uint64_t now = clock_now_ms();
    control->connect_deadline = target->connect_timeout_ms < STREAMS_NEVER - now
                                    ? now + target->connect_timeout_ms
                                    : STREAMS_NEVER;
    control->pause.until_ms = STREAMS_NEVER;
    pause_reset(&control->pause);
    mailbox_init(&control->mailbox);
    return control;
}

// Reads the addresses, and checks each. Returns false with a sentence in error.
static bool locate(struct control *control, const char *list, char *error, size_t error_bytes)
{
    struct addresses *addresses = &control->addresses;
    if (!addresses_read(addresses, list)) {
        snprintf(error, error_bytes,
                 "the coordinator's addresses \"%.512s\" are not 1 to %d of HOST:PORT, [IPV6]:PORT "
                 "or unix:PATH",
                 list, LOCKSTEP_COORDINATORS);
        return false;
    }
    addresses->tell_at = clock_now_ms() + ADDRESSES_TELL_MS;
    for (uint32_t i = addresses->count; i-- > 0;)
        if (channel_aim(&control->channel, addresses->all[i].text, error, error_bytes) < 0)
            return false;
    control->channel.moved = false; // There is no channel yet.
    return true;
}

// Called with signals blocked. Returns 0; -2 after undoing everything, but for gRPC when there are
// no threads: gRPC could not start all of its own then, and would wait for them for ever.
static int start_thread(struct control *control, char *error, size_t error_bytes)
{
    if (!channel_may_open()) {
        snprintf(error, error_bytes,
                 "gRPC of an earlier session has not ended, because it could not start its threads "
                 "(ulimit -u, pids.max): end this process");
        return -2;
    }
    if (channel_open(&control->channel) < 0) {
        snprintf(error, error_bytes, "gRPC cannot make a channel to %s", control->channel.target);
        channel_close(&control->channel);
        channel_end();
        return -2;
    }
    const int failure = thread_start(&control->thread, "lockstep-ctl", streams_run, control);
    if (failure == 0)
        return 0;
    snprintf(error, error_bytes, "cannot start the control thread: %s", strerror(failure));
    channel_abandon();
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
    if (channel_certify(&opened->channel, target, error, error_bytes) < 0 ||
        !locate(opened, target->address, error, error_bytes)) {
        streams_release(opened);
        return -1;
    }
    sigset_t before;
    channel_block_signals(&before);
    int result = start_thread(opened, error, error_bytes);
    channel_restore_signals(&before);
    if (result < 0)
        streams_release(opened);
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
        streams_wake_locked(control);
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

void control_need(struct control *control, bool needed)
{
    mutex_lock(&control->mailbox.mutex);
    if (control->mailbox.needed != needed)
        streams_wake_locked(control);
    control->mailbox.needed = needed;
    mutex_unlock(&control->mailbox.mutex);
}

void control_renew(struct control *control)
{
    mutex_lock(&control->mailbox.mutex);
    control->mailbox.renews = true;
    streams_wake_locked(control);
    mutex_unlock(&control->mailbox.mutex);
}

bool control_is_idle(struct control *control)
{
    return mailbox_is_idle(&control->mailbox);
}

// From this call on no event is reported. The function waits for a running event function.
void control_close(struct control *control, uint64_t linger_ms)
{
    mutex_lock(&control->mailbox.mutex);
    mailbox_begin_close_locked(&control->mailbox, linger_ms);
    streams_wake_locked(control);
    const bool abandoned = !mailbox_await_end_locked(&control->mailbox);
    if (abandoned)
        pthread_detach(control->thread.id);
    mutex_unlock(&control->mailbox.mutex);
    if (abandoned)
        return;
    thread_join(&control->thread);
    streams_release(control);
}
