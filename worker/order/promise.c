// SPDX-License-Identifier: Apache-2.0
//
// What a worker has promised to coordinators; see promise.h. Pure.

#include "worker/order/promise.h"

void promise_init(struct promise *promise, struct generation_id generation)
{
    *promise = (struct promise){.ballot = generation};
}

enum promise_answer promise_prepare(struct promise *promise, struct generation_id ballot)
{
    const int compared = generation_compare(&ballot, &promise->ballot);
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
    if (promise->excluded || !promise->frozen || generation_compare(&ballot, &promise->ballot) != 0)
        return false;
    promise->frozen = false;
    return true;
}

bool promise_excluded(struct promise *promise, struct generation_id ballot)
{
    if (promise->excluded || generation_compare(&ballot, &promise->ballot) < 0)
        return false;
    promise->excluded = true;
    return true;
}
