// SPDX-License-Identifier: Apache-2.0
//
// The private coordinator of a run: started as a child, asked for its ports, told to go. It is not
// linked. Supervisor's thread.

#ifndef LOCKSTEP_CLI_DAEMON_H
#define LOCKSTEP_CLI_DAEMON_H

#include "cli/run.h"

#include <stdbool.h>
#include <stdint.h>

#define DAEMON_START_MS 10000

struct daemon {
    pid_t pid; // 0: none, or it has ended.
    uint16_t grpc_port;
    uint16_t http_port; // 0: off
};

// Starts it; its own output goes to error_fd (negative: to our stderr). It puts its ports into a
// file of a private directory; daemon_ports reads it.
// Returns 0, or an exit status after a sentence on stderr.
int daemon_start(struct daemon *daemon, const struct run_options *options, int error_fd,
                 char *directory, size_t capacity);

// Whether the port file is there; fills in the ports.
bool daemon_ports(struct daemon *daemon, const char *directory);

// Removes the private directory.
void daemon_forget(const char *directory);

#endif
