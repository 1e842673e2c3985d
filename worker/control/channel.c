// SPDX-License-Identifier: Apache-2.0
//
// The gRPC channel to the coordinator, and the settings that gRPC needs inside a trainer's process.
// gRPC's threads start with signals blocked. gRPC's log is dropped, which does not affect other
// users of gRPC, because this library has its own copy. Proxies and service configs of the
// environment are ignored.

#include "worker/control/channel.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/text.h"
#include "worker/control/control.h"
#include "worker/control/credentials.h"

#include <arpa/inet.h>
#include <assert.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define KEEPALIVE_MS 20000 // The server accepts pings that are at least 10 s apart.
#define KEEPALIVE_TIMEOUT_MS 10000
// gRPC keeps a connection whose other end has said nothing yet until this time has passed, also
// when its channel was destroyed: the kernel accepts for a coordinator that is stopped, or for a
// listener that is none, and nobody speaks. The first connection has gRPC's own 20 s, because a
// handshake with certificates may take long; a later one has as long as an attempt (ATTEMPT_MS in
// grpc.c).
#define FIRST_SILENT_MS 20000
#define SILENT_MS 3000
#define END_MS 2000 // gRPC ends in far less, unless it waits for a thread that it could not start.
#define UNIX_PREFIX "unix:"
#define DNS_PREFIX "dns:///"
// The host name for the certificate check if the coordinator's address is a path.
#define UNIX_HOST "localhost"

// ---- gRPC --------------------------------------------------------------------------------------

// How many threads are in grpc_shutdown, and how many channels were abandoned.
static _Atomic uint32_t ending;

static void channel_swallow_log(gpr_log_func_args *args)
{
    (void)args;
}

static void channel_silence(void)
{
    gpr_set_log_function(channel_swallow_log);
}

void channel_block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

void channel_restore_signals(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

void channel_end(void)
{
    sigset_t before;
    channel_block_signals(&before);
    atomic_fetch_add(&ending, 1);
    grpc_shutdown();
    atomic_fetch_sub(&ending, 1);
    channel_restore_signals(&before);
}

void channel_abandon(void)
{
    atomic_fetch_add(&ending, 1);
}

bool channel_may_open(void)
{
    const uint64_t until = clock_now_ms() + END_MS;
    const struct timespec moment = {.tv_nsec = 1000000};
    while (atomic_load(&ending) != 0 && clock_now_ms() < until)
        (void)nanosleep(&moment, NULL);
    return atomic_load(&ending) == 0;
}

// ---- The channel -------------------------------------------------------------------------------

static grpc_arg channel_integer(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key};
    arg.value.integer = value;
    return arg;
}

// The host in the coordinator's address, for the certificate check; not the IP address that gRPC
// connects to.
static grpc_arg channel_host(const struct control_credentials *credentials)
{
    grpc_arg arg = {.type = GRPC_ARG_STRING,
                    .key = (char *)(uintptr_t)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG};
    arg.value.string = (char *)(uintptr_t)control_credentials_host(credentials);
    return arg;
}

static grpc_channel *channel_create(struct channel *channel, bool again)
{
    grpc_arg list[] = {
        channel_integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        channel_integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        channel_integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        channel_integer(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        channel_integer(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        channel_integer(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
        channel_integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        channel_integer(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        channel_integer(GRPC_ARG_ENABLE_RETRIES, 0),
        channel_integer(GRPC_ARG_ENABLE_CHANNELZ, 0),
        channel_integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        channel_integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, LOCKSTEP_MESSAGE_BYTES),
        channel_integer(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, again ? SILENT_MS : FIRST_SILENT_MS),
        {0}, // Room for the host, which is added with certificates.
    };
    grpc_channel_args args = {.num_args = sizeof(list) / sizeof(list[0]) - 1, .args = list};
    if (channel->credentials)
        list[args.num_args++] = channel_host(channel->credentials);
    grpc_channel_credentials *credentials = control_credentials_make(channel->credentials);
    grpc_channel *created = grpc_channel_create(channel->target, credentials, &args);
    grpc_channel_credentials_release(credentials);
    return created;
}

static bool channel_is_named(const struct channel *channel)
{
    return strncmp(channel->target, DNS_PREFIX, strlen(DNS_PREFIX)) == 0;
}

static void channel_drop(struct channel *channel)
{
    if (channel->now)
        grpc_channel_destroy(channel->now);
    channel->now = NULL;
}

void channel_rest(struct channel *channel, bool anew)
{
    if (anew || channel_is_named(channel))
        channel_drop(channel);
}

void channel_renew(struct channel *channel, bool anew)
{
    if (!control_credentials_renew(channel->credentials) && !anew && !channel->moved &&
        !channel_is_named(channel) && channel->now)
        return;
    channel_drop(channel);
    channel->now = channel_create(channel, anew);
    channel->moved = false;
}

static int channel_make(struct channel *channel)
{
    channel->cq = grpc_completion_queue_create_for_next(NULL);
    channel->now = channel_create(channel, false);
    channel->lame = grpc_lame_client_channel_create("wake", GRPC_STATUS_UNAVAILABLE, "wake");
    if (!channel->cq || !channel->now || !channel->lame)
        return -1;
    channel->wake_call = grpc_channel_create_call(
        channel->lame, NULL, GRPC_PROPAGATE_DEFAULTS, channel->cq,
        grpc_slice_from_static_string("/wake"), NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    return channel->wake_call ? 0 : -1;
}

void channel_close(struct channel *channel)
{
    if (channel->wake_call)
        grpc_call_unref(channel->wake_call);
    if (channel->lame)
        grpc_channel_destroy(channel->lame);
    channel_drop(channel);
    if (!channel->cq)
        return;
    grpc_completion_queue_shutdown(channel->cq);
    gpr_timespec forever = gpr_inf_future(GPR_CLOCK_REALTIME);
    while (grpc_completion_queue_next(channel->cq, forever, NULL).type != GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(channel->cq);
}

int channel_open(struct channel *channel)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, channel_silence);
    grpc_init();
    return channel_make(channel);
}

// ---- Waiting -----------------------------------------------------------------------------------

void channel_wake(struct channel *channel, void *tag)
{
    const grpc_call_error error = grpc_call_start_batch(channel->wake_call, NULL, 0, tag, NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

struct grpc_event channel_next(struct channel *channel, uint64_t deadline_ms)
{
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (deadline_ms != UINT64_MAX) {
        const uint64_t now = clock_now_ms();
        const uint64_t wait_ms = deadline_ms > now ? deadline_ms - now : 0;
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis((int64_t)wait_ms, GPR_TIMESPAN));
    }
    return grpc_completion_queue_next(channel->cq, deadline, NULL);
}

// ---- The address -------------------------------------------------------------------------------

// Writes gRPC's target. host NULL: the address is a path. A numeric address is given as ipv4 or
// ipv6; only a name goes to DNS. localhost becomes 127.0.0.1 (else ::1), as in the daemon; Debian's
// c-ares would leak memory at every lookup of localhost.
static void channel_target(const char *address, const char *host, uint16_t port, char *target,
                           size_t capacity)
{
    unsigned char binary[sizeof(struct in6_addr)];
    if (host && strcmp(host, "localhost") == 0)
        host = address_loopback();
    if (!host)
        text_copy(target, capacity, address);
    else if (inet_pton(AF_INET, host, binary) == 1)
        snprintf(target, capacity, "ipv4:%s:%u", host, port);
    else if (strchr(host, ':'))
        snprintf(target, capacity, "ipv6:[%s]:%u", host, port);
    else
        snprintf(target, capacity, DNS_PREFIX "%s:%u", host, port);
}

int channel_aim(struct channel *channel, const char *address, char *error, size_t error_bytes)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    char target[sizeof(channel->target)];
    uint16_t port = 0;
    const bool local = strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0;
    if (local) {
        text_copy(host, sizeof(host), UNIX_HOST);
    } else if (!parse_address(address, host, sizeof(host), &port) || port == 0) {
        snprintf(error, error_bytes,
                 "the coordinator's address \"%s\" is not HOST:PORT, [IPV6]:PORT or unix:PATH",
                 address);
        return -1;
    }
    channel_target(address, local ? NULL : host, port, target, sizeof(target));
    channel->moved = channel->moved || strcmp(target, channel->target) != 0;
    text_copy(channel->target, sizeof(channel->target), target);
    text_copy(channel->host, sizeof(channel->host), local ? "" : host);
    channel->port = port;
    control_credentials_aim(channel->credentials, host, port);
    return 0;
}

int channel_certify(struct channel *channel, const struct control_target *target, char *error,
                    size_t error_bytes)
{
    if (!target->tls_dir || target->tls_dir[0] == '\0')
        return 0;
    return control_credentials_open(target->tls_dir, target->job, &channel->credentials, error,
                                    error_bytes);
}
