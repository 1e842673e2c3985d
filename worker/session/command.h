// SPDX-License-Identifier: Apache-2.0
//
// The commands that other threads put into the inbox of a session for its driver.

#ifndef WORKER_SESSION_COMMAND_H
#define WORKER_SESSION_COMMAND_H

#include <stdint.h>

enum command_kind {
    COMMAND_STEP_OPEN, // value: step
    COMMAND_STEP_SKIP, // value: the number of a step that was opened and not run
    COMMAND_STEP_BEGIN, // value: phase hash
    COMMAND_READY, // module, call, bucket
    COMMAND_CALL_BEGIN, // module, call. Only with config.wait_while_open.
    COMMAND_CALL_END, // module, call. Only with config.wait_while_open.
    COMMAND_WAIT_BEGIN, // module, call. Gets one answer in struct call_waiter, as the next two do.
    COMMAND_WAIT_ASK, // module, call. The thread asks whether the results are there.
    COMMAND_WAIT_END, // module, call. The thread's timeout is over.
    COMMAND_STEP_END, // value: 1 if the trainer ends the step by a stream, else 0
    COMMAND_PLAIN, // pointer: struct lockstep_work
    COMMAND_START, // lockstep_start: send the manifest's hash
    COMMAND_GROUPED, // lockstep_start: say which modules of groups this rank has
    COMMAND_RESERVE, // lockstep_start on a rank with devices: reserve device memory for the layouts
    // The commands from here on are not part of the trainer's steps and collectives. After an abort
    // the driver still carries them out.
    COMMAND_MESSAGE, // pointer: struct down_message, given
    COMMAND_LACK, // There was no memory for a message of the coordinator.
    COMMAND_CONTROL_ENDED, // pointer: text, given
    COMMAND_CONTROL_STANDS, // Another control stream stands.
    COMMAND_ABORT, // pointer: text, given; value: the status without its sign
    COMMAND_INSPECT, // The watch asks for the state that only the driver may read.
    COMMAND_STOP, // value: 1 to send this rank's last frames first, 0 to end at once
};

struct command {
    enum command_kind kind;
    uint32_t module;
    uint32_t call; // The index of the call's contribution.
    uint32_t bucket;
    uint64_t value;
    void *pointer;
};

#endif
