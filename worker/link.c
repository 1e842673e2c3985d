// SPDX-License-Identifier: Apache-2.0
//
// Which kind of link an address asks for. Runs on the thread of whoever connects.

#include "worker/link.h"

#include "base/text.h"

#include <string.h>

// What follows the prefix, or NULL.
static const char *link_after(const char *address, const char *prefix)
{
    const size_t length = strlen(prefix);
    return strncmp(address, prefix, length) == 0 ? address + length : NULL;
}

struct link *link_connect(const char *address, uint32_t torn_bytes, char *error, size_t error_bytes)
{
    const char *tcp = link_after(address, "tcp:");
    const char *loopback = link_after(address, "loopback:");
    if (tcp)
        return link_connect_tcp(tcp, error, error_bytes);
    if (loopback)
        return link_connect_loopback(loopback, torn_bytes, error, error_bytes);
    struct text text;
    text_init(&text, error, error_bytes);
    text_append(&text, "the address %s is neither tcp: nor loopback:", address);
    return NULL;
}
