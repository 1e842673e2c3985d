// SPDX-License-Identifier: Apache-2.0
//
// Stops a rank inside of a turn of its driver: a thread drives it, and stops in the handler of the
// signal that its first store to a protected page raises. All earlier stores have happened, and no
// later one has, until the rank is woken. One rank at a time in a process.

#ifndef TESTS_TRANSPORT_TEAR_H
#define TESTS_TRANSPORT_TEAR_H

#include <stdbool.h>
#include <stdint.h>

#define TEAR_PAGE_BYTES 4096

struct transport;

// Drives a transport for one turn, with a page that cannot be written. True: the rank has stopped
// at that page. False: its turn is over.
bool tear_turn(struct transport *transport, uint8_t *page);
// The stopped rank finishes its turn. Does nothing if no rank is stopped.
void tear_wake(void);
// Ends the links of a transport, as the kernel does when a process dies.
void tear_links(struct transport *transport);

#endif
