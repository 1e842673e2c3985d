// SPDX-License-Identifier: Apache-2.0
//
// The private coordinator of a run: it is started as a child process, reports its port, and is
// stopped with a signal. Its code is not linked into this program.
//
// No other user of the machine has access. Workers connect to a socket in a directory of mode 0700.
// The page is on loopback, where every user can connect, so the page needs a token. The token is in
// a file of that directory, in the address that is printed, and in the workers' environment. It is
// never in an argument, because every user can read arguments.
//
// The coordinator of several hosts (options->serves) listens on the network instead. It uses the
// certificates of LOCKSTEP_COORDINATOR_TLS_DIR. Without them it accepts only a loopback address,
// unless LOCKSTEP_INSECURE_PLAINTEXT=1.
//
// Supervisor's thread. The launcher's thread makes and removes the directory.

#ifndef LOCKSTEP_CLI_RUN_DAEMON_H
#define LOCKSTEP_CLI_RUN_DAEMON_H

#include "cli/run/run.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DAEMON_START_MS 10000
#define DAEMON_DRAIN_MS 5000 // Time in which workers of other hosts leave after SIGTERM.
#define DAEMON_TOKEN_BYTES 65 // 32 random bytes as hexadecimal digits.
#define DAEMON_DASHBOARD_BYTES (LOCKSTEP_ADDRESS_BYTES + DAEMON_TOKEN_BYTES + 32)

struct daemon {
    pid_t pid; // 0: not started, or ended.
    uint16_t http_port; // 0: HTTP is off.
    // The address for workers, if options->coordinator has port 0, which is any port; "": that one.
    char served[LOCKSTEP_ADDRESS_BYTES];
    char token[DAEMON_TOKEN_BYTES]; // The token that the page needs.
};

// Makes options->directory below TMPDIR, or in /tmp if the socket's path would be too long. Returns
// 0, or an exit status after a sentence on stderr.
int daemon_make_directory(struct run_options *options);

// Removes the directory and its files. "": there is no directory.
void daemon_forget(const char *directory);

// Starts the coordinator. socket: the coordinator's end of a socket to this launcher (joins.h).
// output_fd becomes its stdout and stderr; -1: it inherits ours. When it is ready, it writes its
// port into a file of the directory. Returns 0, or an exit status after a sentence on stderr.
int daemon_start(struct daemon *daemon, const struct run_options *options, int socket,
                 int output_fd);

// Returns true if the coordinator is ready, and sets the port.
bool daemon_ready(struct daemon *daemon, const struct run_options *options);

// Says on stderr that the coordinator has ended. trains: workers still run.
void daemon_say_end(const struct run_options *options, int status, bool trains);

// Writes the address of a private coordinator for workers of this host:
// "unix:/tmp/lockstep-a1b2c3/socket".
void daemon_address(const struct run_options *options, char *address, size_t capacity);

// Writes the address of the coordinator's page, with the token:
// "http://127.0.0.1:8080/?token=0123...". Returns false if it has no page.
bool daemon_dashboard(const struct daemon *daemon, const struct run_options *options, char *address,
                      size_t capacity);

#endif
