// SPDX-License-Identifier: Apache-2.0
//
// The flags of lockstep-coordinator, and the same as environment variables: --log-level is
// LOCKSTEP_COORDINATOR_LOG_LEVEL. A flag wins over its variable. Not a place for policy of the
// daemon; but addresses that must not be listened on are refused here, before anything is opened.
// Main thread, before any other thread runs.

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
    pid_t parent; // 0: whoever is the parent at the start.
    uint32_t chunk_bytes; // 0: the core's default.
    uint32_t drain_ms;
    uint32_t stall_floor_ms; // 0: the core's default.
    uint32_t memory_mib; // That all who are connected may come to.
    const char *token_file; // NULL: none. Borrowed from argv or the environment.
    const char *tls_dir; // NULL: workers speak in plaintext. Borrowed as well.
    bool http_tls; // HTTP too, with the same certificate.
    const char *http_hosts; // Names by which it may be asked in plaintext; NULL: none. Borrowed.
    bool json;
};

enum options_result {
    OPTIONS_RUN,
    OPTIONS_DONE, // --help or --version was answered.
    OPTIONS_USAGE, // error holds a sentence.
};

// Answers --help and --version on out.
enum options_result options_parse(int argc, char **argv, struct options *options, FILE *out,
                                  char *error, size_t error_bytes);

#endif
