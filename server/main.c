// SPDX-License-Identifier: Apache-2.0
//
// lockstep-coordinator: starts the parts, connects them, and ends them. The main thread becomes the
// stream thread, which also runs the core. There is one thread for signals, one for HTTP, and those
// of gRPC itself.

#include "base/clock.h"
#include "base/file_mode.h"
#include "base/json.h"
#include "base/log.h"
#include "base/standard.h"
#include "base/text.h"
#include "base/tls_files.h"
#include "protos/limits.h"
#include "server/http/http.h"
#include "server/http/tls_limits.h"
#include "server/launcher.h"
#include "server/options.h"
#include "server/prober.h"
#include "server/process.h"
#include "server/rpc/descriptors.h"
#include "server/rpc/loop.h"
#include "server/rpc/server.h"
#include "server/service.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXIT_USAGE 2
#define START_LINE_BYTES 1024
// For HTTP connections, and for all other descriptors that gRPC does not open.
#define DESCRIPTORS (512 + 128)
// The core's room for layouts does not count for --memory-mib: a job touches what it proposes.
#define MEMORY_LAYOUTS_BYTES (4ull * LOCKSTEP_MAX_JOBS * LOCKSTEP_MAX_LAYOUT_WORDS)

struct daemon {
    struct options options;
    struct log log;
    struct render_process process;
    struct service *service;
    struct rpc_server *server;
    struct snapshot_board board;
    struct asks asks;
    struct archive archive;
    bool board_open; // True once the board, the asks and the archive were initialized.
    struct http *http; // NULL: off.
    struct process_signals signals;
    bool signals_started;
    struct launcher launcher;
    bool launcher_started;
    struct prober prober;
    bool prober_started;
    bool ports_written;
    char error[LOCKSTEP_TEXT_BYTES];
};

// ---- calls between the parts ------------------------------------------------------------------

static void wake_server(void *context)
{
    struct daemon *daemon = context;
    rpc_server_wake(daemon->server);
}

static void drain(void *context, const char *why)
{
    (void)why; // The signal thread has logged it.
    struct daemon *daemon = context;
    service_drain(daemon->service);
    rpc_server_wake(daemon->server);
}

static void orphaned(void *context)
{
    struct daemon *daemon = context;
    service_outlive(daemon->service);
    rpc_server_wake(daemon->server);
}

// ---- start ------------------------------------------------------------------------------------

static int limit_tls(struct daemon *daemon)
{
    if (tls_limits_set() == 0)
        return 0;
    snprintf(
        daemon->error, sizeof(daemon->error),
        "OpenSSL cannot be limited: something in this process used it before, or it is another "
        "version than the one that this program was built for");
    return -1;
}

static int open_streams(struct daemon *daemon)
{
    char error[LOCKSTEP_TEXT_BYTES];
    struct text text;
    struct service_config config = {
        .chunk_bytes = daemon->options.chunk_bytes,
        .drain_ms = daemon->options.drain_ms,
        .outlive_ms = daemon->options.outlive_ms,
        .stall_floor_ms = daemon->options.stall_floor_ms,
        .log = &daemon->log,
    };
    if (service_open(&config, &daemon->service, daemon->error, sizeof(daemon->error)) < 0)
        return -1;
    struct rpc_config rpc = {
        .host = daemon->options.listen.host,
        .port = daemon->options.listen.port,
        .method = SERVICE_METHOD,
        .service = SERVICE_NAME,
        .log = &daemon->log,
        .tls_dir = daemon->options.tls_dir,
        .memory_bytes = ((uint64_t)daemon->options.memory_mib << 20) + MEMORY_LAYOUTS_BYTES,
        .descriptors = DESCRIPTORS,
    };
    struct rpc_events events = service_events(daemon->service);
    if (rpc_server_open(&rpc, &events, &daemon->server, error, sizeof(error)) < 0) {
        const bool tls = rpc.tls_dir && strncmp(error, rpc.tls_dir, strlen(rpc.tls_dir)) == 0;
        text_init(&text, daemon->error, sizeof(daemon->error));
        text_append(&text, "%s%s", tls ? "--tls-dir (LOCKSTEP_COORDINATOR_TLS_DIR): " : "", error);
        return -1;
    }
    daemon->options.listen.port = rpc_server_port(daemon->server);
    service_attach(daemon->service, &rpc_server_calls, daemon->server);
    return 0;
}

static int open_http(struct daemon *daemon)
{
    if (daemon->options.http_off)
        return 0;
    snapshot_board_init(&daemon->board, wake_server, daemon);
    asks_init(&daemon->asks);
    archive_init(&daemon->archive);
    daemon->board_open = true;
    struct service_shown shown = {&daemon->board, &daemon->asks, &daemon->archive};
    service_show(daemon->service, &shown);
    struct http_config config = {
        .endpoint = daemon->options.http,
        .process = daemon->process,
        .board = &daemon->board,
        .asks = &daemon->asks,
        .archive = &daemon->archive,
        .token_file = daemon->options.token_file,
        .hosts = daemon->options.http_hosts,
        .tls_dir = daemon->options.http_tls ? daemon->options.tls_dir : NULL,
        .log = &daemon->log,
    };
    if (http_open(&config, &daemon->http, daemon->error, sizeof(daemon->error)) < 0)
        return -1;
    daemon->options.http.port = http_port(daemon->http);
    return 0;
}

static int start_signals(struct daemon *daemon)
{
    daemon->signals.drain = drain;
    daemon->signals.orphaned = daemon->options.outlive_ms > 0 ? orphaned : NULL;
    daemon->signals.context = daemon;
    daemon->signals.log = &daemon->log;
    if (daemon->options.parent_death)
        daemon->signals.parent = process_watch_parent(daemon->options.parent);
    if (daemon->signals.parent < 0) {
        snprintf(daemon->error, sizeof(daemon->error),
                 "--parent-death: process %d is not the parent, it has ended already",
                 (int)daemon->options.parent);
        return -1;
    }
    int code = process_signals_start(&daemon->signals);
    daemon->signals_started = code == 0;
    if (code != 0)
        snprintf(daemon->error, sizeof(daemon->error), "no thread for signals: %s", strerror(code));
    return code == 0 ? 0 : -1;
}

static int start_launcher(struct daemon *daemon)
{
    if (!daemon->options.launcher)
        return 0;
    const int code = launcher_start(&daemon->launcher, STDIN_FILENO, wake_server, daemon);
    daemon->launcher_started = code == 0;
    if (code == 0)
        service_serve(daemon->service, &daemon->launcher);
    else
        snprintf(daemon->error, sizeof(daemon->error), "no thread for the launcher: %s",
                 strerror(code));
    return code == 0 ? 0 : -1;
}

static int start_prober(struct daemon *daemon)
{
    const int code = prober_start(&daemon->prober, wake_server, daemon);
    daemon->prober_started = code == 0;
    if (code == 0)
        service_probe(daemon->service, &daemon->prober);
    else
        snprintf(daemon->error, sizeof(daemon->error), "no thread for probes: %s", strerror(code));
    return code == 0 ? 0 : -1;
}

static int write_ports(struct daemon *daemon)
{
    const struct options *options = &daemon->options;
    if (!options->port_file)
        return 0;
    uint16_t http = options->http_off ? 0 : options->http.port;
    if (process_write_ports(options->port_file, options->listen.port, http, daemon->error,
                            sizeof(daemon->error)) < 0)
        return -1;
    daemon->ports_written = true;
    return 0;
}

// ---- messages at the start --------------------------------------------------------------------

static void print_json(const struct daemon *daemon, const char *grpc, const char *http)
{
    const struct options *options = &daemon->options;
    struct json json;
    json_init(&json, START_LINE_BYTES);
    json_object_begin(&json, NULL);
    json_string(&json, "event", "ready");
    json_string(&json, "version", SERVER_VERSION);
    json_u64(&json, "pid", (uint64_t)getpid());
    json_string(&json, "grpc", grpc);
    json_u64(&json, "grpc_port", options->listen.port);
    json_string(&json, "http", options->http_off ? NULL : http);
    if (options->http_off)
        json_null(&json, "http_port");
    else
        json_u64(&json, "http_port", options->http.port);
    json_object_end(&json);
    const char *text = json_text(&json, NULL);
    printf("%s\n", text ? text : "{}");
    fflush(stdout);
    json_fini(&json);
}

// Warns of addresses that are open to other hosts without encryption: on stderr, at every level of
// the log, and in the log.
static void warn_exposed(struct daemon *daemon, const char *grpc, const char *http)
{
    const struct options *options = &daemon->options;
    bool grpc_exposed = options->listen.exposed && !options->tls_dir;
    bool http_exposed = !options->http_off && options->http.exposed && !options->http_tls;
    if (!grpc_exposed && !http_exposed)
        return;
    fprintf(stderr,
            "lockstep-coordinator: warning: --insecure-plaintext: whoever reaches %s%s%s can %s, "
            "and nothing is encrypted\n",
            grpc_exposed ? grpc : "", grpc_exposed && http_exposed ? " and " : "",
            http_exposed ? http : "",
            grpc_exposed ? "join and end jobs and read their state" : "read the state of all jobs");
    log_event(&daemon->log, LOG_LEVEL_WARN, "insecure_plaintext", "grpc=%s http=%s hint=%s",
              grpc_exposed       ? grpc
              : options->tls_dir ? "tls"
                                 : "loopback",
              http_exposed ? http : "loopback",
              "not encrypted, not authenticated: let only hosts that you trust reach these ports");
}

// Warns if other users can read the file. path NULL: no file is used.
static void warn_secret(struct daemon *daemon, const char *path)
{
    unsigned mode;
    if (path && file_mode_exposed(path, &mode))
        log_event(&daemon->log, LOG_LEVEL_WARN, "secret_exposed", "file=%s mode=%04o hint=%s", path,
                  mode, FILE_MODE_HINT);
}

static void warn_secrets(struct daemon *daemon)
{
    char key[PATH_MAX] = "";
    if (daemon->options.tls_dir)
        snprintf(key, sizeof(key), "%s/%s", daemon->options.tls_dir, TLS_KEY_FILE);
    warn_secret(daemon, key[0] ? key : NULL);
    warn_secret(daemon, daemon->options.token_file);
}

static const char *or_none(const char *value)
{
    return value ? value : "none";
}

static void announce(struct daemon *daemon, uint64_t descriptors)
{
    const struct options *options = &daemon->options;
    char grpc[LOCKSTEP_ADDRESS_BYTES + 16];
    char http[LOCKSTEP_ADDRESS_BYTES + 16];
    endpoint_text(&options->listen, grpc, sizeof(grpc));
    endpoint_text(&options->http, http, sizeof(http));
    log_event(&daemon->log, LOG_LEVEL_INFO, "coordinator_ready",
              "version=%s grpc=%s http=%s pid=%d drain_ms=%u outlive_ms=%u chunk_bytes=%u "
              "stall_floor_ms=%u log_level=%s parent=%d launcher=%d descriptors=%llu memory_mib=%u "
              "plaintext_allowed=%d http_tls=%d port_file=%s tls_dir=%s http_token_file=%s "
              "http_host=%s grpc_core=%s",
              SERVER_VERSION, grpc, options->http_off ? "off" : http, (int)getpid(),
              options->drain_ms, options->outlive_ms, options->chunk_bytes,
              options->stall_floor_ms > 0 ? options->stall_floor_ms : LOCKSTEP_STALL_FLOOR_MS,
              log_level_name(options->log_level), (int)daemon->signals.parent, options->launcher,
              (unsigned long long)descriptors, options->memory_mib, options->insecure_plaintext,
              options->http_tls, or_none(options->port_file), or_none(options->tls_dir),
              or_none(options->token_file), or_none(options->http_hosts), rpc_server_version());
    warn_exposed(daemon, grpc, http);
    warn_secrets(daemon);
    if (options->json)
        print_json(daemon, grpc, http);
}

// ---- run and end ------------------------------------------------------------------------------

// Ends the parts. HTTP and the signal thread wake the server, so they end before it.
static void take_apart(struct daemon *daemon)
{
    if (daemon->ports_written)
        unlink(daemon->options.port_file);
    if (daemon->board_open)
        snapshot_end(&daemon->board);
    if (daemon->http)
        http_close(daemon->http);
    if (daemon->signals_started)
        process_signals_stop(&daemon->signals);
    if (daemon->launcher_started)
        launcher_stop(&daemon->launcher);
    if (daemon->prober_started)
        prober_stop(&daemon->prober);
    if (daemon->server)
        rpc_server_close(daemon->server);
    if (daemon->board_open) {
        snapshot_board_fini(&daemon->board);
        asks_fini(&daemon->asks);
        archive_fini(&daemon->archive);
    }
    if (daemon->service)
        service_close(daemon->service);
}

static int run(struct daemon *daemon)
{
    log_init(&daemon->log, daemon->options.log_level, log_sink_stderr, NULL);
    process_block_signals();
    uint64_t descriptors = descriptors_limit(DESCRIPTORS + RPC_NEWCOMERS);
    if (limit_tls(daemon) < 0 || open_streams(daemon) < 0 || open_http(daemon) < 0 ||
        start_signals(daemon) < 0 || start_launcher(daemon) < 0 || start_prober(daemon) < 0 ||
        write_ports(daemon) < 0)
        return -1;
    announce(daemon, descriptors);
    rpc_server_run(daemon->server);
    return 0;
}

static uint64_t unix_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
    static struct daemon daemon;
    if (!standard_occupy())
        return EXIT_FAILURE;
    daemon.process = (struct render_process){SERVER_VERSION, unix_ms(), clock_now_ms()};
    switch (
        options_parse(argc, argv, &daemon.options, stdout, daemon.error, sizeof(daemon.error))) {
    case OPTIONS_DONE:
        return EXIT_SUCCESS;
    case OPTIONS_USAGE:
        fprintf(stderr, "lockstep-coordinator: %s\n", daemon.error);
        return EXIT_USAGE;
    case OPTIONS_RUN:
        break;
    }
    int status = run(&daemon);
    if (status < 0)
        fprintf(stderr, "lockstep-coordinator: %s\n", daemon.error);
    take_apart(&daemon);
    if (status == 0)
        log_event(&daemon.log, LOG_LEVEL_INFO, "coordinator_ended", "pid=%d", (int)getpid());
    return status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
