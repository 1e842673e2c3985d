// SPDX-License-Identifier: Apache-2.0
//
// The gRPC channel to the coordinator, and its completion queue. Used by the thread that opens the
// control until the control thread runs, and then by the control thread.

#ifndef WORKER_CONTROL_CHANNEL_H
#define WORKER_CONTROL_CHANNEL_H

#include "protos/limits.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control_credentials;
struct control_target;
struct grpc_call;
struct grpc_channel;
struct grpc_completion_queue;
struct grpc_event;

struct channel {
    // The coordinator's address that is tried now, as gRPC writes it. The channel in use may still
    // be one to another address.
    char target[LOCKSTEP_ADDRESS_BYTES + 32];
    char host[LOCKSTEP_ADDRESS_BYTES]; // Its host; "": it is a path.
    uint16_t port;
    bool moved; // True if the channel in use leads to another address.
    struct control_credentials *credentials; // NULL: plaintext.
    struct grpc_completion_queue *cq;
    // The channel in use, replaced when the certificates have changed; NULL after channel_rest.
    struct grpc_channel *now;
    struct grpc_channel *lame;
    // A call on the lame channel that is never started; channel_wake completes an empty batch of
    // it.
    struct grpc_call *wake_call;
};

// Opens the credentials. Returns 0, or -1 with a sentence in error. The caller then calls
// channel_aim.
int channel_certify(struct channel *channel, const struct control_target *target, char *error,
                    size_t error_bytes);
// Sets the address that is tried from now on. Returns 0, or -1 with a sentence in error.
int channel_aim(struct channel *channel, const char *address, char *error, size_t error_bytes);
// Starts gRPC and makes the channel. Returns 0, or -1; in both cases the caller must call
// channel_close and grpc_shutdown later.
int channel_open(struct channel *channel);
// Replaces the channel if it leads to another address; if that is a name, or `anew` is true, so
// that the name is looked up again; or if the certificates have changed.
void channel_renew(struct channel *channel, bool anew);
// Called when an attempt is over. Destroys the channel now if channel_renew would do so, because
// gRPC reconnects a failed channel on its own: gRPC 1.51 leaks a connection whose channel is
// destroyed after the connection stands and before its first frame has come.
void channel_rest(struct channel *channel, bool anew);
// Frees all gRPC objects of the channel, but does not shut down gRPC.
void channel_close(struct channel *channel);

// Makes channel_next return with this tag soon. The caller ensures that at most one such tag is
// outstanding. Any thread.
void channel_wake(struct channel *channel, void *tag);
// Waits until an operation completes, or until the deadline, a time of clock_now_ms; UINT64_MAX: no
// deadline.
struct grpc_event channel_next(struct channel *channel, uint64_t deadline_ms);

// Blocks signals, because gRPC starts threads in grpc_init and later, and these threads inherit the
// mask. Signals that a fault raises stay unblocked, so that a trainer's crash handler still gets
// them.
void channel_block_signals(sigset_t *before);
void channel_restore_signals(const sigset_t *before);
// Shuts gRPC down, once for each channel_open, with signals blocked. gRPC waits for its threads,
// and for ever if it could not start one of them.
void channel_end(void);
// Leaves gRPC as it is, without some of its threads. Instead of channel_close and channel_end.
void channel_abandon(void);
// Returns false if a channel was abandoned, or if an earlier channel_end does not return: then
// channel_open would not return either.
bool channel_may_open(void);

#endif
