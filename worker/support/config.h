// SPDX-License-Identifier: Apache-2.0
//
// The effective configuration of a session: the trainer's values, overridden by the environment,
// checked, and with every default filled in. The functions read the environment and the host's
// name; their only other effect is an error text. Runs on the thread that opens the session.

#ifndef WORKER_SUPPORT_CONFIG_H
#define WORKER_SUPPORT_CONFIG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "protos/tuning.h"
#include "protos/types.h"
#include "protos/world_place.h"

#include <lockstep/lockstep.h>
#include <sched.h>

#define CONFIG_DEVICE_BYTES (8 + 5 * LOCKSTEP_MAX_OWN_DEVICES)

// Settings of the engine's thread.
struct config_engine {
    bool pinned; // True if the thread runs on `cpus` only.
    cpu_set_t cpus;
    int nice; // The thread's nice value; 0: the same as the process.
};

// The largest sizes of buckets, in bytes, as in struct lockstep_config.
struct config_buckets {
    uint64_t first_bytes;
    uint64_t bytes; // 0: buckets_default_bytes.
    uint64_t last_bytes;
};

// For tests: most bytes that one read or write moves on loopback links of sessions that are opened
// later. 0, the value at start: no limit.
extern _Atomic(uint32_t) config_torn_bytes;

struct config {
    bool solo; // True for a world of one without a coordinator.
    char coordinator[LOCKSTEP_COORDINATOR_BYTES]; // Addresses, separated by commas.
    char tls_dir[LOCKSTEP_TEXT_BYTES]; // Empty: the connection to the coordinator is plaintext.
    char job[LOCKSTEP_JOB_NAME_BYTES];
    char host[LOCKSTEP_HOST_BYTES];
    char host_id[LOCKSTEP_HOST_BYTES];
    uint64_t cores; // Hash of the host and of this process's cores, as in struct up_hello.
    // The address as the user gave it (worker/link/own_address.h); session_join finds the real
    // address.
    char advertise[LOCKSTEP_ADDRESS_BYTES];
    struct world_place world;
    uint32_t open_timeout_ms;
    uint16_t port_first; // First port of the data ports; 0: any port.
    uint16_t port_last;
    lockstep_transport_kind transport;
    uint32_t algorithm; // enum plan_algorithm, or ALGORITHM_BY_SIZE.
    bool sums_ranks; // True if LOCKSTEP_SUM=ranks (config.sum) has chosen the algorithm.
    uint32_t virtual_ranks; // Leaves of the job; 0: none.
    // Latency of a link in nanoseconds. 0 in both this field and bytes_per_s: both are measured.
    uint64_t latency_ns;
    uint64_t bytes_per_s;
    enum slot_fill slot_fill;
    bool encrypts; // True if data links are encrypted, except links in memory.
    lockstep_on_failure on_failure;
    lockstep_uneven uneven;
    struct config_buckets buckets;
    lockstep_log_sink log;
    void *log_context;
    lockstep_log_level log_level;
    bool logs_to_stderr; // True if LOCKSTEP_LOG is set and there is no sink.
    uint32_t torn_bytes; // config_torn_bytes at lockstep_open.
    uint32_t root; // A rank below world.max; the world that forms may still be smaller.
    struct config_engine engine;
    char trace_dir[LOCKSTEP_TEXT_BYTES]; // Empty: no trace is written.
    lockstep_order order;
    lockstep_unplanned unplanned;
    uint32_t trainer_threads; // At least 1.
    bool wait_while_open;
    uint32_t halt_timeout_ms; // 0: no timeout.
    uint32_t away_timeout_ms; // How long a rank that needs a lost coordinator waits; 0: for ever.
    bool gradient_norm; // True if reports have the norm of the gradients.
    uint32_t abort_ms; // Milliseconds that aborting an NCCL communicator may take; 0: the default.
    char device[CONFIG_DEVICE_BYTES]; // "none", "auto", "cuda:N", "cuda:N,M".
};

#define CONFIG_AWAY_TIMEOUT_MS (10 * 60 * 1000)

// The names of the policies in the environment and in the manifest; the index is the policy's
// number.
#define CONFIG_ORDERS 2
#define CONFIG_UNPLANNED 3
extern const char *const config_orders[CONFIG_ORDERS];
extern const char *const config_unplanned[CONFIG_UNPLANNED];

// Returns 0, or LOCKSTEP_E_CONFIG / LOCKSTEP_E_UNSUPPORTED / LOCKSTEP_E_INVALID with the error text
// set.
int config_resolve(const struct lockstep_config *given, struct config *config);

// Returns the value of an environment variable; NULL if the variable is not set or is empty.
const char *config_environment(const char *name);
// Reads one of `count` words from the environment: *to becomes its number. If the variable is not
// set, *to keeps the trainer's value. 0, or LOCKSTEP_E_CONFIG.
int config_word(const char *name, const char *const *words, uint32_t count, uint32_t *to);
// Reads a variable that holds a number. *to stays as it is if the variable is not set. Returns 0,
// or LOCKSTEP_E_CONFIG.
int config_number(const char *name, uint32_t maximum, uint32_t *to);
// Copies a text, which must fit and be UTF-8; NULL copies nothing. Returns 0, or LOCKSTEP_E_CONFIG
// with `what` in the error text.
int config_string(char *to, size_t bytes, const char *from, const char *what);

#endif
