// SPDX-License-Identifier: Apache-2.0
//
// Attempts of the library at work that consists of plain collectives of its own, in a session that
// goes on after a death (config.on_failure): what ranks do in lockstep_start once manifests are
// equal. An attempt belongs to one generation. Its collectives have agreements (agreement.h), so a
// death ends each of them alike on every survivor: all have the result, or it has failed with
// LOCKSTEP_E_CHANGED. After the change this rank begins no further collective of the attempt, and
// if it had begun one, that one has failed on every survivor. So an attempt succeeds on every
// survivor or fails on every survivor, and is made again in the new generation.
//
// The collectives of an attempt do not count the uses of their names: ranks may have begun
// different numbers of them when they fail. They are numbered by attempt.

#ifndef WORKER_SESSION_ATTEMPT_H
#define WORKER_SESSION_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>

struct collective_tag;
struct lockstep_session;

// guarded by the session's mutex
struct work_attempt {
    bool active;
    uint64_t changes; // Changes of the world when it began.
    uint64_t space; // Of the tags of its collectives.
    uint32_t next; // The slot of its next collective.
};

// What ranks do in attempts of their own. Ranks of a group make the attempts of its modules.
enum attempt_scope {
    ATTEMPT_GROUPED,
    ATTEMPT_PLACES,
    ATTEMPT_STATE,
    ATTEMPT_MODULE, // ATTEMPT_MODULE + m: the state of module m, which has a group.
};

// Calls `run`, again while it returns LOCKSTEP_E_CHANGED. Only calls it if the session ends at a
// death. Trainer, in lockstep_start.
int attempt_run(struct lockstep_session *session, uint32_t scope,
                int (*run)(struct lockstep_session *session, void *context), void *context);
// 0, or LOCKSTEP_E_CHANGED if the world has changed since the attempt has begun. Caller holds the
// mutex, as for the next.
int attempt_check_locked(const struct lockstep_session *session);
// Sets the tag of the next collective.
void attempt_tag_locked(struct lockstep_session *session, struct collective_tag *tag);
// Sets the text of a collective of an attempt that has failed, and returns LOCKSTEP_E_CHANGED.
int attempt_failed(void);

#endif
