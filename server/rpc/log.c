// SPDX-License-Identifier: Apache-2.0
//
// The lines of gRPC's log. Some facts are only in this log: a failed accept, and the reason of a
// failed handshake. Any thread.

#include "server/rpc/log.h"

#include "server/rpc/parts.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/rpc/credentials.h"

#include <grpc/support/log.h>

#include <stdatomic.h>
#include <string.h>

#define GRPC_LOG_BURST 20 // Lines of gRPC's log that are passed on in one period.
#define GRPC_LOG_PERIOD_MS 10000 // The length of such a period.

// atomic: gRPC's log function sets these on any thread, while gRPC holds locks.
static atomic_bool listener_is_deaf;
static _Atomic(struct log *) grpc_log;
static atomic_uint_fast64_t grpc_log_period;
static atomic_uint grpc_log_lines;
static atomic_uint_fast64_t handshakes_failed;

// Returns true if the period already has GRPC_LOG_BURST lines.
static bool grpc_log_is_flooded(void)
{
    uint64_t period = clock_now_ms() / GRPC_LOG_PERIOD_MS;
    if (atomic_exchange(&grpc_log_period, period) != period)
        atomic_store(&grpc_log_lines, 0);
    return atomic_fetch_add(&grpc_log_lines, 1) >= GRPC_LOG_BURST;
}

// Any thread. gRPC logs a failed accept while it holds the listener's lock, so this function must
// not call gRPC. It sets a flag, which the loop reads.
static void grpc_log_line(gpr_log_func_args *args)
{
    if (strncmp(args->message, "Failed accept4", 14) == 0)
        atomic_store(&listener_is_deaf, true);
    const char *failure = rpc_credentials_failure(args->message);
    if (failure)
        atomic_fetch_add(&handshakes_failed, 1);
    if (args->severity != GPR_LOG_SEVERITY_ERROR || grpc_log_is_flooded())
        return;
    if (failure)
        log_event(atomic_load(&grpc_log), LOG_LEVEL_WARN, "tls_handshake_failed", "text=%s grpc=%s",
                  failure, args->message);
    else
        log_event(atomic_load(&grpc_log), LOG_LEVEL_WARN, "grpc_message", "text=%s", args->message);
}

void rpc_log_take(void)
{
    gpr_set_log_function(grpc_log_line);
    // The environment variable GRPC_VERBOSITY must not hide failed accepts.
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
}

void rpc_log_pass_on(struct log *log)
{
    atomic_store(&grpc_log, log);
}

bool rpc_log_said_deaf(void)
{
    return atomic_exchange(&listener_is_deaf, false);
}

uint64_t rpc_log_handshakes_failed(void)
{
    return atomic_load(&handshakes_failed);
}
