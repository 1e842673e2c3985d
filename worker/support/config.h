// SPDX-License-Identifier: Apache-2.0
//
// The effective configuration of a session: what the trainer set, overridden by the environment,
// checked, with every default filled in. Reads the environment and the host's name, and has no
// other effect than an error text. Runs on the thread that opens.

#ifndef WORKER_SUPPORT_CONFIG_H
#define WORKER_SUPPORT_CONFIG_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "protos/tuning.h"
#include "protos/types.h"

#include <lockstep/lockstep.h>
#include <sched.h>

#define CONFIG_DEVICE_BYTES (8 + 5 * LOCKSTEP_MAX_OWN_DEVICES)

// The place in the world. config_place.c fills it in.
struct config_world {
    uint32_t min; // Ranks: the smallest world that may form.
    uint32_t max; // Ranks: the largest world that may form.
    uint32_t window_ms; // How long a world between the two waits for more ranks.
    const char *placed_by; // A launcher's name (base/launcher.h), or CONFIG_PLACED_BY_US.
    bool has_rank_hint;
    uint32_t rank_hint; // The rank wished for, below max.
};
// LOCKSTEP_* variables, or the trainer's own code.
#define CONFIG_PLACED_BY_US "lockstep"

// The engine's thread.
struct config_engine {
    bool pinned; // True if the thread runs on `cpus` only.
    cpu_set_t cpus;
    int nice; // 0: as the process.
};

// The largest sizes of buckets, as in struct lockstep_config.
struct config_buckets {
    uint64_t first_bytes;
    uint64_t bytes; // 0: buckets_default_bytes.
    uint64_t last_bytes;
};

// For tests: loopback links of sessions that are opened later move at most so many bytes at once.
// 0, the value at start: no limit.
extern _Atomic(uint32_t) config_torn_bytes;

struct config {
    bool solo; // True for a world of one without a coordinator.
    char coordinator[LOCKSTEP_ADDRESS_BYTES];
    char tls_dir[LOCKSTEP_TEXT_BYTES]; // Empty: the coordinator is spoken to in plaintext.
    char job[LOCKSTEP_JOB_NAME_BYTES];
    char host[LOCKSTEP_HOST_BYTES];
    char host_id[LOCKSTEP_HOST_BYTES];
    uint64_t cores; // As in struct up_hello.
    // The address that was asked for (worker/link/own_address.h); session_join finds the real one.
    char advertise[LOCKSTEP_ADDRESS_BYTES];
    struct config_world world;
    uint32_t open_timeout_ms;
    uint16_t port_first; // Of the data ports; 0: any port.
    uint16_t port_last;
    lockstep_transport_kind transport;
    uint32_t algorithm; // enum plan_algorithm, or ALGORITHM_BY_SIZE.
    uint64_t latency_ns; // Of a link, together with bytes_per_s; 0: both are measured.
    uint64_t bytes_per_s;
    enum slot_fill slot_fill;
    bool encrypts; // True if data links that are not in memory are encrypted.
    lockstep_on_failure on_failure;
    lockstep_uneven uneven;
    struct config_buckets buckets;
    lockstep_log_sink log;
    void *log_context;
    lockstep_log_level log_level;
    uint32_t torn_bytes; // config_torn_bytes at lockstep_open.
    uint32_t root; // A rank below world.max; the world that forms may still be smaller.
    struct config_engine engine;
    char trace_dir[LOCKSTEP_TEXT_BYTES]; // Empty: no trace is written.
    lockstep_order order;
    lockstep_unplanned unplanned;
    uint32_t trainer_threads; // At least 1.
    bool wait_while_open;
    uint32_t halt_timeout_ms; // 0: no timeout.
    uint32_t abort_ms; // Most time that aborting a communicator of NCCL takes; 0: the default.
    char device[CONFIG_DEVICE_BYTES]; // "none", "auto", "cuda:N", "cuda:N,M".
};

#define CONFIG_DEFAULT_JOB "default"

// The names of the policies in the environment and in the manifest, by their numbers.
#define CONFIG_ORDERS 2
#define CONFIG_UNPLANNED 3
extern const char *const config_orders[CONFIG_ORDERS];
extern const char *const config_unplanned[CONFIG_UNPLANNED];

// 0, or LOCKSTEP_E_CONFIG / LOCKSTEP_E_UNSUPPORTED / LOCKSTEP_E_INVALID with the error text set.
int config_resolve(const struct lockstep_config *given, struct config *config);

// Reads the devices of "cuda:0,1" one after the other. *rest points behind the colon at first, and
// at "" behind the last device. False if there is no number of a device.
#define CONFIG_DEVICE_KIND "cuda:"
bool config_next_device(const char **rest, uint64_t *number);

// The value of an environment variable; an empty one counts as not set.
const char *config_environment(const char *name);
// Reads a variable that holds a number. *to stays as it is if the variable is not set.
// 0, or LOCKSTEP_E_CONFIG.
int config_number(const char *name, uint64_t maximum, uint32_t *to);
// Copies a text, which must fit and be UTF-8; NULL copies nothing. 0, or LOCKSTEP_E_CONFIG with
// `what` in the error text.
int config_string(char *to, size_t bytes, const char *from, const char *what);

#endif
