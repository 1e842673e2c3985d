// SPDX-License-Identifier: Apache-2.0
//
// The host names by which clients may address this server. An attacker's page can give its own name
// our address ("DNS rebinding"); then the browser lets the page read our answers, and sends the
// attacker's name in Host. So in plaintext, Host must be an address, a name of this machine, or a
// name of --http-host. An address is safe, because it cannot be made to mean another machine. Over
// TLS the certificate protects. HTTP thread. See parts.h.

#include "server/http/host.h"

#include "server/http/answer.h"
#include "server/http/parts.h"

#include "base/parse.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define HOST_BYTES 256

// Copies the host without the port, the brackets of IPv6, and the dot at the end. Returns false if
// it is too long.
static bool host_of(const char *header, char host[HOST_BYTES])
{
    const char *begin = header;
    size_t size = strcspn(header, ":");
    if (header[0] == '[') {
        begin++;
        size = strcspn(begin, "]");
    }
    if (size >= HOST_BYTES)
        return false;
    memcpy(host, begin, size);
    if (size > 0 && host[size - 1] == '.')
        size--;
    host[size] = '\0';
    return true;
}

static bool is_address(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    return inet_pton(AF_INET, host, &four) == 1 || inet_pton(AF_INET6, host, &six) == 1;
}

static bool is_machine(const char *host)
{
    char name[HOST_BYTES] = "";
    if (strcasecmp(host, "localhost") == 0)
        return true;
    return gethostname(name, sizeof(name) - 1) == 0 && name[0] && strcasecmp(host, name) == 0;
}

// Returns true if names, which are separated by commas, contain the host. NULL: no names.
static bool is_named(const char *host, const char *names)
{
    const size_t size = strlen(host);
    while (names && *names) {
        const size_t length = strcspn(names, ",");
        if (size > 0 && length == size && strncasecmp(names, host, size) == 0)
            return true;
        names += length + (names[length] == ',');
    }
    return false;
}

bool http_host_allowed(const char *header, const char *names)
{
    char host[HOST_BYTES];
    if (!header)
        return true; // Every browser sends Host, so this client is not one.
    return host_of(header, host) && (is_address(host) || is_machine(host) || is_named(host, names));
}

bool http_may_ask(struct http_core *core, struct evhttp_request *request, const char *path)
{
    // Health probes may use any name, because their answers reveal nothing else.
    if (core->config->tls_dir || strcmp(path, "/healthz") == 0 || strcmp(path, "/readyz") == 0)
        return true;
    const char *host = evhttp_find_header(evhttp_request_get_input_headers(request), "Host");
    if (http_host_allowed(host, core->config->hosts))
        return true;
    http_answer_error(core, request, HTTP_MISDIRECTED,
                      "this coordinator does not answer to that name: ask for its address or "
                      "localhost, or start it with --http-host and the name");
    return false;
}
