// SPDX-License-Identifier: Apache-2.0
//
// Chooses which of this host's addresses a worker announces, according to LOCKSTEP_ADVERTISE.
// Without that variable a worker announces the address that faces the coordinator
// (worker/control/local_address.c). own_address_choose keeps no state; own_address_find first asks
// the kernel for the addresses. Any thread.

#ifndef WORKER_LINK_OWN_ADDRESS_H
#define WORKER_LINK_OWN_ADDRESS_H

#include "base/text.h"

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OWN_ADDRESSES 128 // Addresses of a host beyond this number are ignored.

// An address of an interface that is up.
struct own_address {
    char interface[IF_NAMESIZE];
    bool loopback;
    int family; // AF_INET or AF_INET6.
    uint8_t bytes[16]; // IPv4 uses the first four.
};

// Writes the chosen address to text. wanted is one of
// - a numeric address, "10.0.0.7", "fd00::7" or "[fd00::7]": chosen as it is;
// - a network, "10.0.0.0/8" or "fd00::/8": the first address inside the network;
// - the name of an interface, "eth0": its first IPv4 address, else its first IPv6 address.
// A loopback address is chosen only if nothing else matches. A link-local IPv6 address is never
// chosen, because its zone means nothing on another host. Returns 0; -1 with a sentence in error
// that lists the addresses of this host.
int own_address_choose(const char *wanted, const struct own_address *addresses, uint32_t count,
                       char *text, size_t text_bytes, char *error, size_t error_bytes);
int own_address_find(const char *wanted, char *text, size_t text_bytes, char *error,
                     size_t error_bytes);

// Appends the addresses of this host, such as ": it has lo 127.0.0.1, eth0 10.0.0.7". Appends
// nothing if the kernel does not tell them.
void own_address_list(struct text *text);

#endif
