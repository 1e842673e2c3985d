// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives: their state, and the functions of work.c. worker/api/collective.c has the
// public functions.

#ifndef WORKER_SESSION_WORK_H
#define WORKER_SESSION_WORK_H

#include "base/list.h"
#include "worker/session/agreement.h"
#include "worker/session/attempt.h"
#include "worker/session/lent.h"
#include "worker/session/names.h"
#include "worker/session/notify.h"
#include "worker/transport/flow/collective.h"

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct command;

#define WORK_LIBRARY_PREFIX "lockstep/" // The prefix of the library's names.

enum work_state {
    WORK_FREE = 0,
    WORK_IN_FLIGHT,
    WORK_DONE,
};

struct lockstep_work {
    struct lockstep_session *session;
    uint32_t uses; // trainer; counts the calls of work_repeat.
    // driver only while in flight
    struct collective collective;
    struct collective confirmation; // Confirms that all ranks began the same broadcast.
    bool confirmed; // True if the work has a confirmation.
    uint32_t missing; // Collectives of this work that are not done yet: 0 to 2.
    bool handed; // In a session that goes on after a death: true once the work's command has come.
    uint64_t step; // Of a group of buffers: the step that was open at the launch; 0: none was.
    struct agreement agreement;
    struct extent extent;
    struct extent barrier_extent;
    int32_t barrier; // The element of a barrier, or of a confirmation.
    // guarded by session.mutex
    enum work_state state;
    bool changed; // True if the work is done without a result, because the world has changed.
    // True if a rank is removed without which the work has no meaning: the other rank of a send or
    // receive, or a possible sender of a receive from any source.
    bool lost;
    struct lockstep_work *next_free;
    struct notify_function notify;
    // For each range that the work has borrowed: 1 + its index in works.lent; 0: no range.
    uint32_t lent[LENT_OF_WORK];
    // set when the work is begun, then constant
    uint64_t begun_ms; // By clock_coarse_ms. Not set by work_repeat.
    char name[LOCKSTEP_NAME_BYTES];
    bool asynchronous; // True if the trainer has begun it and does not wait yet.
    // set by plain.c, then constant until the work is freed. kind 0: the rest is not set.
    lockstep_collective_kind kind;
    bool creates; // True if it is the meeting of lockstep_group_create.
    // Of a send or receive in a session that goes on after a death: the sender and the receiver.
    struct collective_part pair[2];
    struct collective_parts both;
    // True if its wait is not reported: a receive from any source, which any of several ranks can
    // end, or a send that may complete before its receive has begun. The wait of such a send is
    // reported if its receiver is behind (collective.held_ms).
    bool passes;
    struct lockstep_group *group; // NULL: all ranks.
    // The place of the root, or of the peer. LOCKSTEP_ANY_SOURCE until a receive from any source
    // has its message (anysource.h).
    uint32_t member;
    uint32_t *sender; // Borrowed: where a receive writes the place of the sender. NULL: nowhere.
    struct list unmatched; // In works.unmatched.
    uint64_t count; // As the trainer gave it, for texts, as the next two.
    uint32_t tag;
    bool varies; // True if the parts have counts of their own.
    struct collective_parts parts; // What `part` has.
    struct collective_part *part; // Owned. NULL: no parts.
    void *copy; // Owned: a copy of the output, which is sent. NULL: none.
    struct stage *stage; // Owned. NULL: all memory is the host's.
};

// The arguments of a plain collective, and the choices that follow from them. works.form keeps the
// trainer's last collective: a call with the same arguments needs no check and no new choice.
struct plain_form {
    char name[LOCKSTEP_NAME_BYTES];
    size_t name_bytes; // Bytes of the name with its NUL; 0: this form is empty.
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;
    uint64_t elements;
    enum plan_algorithm algorithm;
    uint64_t signature;
    struct name_use *use;
};
// Entries of works.all: first those for the trainer, then one for each group of buffers.
#define SESSION_MAX_WORK (LOCKSTEP_MAX_PLAIN + LOCKSTEP_MAX_BUFFER_GROUPS)

// guarded by the session's mutex
struct works {
    struct lockstep_work *all; // [SESSION_MAX_WORK]
    struct lent lent; // Memory that works have borrowed.
    struct lockstep_work *first_free; // Free work for the trainer, most recently freed first.
    uint32_t taken; // Work for the trainer that is not free.
    const struct lockstep_work *awaited; // The work for which a call waits now, or NULL.
    struct name_use *names; // [SESSION_NAME_PLACES]: names.h
    uint32_t names_used;
    uint64_t name_number; // Counts the uses of names of groups.
    struct name_use *made; // [made_places]: how often each group was made. A table as `names`.
    size_t made_places; // A power of two, at least twice made_count, or 0.
    uint32_t made_count;
    // Receives from any source that have no message yet, the oldest first. Each will need one more
    // name.
    struct list unmatched;
    uint32_t unmatched_count; // Also those that are not in the list yet.
    // True from the end of a generation until all of them are launched in the next one (accord.h).
    bool unmatched_held;
    struct notify notify;
    struct lockstep_group *groups; // Open groups, the newest first.
    uint32_t group_count;
    struct plain_form form; // The trainer's last collective.
    struct outcomes outcomes;
    struct work_attempt attempt;
    uint64_t changes_told; // The number of the last change of the world that the trainer knows of.
};

// On whose behalf a collective runs. The trainer may not use names of the library.
enum work_caller {
    CALLER_TRAINER,
    CALLER_LIBRARY,
};

// Hash of the arguments that must be equal on all ranks.
uint64_t work_signature(const struct collective *collective);
// Launches the one or two collectives of the work. Driver.
void work_launch(struct lockstep_work *work);
// The same for a receive from any source that has its message now. Driver.
void work_travel(struct lockstep_work *work);
// One collective of the work is done. Driver.
void work_done(struct lockstep_work *work);
// Completes the work without a launch, if that is possible. Its caller drives and waits for it.
// True: the work is complete; the caller then calls work_exchanged_locked. False: launch the work
// at once. Driver.
bool work_exchange(struct lockstep_work *work);
void work_exchanged_locked(struct lockstep_work *work);
// ---- For plain.c -------------------------------------------------------------------------------

// Returns work for the trainer, or NULL with the error text set. Caller holds the mutex.
struct lockstep_work *work_take_locked(struct lockstep_session *session);
// The work is done, or a death has changed it. Its results are copied to the device first, if that
// is where they belong.
void work_end(struct lockstep_work *work, bool changed);
// Waits for the work, after the command is carried out; NULL: there is none. told: true if the wait
// may be reported (await.h).
int work_await_locked(struct lockstep_work *work, const struct command *command,
                      uint32_t timeout_ms, bool told);
// True if the work is a send or a receive.
bool work_is_pair(const struct lockstep_work *work);
// Sets the way of a small collective of those that take part in the work.
void work_address(const struct lockstep_work *work, struct collective *small);
// Adds a confirmation to the work.
void work_confirm(struct lockstep_work *work);
// The most elements that a collective may have.
uint64_t work_most(const struct lockstep_session *session, enum dtype dtype);

// ---- Named collectives of all ranks ------------------------------------------------------------

// 0, or a failure if an argument of the trainer's collective is invalid.
int work_check(const struct lockstep_session *session, const char *name, uint64_t count,
               const struct collective *like);
// The public collectives without the checks of the public layer; trainer. kind, dtype, op and root
// are taken from `like`. On success *work is in flight.
int work_begin(struct lockstep_session *session, const char *name, void *data, uint64_t count,
               const struct collective *like, struct lockstep_work **work);
int work_wait(struct lockstep_work *work, uint32_t timeout_ms);
// Forgets works.form, because the tuning has changed and with it the choice of algorithms.
void work_forget_form(struct lockstep_session *session);
// work_begin and work_wait in one call, in which the caller drives if it can. After
// LOCKSTEP_E_TIMEOUT the work is still in flight.
int work_call(struct lockstep_session *session, const char *name, void *data, uint64_t count,
              const struct collective *like, uint32_t timeout_ms, struct lockstep_work **work);
// work_begin and work_call run on behalf of the library. These two name the caller. told: true if
// the wait may be reported (await.h).
int work_begin_by(struct lockstep_session *session, enum work_caller caller, const char *name,
                  void *data, uint64_t count, const struct collective *like,
                  struct lockstep_work **work);
int work_call_by(struct lockstep_session *session, enum work_caller caller, const char *name,
                 void *data, uint64_t count, const struct collective *like, uint32_t timeout_ms,
                 bool told, struct lockstep_work **work);
// The trainer goes on with work that a call has not waited for until its end. Trainer.
void work_hand_out(struct lockstep_work *work);
// Begins work that its caller owns and has named. It may be begun again after it was waited for;
// its n-th use meets the n-th use on the other ranks. kind, dtype, op, root, extents and elements
// are taken from `like`. Allocates nothing and cannot fail. Trainer; not in a solo session.
void work_repeat(struct lockstep_work *work, const struct collective *like);

#endif
