// SPDX-License-Identifier: Apache-2.0
//
// The layout of one module: which gradients travel together in a bucket. It is computed from the
// module's parameters, the order in which their gradients become ready, and three caps. Also the
// encoding in which a layout travels. Pure; any thread. Allocates nothing.
//
// The key of a bucket is its dtype, and whether ranks with a device have it in device memory:
// gradients on devices are reduced there. Every key has its own open bucket and applies the caps
// separately: first_bytes to its first bucket, bytes to the others. A cap is a threshold: a bucket
// closes when its size has reached the cap after a gradient was added. So a gradient larger than
// the cap is no special case, and with a cap of 0 each gradient has a bucket of its own.
//
// If the trainer sets no cap, a bucket has 4 MiB. After a bucket has travelled, the link waits
// until the next one is full, so larger buckets would leave the link idle; and the fixed cost of a
// bucket is small for 4 MiB. Large modules have larger buckets, because a step has a limited number
// of slots. About BUCKET_SHARES buckets are enough: one bucket is then a small part of the whole.
//
// Short tail: the gradients that are ready last cannot travel during the backward pass, so the last
// bucket of a key is kept small. It is the longest run of the key's last gradients with at most
// last_bytes (or bytes, if that is less), and has at least the last gradient that is not empty. The
// bucket before it closes there whatever its size. last_bytes 0 turns this off.
//
// A bucket has at most LOCKSTEP_BUCKET_PARAMETERS gradients: it closes when it has so many, and the
// last bucket begins so many gradients before the end at the earliest.
//
// Buckets are in the order of their last gradients, that is, in the order in which they become
// ready. Inside a bucket gradients keep their order. Empty gradients are members like others. The
// same arguments give the same layout on every rank.

#ifndef WORKER_SESSION_MODULE_BUCKETS_H
#define WORKER_SESSION_MODULE_BUCKETS_H

#include "protos/types.h"

#include <stddef.h>

struct bucket_parameter {
    enum dtype dtype;
    bool trainable; // True if the parameter is trained now; otherwise it is in no bucket.
    uint64_t elements;
    bool device; // True if ranks with a device have it in device memory. Equal on all ranks.
};

struct bucket_caps {
    uint64_t first_bytes;
    uint64_t bytes;
    uint64_t last_bytes; // 0: the last bucket is like the others.
};

#define BUCKET_DEFAULT_BYTES (4 * 1024 * 1024)
#define BUCKET_SHARES 64

// A bucket: the parameters order[first] to order[first + count - 1], all of one key. `elements` is
// their sum, and may be 0.
struct bucket {
    uint32_t first;
    uint32_t count; // At least 1.
    enum dtype dtype;
    uint64_t elements;
    bool device;
};

// The caller owns the arrays. The functions that make a layout write them, up to their capacities.
// After a failure the content of the arrays and the counts is undefined.
struct bucket_layout {
    uint32_t *order; // Indices of the trainable parameters, bucket by bucket.
    uint32_t order_capacity;
    uint32_t order_count;
    struct bucket *buckets;
    uint32_t bucket_capacity; // LOCKSTEP_MAX_BUCKETS is enough for any layout.
    uint32_t bucket_count;
};

// Why a layout could not be made.
enum bucket_error {
    BUCKET_OK = 0,
    BUCKET_TOO_MANY_PARAMETERS, // More than LOCKSTEP_MAX_PARAMETERS, or than order has room for.
    BUCKET_TOO_MANY_BUCKETS, // More than LOCKSTEP_MAX_BUCKETS, or than there is room for.
    BUCKET_BAD_DTYPE, // A trainable parameter has an unknown dtype.
    BUCKET_TOO_LARGE, // One key has more than INT64_MAX bytes.
    BUCKET_BAD_ORDER, // The order does not have each trainable parameter exactly once.
    BUCKET_BAD_WORDS, // The words encode no valid layout: wrong ends or counts, or mixed keys.
};

// The cap of buckets if the trainer has set none, for a module with these parameters. times: how
// often each bucket travels in a step.
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

// Makes the layout that the words encode, for these parameters. Words are not trusted: the function
// checks that the order has exactly the trainable parameters, that ends rise strictly up to its
// length, and that each bucket has one key and at most LOCKSTEP_BUCKET_PARAMETERS gradients. It
// does not check sizes and order of buckets.
enum bucket_error buckets_decode(const uint32_t *words, uint32_t word_count,
                                 const struct bucket_parameter *parameters,
                                 uint32_t parameter_count, struct bucket_layout *layout,
                                 char *error, size_t error_bytes);

// Hash of the encoded words as they lie in memory: equal layouts, equal hashes. What the parameters
// are is not in it; the manifest has that.
uint64_t buckets_hash(const struct bucket_layout *layout);

#endif
