// SPDX-License-Identifier: Apache-2.0
//
// The commands that other threads put into the inbox of a session for its driver.

#ifndef WORKER_SESSION_COMMAND_H
#define WORKER_SESSION_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

struct down_message;
struct lockstep_work;

// Behind each kind: the members of struct command that it has.
enum command_kind {
    COMMAND_STEP_OPEN, // step
    COMMAND_STEP_SKIP, // step: one that was opened and not run
    COMMAND_STEP_BEGIN, // phase
    COMMAND_READY, // module, call, bucket
    COMMAND_CALL_BEGIN, // module, call. Only with config.wait_while_open.
    COMMAND_CALL_END, // module, call. Only with config.wait_while_open.
    COMMAND_CALLS_OVER, // module, call: this separate call and later ones are not made in this step
    COMMAND_WAIT_BEGIN, // module, call. Gets one answer in struct call_waiter, as the next two do.
    COMMAND_WAIT_ASK, // module, call. The thread asks whether the results are there.
    COMMAND_WAIT_END, // module, call. The thread's timeout is over.
    COMMAND_STEP_END, // by_stream
    COMMAND_PLAIN, // work
    COMMAND_START, // lockstep_start: send the manifest's hash
    COMMAND_GROUPED, // lockstep_start: say which modules of groups this rank has
    COMMAND_RESERVE, // lockstep_start on a rank with devices: reserve device memory for the layouts
    // The commands from here on are not part of the trainer's steps and collectives. After an abort
    // the driver still carries them out.
    COMMAND_MESSAGE, // message
    COMMAND_LACK, // A message of the coordinator was dropped, because there was no memory for it.
    COMMAND_CONTROL_ENDED, // text
    COMMAND_CONTROL_STANDS, // Another control stream stands.
    COMMAND_ABORT, // text, status
    COMMAND_INSPECT, // The watch asks for the state that only the driver may read.
    COMMAND_STOP, // leaves
};

struct command {
    enum command_kind kind;
    union {
        struct {
            uint32_t module;
            uint32_t call; // The index of the call's contribution.
            uint32_t bucket;
        };
        uint64_t step;
        uint64_t phase; // Hash of the phase.
        bool by_stream; // True if the trainer ends the step by a stream.
        bool leaves; // True if the driver sends this rank's last frames before it ends.
        struct lockstep_work *work; // Borrowed until the work is done.
        struct down_message *message; // Given.
        struct {
            char *text; // Given.
            int status;
        };
    };
};

#endif
