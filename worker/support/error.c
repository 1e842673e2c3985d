// SPDX-License-Identifier: Apache-2.0
//
// Status names and the thread-local error text.

#include "worker/support/error.h"

#include "worker/support/handle.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Thread_local char error_text[LOCKSTEP_REPORT_BYTES];
// The session may have been closed since.
static _Thread_local struct lockstep_session *error_session;
static void (*_Atomic error_note)(struct lockstep_session *session, int status, const char *text);

void error_of(struct lockstep_session *session)
{
    error_session = session;
}

void error_note_by(void (*note)(struct lockstep_session *session, int status, const char *text))
{
    atomic_store_explicit(&error_note, note, memory_order_release);
}

int error_set(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof(error_text), format, arguments);
    va_end(arguments);
    if (status < 0 && handle_is(HANDLE_SESSION, error_session))
        atomic_load_explicit(&error_note, memory_order_acquire)(error_session, status, error_text);
    return status;
}

const char *lockstep_error_text(void)
{
    return error_text;
}

const char *lockstep_version(void)
{
    return "0.1.0";
}

const char *lockstep_status_name(int status)
{
    switch (status) {
    case LOCKSTEP_OK:
        return "LOCKSTEP_OK";
    case LOCKSTEP_DEFERRED:
        return "LOCKSTEP_DEFERRED";
    case LOCKSTEP_FINISHED:
        return "LOCKSTEP_FINISHED";
    case LOCKSTEP_E_INVALID:
        return "LOCKSTEP_E_INVALID";
    case LOCKSTEP_E_UNSUPPORTED:
        return "LOCKSTEP_E_UNSUPPORTED";
    case LOCKSTEP_E_CONFIG:
        return "LOCKSTEP_E_CONFIG";
    case LOCKSTEP_E_UNREACHABLE:
        return "LOCKSTEP_E_UNREACHABLE";
    case LOCKSTEP_E_TIMEOUT:
        return "LOCKSTEP_E_TIMEOUT";
    case LOCKSTEP_E_MISMATCH:
        return "LOCKSTEP_E_MISMATCH";
    case LOCKSTEP_E_UNUSED:
        return "LOCKSTEP_E_UNUSED";
    case LOCKSTEP_E_PEER_LOST:
        return "LOCKSTEP_E_PEER_LOST";
    case LOCKSTEP_E_CLOSED:
        return "LOCKSTEP_E_CLOSED";
    case LOCKSTEP_E_SYSTEM:
        return "LOCKSTEP_E_SYSTEM";
    case LOCKSTEP_E_FORKED:
        return "LOCKSTEP_E_FORKED";
    case LOCKSTEP_E_CHANGED:
        return "LOCKSTEP_E_CHANGED";
    default:
        return "unknown status";
    }
}

int error_status_of_halt(enum halt_kind kind)
{
    if (kind == HALT_TUNING || kind == HALT_LIMIT)
        return LOCKSTEP_E_CONFIG;
    return kind == HALT_LOST || kind == HALT_LEFT ? LOCKSTEP_E_PEER_LOST : LOCKSTEP_E_MISMATCH;
}

int error_status_of_refusal(enum refusal refusal)
{
    switch (refusal) {
    case REFUSAL_VERSION:
        return LOCKSTEP_E_MISMATCH;
    case REFUSAL_TIMEOUT:
    case REFUSAL_DRAINING: // The worker has retried until its timeout.
        return LOCKSTEP_E_TIMEOUT;
    case REFUSAL_FULL:
        return LOCKSTEP_E_UNREACHABLE;
    case REFUSAL_NONE:
    case REFUSAL_INVALID:
    default:
        return LOCKSTEP_E_CONFIG;
    }
}
