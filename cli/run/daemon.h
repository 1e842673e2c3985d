// SPDX-License-Identifier: Apache-2.0
//
// The private coordinator of a run: started as a child, asked for its port, told to go. It is not
// linked.
//
// No other user of the machine gets in. Workers reach it at a socket in a directory of mode 0700.
// Its page is on loopback, where everybody can connect, so the page wants a token. The token is in
// a file of that directory, in the address that is printed, and in the workers' environment; it is
// never in an argument, because every user can read those.
//
// The coordinator of several hosts (options->serves) listens on the network instead. It has the
// certificates of LOCKSTEP_COORDINATOR_TLS_DIR; without them it refuses any address but loopback,
// unless LOCKSTEP_INSECURE_PLAINTEXT=1.
//
// Supervisor's thread; the directory is the launcher's.

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
    pid_t pid; // 0: none, or it has ended.
    uint16_t http_port; // 0: off
    char token[DAEMON_TOKEN_BYTES]; // The token that the page wants.
};

// Makes options->directory, below TMPDIR, or in /tmp where a socket's address would be too long.
// Returns 0, or an exit status after a sentence on stderr.
int daemon_make_directory(struct run_options *options);

// Removes it with what is in it. "": there is none.
void daemon_forget(const char *directory);

// Starts the coordinator; its output goes to ours. It puts its port into a file of the directory
// when it is ready. Returns 0, or an exit status after a sentence on stderr.
int daemon_start(struct daemon *daemon, const struct run_options *options);

// Whether it is ready; fills in the port.
bool daemon_ready(struct daemon *daemon, const struct run_options *options);

// Where workers of this host find a private one: "unix:/tmp/lockstep-a1b2c3/socket".
void daemon_address(const struct run_options *options, char *address, size_t capacity);

// Where its page is, with the token: "http://127.0.0.1:8080/?token=0123...". False: it has none.
bool daemon_dashboard(const struct daemon *daemon, const struct run_options *options, char *address,
                      size_t capacity);

#endif
