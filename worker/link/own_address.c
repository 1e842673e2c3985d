// SPDX-License-Identifier: Apache-2.0
//
// The address that a worker announces; see own_address.h. Any thread.

#include "worker/link/own_address.h"

#include "base/parse.h"
#include "protos/limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <string.h>

static uint32_t own_bits(int family)
{
    return family == AF_INET ? 32 : 128;
}

// Parses a numeric address, with or without brackets. Returns its family; AF_UNSPEC if it is none.
static int own_parse(const char *string, size_t length, uint8_t bytes[16])
{
    char text[INET6_ADDRSTRLEN];
    if (length >= 2 && string[0] == '[' && string[length - 1] == ']') {
        string++;
        length -= 2;
    }
    if (length >= sizeof(text))
        return AF_UNSPEC;
    memcpy(text, string, length);
    text[length] = '\0';
    memset(bytes, 0, 16);
    if (inet_pton(AF_INET, text, bytes) == 1)
        return AF_INET;
    return inet_pton(AF_INET6, text, bytes) == 1 ? AF_INET6 : AF_UNSPEC;
}

static bool own_is_unspecified(const uint8_t bytes[16])
{
    static const uint8_t zeros[16];
    return memcmp(bytes, zeros, sizeof(zeros)) == 0;
}

static bool own_is_link_local(int family, const uint8_t bytes[16])
{
    return family == AF_INET6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

static void own_format(int family, const uint8_t bytes[16], char *text, size_t text_bytes)
{
    if (!inet_ntop(family, bytes, text, (socklen_t)text_bytes) && text_bytes > 0)
        text[0] = '\0';
}

// ---- matching -----------------------------------------------------------------------------------

// The wanted addresses: those inside a network, or those of an interface.
struct own_wish {
    const char *interface; // NULL: a network is wanted.
    int family;
    uint8_t bytes[16];
    uint32_t prefix;
};

static bool own_inside(const struct own_wish *wish, const struct own_address *address)
{
    const uint32_t whole = wish->prefix / 8;
    const uint8_t mask = (uint8_t)(0xff00u >> (wish->prefix % 8));
    return address->family == wish->family && memcmp(address->bytes, wish->bytes, whole) == 0 &&
           (wish->prefix % 8 == 0 || ((address->bytes[whole] ^ wish->bytes[whole]) & mask) == 0);
}

static bool own_matches(const struct own_wish *wish, const struct own_address *address)
{
    if (own_is_link_local(address->family, address->bytes))
        return false;
    if (wish->interface)
        return strcmp(wish->interface, address->interface) == 0;
    return own_inside(wish, address);
}

// The order of preference; a lower number is preferred.
static int own_rank(const struct own_address *address)
{
    return (address->loopback ? 2 : 0) + (address->family == AF_INET6 ? 1 : 0);
}

static const struct own_address *own_best(const struct own_wish *wish,
                                          const struct own_address *addresses, uint32_t count)
{
    const struct own_address *best = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (own_matches(wish, &addresses[i]) && (!best || own_rank(&addresses[i]) < own_rank(best)))
            best = &addresses[i];
    return best;
}

// Appends the addresses of the host, such as ": it has lo 127.0.0.1, eth0 10.0.0.7".
static void own_list(struct text *text, const struct own_address *addresses, uint32_t count)
{
    char bytes[INET6_ADDRSTRLEN];
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        if (own_is_link_local(addresses[i].family, addresses[i].bytes))
            continue;
        own_format(addresses[i].family, addresses[i].bytes, bytes, sizeof(bytes));
        text_append(text, "%s%s %s", any ? ", " : ": it has ", addresses[i].interface, bytes);
        any = true;
    }
}

// Parses a network such as "10.0.0.0/8". Returns false if the text is not a network.
static bool own_network(const char *wanted, const char *slash, struct own_wish *wish)
{
    uint64_t prefix = 0;
    wish->family = own_parse(wanted, (size_t)(slash - wanted), wish->bytes);
    if (wish->family == AF_UNSPEC || !parse_u64(slash + 1, &prefix) ||
        prefix > own_bits(wish->family))
        return false;
    wish->prefix = (uint32_t)prefix;
    return true;
}

static int own_numeric(const char *wanted, int family, const uint8_t bytes[16], char *address,
                       size_t address_bytes, struct text *error)
{
    own_format(family, bytes, address, address_bytes);
    if (own_is_unspecified(bytes))
        text_append(error,
                    "LOCKSTEP_ADVERTISE='%s' is no address that others can reach: name one, "
                    "an interface, or a network like 10.0.0.0/8",
                    wanted);
    else if (own_is_link_local(family, bytes))
        text_append(error,
                    "LOCKSTEP_ADVERTISE='%s' is an address of one link only: take another "
                    "one",
                    wanted);
    else
        return 0;
    return -1;
}

int own_address_choose(const char *wanted, const struct own_address *addresses, uint32_t count,
                       char *text, size_t text_bytes, char *error, size_t error_bytes)
{
    struct own_wish wish = {.interface = wanted};
    struct text why;
    uint8_t bytes[16];
    text_init(&why, error, error_bytes);
    const int family = own_parse(wanted, strlen(wanted), bytes);
    if (family != AF_UNSPEC)
        return own_numeric(wanted, family, bytes, text, text_bytes, &why);
    const char *slash = strchr(wanted, '/');
    if (slash) {
        wish.interface = NULL;
        if (!own_network(wanted, slash, &wish)) {
            text_append(&why, "LOCKSTEP_ADVERTISE='%s' is no network like 10.0.0.0/8", wanted);
            return -1;
        }
    }
    const struct own_address *best = own_best(&wish, addresses, count);
    if (best) {
        own_format(best->family, best->bytes, text, text_bytes);
        return 0;
    }
    text_append(&why, "LOCKSTEP_ADVERTISE='%s': this host has no address %s", wanted,
                slash ? "in that network" : "of an interface with that name");
    own_list(&why, addresses, count);
    return -1;
}

// ---- addresses from the kernel ------------------------------------------------------------------

static bool own_take(const struct ifaddrs *from, struct own_address *address)
{
    if (!from->ifa_addr || !(from->ifa_flags & IFF_UP))
        return false;
    const int family = from->ifa_addr->sa_family;
    *address =
        (struct own_address){.family = family, .loopback = (from->ifa_flags & IFF_LOOPBACK) != 0};
    text_copy(address->interface, sizeof(address->interface), from->ifa_name);
    if (family == AF_INET)
        memcpy(address->bytes,
               &((const struct sockaddr_in *)(const void *)from->ifa_addr)->sin_addr, 4);
    else if (family == AF_INET6)
        memcpy(address->bytes,
               &((const struct sockaddr_in6 *)(const void *)from->ifa_addr)->sin6_addr, 16);
    return family == AF_INET || family == AF_INET6;
}

// Fills addresses, of OWN_ADDRESSES. Returns their number; -1 with errno on failure.
static int own_addresses(struct own_address *addresses)
{
    int count = 0;
    struct ifaddrs *first = NULL;
    if (getifaddrs(&first) < 0)
        return -1;
    for (const struct ifaddrs *at = first; at && count < OWN_ADDRESSES; at = at->ifa_next)
        if (own_take(at, &addresses[count]))
            count++;
    freeifaddrs(first);
    return count;
}

void own_address_list(struct text *text)
{
    struct own_address addresses[OWN_ADDRESSES];
    const int count = own_addresses(addresses);
    if (count > 0)
        own_list(text, addresses, (uint32_t)count);
}

int own_address_find(const char *wanted, char *text, size_t text_bytes, char *error,
                     size_t error_bytes)
{
    struct own_address addresses[OWN_ADDRESSES];
    const int count = own_addresses(addresses);
    if (count < 0) {
        struct text why;
        char reason[64];
        text_init(&why, error, error_bytes);
        text_append(&why, "the addresses of this host: %s",
                    strerror_r(errno, reason, sizeof(reason)));
        return -1;
    }
    return own_address_choose(wanted, addresses, (uint32_t)count, text, text_bytes, error,
                              error_bytes);
}
