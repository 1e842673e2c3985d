// SPDX-License-Identifier: Apache-2.0
//
// The flags of lockstep-coordinator, and the environment variables that mean the same: --log-level
// is LOCKSTEP_COORDINATOR_LOG_LEVEL. A flag overrides its variable. Addresses that must not be
// listened on are refused here, before anything is opened. Main thread, before any other thread
// runs.

#ifndef LOCKSTEP_SERVER_OPTIONS_H
#define LOCKSTEP_SERVER_OPTIONS_H

#include "base/log.h"
#include "server/state/endpoint.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define SERVER_VERSION "0.1.0"

struct options {
    struct endpoint listen;
    struct endpoint http;
    bool http_off;
    bool insecure_plaintext;
    enum log_level log_level;
    const char *port_file; // NULL: none. Borrowed from argv or the environment.
    bool parent_death;
    pid_t parent; // 0: the parent at the start.
    // parent_death: how long no worker is connected before an orphan drains. 0: it drains at once.
    uint32_t outlive_ms;
    bool launcher; // True if the standard input is a socket to a launcher (launcher.h).
    uint32_t chunk_bytes; // 0: the core's default.
    uint32_t drain_ms;
    uint32_t stall_floor_ms; // 0: the core's default.
    uint32_t memory_mib; // Memory of the process, in MiB, above which connections are ended.
    const char *token_file; // NULL: none. Borrowed from argv or the environment.
    const char *tls_dir; // NULL: workers use plaintext. Borrowed from argv or the environment.
    bool http_tls; // True if HTTP uses TLS too, with the same certificate.
    // Host names by which clients may address the HTTP server in plaintext; NULL: none. Borrowed.
    const char *http_hosts;
    bool json;
};

enum options_result {
    OPTIONS_RUN,
    OPTIONS_DONE, // --help or --version was answered.
    OPTIONS_USAGE, // error holds a sentence.
};

// Reads the flags and variables into options. Writes the answers to --help and --version to out.
enum options_result options_parse(int argc, char **argv, struct options *options, FILE *out,
                                  char *error, size_t error_bytes);

#endif
