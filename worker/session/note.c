// SPDX-License-Identifier: Apache-2.0
//
// The last failure of a call. A session that is closed gives it as the reason. Any thread.

#include "worker/session/note.h"

#include "base/text.h"
#include "base/utf8.h"
#include "worker/session/exit.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <string.h>

// Appends `from`, with "?" for every byte that is not part of valid UTF-8. The text of a failure
// may quote a path that is not UTF-8, or be cut inside a character. A goodbye with such bytes could
// not be decoded.
static void session_append_clean(struct text *text, const char *from)
{
    size_t left = strlen(from);
    while (left > 0) {
        const size_t whole = utf8_length(from, left);
        const size_t taken = whole == 0 ? 1 : whole;
        if (!text_append_bytes(text, whole == 0 ? "?" : from, taken))
            return;
        from += taken;
        left -= taken;
    }
}

void session_note(struct lockstep_session *session, int status, const char *text)
{
    struct text note;
    mutex_lock(&session->note.mutex);
    text_init(&note, session->note.text, sizeof(session->note.text));
    text_append(&note, "%s: ", lockstep_status_name(status));
    session_append_clean(&note, text);
    mutex_unlock(&session->note.mutex);
    atomic_store_explicit(&session->note.noted, true, memory_order_relaxed);
    // Timeouts are not reported at once: a trainer may poll with many short waits.
    if (status != LOCKSTEP_E_TIMEOUT)
        exit_note(session);
}

void session_read_note(struct lockstep_session *session, char *text, size_t bytes)
{
    text[0] = '\0';
    if (!atomic_load_explicit(&session->note.noted, memory_order_relaxed))
        return;
    mutex_lock(&session->note.mutex);
    text_copy(text, bytes, session->note.text);
    mutex_unlock(&session->note.mutex);
}
