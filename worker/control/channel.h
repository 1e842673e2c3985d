// SPDX-License-Identifier: Apache-2.0
//
// The gRPC channel to the coordinator, with the queue of what completes on it. The thread that
// opens the control until the control thread runs, then the control thread.

#ifndef WORKER_CONTROL_CHANNEL_H
#define WORKER_CONTROL_CHANNEL_H

#include "protos/limits.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

struct control_credentials;
struct control_target;
struct grpc_call;
struct grpc_channel;
struct grpc_completion_queue;
struct grpc_event;

struct channel {
    char target[LOCKSTEP_ADDRESS_BYTES + 32]; // The coordinator's address as gRPC writes it.
    struct control_credentials *credentials; // NULL: plaintext.
    struct grpc_completion_queue *cq;
    struct grpc_channel *now; // Another one when certificates have changed.
    struct grpc_channel *lame;
    struct grpc_call *wake_call; // On the lame channel: never started.
};

// Finds out the target and opens the credentials. 0, or -1 with a sentence in error.
int channel_locate(struct channel *channel, const struct control_target *target, char *error,
                   size_t error_bytes);
// Starts gRPC and makes the channel. 0, or -1; then the caller calls channel_close and
// grpc_shutdown, too.
int channel_open(struct channel *channel);
// Another channel, if certificates have changed.
void channel_renew(struct channel *channel);
// Takes down everything of gRPC's but the library itself.
void channel_close(struct channel *channel);

// Has channel_next return with this tag soon. The caller sees to it that one such tag at most is
// under way. Any thread.
void channel_wake(struct channel *channel, void *tag);
// Waits until something completes, or until the deadline by clock_now_ms; UINT64_MAX: for ever.
struct grpc_event channel_next(struct channel *channel, uint64_t deadline_ms);

// gRPC starts threads of its own in grpc_init and later; they inherit this mask. A signal that a
// fault raises stays deliverable, so that a trainer's crash handler still sees it.
void channel_block_signals(sigset_t *before);
void channel_restore_signals(const sigset_t *before);
// Ends gRPC, once for each channel_open, with all signals blocked.
void channel_end(void);

#endif
