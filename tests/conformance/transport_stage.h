// SPDX-License-Identifier: Apache-2.0
//
// A stage for tests of one transport against hostile peers. The transport under test is rank 0 of a
// world of 2. The other rank is a puppet: the test writes its frames by hand to a bare link. Both
// run on one thread. No bytes from a peer may crash the transport, make it write a value that is
// not final, or make it use more memory than its limits.

#ifndef TESTS_TRANSPORT_STAGE_H
#define TESTS_TRANSPORT_STAGE_H

#include "protos/frame.h"
#include "worker/link/hello.h"
#include "worker/link/link.h"
#include "worker/transport/transport.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define STAGE_BOUND_MS 20000
#define STAGE_PEERS 2
#define STAGE_MAX_TESTS 128
#define STAGE_PROOF_BYTES (LOCKSTEP_NONCE_BYTES + LOCKSTEP_PROOF_BYTES)

// The parameter of a test, passed as cmocka's state.
struct stage_variant {
    const char *name;
    enum transport_kind kind;
    uint32_t torn_bytes;
    bool mates;
    bool encrypts;
};

// Rank 0, the events that its transport has reported, and the puppet.
struct stage {
    const struct stage_variant *variant;
    struct transport *transport;
    struct transport_world world;
    struct peer peers[STAGE_PEERS];
    bool formed;
    bool form_failed;
    bool differs; // True if forming failed because the puppet's encryption differs.
    uint32_t done;
    uint32_t waves;
    uint32_t headers;
    uint32_t mismatches;
    uint32_t lost;
    uint32_t lost_rank;
    bool left;
    bool here; // True if the rank under test blamed itself.
    char text[256];
    uint32_t plays; // The puppet's rank.
    struct link *puppet;
    struct link *second; // Link of a second puppet, which stays silent; NULL: none.
};

// Opens the transport with a configured link speed, so that the puppet need not answer pings.
void stage_open(struct stage *stage, const struct stage_variant *variant);
// Opens the transport so that it measures a TCP link; the puppet has to answer pings.
void stage_open_measuring(struct stage *stage, const struct stage_variant *variant);
void stage_close(struct stage *stage);
// Number of strangers that the transport has refused.
uint64_t stage_refused(const struct stage *stage);

// ---- the puppet ---------------------------------------------------------------------------------

struct link *stage_connect(const struct stage *stage);
// Connects with a link that is never encrypted, not even after the proofs, for any bytes.
struct link *stage_connect_bare(const struct stage *stage);
// Sends or receives all bytes, and runs the transport meanwhile. False: the link was closed, or the
// transport has lost the puppet and no longer reads.
bool stage_send(struct stage *stage, struct link *link, const void *bytes, size_t size);
bool stage_receive(struct stage *stage, struct link *link, void *bytes, size_t size);
// payload NULL: zeros.
bool stage_send_frame(struct stage *stage, const struct frame_header *header, const void *payload);
bool stage_send_used(struct stage *stage, const struct frame_header *header, const uint8_t *used);
bool stage_receive_frame(struct stage *stage, struct frame_header *header, uint8_t *payload);

// Receives the challenge, the first frame on a connection that the puppet has made.
void stage_challenge(struct stage *stage, struct link *link,
                     uint8_t challenge[LOCKSTEP_NONCE_BYTES]);
// The data from which the puppet and rank 0 compute their proofs after this challenge.
struct hello stage_secrets(const struct stage *stage,
                           const uint8_t challenge[LOCKSTEP_NONCE_BYTES]);
struct frame_header stage_hello(const struct stage *stage);
// The payload of the hello.
void stage_proof(const struct hello *hello, uint8_t payload[STAGE_PROOF_BYTES]);
// Ends the authentication on the puppet's side; an encrypted link completes its handshake.
void stage_prove(struct stage *stage, const struct hello *hello);
// Receives and checks the welcome, then calls stage_prove().
void stage_welcome(struct stage *stage, const struct hello *hello);
// Connects the puppet, sends the hello and receives the welcome.
void stage_greet(struct stage *stage);
// Calls stage_greet() and waits until the world is formed.
void stage_join(struct stage *stage);
// Opens the transport and forms the world with the puppet.
void stage_form(struct stage *stage, const struct stage_variant *variant);
// The same for a world of three ranks on two hosts: rank 0 is alone on host `host`; the puppet is
// rank 1 and leads the other host; `second` is rank 2.
void stage_form_two(struct stage *stage, const struct stage_variant *variant, uint32_t host);

void stage_until(struct stage *stage, const bool *flag);
void stage_until_count(struct stage *stage, const uint32_t *count, uint32_t least);
void stage_until_refused(struct stage *stage, uint64_t least);

// ---- collectives --------------------------------------------------------------------------------

#define STAGE_STEP 5
#define STAGE_SPACE 6
#define STAGE_SIGNATURE 1234

struct launched {
    float memory[40000]; // The elements are 0, 1, 2 and so on.
    struct extent extent;
    struct collective collective;
};

void stage_launch(struct stage *stage, struct launched *launched, uint64_t elements, uint32_t slot,
                  enum collective_kind kind);
void stage_launch_pair(struct stage *stage, struct launched *launched, uint64_t elements,
                       uint32_t slot, enum plan_algorithm algorithm);
void launched_untouched(const struct launched *launched);

struct frame_header stage_tensor(const struct stage *stage, enum frame_kind kind, uint32_t chunk,
                                 uint32_t payload_bytes);
struct frame_header stage_small(const struct stage *stage, enum frame_kind kind);

// Checks that the transport has lost exactly one peer, with "impossible" in the text.
void stage_expect_impossible(struct stage *stage);

// ---- stamping -----------------------------------------------------------------------------------

struct stage_test {
    const char *name;
    void (*function)(void **state);
};
#define STAGE_TEST(function) \
    { \
#function, function \
    }

// Runs each test on each variant. LOCKSTEP_TEST_ONLY selects tests whose name contains its value.
// Returns the exit status for main.
int stage_run(const char *group, const struct stage_test *tests, size_t count);

#endif
