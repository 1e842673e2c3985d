// SPDX-License-Identifier: Apache-2.0
//
// What a worker has promised to coordinators; see promise.h. Pure.

#include "worker/order/promise.h"

// Returns a negative number, 0 or a positive number if a is below, equal to or above b.
static int ballot_compare(const struct generation_id *a, const struct generation_id *b)
{
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    if (a->incarnation != b->incarnation)
        return a->incarnation < b->incarnation ? -1 : 1;
    return 0;
}

void promise_init(struct promise *promise, struct generation_id generation)
{
    *promise = (struct promise){.ballot = generation};
}

enum promise_answer promise_prepare(struct promise *promise, struct generation_id ballot)
{
    const int compared = ballot_compare(&ballot, &promise->ballot);
    if (promise->excluded)
        return PROMISE_SILENCE;
    if (compared == 0 && promise->frozen)
        return PROMISE_REPORT;
    if (compared <= 0)
        return PROMISE_REFUSE;
    promise->ballot = ballot;
    promise->frozen = true;
    return PROMISE_FREEZE;
}

bool promise_decided(struct promise *promise, struct generation_id ballot)
{
    if (promise->excluded || !promise->frozen || ballot_compare(&ballot, &promise->ballot) != 0)
        return false;
    promise->frozen = false;
    return true;
}

bool promise_excluded(struct promise *promise, struct generation_id ballot)
{
    if (promise->excluded || ballot_compare(&ballot, &promise->ballot) < 0)
        return false;
    promise->excluded = true;
    return true;
}
