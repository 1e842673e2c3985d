// SPDX-License-Identifier: Apache-2.0
//
// A link that encrypts the bytes of another link.

#ifndef WORKER_LINK_TLS_H
#define WORKER_LINK_TLS_H

#include <stdbool.h>

struct link;

// Makes an encrypting link over `below`, whose first bytes were neither sent nor received, and
// takes ownership of `below`: `below` is closed with the new link, or at once if there is no memory
// (then the result is NULL). accepted: true if this side accepted the connection.
struct link *link_encrypt(struct link *below, bool accepted);

#endif
