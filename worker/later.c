// SPDX-License-Identifier: Apache-2.0
//
// Public functions that are declared and not built yet. Each checks its handle and says so.

#include "worker/error.h"
#include "worker/session.h"

static int later(int status, const char *what)
{
    return status < 0 ? status : error_set(LOCKSTEP_E_UNSUPPORTED, "%s is not supported yet", what);
}

int lockstep_layout_save(lockstep_session *session, const char *path)
{
    (void)path;
    return later(session_check(session), "lockstep_layout_save");
}

int lockstep_layout_load(lockstep_session *session, const char *path)
{
    (void)path;
    return later(session_check(session), "lockstep_layout_load");
}

int lockstep_session_save(lockstep_session *session, const char *path)
{
    (void)path;
    return later(session_check(session), "lockstep_session_save");
}

int lockstep_session_load(lockstep_session *session, const char *path)
{
    (void)path;
    return later(session_check(session), "lockstep_session_load");
}
