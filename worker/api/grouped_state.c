// SPDX-License-Identifier: Apache-2.0
//
// The state of modules with a group: it is made equal among the members, and compared. A rank goes
// through its modules in their order, which is the same on all ranks, so groups that overlap do not
// wait for each other. Runs on the trainer's thread.

#include "worker/api/grouped_state.h"

#include "base/hash64.h"
#include "base/text.h"
#include "worker/api/state.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

// context: the module.
static int state_send_module(struct lockstep_session *session, void *context)
{
    return state_compare(session, context, state_send);
}

// Compares the values of each module of a group that this rank has, and sends them or reports the
// differences. Returns the first failure, but goes on after a difference: the other members do.
static int state_each(struct lockstep_session *session, bool sends)
{
    char text[LOCKSTEP_REPORT_BYTES] = "";
    int status = 0;
    for (uint32_t m = session->common_count; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        if (module->grouped.absent)
            continue;
        const int one = sends ? attempt_run(session, ATTEMPT_MODULE + m, state_send_module, module)
                              : state_compare(session, module, state_report);
        if (one < 0 && status == 0)
            text_copy(text, sizeof(text), lockstep_error_text());
        if (one < 0 && status == 0)
            status = one;
        if (one < 0 && one != LOCKSTEP_E_MISMATCH)
            break;
    }
    return status < 0 ? error_set(status, "%s", text) : 0;
}

int grouped_state_sync(struct lockstep_session *session)
{
    return state_each(session, true);
}

int grouped_state_check(struct lockstep_session *session)
{
    return state_each(session, false);
}

int grouped_state_hash(struct lockstep_session *session, struct hash64 *hash)
{
    int status = 0;
    for (uint32_t m = session->common_count; m < session->module_count && status == 0; m++) {
        struct shared_state state;
        if (session->modules[m]->grouped.absent)
            continue;
        status = state_open(session, session->modules[m], &state);
        if (status == 0)
            hash64_update(hash, state.hashes, state.count * sizeof(state.hashes[0]));
        state_free(&state);
    }
    return status;
}
