// SPDX-License-Identifier: Apache-2.0
//
// Reads the configuration: first the trainer's structure, then the environment, then checks. Runs
// on the thread that opens the session.

#include "worker/support/config.h"

#include "base/hash64.h"
#include "base/parse.h"
#include "base/setting.h"
#include "base/text.h"
#include "base/utf8.h"
#include "base/variables.h"
#include "protos/tuning.h"
#include "worker/support/config_device.h"
#include "worker/support/config_travel.h"
#include "worker/support/error.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024u * 1024u)
#define BOOT_ID_BYTES 64

const char *const config_orders[] = {"error", "zero_defer"};
const char *const config_unplanned[] = {"extend", "fail", "defer"};
_Atomic(uint32_t) config_torn_bytes;

static const char *const config_encryptions[] = {"off", "tls"};
static const char *const config_failures[] = {"error", "continue"};
static const char *const config_levels[] = {"error", "warn", "info", "debug"};

const char *config_environment(const char *name)
{
    return setting_get(name);
}

// Returns 0, or LOCKSTEP_E_CONFIG if a function that reads settings has failed.
static int config_said(int result, const char *error)
{
    return result == 0 ? 0 : error_set(LOCKSTEP_E_CONFIG, "%s", error);
}

// A LOCKSTEP_ variable that no code reads is reported as misspelt.
static int config_spelling(void)
{
    char error[LOCKSTEP_TEXT_BYTES];
    return config_said(variables_check(environ, error, sizeof(error)), error);
}

int config_string(char *to, size_t bytes, const char *from, const char *what)
{
    char error[LOCKSTEP_TEXT_BYTES];
    return config_said(setting_copy(to, bytes, from, what, error, sizeof(error)), error);
}

int config_number(const char *name, uint32_t maximum, uint32_t *to)
{
    char error[LOCKSTEP_TEXT_BYTES];
    return config_said(setting_number(name, maximum, to, error, sizeof(error)), error);
}

// The caller's structure may be older and shorter than this library's structure. The missing fields
// get defaults.
static int config_widen(const struct lockstep_config *given, struct lockstep_config *whole)
{
    const struct lockstep_config defaults = LOCKSTEP_CONFIG_INIT;
    *whole = defaults;
    if (!given)
        return 0;
    if (given->struct_bytes < offsetof(struct lockstep_config, job) ||
        given->struct_bytes > sizeof(*whole))
        return error_set(LOCKSTEP_E_INVALID,
                         "config.struct_bytes is %zu; begin with LOCKSTEP_CONFIG_INIT, and load a "
                         "library that is not older than the header",
                         given->struct_bytes);
    memcpy(whole, given, given->struct_bytes);
    whole->struct_bytes = sizeof(*whole);
    return 0;
}

static struct world_wish config_wish(const struct lockstep_config *given)
{
    return (struct world_wish){.coordinator = given->coordinator,
                               .job = given->job,
                               .size = given->world_size,
                               .min = given->world_min,
                               .max = given->world_max,
                               .window_ms = given->world_window_ms,
                               .rank_hint = given->rank_hint};
}

static void config_take_job(struct config *config, const struct world_job *job)
{
    config->solo = job->solo;
    memcpy(config->coordinator, job->coordinator, sizeof(config->coordinator));
    memcpy(config->job, job->name, sizeof(config->job));
}

static int config_names(const struct lockstep_config *given, struct config *config)
{
    char error[LOCKSTEP_TEXT_BYTES];
    const struct world_wish wish = config_wish(given);
    const char *advertise = config_environment("LOCKSTEP_ADVERTISE");
    struct world_job job;
    const int status = config_said(world_place_job(&wish, &job, error, sizeof(error)), error);
    if (status < 0)
        return status;
    config_take_job(config, &job);
    return config_string(config->advertise, sizeof(config->advertise),
                         advertise ? advertise : given->advertise,
                         "the advertised address (LOCKSTEP_ADVERTISE, config.advertise)");
}

static int config_place(const struct lockstep_config *given, struct config *config)
{
    char error[LOCKSTEP_TEXT_BYTES];
    const struct world_wish wish = config_wish(given);
    struct launcher_place launcher;
    struct world_job job;
    int status = world_place_job(&wish, &job, error, sizeof(error));
    if (status == 0)
        status = world_place_find(&wish, &job, &config->world, &launcher, error, sizeof(error));
    config_take_job(config, &job);
    return config_said(status, error);
}

// True if an address of the coordinator certainly leads to this host. A host name may lead to any
// host.
static bool config_address_is_local(const char *address)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    struct in_addr four;
    struct in6_addr six;
    uint16_t port;
    if (!parse_address(address, host, sizeof(host), &port))
        return true; // A path.
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six);
    return strcmp(host, "localhost") == 0;
}

// Finds the first address of the coordinator that may lead to another host. False: there is none.
static bool config_find_remote(const struct config *config, char address[LOCKSTEP_ADDRESS_BYTES])
{
    const char *rest = config->coordinator;
    while (rest && parse_next_address(&rest, address, LOCKSTEP_ADDRESS_BYTES)) {
        if (!config_address_is_local(address))
            return true;
    }
    return false;
}

static int config_plaintext(const struct config *config)
{
    const char *insecure = config_environment("LOCKSTEP_INSECURE_PLAINTEXT");
    char address[LOCKSTEP_ADDRESS_BYTES];
    if (insecure && strcmp(insecure, "0") != 0 && strcmp(insecure, "1") != 0)
        return error_set(LOCKSTEP_E_CONFIG, "LOCKSTEP_INSECURE_PLAINTEXT='%s' is not 0 or 1",
                         insecure);
    if (config->solo || config->tls_dir[0] != '\0' || (insecure && insecure[0] == '1') ||
        !config_find_remote(config, address))
        return 0;
    return error_set(LOCKSTEP_E_CONFIG,
                     "the coordinator's address (LOCKSTEP_COORDINATOR, config.coordinator) '%s' is "
                     "not a loopback address, and without certificates this worker would believe "
                     "any program that answers there: set LOCKSTEP_TLS_DIR; on a network where you "
                     "trust everybody, LOCKSTEP_INSECURE_PLAINTEXT=1 allows it",
                     address);
}

static int config_tls(const struct lockstep_config *given, struct config *config)
{
    const char *directory = config_environment("LOCKSTEP_TLS_DIR");
    const int status = config_string(
        config->tls_dir, sizeof(config->tls_dir), directory ? directory : given->tls_dir,
        "the directory of certificates (LOCKSTEP_TLS_DIR, config.tls_dir)");
    return status < 0 ? status : config_plaintext(config);
}

// Reads the kernel's boot id. Empty if it cannot be read.
static void config_boot_id(char boot[BOOT_ID_BYTES])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    boot[0] = '\0';
    if (!file)
        return;
    if (!fgets(boot, BOOT_ID_BYTES, file))
        boot[0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    fclose(file);
}

// Returns a hash of the host and of the cores on which the caller may run. Containers of one host
// share its cores.
static uint64_t config_cores(const char *boot)
{
    struct hash64 hash;
    cpu_set_t allowed;
    if (boot[0] == '\0' || sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return 0;
    hash64_init(&hash, 0);
    hash64_update(&hash, boot, strlen(boot));
    hash64_update(&hash, &allowed, sizeof(allowed));
    return hash64_final(&hash);
}

// Sets the name and the identity of the host. The identity contains the boot id, so that two
// machines of one name differ.
static int config_host(const struct lockstep_config *given, struct config *config)
{
    char boot[BOOT_ID_BYTES];
    config_boot_id(boot);
    config->cores = config_cores(boot);
    if (gethostname(config->host, sizeof(config->host) - 1) != 0)
        text_copy(config->host, sizeof(config->host), "unknown-host");
    config->host[sizeof(config->host) - 1] = '\0';
    if (given->host_id)
        return config_string(config->host_id, sizeof(config->host_id), given->host_id, "host_id");
    snprintf(config->host_id, sizeof(config->host_id), "%.64s/%.60s", config->host, boot);
    return 0;
}

static int config_ports(const struct lockstep_config *given, struct config *config)
{
    const char *ports = config_environment("LOCKSTEP_DATA_PORTS");
    char first[8];
    uint64_t low;
    uint64_t high;
    const char *dash;
    if (!ports)
        ports = given->data_ports;
    if (!ports)
        return 0;
    dash = strchr(ports, '-');
    if (dash && (size_t)(dash - ports) < sizeof(first)) {
        memcpy(first, ports, (size_t)(dash - ports));
        first[dash - ports] = '\0';
    } else {
        text_copy(first, sizeof(first), ports);
    }
    if (!parse_u64(first, &low) || !parse_u64(!dash ? first : dash + 1, &high) || low == 0 ||
        high < low || high > UINT16_MAX)
        return error_set(LOCKSTEP_E_CONFIG,
                         "the data ports (LOCKSTEP_DATA_PORTS, config.data_ports) '%s' are not of "
                         "the form 20000-20099 with 1 <= first <= last <= 65535",
                         ports);
    config->port_first = (uint16_t)low;
    config->port_last = (uint16_t)high;
    return 0;
}

static int config_kinds(const struct lockstep_config *given, struct config *config)
{
    uint32_t level = (uint32_t)given->log_level;
    if ((unsigned)given->transport > LOCKSTEP_TRANSPORT_LOOPBACK)
        return error_set(LOCKSTEP_E_CONFIG, "config.transport %d is unknown", given->transport);
    if (given->reserved != 0)
        return error_set(LOCKSTEP_E_CONFIG, "config.reserved is %u, and has to be 0",
                         given->reserved);
    if ((unsigned)given->uneven > LOCKSTEP_UNEVEN_FIRST)
        return error_set(LOCKSTEP_E_CONFIG, "config.uneven %d is unknown", given->uneven);
    if (given->gradient_norm > 1)
        return error_set(LOCKSTEP_E_CONFIG, "config.gradient_norm is %u, and has to be 0 or 1",
                         given->gradient_norm);
    if (given->root >= config->world.max)
        return error_set(LOCKSTEP_E_CONFIG,
                         "config.root %u does not fit a world of %u (ranks count from 0)",
                         given->root, config->world.max);
    config->transport = given->transport;
    config->root = given->root;
    config->uneven = given->uneven;
    config->gradient_norm = given->gradient_norm != 0;
    const int status = config_word("LOCKSTEP_LOG", config_levels, 4, &level);
    config->log_level = (lockstep_log_level)level;
    config->logs_to_stderr = !given->log && config_environment("LOCKSTEP_LOG");
    return status;
}

// Parses one part of a list of processors: "3" or "2-3".
static bool config_cpu_range(const char *part, size_t length, cpu_set_t *cpus)
{
    char first[16];
    char *dash;
    uint64_t low;
    uint64_t high;
    if (length >= sizeof(first))
        return false;
    memcpy(first, part, length);
    first[length] = '\0';
    dash = strchr(first, '-');
    if (dash)
        *dash = '\0';
    if (!parse_u64(first, &low) || !parse_u64(!dash ? first : dash + 1, &high) || low > high ||
        high >= CPU_SETSIZE)
        return false;
    for (uint64_t cpu = low; cpu <= high; cpu++)
        CPU_SET(cpu, cpus);
    return true;
}

static int config_engine_cpus(const struct lockstep_config *given, struct config *config)
{
    const char *cpus = config_environment("LOCKSTEP_ENGINE_CPUS");
    bool valid = true;
    if (!cpus)
        cpus = given->engine_cpus;
    CPU_ZERO(&config->engine.cpus);
    config->engine.pinned = cpus != NULL;
    for (const char *part = cpus; part && valid;) {
        const size_t length = strcspn(part, ",");
        valid = config_cpu_range(part, length, &config->engine.cpus);
        part = part[length] == ',' ? part + length + 1 : NULL;
    }
    if (valid)
        return 0;
    return error_set(LOCKSTEP_E_CONFIG,
                     "the engine's processors (LOCKSTEP_ENGINE_CPUS, config.engine_cpus) '%s' are "
                     "not of the form 3 or 2-3,7, each below %d",
                     cpus, CPU_SETSIZE);
}

static int config_engine(const struct lockstep_config *given, struct config *config)
{
    const char *nice = config_environment("LOCKSTEP_ENGINE_NICE");
    int64_t number = given->engine_nice;
    const int status = config_engine_cpus(given, config);
    if (status < 0)
        return status;
    if ((nice && !parse_i64(nice, &number)) || number < -20 || number > 19)
        return nice ? error_set(LOCKSTEP_E_CONFIG,
                                "LOCKSTEP_ENGINE_NICE='%s' is not a number from -20 to 19", nice)
                    : error_set(LOCKSTEP_E_CONFIG, "config.engine_nice %d is not from -20 to 19",
                                given->engine_nice);
    config->engine.nice = (int)number;
    return 0;
}

static int config_trace(const struct lockstep_config *given, struct config *config)
{
    const char *directory = config_environment("LOCKSTEP_TRACE_DIR");
    return config_string(config->trace_dir, sizeof(config->trace_dir),
                         directory ? directory : given->trace_dir,
                         "the directory of traces (LOCKSTEP_TRACE_DIR, config.trace_dir)");
}

int config_word(const char *name, const char *const *words, uint32_t count, uint32_t *to)
{
    const char *value = config_environment(name);
    char bytes[128];
    struct text text;
    if (!value)
        return 0;
    text_init(&text, bytes, sizeof(bytes));
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(value, words[i]) == 0) {
            *to = i;
            return 0;
        }
        text_append(&text, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : " or ", words[i]);
    }
    return error_set(LOCKSTEP_E_CONFIG, "%s='%s' is not %s", name, value, bytes);
}

static int config_encryption(const struct lockstep_config *given, struct config *config)
{
    const char *wanted = given->data_encryption;
    uint32_t chosen = 0;
    const int status = config_word("LOCKSTEP_DATA_ENCRYPTION", config_encryptions, 2, &chosen);
    config->encrypts = chosen != 0;
    if (status < 0 || config_environment("LOCKSTEP_DATA_ENCRYPTION") || !wanted)
        return status;
    config->encrypts = strcmp(wanted, "tls") == 0;
    return config->encrypts || strcmp(wanted, "off") == 0
               ? 0
               : error_set(LOCKSTEP_E_CONFIG, "config.data_encryption '%s' is not off or tls",
                           wanted);
}

// The variable is for launchers: it turns `continue` on, and never off, because a trainer that has
// chosen it counts on it.
static int config_failure(const struct lockstep_config *given, struct config *config)
{
    uint32_t wanted = LOCKSTEP_ON_FAILURE_ERROR;
    const int status = config_word("LOCKSTEP_ON_FAILURE", config_failures, 2, &wanted);
    if ((unsigned)given->on_failure > LOCKSTEP_ON_FAILURE_CONTINUE)
        return error_set(LOCKSTEP_E_CONFIG, "config.on_failure %d is unknown", given->on_failure);
    config->on_failure =
        wanted == LOCKSTEP_ON_FAILURE_CONTINUE ? LOCKSTEP_ON_FAILURE_CONTINUE : given->on_failure;
    return status;
}

// Reads the policies for calls outside the plan: calls that are made, and calls that are waited
// for.
static int config_policies(const struct lockstep_config *given, struct config *config)
{
    uint32_t order = (uint32_t)given->order;
    uint32_t unplanned = (uint32_t)given->unplanned;
    int status = config_word("LOCKSTEP_ORDER", config_orders, CONFIG_ORDERS, &order);
    if (status == 0)
        status = config_word("LOCKSTEP_UNPLANNED", config_unplanned, CONFIG_UNPLANNED, &unplanned);
    if (status < 0)
        return status;
    if (order >= CONFIG_ORDERS)
        return error_set(LOCKSTEP_E_CONFIG, "config.order %u is unknown", order);
    if (unplanned >= CONFIG_UNPLANNED)
        return error_set(LOCKSTEP_E_CONFIG, "config.unplanned %u is unknown", unplanned);
    config->order = (lockstep_order)order;
    config->unplanned = (lockstep_unplanned)unplanned;
    return 0;
}

static int config_waits(const struct lockstep_config *given, struct config *config)
{
    if (given->trainer_threads > LOCKSTEP_MAX_WAITS)
        return error_set(LOCKSTEP_E_CONFIG, "config.trainer_threads %u is above the limit of %d",
                         given->trainer_threads, LOCKSTEP_MAX_WAITS);
    if (given->wait_while_open > 1)
        return error_set(LOCKSTEP_E_CONFIG, "config.wait_while_open %u is not 0 or 1",
                         given->wait_while_open);
    config->trainer_threads = given->trainer_threads == 0 ? 1 : given->trainer_threads;
    config->wait_while_open = given->wait_while_open != 0;
    config->halt_timeout_ms = given->halt_timeout_ms;
    config->away_timeout_ms = CONFIG_AWAY_TIMEOUT_MS;
    int status = config_number("LOCKSTEP_ABORT_MS", UINT32_MAX, &config->abort_ms);
    if (status == 0)
        status = config_number("LOCKSTEP_AWAY_TIMEOUT_MS", UINT32_MAX, &config->away_timeout_ms);
    if (status < 0)
        return status;
    return config_number("LOCKSTEP_HALT_TIMEOUT_MS", UINT32_MAX, &config->halt_timeout_ms);
}

// With virtual ranks nothing may decide which gradients meet but the leaves.
static int config_leaves(const struct config *config)
{
    if (config->virtual_ranks == 0)
        return 0;
    if (config->uneven != LOCKSTEP_UNEVEN_NONE)
        return error_set(LOCKSTEP_E_CONFIG,
                         "config.virtual_ranks (LOCKSTEP_VIRTUAL_RANKS) does not go together with "
                         "config.uneven: a leaf without data makes its step with weight 0");
    if (config->order == LOCKSTEP_ORDER_ZERO_DEFER || config->unplanned == LOCKSTEP_UNPLANNED_DEFER)
        return error_set(LOCKSTEP_E_CONFIG,
                         "config.virtual_ranks (LOCKSTEP_VIRTUAL_RANKS) does not go together with "
                         "config.order (LOCKSTEP_ORDER) zero_defer or config.unplanned "
                         "(LOCKSTEP_UNPLANNED) defer, by which gradients count in a later step");
    return 0;
}

// What survivors of a death cannot go on with yet.
static const char *config_unlasting(const struct config *config)
{
    if (config->transport == LOCKSTEP_TRANSPORT_LOOPBACK)
        return "config.transport loopback";
    return NULL;
}

static int config_recovery(const struct config *config)
{
    const char *what = config_unlasting(config);
    if (config->on_failure != LOCKSTEP_ON_FAILURE_CONTINUE || !what)
        return 0;
    return error_set(
        LOCKSTEP_E_UNSUPPORTED,
        "config.on_failure (LOCKSTEP_ON_FAILURE) continue does not go together with %s "
        "yet: leave it out, or use on_failure error",
        what);
}

int config_resolve(const struct lockstep_config *given, struct config *config)
{
    struct lockstep_config whole;
    int status = config_widen(given, &whole);
    memset(config, 0, sizeof(*config));
    if (status == 0)
        status = config_spelling();
    if (status == 0)
        status = config_names(&whole, config);
    if (status == 0)
        status = config_tls(&whole, config);
    if (status == 0)
        status = config_host(&whole, config);
    if (status == 0)
        status = config_ports(&whole, config);
    if (status == 0)
        status = config_place(&whole, config);
    if (status == 0)
        status = config_kinds(&whole, config);
    if (status == 0)
        status = config_failure(&whole, config);
    if (status == 0)
        status = config_engine(&whole, config);
    if (status == 0)
        status = config_travel(&whole, config);
    if (status == 0)
        status = config_encryption(&whole, config);
    if (status == 0)
        status = config_trace(&whole, config);
    if (status == 0)
        status = config_policies(&whole, config);
    if (status == 0)
        status = config_leaves(config);
    if (status == 0)
        status = config_waits(&whole, config);
    if (status == 0)
        status = config_recovery(config);
    if (status == 0)
        status = config_device(&whole, config);
    config->open_timeout_ms = whole.open_timeout_ms;
    if (status == 0)
        status = config_number("LOCKSTEP_OPEN_TIMEOUT_MS", UINT32_MAX, &config->open_timeout_ms);
    if (config->open_timeout_ms == 0)
        config->open_timeout_ms = LOCKSTEP_OPEN_TIMEOUT_MS;
    if (config->open_timeout_ms > LOCKSTEP_OPEN_TIMEOUT_MAX_MS)
        config->open_timeout_ms = LOCKSTEP_OPEN_TIMEOUT_MAX_MS;
    config->buckets.first_bytes = whole.bucket_first_bytes != 0 ? whole.bucket_first_bytes : MIB;
    config->buckets.bytes = whole.bucket_bytes;
    config->buckets.last_bytes = whole.bucket_last_bytes != 0 ? whole.bucket_last_bytes : MIB;
    config->log = whole.log;
    config->log_context = whole.log_context;
    config->torn_bytes = atomic_load(&config_torn_bytes);
    return status;
}
