// SPDX-License-Identifier: Apache-2.0
//
// Replaces the atomic operations by versions that are points of interleave.h, in files that a test
// includes after this one. One thread runs at a time, so several C11 operations may make up one
// atomic operation.

#ifndef LOCKSTEP_TESTS_INTERLEAVE_ATOMICS_H
#define LOCKSTEP_TESTS_INTERLEAVE_ATOMICS_H

#include "base/thread.h"
#include "tests/sim/interleave.h"

#include <stdatomic.h>

// Included code does not use the result of every addition.
#pragma GCC diagnostic ignored "-Wunused-value"

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_sub_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit

#define atomic_load(word) (interleave_point((word), false, "read " #word), *(word))
#define atomic_store(word, value) \
    (interleave_point((word), true, "write " #word), (void)(*(word) = (value)))
#define atomic_fetch_add(word, value) \
    (interleave_point((word), true, "add to " #word), (*(word) += (value)) - (value))
#define atomic_fetch_sub(word, value) \
    (interleave_point((word), true, "take from " #word), (*(word) -= (value)) + (value))
#define atomic_compare_exchange(word, expected, value) \
    (interleave_point((word), true, "swap " #word), \
     *(word) == *(expected) ? (*(word) = (value), true) : (*(expected) = *(word), false))

#define atomic_load_explicit(word, order) atomic_load(word)
#define atomic_store_explicit(word, value, order) atomic_store(word, value)
#define atomic_fetch_add_explicit(word, value, order) atomic_fetch_add(word, value)
#define atomic_fetch_sub_explicit(word, value, order) atomic_fetch_sub(word, value)
#define atomic_compare_exchange_strong_explicit(word, expected, value, success, failure) \
    atomic_compare_exchange(word, expected, value)
#define atomic_compare_exchange_weak_explicit(word, expected, value, success, failure) \
    atomic_compare_exchange(word, expected, value)

#define thread_moment(tries) ((void)(tries), interleave_wait())

#endif
