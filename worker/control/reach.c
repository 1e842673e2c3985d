// SPDX-License-Identifier: Apache-2.0
//
// An address at which no coordinator is reached; reach.h has the contract.

#include "worker/control/reach.h"

#include "base/text.h"
#include "worker/control/channel.h"
#include "worker/control/credentials.h"
#include "worker/control/probe.h"

#include <string.h>

#define LOOK_EVERY_MS 2000 // Pause between two probes.
#define REFUSED_MS 10000 // How long refusals are retried: files may be in the middle of a change.
#define MISMATCH_MS 1500 // How long a peer is retried that speaks no TLS, or TLS, or no HTTP/2.
#define PLAINTEXT_TEXT \
    "it speaks TLS, and this worker does not: set LOCKSTEP_TLS_DIR (config.tls_dir) to a " \
    "directory with tls.crt, tls.key and ca.crt of this job"
#define STRANGER_TEXT \
    "what answers there is no coordinator: is that the port of its page, or of another service? " \
    "LOCKSTEP_COORDINATOR needs the address of its --listen"

// True if gRPC's words are those for a peer that does not speak HTTP/2.
static bool reach_is_strange(const char *reason)
{
    return strstr(reason, "http1.x server") || strstr(reason, "parsing HTTP/2");
}

// Fills refusal and mismatch. Returns false if neither side refuses the other.
static bool reach_find(struct reach *reach, const struct channel *channel, const char *reason)
{
    if (channel->credentials)
        return control_credentials_explain(channel->credentials, &reach->mismatch, reach->refusal,
                                           sizeof(reach->refusal));
    // A coordinator that speaks TLS closes the connection of a worker that does not.
    const bool strange = reach_is_strange(reason);
    const bool secret = (strange || strstr(reason, "closed")) && channel->host[0] != '\0' &&
                        control_probe_speaks_tls(channel->host, channel->port, CONTROL_PROBE_MS);
    reach->mismatch = strange || secret;
    if (reach->mismatch)
        text_copy(reach->refusal, sizeof(reach->refusal), secret ? PLAINTEXT_TEXT : STRANGER_TEXT);
    return reach->mismatch;
}

// True if gRPC's words are those for a handshake that was refused.
static bool reach_answers(const char *reason)
{
    return strstr(reason, "closed") || strstr(reason, "SSL");
}

void reach_look(struct reach *reach, const struct channel *channel, const char *reason, bool kept,
                uint64_t now_ms)
{
    if (kept && !reach_answers(reason)) {
        reach->refused_since = 0;
        return;
    }
    if (now_ms < reach->look_at)
        return;
    reach->look_at = now_ms + LOOK_EVERY_MS;
    if (!reach_find(reach, channel, reason))
        reach->refused_since = 0;
    else if (reach->refused_since == 0)
        reach->refused_since = now_ms;
}

const char *reach_refusal(const struct reach *reach)
{
    return reach->refused_since > 0 ? reach->refusal : "";
}

bool reach_may_retry(const struct reach *reach, uint64_t now_ms, uint64_t deadline_ms)
{
    const uint64_t patience_ms = reach->mismatch ? MISMATCH_MS : REFUSED_MS;
    return now_ms < deadline_ms &&
           (reach->refused_since == 0 || now_ms < reach->refused_since + patience_ms);
}
