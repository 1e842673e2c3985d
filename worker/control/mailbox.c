// SPDX-License-Identifier: Apache-2.0
//
// The mailbox of the control stream. Any thread, except functions that mailbox.h marks.

#include "worker/control/mailbox.h"

#include "base/clock.h"
#include "protos/codec/codec.h"
#include "protos/codec/up.h"

#include <stdlib.h>
#include <string.h>

#define SHUTDOWN_MS 2000
#define UNSENT_MS 5000 // A close gives each message that waits so long to leave this process.
#define CANCEL_MS 200 // A cancelled call completes much sooner, unless its socket is full.

void mailbox_init(struct mailbox *mailbox)
{
    mutex_init(&mailbox->mutex);
    cond_init(&mailbox->changed);
    list_init(&mailbox->queue);
}

void mailbox_fini(struct mailbox *mailbox)
{
    cond_fini(&mailbox->changed);
    mutex_fini(&mailbox->mutex);
}

// ---- Messages ----------------------------------------------------------------------------------

// True if the message may follow: after the end of a kept stream only a hello, once.
static bool mailbox_begins_locked(struct mailbox *mailbox, const struct up_message *message)
{
    const bool hello = message->kind == UP_HELLO;
    if (mailbox->broken && hello && mailbox->stands)
        mailbox->broken = mailbox->stands = false;
    else if (mailbox->broken || (mailbox->kept && hello))
        return false;
    return true;
}

int mailbox_push_locked(struct mailbox *mailbox, const struct up_message *message)
{
    const bool heartbeat = message->kind == UP_HEARTBEAT;
    mutex_assert_held(&mailbox->mutex);
    if (mailbox->ended || mailbox->closing || !mailbox_begins_locked(mailbox, message))
        return -1;
    if (mailbox->queued == LOCKSTEP_SEND_QUEUE || (heartbeat && mailbox->heartbeat_queued))
        return -2;
    size_t size = 0;
    if (codec_encode_up(message, mailbox->scratch, sizeof(mailbox->scratch), &size) != CODEC_OK)
        return -3;
    struct outgoing *item = malloc(sizeof(*item) + size);
    if (!item)
        return -4;
    item->heartbeat = heartbeat;
    item->size = size;
    memcpy(item->bytes, mailbox->scratch, size);
    list_push_back(&mailbox->queue, &item->link);
    mailbox->queued++;
    mailbox->heartbeat_queued |= heartbeat;
    return 0;
}

static void mailbox_drop_locked(struct mailbox *mailbox)
{
    mutex_assert_held(&mailbox->mutex);
    list_for_each_safe (node, &mailbox->queue) {
        list_remove(node);
        free(list_entry(node, struct outgoing, link));
    }
    mailbox->queued = 0;
    mailbox->heartbeat_queued = false;
}

struct outgoing *mailbox_pop(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    struct list *node = list_pop_front(&mailbox->queue);
    struct outgoing *item = node ? list_entry(node, struct outgoing, link) : NULL;
    if (item) {
        mailbox->queued--;
        mailbox->sends = true;
        if (item->heartbeat)
            mailbox->heartbeat_queued = false;
    }
    mutex_unlock(&mailbox->mutex);
    return item;
}

// The stream has moved on, so a close waits for it anew.
static void mailbox_moved_locked(struct mailbox *mailbox)
{
    mutex_assert_held(&mailbox->mutex);
    if (!mailbox->closing || mailbox->given_up)
        return;
    mailbox->moved_ms = clock_now_ms();
    mailbox->wait_until = mailbox->moved_ms + mailbox->linger_ms + UNSENT_MS + CANCEL_MS;
}

void mailbox_sent(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->sends = false;
    mailbox_moved_locked(mailbox);
    mutex_unlock(&mailbox->mutex);
}

bool mailbox_is_idle(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    const bool idle = mailbox->ended || (mailbox->queued == 0 && !mailbox->sends);
    mutex_unlock(&mailbox->mutex);
    return idle;
}

bool mailbox_begin_again(struct mailbox *mailbox, uint32_t open_timeout_ms)
{
    mutex_lock(&mailbox->mutex);
    const bool known = mailbox->hello.kind == UP_HELLO;
    mailbox_drop_locked(mailbox);
    mailbox->sends = false;
    if (known) {
        mailbox->hello.u.hello.open_timeout_ms = open_timeout_ms;
        (void)mailbox_push_locked(mailbox, &mailbox->hello);
    }
    mutex_unlock(&mailbox->mutex);
    return known;
}

void mailbox_break(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox_drop_locked(mailbox);
    mailbox->broken = mailbox->kept = true;
    mailbox->stands = mailbox->sends = false;
    mutex_unlock(&mailbox->mutex);
}

void mailbox_stand(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->stands = true;
    mutex_unlock(&mailbox->mutex);
}

void mailbox_close(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->ended = true;
    mailbox_drop_locked(mailbox);
    mutex_unlock(&mailbox->mutex);
}

// ---- Requests ----------------------------------------------------------------------------------

bool mailbox_is_closing(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    bool closing = mailbox->closing;
    mutex_unlock(&mailbox->mutex);
    return closing;
}

bool mailbox_is_needed(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    const bool needed = mailbox->needed;
    mutex_unlock(&mailbox->mutex);
    return needed;
}

bool mailbox_take_renewal(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    const bool renews = mailbox->renews;
    mailbox->renews = false;
    mutex_unlock(&mailbox->mutex);
    return renews;
}

uint64_t mailbox_linger_until(struct mailbox *mailbox, bool stands)
{
    uint64_t until = UINT64_MAX;
    mutex_lock(&mailbox->mutex);
    const bool unsent = stands && (mailbox->queued > 0 || mailbox->sends);
    if (mailbox->closing)
        until = mailbox->moved_ms + mailbox->linger_ms + (unsent ? UNSENT_MS : 0);
    mutex_unlock(&mailbox->mutex);
    return until;
}

void mailbox_give_up(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    if (!mailbox->given_up)
        mailbox->wait_until = clock_now_ms() + CANCEL_MS;
    mailbox->given_up = true;
    cond_signal(&mailbox->changed);
    mutex_unlock(&mailbox->mutex);
}

void mailbox_begin_close_locked(struct mailbox *mailbox, uint64_t linger_ms)
{
    mutex_assert_held(&mailbox->mutex);
    mailbox->closing = true;
    mailbox->linger_ms = linger_ms;
    mailbox_moved_locked(mailbox);
}

bool mailbox_report_begin(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->reporting = !mailbox->closing;
    bool allowed = mailbox->reporting;
    mutex_unlock(&mailbox->mutex);
    return allowed;
}

void mailbox_report_end(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->reporting = false;
    cond_signal(&mailbox->changed);
    mutex_unlock(&mailbox->mutex);
}

void mailbox_woken(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->waking = false;
    mailbox_moved_locked(mailbox);
    mutex_unlock(&mailbox->mutex);
}

bool mailbox_await_end_locked(struct mailbox *mailbox)
{
    mutex_assert_held(&mailbox->mutex);
    while (!mailbox->finished && clock_now_ms() < mailbox->wait_until)
        cond_wait_until(&mailbox->changed, &mailbox->mutex, mailbox->wait_until);
    while (mailbox->reporting)
        cond_wait(&mailbox->changed, &mailbox->mutex);
    mailbox->abandoned = !mailbox->finished;
    return mailbox->finished;
}

void mailbox_ends(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->wait_until = clock_now_ms() + SHUTDOWN_MS;
    cond_signal(&mailbox->changed);
    mutex_unlock(&mailbox->mutex);
}

bool mailbox_finish(struct mailbox *mailbox)
{
    mutex_lock(&mailbox->mutex);
    mailbox->finished = true;
    const bool abandoned = mailbox->abandoned;
    cond_signal(&mailbox->changed);
    mutex_unlock(&mailbox->mutex);
    return abandoned;
}
