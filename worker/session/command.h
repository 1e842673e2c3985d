// SPDX-License-Identifier: Apache-2.0
//
// The commands in the inbox of a session, which other threads give to its driver.

#ifndef WORKER_SESSION_COMMAND_H
#define WORKER_SESSION_COMMAND_H

#include <stdint.h>

enum command_kind {
    COMMAND_STEP_OPEN, // value: step
    COMMAND_STEP_BEGIN, // value: phase hash
    COMMAND_READY, // module, call, bucket
    COMMAND_CALL_BEGIN, // module, call. Given with config.wait_while_open only.
    COMMAND_CALL_END, // module, call. The same.
    COMMAND_WAIT_BEGIN, // module, call. Each is answered once, see struct call_waiter.
    COMMAND_WAIT_ASK, // module, call
    COMMAND_WAIT_END, // module, call: its time is over
    COMMAND_STEP_END, // value: 1 by a stream
    COMMAND_PLAIN, // pointer: struct lockstep_work
    COMMAND_START, // lockstep_start: send the manifest's hash
    COMMAND_RESERVE, // lockstep_start, where ranks have devices: make room for what was agreed
    // The commands from here on do not come from the trainer's work: an abort does not stop them.
    COMMAND_MESSAGE, // pointer: struct down_message, given
    COMMAND_CONTROL_ENDED, // pointer: text, given
    COMMAND_ABORT, // pointer: text, given; value: the status without its sign
    COMMAND_INSPECT, // The watch asks what only the driver knows.
    COMMAND_STOP, // value: 1 leave in good order, 0 at once
};

struct command {
    enum command_kind kind;
    uint32_t module;
    uint32_t call; // The index of its contribution.
    uint32_t bucket;
    uint64_t value;
    void *pointer;
};

#endif
