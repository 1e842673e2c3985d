// SPDX-License-Identifier: Apache-2.0
//
// Plain collectives, as work.c keeps them; worker/api/collective.c has the public functions.

#ifndef WORKER_SESSION_WORK_H
#define WORKER_SESSION_WORK_H

#include "worker/transport/flow/collective.h"

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct command;
struct up_heartbeat;

enum work_state {
    WORK_FREE = 0,
    WORK_IN_FLIGHT,
    WORK_DONE,
};

struct lockstep_work {
    struct lockstep_session *session;
    uint32_t uses; // trainer; counts the uses of work that repeats, see work_repeat.
    // driver only while in flight
    struct collective collective;
    struct collective confirmation; // For a broadcast: all ranks began the same one.
    bool confirmed; // True if there is a confirmation.
    uint32_t missing; // Collectives that are not done yet: 0 to 2.
    struct extent extent;
    struct extent barrier_extent;
    int32_t barrier; // The element of a barrier, or of a confirmation.
    // guarded by session.mutex
    enum work_state state;
    struct lockstep_work *next_free;
    uint32_t lent; // 1 + its place in works.lent; 0: it has borrowed no memory.
    // set when it is begun, then constant
    uint64_t begun_ms; // By clock_coarse_ms; for the trainer's work.
    char name[LOCKSTEP_NAME_BYTES];
};

// The memory that plain collectives have borrowed, until they were waited for.
struct lent_range {
    uintptr_t begin;
    uintptr_t end;
};

// The uses of a name so far: the k-th use here meets the k-th use on the other ranks.
struct name_use {
    uint64_t hash; // 0: free.
    uint32_t uses;
};
#define SESSION_MAX_NAMES 4096

// The trainer's last collective. The same one called again needs no check and no choice.
struct plain_form {
    char name[LOCKSTEP_NAME_BYTES]; // "": nothing.
    size_t name_bytes; // Bytes of the name with its NUL; 0: there is no form.
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;
    uint64_t elements;
    enum plan_algorithm algorithm;
    uint64_t signature;
    struct name_use *use;
};
// Work of the trainer, then of the groups of buffers.
#define SESSION_MAX_WORK (LOCKSTEP_MAX_PLAIN + LOCKSTEP_MAX_BUFFER_GROUPS)

// guarded by the session's mutex
struct works {
    struct lockstep_work *all; // [SESSION_MAX_WORK]
    struct lent_range lent[LOCKSTEP_MAX_PLAIN]; // [lent_count]
    struct lockstep_work *lent_to[LOCKSTEP_MAX_PLAIN]; // [lent_count]: whose ranges these are.
    uint32_t lent_count;
    struct lockstep_work *first_free; // The trainer's; the one that became free last comes first.
    uint32_t taken; // The trainer's that are not free.
    const struct lockstep_work *awaited; // The last work that a call waits for, or NULL.
    struct name_use *names; // [SESSION_MAX_NAMES]
    struct plain_form form;
};

// Names that the trainer uses are not the library's.
enum work_caller {
    CALLER_TRAINER,
    CALLER_LIBRARY,
};

uint64_t work_signature(const struct collective *collective);
// Sets the collective of the trainer that a thread waits for, and the oldest ones that are in
// flight for longer than LOCKSTEP_OVERDUE_MS. Watch thread.
void work_tell(struct lockstep_session *session, struct up_heartbeat *beat);
// Writes how the trainer called it: "lockstep_allreduce with 4 elements of float32, sum". "": the
// library called it. text has room for LOCKSTEP_FORM_BYTES.
void work_form(const struct lockstep_work *work, char *text, size_t bytes);
// Launches what the work consists of; one part of it is done. Driver.
void work_launch(struct lockstep_work *work);
void work_done(struct lockstep_work *work);
// Carries out work whose caller waits for it and drives, without a launch, if that is possible.
// True: the work is complete, and only its caller knows of it. False: it is to be launched at once.
// Driver.
bool work_exchange(struct lockstep_work *work);
void work_exchanged_locked(struct lockstep_work *work);
// 0, or a failure: the trainer's arguments of a collective are wrong.
int work_check(const struct lockstep_session *session, const char *name, uint64_t count,
               const struct collective *like);
// The public collectives without the checks of the public layer; trainer. kind, dtype, op and root
// are taken from `like`. On success *work is in flight.
int work_begin(struct lockstep_session *session, const char *name, void *data, uint64_t count,
               const struct collective *like, struct lockstep_work **work);
int work_wait(struct lockstep_work *work, uint32_t timeout_ms);
// The tuning has changed.
void work_forget_form(struct lockstep_session *session);
// Both in one, in which the caller drives where it can. With LOCKSTEP_E_TIMEOUT it is in flight.
int work_call(struct lockstep_session *session, const char *name, void *data, uint64_t count,
              const struct collective *like, uint32_t timeout_ms, struct lockstep_work **work);
// The same two functions for either caller.
int work_begin_by(struct lockstep_session *session, enum work_caller caller, const char *name,
                  void *data, uint64_t count, const struct collective *like,
                  struct lockstep_work **work);
int work_call_by(struct lockstep_session *session, enum work_caller caller, const char *name,
                 void *data, uint64_t count, const struct collective *like, uint32_t timeout_ms,
                 struct lockstep_work **work);
// Begins work that its caller keeps and has named, over the extents of `like`: the n-th time here
// meets the n-th time on the other ranks. kind, dtype, op, root, extents and elements are taken
// from `like`. Allocates nothing and cannot fail. Trainer; not in a solo session.
void work_repeat(struct lockstep_work *work, const struct collective *like);

#endif
