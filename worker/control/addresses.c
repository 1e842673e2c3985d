// SPDX-License-Identifier: Apache-2.0
//
// The addresses at which a worker looks for the coordinator; addresses.h has the contract.

#include "worker/control/addresses.h"

#include "base/parse.h"
#include "base/text.h"

bool addresses_read(struct addresses *addresses, const char *list)
{
    const char *rest = list;
    *addresses = (struct addresses){.tell_at = UINT64_MAX};
    while (rest) {
        if (addresses->count == LOCKSTEP_COORDINATORS ||
            !parse_next_address(&rest, addresses->all[addresses->count].text,
                                sizeof(addresses->all[0].text)))
            return false;
        addresses->count++;
    }
    return addresses->count > 0;
}

struct address *addresses_now(struct addresses *addresses)
{
    return &addresses->all[addresses->at];
}

void addresses_failed(struct addresses *addresses, const char *reason)
{
    struct address *now = addresses_now(addresses);
    text_copy(now->reason, sizeof(now->reason), reason);
}

void addresses_turn(struct addresses *addresses)
{
    for (uint32_t i = 0; i < addresses->count; i++) {
        addresses->at = (addresses->at + 1) % addresses->count;
        if (!addresses->all[addresses->at].rests)
            return;
    }
}

bool addresses_rest(const struct addresses *addresses)
{
    for (uint32_t i = 0; i < addresses->count; i++)
        if (!addresses->all[i].rests)
            return false;
    return true;
}

bool addresses_may_retry(const struct addresses *addresses, uint64_t now_ms, uint64_t deadline_ms)
{
    for (uint32_t i = 0; i < addresses->count; i++)
        if (reach_may_retry(&addresses->all[i].reach, now_ms, deadline_ms))
            return true;
    return false;
}

bool addresses_tells(struct addresses *addresses, uint64_t now_ms)
{
    bool tells = false;
    if (now_ms < addresses->tell_at)
        return false;
    addresses->tell_at = UINT64_MAX;
    for (uint32_t i = 0; i < addresses->count; i++)
        tells = tells || !addresses->all[i].reach.mismatch;
    return tells;
}

void addresses_say(const struct addresses *addresses, struct text *text)
{
    for (uint32_t i = 0; i < addresses->count; i++) {
        const struct address *address = &addresses->all[i];
        const char *refusal = reach_refusal(&address->reach);
        const char *reason = refusal[0] != '\0'           ? refusal
                             : address->reason[0] != '\0' ? address->reason
                                                          : "no answer yet";
        text_append(text, "%s%s: %s", i == 0 ? "" : "; ", address->text, reason);
    }
}
