// SPDX-License-Identifier: Apache-2.0
//
// The sentences about the end of a control stream. Control thread.

#include "worker/control/sentences.h"

#include <ctype.h>
#include <string.h>

void sentences_shorten(const char *details, char *text, size_t capacity)
{
    const char *last = details;
    for (const char *found = strstr(details, ": "); found; found = strstr(found + 1, ": ")) {
        if (found[2])
            last = found + 2;
    }
    const char *call = strstr(last, "recvmsg:");
    text_copy(text, capacity, call ? call + strlen("recvmsg:") : last);
    if (isupper((unsigned char)text[0]) && !isupper((unsigned char)text[1]))
        text[0] = (char)tolower((unsigned char)text[0]);
}

bool sentences_is_transport_error(const char *details)
{
    static const char *const signs[] = {
        "recvmsg:",         "sendmsg:",  "Socket closed", "Broken pipe",
        "Connection reset", "keepalive", "GOAWAY",        "Endpoint read failed"};
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        if (strstr(details, signs[i]))
            return true;
    }
    return false;
}

// What to look at. A coordinator that uses TLS closes the connection of a worker that does not.
static const char *sentences_hint(const struct ending *ending)
{
    if (ending->kept)
        return strstr(ending->reason, "connection refused") ? " (nothing listens there any more)"
                                                            : "";
    if (strstr(ending->reason, "connection refused"))
        return " (nothing listens there: is the coordinator started, and is LOCKSTEP_COORDINATOR "
               "right?)";
    if (strstr(ending->reason, "no route") || ending->reason[0] == '\0')
        return " (is LOCKSTEP_COORDINATOR right, and does a firewall let its port through?)";
    return ending->plaintext && strstr(ending->reason, "closed")
               ? "; if it was started with --tls-dir, set LOCKSTEP_TLS_DIR to certificates for it"
               : "";
}

void sentences_connect_failure(const struct ending *ending, struct text *text)
{
    if (ending->tried[0] != '\0') {
        text_append(text, "cannot reach a coordinator at any address of LOCKSTEP_COORDINATOR: %s",
                    ending->tried);
        return;
    }
    text_append(text, "cannot reach coordinator %s: ", ending->address);
    if (ending->refusal[0] != '\0')
        text_append(text, "%s", ending->refusal);
    else if (ending->reason[0])
        text_append(text, "%s%s", ending->reason, sentences_hint(ending));
    else
        text_append(text, "no answer within %.1f s%s", (double)ending->connect_timeout_ms / 1000.0,
                    sentences_hint(ending));
}

void sentences_unreached(const struct ending *ending, struct text *text)
{
    const bool single = ending->tried[0] == '\0';
    text_append(text, "cannot reach coordinator %s yet: ",
                single ? ending->address : "at any of its addresses");
    if (single && ending->refusal[0] != '\0') {
        text_append(text, "%s", ending->refusal);
        return;
    }
    if (single)
        text_append(text, "%s%s", ending->reason[0] ? ending->reason : "no answer",
                    sentences_hint(ending));
    else
        text_append(text, "%s", ending->tried);
    text_append(text, "; trying for %.1f s (LOCKSTEP_OPEN_TIMEOUT_MS)",
                (double)ending->connect_timeout_ms / 1000.0);
}

// Returns the status of an HTTP/2 server that is no gRPC server, in gRPC's words, or NULL.
static const char *sentences_http_status(const char *reason)
{
    static const char words[] = "http2 header with status: ";
    const char *found = strstr(reason, words);
    return found ? found + sizeof(words) - 1 : NULL;
}

void sentences_end(const struct ending *ending, struct text *text)
{
    if (ending->cancelled)
        text_append(text, "%s", ending->reason);
    else if (ending->status == ENDING_REFUSED && ending->from_peer)
        text_append(text, "coordinator %s refused this worker: %s", ending->address,
                    ending->reason);
    else if (sentences_http_status(ending->reason))
        text_append(text,
                    "what answers at %s is no coordinator, it says HTTP status %s: is that another "
                    "service, or a proxy that does not pass gRPC on?",
                    ending->address, sentences_http_status(ending->reason));
    else if (ending->connecting)
        sentences_connect_failure(ending, text);
    else if (ending->status == ENDING_UNKNOWN_METHOD)
        text_append(text, "%s is not a Lockstep coordinator of this version: %s", ending->address,
                    ending->reason);
    else if (ending->status != ENDING_OK && !ending->from_peer)
        text_append(text, "lost the connection to coordinator %s: %s", ending->address,
                    ending->reason);
    else
        text_append(text, "the coordinator closed the stream%s%s", ending->reason[0] ? ": " : "",
                    ending->reason);
}
