// SPDX-License-Identifier: Apache-2.0
//
// The public functions of groups of ranks. worker/session/group.c has the groups.

#include "worker/session/group.h"
#include "worker/session/fork.h"
#include "worker/session/plain.h"
#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"

static int group_check_handle(const lockstep_group *group)
{
    if (fork_in_child())
        return error_set(LOCKSTEP_E_FORKED,
                         "this process was forked from the one that opened the session");
    if (!handle_is(HANDLE_GROUP, group))
        return error_set(LOCKSTEP_E_INVALID,
                         !group ? "the group is NULL" : "this is not a group, or it was closed");
    return session_check_sink();
}

int lockstep_group_create(lockstep_session *session, const uint32_t *ranks, uint32_t count,
                          const char *name, lockstep_group **group)
{
    if (!group)
        return error_set(LOCKSTEP_E_INVALID, "group is NULL: nowhere to put the handle");
    *group = NULL;
    struct lockstep_group *made = NULL;
    int status = session_check(session);
    if (status == 0)
        status = group_make(session, ranks, count, name, &made);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&session->tracker, API_COLLECTIVE, PROGRESS_NO_MODULE, 0);
    await_enter(API_GROUP_CREATE, LOCKSTEP_MAX_MODULES);
    status = plain_meet(made);
    if (status < 0)
        (void)group_free(made);
    else
        *group = made;
    return progress_leave(&visit, status);
}

int lockstep_group_world(const lockstep_group *group, uint32_t *rank, uint32_t *size)
{
    const int status = group_check_handle(group);
    if (status < 0)
        return status;
    mutex_lock(&group->session->mutex);
    if (rank)
        *rank = group->rank;
    if (size)
        *size = group->size;
    mutex_unlock(&group->session->mutex);
    return 0;
}

int lockstep_group_close(lockstep_group *group)
{
    int status = group_check_handle(group);
    if (status == 0)
        status = session_check_interrupted(group->session);
    return status < 0 ? status : group_free(group);
}
