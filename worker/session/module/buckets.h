// SPDX-License-Identifier: Apache-2.0
//
// The gradients that travel together: the layout of one module, from its parameters, the order in
// which their gradients become ready, and three caps. Also the words in which a layout travels.
// Not the memory of buckets, and not when they are launched. Pure; any thread. Allocates nothing.
//
// The key of a bucket is its dtype, and whether ranks that have a device have it in its memory:
// what lies on devices is reduced there. Every key has its own open bucket and walks the caps by
// itself: its first bucket has first_bytes, the others have bytes. A cap is a threshold: a bucket
// closes when its size has reached the cap after a gradient was added. So a gradient above the cap
// does not fit worse than another one, and with a cap of 0 each gradient is alone.
//
// Where a trainer sets no cap, a bucket has 4 MiB: a link whose bucket has travelled waits for the
// next one to fill, so large buckets leave it idle, and what a bucket costs by itself is small
// beside so many bytes. Large modules have larger buckets, because a step has so many slots only:
// about BUCKET_SHARES of them are enough, for then what waits is a small part of the whole.
//
// Short tail: what is ready last cannot be hidden behind the backward pass, so the last bucket of a
// key is kept small. It is the longest run of the key's last gradients with at most last_bytes
// (or bytes, if that is less), and at least its last gradient that is not empty. The bucket before
// it closes there whatever its size, and nothing splits it. last_bytes 0 turns this off.
//
// Buckets are in the order of their closing gradients, that is, in the order in which they become
// ready; inside a bucket gradients are in the order given. Zero-length gradients are members like
// others. The same arguments give the same layout on every rank.

#ifndef WORKER_SESSION_MODULE_BUCKETS_H
#define WORKER_SESSION_MODULE_BUCKETS_H

#include "protos/types.h"

#include <stddef.h>

struct bucket_parameter {
    enum dtype dtype;
    bool trainable; // Others are in no bucket.
    uint64_t elements;
    bool device; // True if it is in device memory on ranks that have a device. Equal on all ranks.
};

struct bucket_caps {
    uint64_t first_bytes;
    uint64_t bytes;
    uint64_t last_bytes; // 0: the last bucket is like the others.
};

#define BUCKET_DEFAULT_BYTES (4 * 1024 * 1024)
#define BUCKET_SHARES 64

// order[first] to order[first + count - 1], all of one key, elements in all (maybe 0).
struct bucket {
    uint32_t first;
    uint32_t count; // At least 1.
    enum dtype dtype;
    uint64_t elements;
    bool device;
};

// The arrays are the caller's, and only written, up to their capacities, by what makes a layout.
// After a failure they and the counts mean nothing.
struct bucket_layout {
    uint32_t *order; // Indices of the trainable parameters, bucket by bucket.
    uint32_t order_capacity;
    uint32_t order_count;
    struct bucket *buckets;
    uint32_t bucket_capacity; // LOCKSTEP_MAX_BUCKETS is enough for any.
    uint32_t bucket_count;
};

// Why there is no layout.
enum bucket_error {
    BUCKET_OK = 0,
    BUCKET_TOO_MANY_PARAMETERS, // More than LOCKSTEP_MAX_PARAMETERS, or than order has room for.
    BUCKET_TOO_MANY_BUCKETS, // More than LOCKSTEP_MAX_BUCKETS, or than there is room for.
    BUCKET_BAD_DTYPE, // A trainable parameter of no known dtype.
    BUCKET_TOO_LARGE, // More than INT64_MAX bytes of one key.
    BUCKET_BAD_ORDER, // Not each trainable parameter exactly once.
    BUCKET_BAD_WORDS, // Words that are no layout at all: ends, counts, mixed keys.
};

// The cap of buckets where the trainer has set none: of a module with these parameters, of which
// every bucket travels so many times in a step.
uint64_t buckets_default_bytes(const struct bucket_parameter *parameters, uint32_t parameter_count,
                               uint32_t times);

// Makes the layout. order holds the indices of all trainable parameters, each once, as they become
// ready, first to last; it must not be layout->order. NULL: the reverse of their definition. On
// failure error (if error_bytes > 0) holds a sentence that names the parameter by its index.
enum bucket_error buckets_layout(const struct bucket_parameter *parameters,
                                 uint32_t parameter_count, const uint32_t *order,
                                 uint32_t order_count, struct bucket_caps caps,
                                 struct bucket_layout *layout, char *error, size_t error_bytes);

// The words of struct layout_part: bucket count k, k ends into the order (exclusive), the order.
// Writes them and returns how many; words has room for buckets_word_count(), which is at most
// LOCKSTEP_MAX_LAYOUT_WORDS.
uint32_t buckets_word_count(const struct bucket_layout *layout);
uint32_t buckets_encode(const struct bucket_layout *layout, uint32_t *words);

// Makes the layout that words describe, for these parameters. Words may come from anywhere: the
// order must hold exactly the trainable parameters, ends rise strictly up to its length, and a
// bucket has one key. How large buckets are and in what order is not questioned.
enum bucket_error buckets_decode(const uint32_t *words, uint32_t word_count,
                                 const struct bucket_parameter *parameters,
                                 uint32_t parameter_count, struct bucket_layout *layout,
                                 char *error, size_t error_bytes);

// Hash of the encoded words as they lie in memory: equal layouts, equal hashes. What the parameters
// are is not in it; the manifest has that.
uint64_t buckets_hash(const struct bucket_layout *layout);

#endif
