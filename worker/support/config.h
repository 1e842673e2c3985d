// SPDX-License-Identifier: Apache-2.0
//
// The effective configuration of a session: what the trainer set, overridden by the environment,
// checked, with every default filled in. Pure but for reading the environment and the host's name.

#ifndef WORKER_SUPPORT_CONFIG_H
#define WORKER_SUPPORT_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "protos/tuning.h"
#include "protos/types.h"

#include <lockstep/lockstep.h>
#include <sched.h>

#define CONFIG_DEVICE_BYTES (8 + 5 * LOCKSTEP_MAX_OWN_DEVICES)

struct config {
    bool solo; // A world of one without a coordinator.
    char coordinator[LOCKSTEP_ADDRESS_BYTES];
    char tls_dir[LOCKSTEP_TEXT_BYTES]; // Empty: the coordinator is spoken to in plaintext.
    char job[LOCKSTEP_JOB_NAME_BYTES];
    char host[LOCKSTEP_HOST_BYTES];
    char host_id[LOCKSTEP_HOST_BYTES];
    uint64_t cores; // As in struct up_hello.
    // As wanted (worker/link/own_address.h); session_join finds out.
    char advertise[LOCKSTEP_ADDRESS_BYTES];
    uint32_t world_min;
    uint32_t world_max;
    uint32_t world_window_ms;
    const char *placed_by; // What says so: a launcher's name (base/launcher.h), or the next line.
#define CONFIG_PLACED_BY_US "lockstep" // LOCKSTEP_* variables, or the trainer's own code.
    bool has_rank_hint;
    uint32_t rank_hint;
    uint32_t open_timeout_ms;
    uint16_t port_first;
    uint16_t port_last;
    lockstep_transport_kind transport;
    uint32_t algorithm; // enum plan_algorithm, or ALGORITHM_BY_SIZE.
    uint64_t latency_ns; // Of links that are not measured, with the next one; 0: they are.
    uint64_t bytes_per_s;
    enum slot_fill slot_fill;
    bool encrypts; // Data links that are not in memory.
    lockstep_on_failure on_failure;
    lockstep_uneven uneven;
    uint64_t bucket_first_bytes;
    uint64_t bucket_bytes; // 0: buckets_default_bytes.
    uint64_t bucket_last_bytes;
    lockstep_log_sink log;
    void *log_context;
    lockstep_log_level log_level;
    uint32_t torn_bytes;
    uint32_t root; // Below world_max; the world that forms may still be smaller.
    bool engine_pinned;
    cpu_set_t engine_cpus; // Where it is.
    int engine_nice; // 0: as it is.
    char trace_dir[LOCKSTEP_TEXT_BYTES]; // Empty: none.
    lockstep_order order;
    lockstep_unplanned unplanned;
    uint32_t trainer_threads; // At least 1.
    bool wait_while_open;
    uint32_t halt_timeout_ms; // 0: none.
    uint32_t abort_ms; // Of a communicator of NCCL. 0: the default of the transport.
    char device[CONFIG_DEVICE_BYTES]; // "none", "auto", "cuda:N", "cuda:N,M".
};

// What the policies are called in the environment and in the manifest, by their numbers.
#define CONFIG_ORDERS 2
#define CONFIG_UNPLANNED 3
extern const char *const config_orders[CONFIG_ORDERS];
extern const char *const config_unplanned[CONFIG_UNPLANNED];

// 0, or LOCKSTEP_E_CONFIG / LOCKSTEP_E_UNSUPPORTED / LOCKSTEP_E_INVALID with the error text set.
int config_resolve(const struct lockstep_config *given, struct config *config);

// The devices of "cuda:0,1", one after the other: *rest is behind the colon at first, and "" behind
// the last. False: it is no number of a device.
#define CONFIG_DEVICE_KIND "cuda:"
bool config_next_device(const char **rest, uint64_t *number);

// Reads a variable that holds a number. *to stays as it is where the variable is not set.
// 0, or LOCKSTEP_E_CONFIG.
int config_number(const char *name, uint64_t maximum, uint32_t *to);
// Copies a text that has to fit and to be UTF-8; NULL copies nothing. 0, or LOCKSTEP_E_CONFIG, with
// what in the error text.
int config_string(char *to, size_t bytes, const char *from, const char *what);

#endif
