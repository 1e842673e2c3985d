// SPDX-License-Identifier: Apache-2.0
//
// struct lockstep_session, which consists of parts. Each part has a header of its own. A comment
// beside a field, or above its struct, says which threads may touch the field, in the words below.
// docs/internals/threading.md describes all threads.
//
//   trainer   the threads of the program that call the public functions
//   driver    the thread that has the right to drive (drive.h): it owns the transport, the order
//             core and every collective. It is the engine thread, one per session, or a trainer
//             thread inside a call that blocks
//   control   one thread per session, inside worker/control/grpc.c: moves control messages
//
// Lock order: session.mutex is a leaf; nothing else is locked while it is held, and no callback of
// the user runs under it.

#ifndef WORKER_SESSION_SESSION_H
#define WORKER_SESSION_SESSION_H

#include "base/log.h"
#include "base/mutex.h"
#include "worker/control/control.h"
#include "worker/session/await.h"
#include "worker/session/buffers.h"
#include "worker/session/command.h"
#include "worker/session/counters.h"
#include "worker/session/devices.h"
#include "worker/session/drive.h"
#include "worker/session/driven.h"
#include "worker/session/exit.h"
#include "worker/session/gate.h"
#include "worker/session/memory.h"
#include "worker/session/module/module.h"
#include "worker/session/module/places.h"
#include "worker/session/module/sets.h"
#include "worker/session/note.h"
#include "worker/session/step.h"
#include "worker/session/work.h"
#include "worker/session/world.h"
#include "worker/support/config.h"
#include "worker/transport/transport.h"
#include "worker/watch/progress.h"
#include "worker/watch/trace.h"

#include <lockstep/lockstep.h>
#include <stdatomic.h>
#include <stdio.h>

#define SESSION_INBOX 8192 // Commands for which the inbox has room.

// What lockstep_start has heard from the driver.
struct answered {
    bool verified; // True if the manifests of the present or last lockstep_start are equal.
    bool grouped; // True if some rank has registered modules with a group then.
    bool ever_grouped; // True if `grouped` was true after any lockstep_start.
    bool reserved; // True if the driver has carried out the last COMMAND_RESERVE.
};

struct lockstep_session {
    // set at open, then constant
    struct config config;
    struct log log;
    struct uuid uuid;
    char address[LOCKSTEP_ADDRESS_BYTES]; // This rank's address in the data plane.
    struct control *control; // NULL in a solo session.
    struct transport *transport; // NULL in a solo session.
    struct own_devices devices;
    struct lockstep_session *next_open; // guarded by the list of open sessions (fork.c)
    struct trace trace; // Its content is atomic.
    struct progress *progress; // Lies in the trace's memory.
    struct tracker tracker; // Writes the trainer's progress into *progress.
    struct watch *watch; // NULL in a solo session.
    struct telling telling;

    struct session_world world;

    // trainer; the driver reads them while a step is open or lockstep_start has not been answered
    // First the modules that all ranks have, then those of groups.
    struct lockstep_module *modules[LOCKSTEP_MAX_MODULES];
    uint32_t module_count;
    uint32_t common_count; // Modules that all ranks have.
    uint32_t tensor_count; // Parameters and buffers of all modules.
    uint64_t manifest_hash;
    bool started; // True if lockstep_start has returned and the modules are the same since.
    uint64_t starts; // Calls of lockstep_start that have sent UP_START.
    struct training training;
    struct buffers buffers;
    struct given_memory memory; // trainer
    struct step step;

    // driver only
    struct engine_state engine;
    struct engine_end end;
    struct landing landing;

    // guarded by mutex
    struct mutex mutex;
    struct drive drive;
    struct list call_waiters; // struct call_waiter, oldest first.
    struct answered answered;
    struct works works;
    struct awaiting awaiting;
    struct counters counters;

    struct places places;
    struct note note;
    struct gate gate;
    atomic_uint waiting; // Threads in lockstep_call_wait.
    struct tallies tallies;
};

#endif
