// SPDX-License-Identifier: Apache-2.0
//
// A link that encrypts the bytes of another link.

#ifndef WORKER_LINK_TLS_H
#define WORKER_LINK_TLS_H

#include <stdbool.h>

struct link;

// Makes a link over `below`, of which no byte was used, and takes it: it is closed with the new
// link, or at once if there is no memory (NULL). accepted: true if this side accepted the
// connection.
struct link *link_encrypt(struct link *below, bool accepted);

#endif
