// SPDX-License-Identifier: Apache-2.0
//
// Addresses as text; endpoint.h has the contract. Pure.

#include "server/state/endpoint.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

bool endpoint_is_unix(const struct endpoint *endpoint)
{
    return strncmp(endpoint->host, ENDPOINT_UNIX, strlen(ENDPOINT_UNIX)) == 0;
}

void endpoint_text(const struct endpoint *endpoint, char *text, size_t text_bytes)
{
    bool six = strchr(endpoint->host, ':') != NULL;
    if (endpoint_is_unix(endpoint)) {
        text_copy(text, text_bytes, endpoint->host);
        return;
    }
    snprintf(text, text_bytes, six ? "[%s]:%u" : "%s:%u", endpoint->host, endpoint->port);
}
