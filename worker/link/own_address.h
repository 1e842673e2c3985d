// SPDX-License-Identifier: Apache-2.0
//
// Which of this host's addresses a worker announces, from what LOCKSTEP_ADVERTISE says. Not here:
// the address that faces the coordinator, which is taken where nothing is said
// (worker/control/local_address.c). The choice is a pure function; own_address_find asks the kernel
// first. Any thread.

#ifndef WORKER_LINK_OWN_ADDRESS_H
#define WORKER_LINK_OWN_ADDRESS_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OWN_ADDRESSES 128 // Of one host that are looked at.

// An address of one interface that is up.
struct own_address {
    char interface[IF_NAMESIZE];
    bool loopback;
    int family; // AF_INET or AF_INET6.
    uint8_t bytes[16]; // Of which IPv4 has four.
};

// wanted is one of
// - a numeric address, "10.0.0.7", "fd00::7" or "[fd00::7]": it is taken as it is;
// - a network, "10.0.0.0/8" or "fd00::/8": the first address inside it;
// - the name of an interface, "eth0": its first IPv4 address, else its first IPv6 one.
// Loopback addresses come last, link-local ones of IPv6 never: their zone means nothing elsewhere.
// 0; -1 with a sentence in error, which lists what there is.
int own_address_choose(const char *wanted, const struct own_address *addresses, uint32_t count,
                       char *text, size_t text_bytes, char *error, size_t error_bytes);
int own_address_find(const char *wanted, char *text, size_t text_bytes, char *error,
                     size_t error_bytes);

#endif
