// SPDX-License-Identifier: Apache-2.0
//
// A stage for tests of one transport against any peer that may speak to it. One thread: the
// transport under test is rank 0 of 2, the other side is a puppet that writes frames by hand over a
// bare link. No bytes may crash the transport, write what is not final, or make it hold more than
// its bounds.

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

// Parameter of a test, passed as its state.
struct stage_variant {
    const char *name;
    enum transport_kind kind;
    uint32_t torn_bytes;
    bool mates;
    bool encrypts;
};

// Rank 0, what its events said, and the puppet.
struct stage {
    const struct stage_variant *variant;
    struct transport *transport;
    struct transport_world world;
    struct peer peers[STAGE_PEERS];
    bool formed;
    bool form_failed;
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
    struct link *second; // Another one, which is silent; NULL: none.
};

// A puppet answers no pings: its link is taken for a fast one.
void stage_open(struct stage *stage, const struct stage_variant *variant);
// Over TCP the puppet's link is measured: it has to answer.
void stage_open_measuring(struct stage *stage, const struct stage_variant *variant);
void stage_close(struct stage *stage);
uint64_t stage_refused(const struct stage *stage);

// ---- the puppet ---------------------------------------------------------------------------------

struct link *stage_connect(const struct stage *stage);
// One that would not be encrypted after proofs, either: it takes any bytes.
struct link *stage_connect_bare(const struct stage *stage);
// All, the transport working meanwhile. False: the link was closed, or ended before, or the puppet
// is lost and nobody reads.
bool stage_send(struct stage *stage, struct link *link, const void *bytes, size_t size);
bool stage_receive(struct stage *stage, struct link *link, void *bytes, size_t size);
// payload NULL: zeros.
bool stage_send_frame(struct stage *stage, const struct frame_header *header, const void *payload);
bool stage_send_used(struct stage *stage, const struct frame_header *header, const uint8_t *used);
bool stage_receive_frame(struct stage *stage, struct frame_header *header, uint8_t *payload);

// The first frame on a connection that the puppet has made.
void stage_challenge(struct stage *stage, struct link *link,
                     uint8_t challenge[LOCKSTEP_NONCE_BYTES]);
// The proofs of the puppet and rank 0 to each other, after this challenge.
struct hello stage_secrets(const struct stage *stage,
                           const uint8_t challenge[LOCKSTEP_NONCE_BYTES]);
struct frame_header stage_hello(const struct stage *stage);
// The payload of the hello.
void stage_proof(const struct hello *hello, uint8_t payload[STAGE_PROOF_BYTES]);
// Both sides have proven membership.
void stage_prove(struct stage *stage, const struct hello *hello);
// Receives the welcome, and examines it.
void stage_welcome(struct stage *stage, const struct hello *hello);
// The puppet says hello and is welcome; and the world is formed.
void stage_greet(struct stage *stage);
void stage_join(struct stage *stage);
// All of it, from opening on.
void stage_form(struct stage *stage, const struct stage_variant *variant);
// The same with a world of three on two hosts: rank 0 is alone on host `host`, the puppet is rank 1
// and leads the other one, `second` is rank 2.
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

// A peer is lost, by name.
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

// Runs each test on each variant. LOCKSTEP_TEST_ONLY narrows them. The program's exit code.
int stage_run(const char *group, const struct stage_test *tests, size_t count);

#endif
