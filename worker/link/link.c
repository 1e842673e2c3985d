// SPDX-License-Identifier: Apache-2.0
//
// Chooses the kind of link by the address. Runs on the thread that connects.

#include "worker/link/link.h"

#include "worker/link/loopback.h"
#include "worker/link/tcp.h"
#include "worker/link/unix.h"

#include "base/text.h"

#include <string.h>

#define LINK_SEPARATOR ';'

// Returns the text behind the prefix; NULL if the address does not begin with the prefix.
static const char *link_after(const char *address, const char *prefix)
{
    const size_t length = strlen(prefix);
    return strncmp(address, prefix, length) == 0 ? address + length : NULL;
}

// Returns the next part of the address; NULL after the last part.
static const char *link_next_part(const char *part)
{
    const char *separator = strchr(part, LINK_SEPARATOR);
    return separator ? separator + 1 : NULL;
}

bool link_token(const char *address, char token[LINK_TOKEN_BYTES])
{
    for (const char *part = address; part; part = link_next_part(part)) {
        const char *digits = link_after(part, "unix:");
        if (!digits)
            continue;
        const size_t length = strspn(digits, "0123456789abcdef");
        if (length != LINK_TOKEN_BYTES - 1 ||
            (digits[length] != '\0' && digits[length] != LINK_SEPARATOR))
            return false;
        memcpy(token, digits, length);
        token[length] = '\0';
        return true;
    }
    return false;
}

struct link *link_connect(const char *address, uint32_t torn_bytes, char *error, size_t error_bytes)
{
    char first[LOCKSTEP_ADDRESS_BYTES];
    const size_t length = strcspn(address, (const char[]){LINK_SEPARATOR, '\0'});
    struct text text;
    if (length < sizeof(first)) {
        memcpy(first, address, length);
        first[length] = '\0';
        const char *tcp = link_after(first, "tcp:");
        const char *unix_token = link_after(first, "unix:");
        const char *loopback = link_after(first, "loopback:");
        if (tcp)
            return link_connect_tcp(tcp, error, error_bytes);
        if (unix_token)
            return link_connect_unix(unix_token, error, error_bytes);
        if (loopback)
            return link_connect_loopback(loopback, torn_bytes, error, error_bytes);
    }
    text_init(&text, error, error_bytes);
    text_append(&text, "the address %s is neither tcp: nor unix: nor loopback:", address);
    return NULL;
}
