// SPDX-License-Identifier: Apache-2.0
//
// The functions of tls.c that other files call.

#ifndef WORKER_LINK_TLS_H
#define WORKER_LINK_TLS_H

#include <stdbool.h>

struct link;

// Over another link, from its first byte on, which is the new one's: closed with it, or here when
// there is no memory (NULL). accepted: this side has accepted the connection.
struct link *link_encrypt(struct link *below, bool accepted);

#endif
