// SPDX-License-Identifier: Apache-2.0
//
// Layouts of buckets and their encoding; buckets.h has the rules. Pure; any thread.
//
// A layout is made in one walk over the order. Each key has a struct walk: the content of its open
// bucket, and how much of the key is still to come. The latter is counted beforehand, so that the
// walk knows where the key's tail begins and which gradient is its last. Buckets close in the order
// of their last gradients, which is the order of the layout. When a bucket closes, its members are
// found by a second pass over that part of the order: they are the gradients of its key since it
// was opened. So the walk visits each gradient at most once more for each key.

#include "worker/session/module/buckets.h"

#include "base/bits.h"
#include "base/hash64.h"
#include "base/text.h"
#include "worker/kernels/kernels.h"

#include <assert.h>
#include <string.h>

enum {
    DTYPES = DTYPE_LAST + 1,
    KEYS = 2 * DTYPES
};

// The walk of one key.
struct walk {
    uint64_t bytes_left; // Bytes of the key's gradients that the walk has not reached yet.
    uint32_t count_left; // Number of these gradients.
    uint32_t tail_count; // The last bucket begins when count_left is this. 0: no such rule.
    uint64_t cap; // Cap of the open bucket, in bytes.
    uint32_t open_from; // Position in the order of the open bucket's first member, if it has one.
    uint32_t open_count; // Gradients in the open bucket.
    uint64_t open_bytes;
};

// The order that the walk follows: the given one, or the reversed order of definition.
struct source {
    const struct bucket_parameter *parameters;
    const uint32_t *order; // NULL: from the last parameter to the first, frozen ones included.
    uint32_t length; // Positions.
};

static uint32_t source_at(const struct source *source, uint32_t position)
{
    return source->order ? source->order[position] : source->length - 1 - position;
}

// The key of a parameter. Its dtype must be known.
static uint32_t parameter_key(const struct bucket_parameter *parameter)
{
    return (uint32_t)parameter->dtype + (parameter->device ? DTYPES : 0);
}

static uint64_t parameter_bytes(const struct bucket_parameter *parameter)
{
    return parameter->elements * dtype_size(parameter->dtype);
}

// ---- Caps ------------------------------------------------------------------------------------

uint64_t buckets_default_bytes(const struct bucket_parameter *parameters, uint32_t parameter_count,
                               uint32_t times)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < parameter_count; i++)
        bytes += parameters[i].trainable ? parameter_bytes(&parameters[i]) : 0;
    const uint64_t share = bytes / BUCKET_SHARES;
    if (share > UINT64_MAX / times)
        return UINT64_MAX;
    return share * times > BUCKET_DEFAULT_BYTES ? share * times : BUCKET_DEFAULT_BYTES;
}

// ---- Checks ----------------------------------------------------------------------------------

// Checks that the order has each trainable parameter exactly once.
static enum bucket_error check_order(const uint32_t *order, uint32_t order_count,
                                     const struct bucket_parameter *parameters,
                                     uint32_t parameter_count, uint32_t trainable_count,
                                     struct text *error)
{
    uint64_t seen[(LOCKSTEP_MAX_PARAMETERS + 63) / 64];
    memset(seen, 0, (parameter_count + 63) / 64 * sizeof(seen[0]));
    for (uint32_t i = 0; i < order_count; i++) {
        uint32_t index = order[i];
        if (index >= parameter_count) {
            text_append(error, "the order names parameter %u of %u", index, parameter_count);
            return BUCKET_BAD_ORDER;
        }
        if (!parameters[index].trainable) {
            text_append(error, "the order names parameter %u, which is not trainable", index);
            return BUCKET_BAD_ORDER;
        }
        if (bits_has(seen, index)) {
            text_append(error, "the order names parameter %u twice", index);
            return BUCKET_BAD_ORDER;
        }
        bits_add(seen, index);
    }
    if (order_count != trainable_count) {
        text_append(error, "the order names %u of %u trainable parameters", order_count,
                    trainable_count);
        return BUCKET_BAD_ORDER;
    }
    return BUCKET_OK;
}

// Checks the trainable parameters and sums them up by key.
static enum bucket_error count_parameters(const struct bucket_parameter *parameters,
                                          uint32_t parameter_count, struct walk walks[KEYS],
                                          uint32_t *trainable_count, struct text *error)
{
    *trainable_count = 0;
    if (parameter_count > LOCKSTEP_MAX_PARAMETERS) {
        text_append(error, "%u parameters, but at most %d are possible", parameter_count,
                    LOCKSTEP_MAX_PARAMETERS);
        return BUCKET_TOO_MANY_PARAMETERS;
    }
    for (uint32_t i = 0; i < parameter_count; i++) {
        const struct bucket_parameter *parameter = &parameters[i];
        size_t size = dtype_size(parameter->dtype);
        if (!parameter->trainable)
            continue;
        if (size == 0) {
            text_append(error, "parameter %u has no known dtype (%d)", i, (int)parameter->dtype);
            return BUCKET_BAD_DTYPE;
        }
        struct walk *walk = &walks[parameter_key(parameter)];
        if (parameter->elements > ((uint64_t)INT64_MAX - walk->bytes_left) / size) {
            text_append(error, "parameter %u makes more than 2^63 bytes of %s", i,
                        dtype_name(parameter->dtype));
            return BUCKET_TOO_LARGE;
        }
        walk->bytes_left += parameter_bytes(parameter);
        walk->count_left++;
        ++*trainable_count;
    }
    return BUCKET_OK;
}

static enum bucket_error check_room(const struct bucket_layout *layout, uint32_t trainable_count,
                                    struct text *error)
{
    if (trainable_count <= layout->order_capacity)
        return BUCKET_OK;
    text_append(error, "%u trainable parameters, but there is room for %u", trainable_count,
                layout->order_capacity);
    return BUCKET_TOO_MANY_PARAMETERS;
}

// ---- The walk --------------------------------------------------------------------------------

// Sets tail_count of every key. Walks the order backwards: a gradient joins the tail while the tail
// has at most last_bytes, or as long as the tail has no bytes.
static void find_tails(const struct source *source, uint64_t last_bytes, struct walk walks[KEYS])
{
    uint64_t bytes[KEYS] = {0};
    bool full[KEYS] = {false};
    for (uint32_t position = source->length; position-- > 0;) {
        const struct bucket_parameter *parameter = &source->parameters[source_at(source, position)];
        const uint32_t key = parameter->trainable ? parameter_key(parameter) : 0;
        if (!parameter->trainable || full[key])
            continue;
        uint64_t sum = bytes[key] + parameter_bytes(parameter);
        if (bytes[key] > 0 && sum > last_bytes) {
            full[key] = true;
            continue;
        }
        bytes[key] = sum;
        full[key] = ++walks[key].tail_count == LOCKSTEP_BUCKET_PARAMETERS;
    }
}

// Adds the bucket that closes at `position` to the layout.
static enum bucket_error close_bucket(const struct source *source, uint32_t position,
                                      struct walk *walk, struct bucket_layout *layout,
                                      struct text *error)
{
    const struct bucket_parameter *last = &source->parameters[source_at(source, position)];
    uint32_t limit = layout->bucket_capacity < LOCKSTEP_MAX_BUCKETS ? layout->bucket_capacity
                                                                    : LOCKSTEP_MAX_BUCKETS;
    if (layout->bucket_count >= limit) {
        text_append(error, "more than %u buckets: raise their size", limit);
        return BUCKET_TOO_MANY_BUCKETS;
    }
    layout->buckets[layout->bucket_count++] = (struct bucket){
        .first = layout->order_count,
        .count = walk->open_count,
        .dtype = last->dtype,
        .device = last->device,
        .elements = walk->open_bytes / dtype_size(last->dtype),
    };
    for (uint32_t i = walk->open_from; i <= position; i++) {
        uint32_t index = source_at(source, i);
        if (source->parameters[index].trainable &&
            parameter_key(&source->parameters[index]) == parameter_key(last))
            layout->order[layout->order_count++] = index;
    }
    walk->open_count = 0;
    walk->open_bytes = 0;
    return BUCKET_OK;
}

// Puts the gradient at `position` into the open bucket of its key. True if this closes the bucket.
static bool add_gradient(struct walk *walk, uint32_t position, uint64_t bytes)
{
    bool in_tail = walk->count_left <= walk->tail_count;
    if (walk->open_count == 0)
        walk->open_from = position;
    walk->open_count++;
    walk->open_bytes += bytes;
    walk->count_left--;
    if (walk->count_left == 0 || walk->open_count == LOCKSTEP_BUCKET_PARAMETERS)
        return true;
    if (in_tail)
        return false;
    return walk->count_left == walk->tail_count || walk->open_bytes >= walk->cap;
}

static enum bucket_error walk_order(const struct source *source, uint64_t cap,
                                    struct walk walks[KEYS], struct bucket_layout *layout,
                                    struct text *error)
{
    for (uint32_t position = 0; position < source->length; position++) {
        const struct bucket_parameter *parameter = &source->parameters[source_at(source, position)];
        if (!parameter->trainable)
            continue;
        struct walk *walk = &walks[parameter_key(parameter)];
        if (!add_gradient(walk, position, parameter_bytes(parameter)))
            continue;
        enum bucket_error status = close_bucket(source, position, walk, layout, error);
        if (status != BUCKET_OK)
            return status;
        walk->cap = cap;
    }
    return BUCKET_OK;
}

enum bucket_error buckets_layout(const struct bucket_parameter *parameters,
                                 uint32_t parameter_count, const uint32_t *order,
                                 uint32_t order_count, struct bucket_caps caps,
                                 struct bucket_layout *layout, char *error, size_t error_bytes)
{
    struct walk walks[KEYS] = {{0}};
    struct text text;
    uint32_t trainable_count;
    char nowhere[1];
    assert(!order || order != layout->order);
    text_init(&text, error_bytes > 0 ? error : nowhere, error_bytes > 0 ? error_bytes : 1);
    layout->order_count = 0;
    layout->bucket_count = 0;

    enum bucket_error status =
        count_parameters(parameters, parameter_count, walks, &trainable_count, &text);
    if (status == BUCKET_OK)
        status = check_room(layout, trainable_count, &text);
    if (status == BUCKET_OK && order)
        status =
            check_order(order, order_count, parameters, parameter_count, trainable_count, &text);
    if (status != BUCKET_OK)
        return status;

    struct source source = {parameters, order, order ? order_count : parameter_count};
    if (caps.last_bytes > 0)
        find_tails(&source, caps.last_bytes < caps.bytes ? caps.last_bytes : caps.bytes, walks);
    for (int key = 0; key < KEYS; key++)
        walks[key].cap = caps.first_bytes;
    return walk_order(&source, caps.bytes, walks, layout, &text);
}

// ---- Words -----------------------------------------------------------------------------------

uint32_t buckets_word_count(const struct bucket_layout *layout)
{
    return 1 + layout->bucket_count + layout->order_count;
}

uint32_t buckets_encode(const struct bucket_layout *layout, uint32_t *words)
{
    uint32_t *next = words;
    *next++ = layout->bucket_count;
    for (uint32_t i = 0; i < layout->bucket_count; i++)
        *next++ = layout->buckets[i].first + layout->buckets[i].count;
    for (uint32_t i = 0; i < layout->order_count; i++)
        *next++ = layout->order[i];
    return (uint32_t)(next - words);
}

static const char *place_name(bool device)
{
    return device ? " on devices" : "";
}

// Fills bucket `number`, whose members are order[first] to order[end - 1].
static enum bucket_error decode_bucket(uint32_t number, uint32_t first, uint32_t end,
                                       const struct bucket_parameter *parameters,
                                       struct bucket_layout *layout, struct text *error)
{
    if (end <= first || end > layout->order_count) {
        text_append(error, "bucket %u ends at %u, which is not within %u to %u", number, end,
                    first + 1, layout->order_count);
        return BUCKET_BAD_WORDS;
    }
    if (end - first > LOCKSTEP_BUCKET_PARAMETERS) {
        text_append(error, "bucket %u has %u parameters, but at most %d are possible", number,
                    end - first, LOCKSTEP_BUCKET_PARAMETERS);
        return BUCKET_BAD_WORDS;
    }
    struct bucket *bucket = &layout->buckets[number];
    const struct bucket_parameter *leader = &parameters[layout->order[first]];
    *bucket = (struct bucket){first, end - first, leader->dtype, 0, leader->device};
    for (uint32_t i = first; i < end; i++) {
        const struct bucket_parameter *parameter = &parameters[layout->order[i]];
        if (parameter_key(parameter) != parameter_key(leader)) {
            text_append(error, "bucket %u has parameter %u of %s%s beside parameter %u of %s%s",
                        number, layout->order[first], dtype_name(bucket->dtype),
                        place_name(bucket->device), layout->order[i], dtype_name(parameter->dtype),
                        place_name(parameter->device));
            return BUCKET_BAD_WORDS;
        }
        bucket->elements += parameter->elements;
    }
    return BUCKET_OK;
}

static enum bucket_error decode_buckets(const uint32_t *ends, uint32_t count,
                                        const struct bucket_parameter *parameters,
                                        struct bucket_layout *layout, struct text *error)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < count; i++) {
        enum bucket_error status = decode_bucket(i, first, ends[i], parameters, layout, error);
        if (status != BUCKET_OK)
            return status;
        first = ends[i];
    }
    if (first != layout->order_count) {
        text_append(error, "the buckets end at %u, but there are %u parameters in the order", first,
                    layout->order_count);
        return BUCKET_BAD_WORDS;
    }
    layout->bucket_count = count;
    return BUCKET_OK;
}

// Checks that the number of words is right for the encoded number of buckets and the trainable
// parameters, and that the layout has room for them.
static enum bucket_error check_words(const uint32_t *words, uint32_t word_count,
                                     uint32_t trainable_count, const struct bucket_layout *layout,
                                     struct text *error)
{
    if (word_count == 0) {
        text_append(error, "a layout of no words");
        return BUCKET_BAD_WORDS;
    }
    if (words[0] > LOCKSTEP_MAX_BUCKETS || words[0] > layout->bucket_capacity) {
        text_append(error, "%u buckets, but at most %d are possible and there is room for %u",
                    words[0], LOCKSTEP_MAX_BUCKETS, layout->bucket_capacity);
        return BUCKET_TOO_MANY_BUCKETS;
    }
    if (word_count != 1 + words[0] + trainable_count) {
        text_append(error, "%u words, but %u buckets of %u trainable parameters take %u",
                    word_count, words[0], trainable_count, 1 + words[0] + trainable_count);
        return BUCKET_BAD_WORDS;
    }
    return BUCKET_OK;
}

enum bucket_error buckets_decode(const uint32_t *words, uint32_t word_count,
                                 const struct bucket_parameter *parameters,
                                 uint32_t parameter_count, struct bucket_layout *layout,
                                 char *error, size_t error_bytes)
{
    struct walk walks[KEYS] = {{0}};
    struct text text;
    uint32_t trainable_count;
    char nowhere[1];
    text_init(&text, error_bytes > 0 ? error : nowhere, error_bytes > 0 ? error_bytes : 1);
    layout->order_count = 0;
    layout->bucket_count = 0;

    enum bucket_error status =
        count_parameters(parameters, parameter_count, walks, &trainable_count, &text);
    if (status == BUCKET_OK)
        status = check_room(layout, trainable_count, &text);
    if (status == BUCKET_OK)
        status = check_words(words, word_count, trainable_count, layout, &text);
    if (status != BUCKET_OK)
        return status;

    const uint32_t *order = words + 1 + words[0];
    status =
        check_order(order, trainable_count, parameters, parameter_count, trainable_count, &text);
    if (status != BUCKET_OK)
        return status;
    if (trainable_count > 0)
        memcpy(layout->order, order, trainable_count * sizeof(*order));
    layout->order_count = trainable_count;
    return decode_buckets(words + 1, words[0], parameters, layout, &text);
}

uint64_t buckets_hash(const struct bucket_layout *layout)
{
    struct hash64 hash;
    hash64_init(&hash, 0);
    hash64_update(&hash, &layout->bucket_count, sizeof(layout->bucket_count));
    for (uint32_t i = 0; i < layout->bucket_count; i++) {
        uint32_t end = layout->buckets[i].first + layout->buckets[i].count;
        hash64_update(&hash, &end, sizeof(end));
    }
    if (layout->order_count > 0)
        hash64_update(&hash, layout->order, layout->order_count * sizeof(*layout->order));
    return hash64_final(&hash);
}
