// SPDX-License-Identifier: Apache-2.0
// Payloads of two ranks' waves. A payload that passes its check names only things that exist,
// merges alike in both directions, and passes as the payload of both.
//
// The input: the kind, how many ranks each payload speaks for, then the two payloads.

#include "tests/fuzz/fuzz.h"
#include "worker/order/check.h"
#include "worker/order/metric_list.h"
#include "worker/order/order.h"
#include "worker/order/payloads.h"
#include "worker/transport/flow/wave.h"

#include <string.h>

#define PARAMETERS 9
#define CALLS 3

static const struct wave_bounds bounds = {
    .module_count = 3, .parameters = {4, 1, PARAMETERS}, .calls = {1, CALLS, 1}};
static uint8_t parameters[3][CALLS][PARAMETERS]; // The numbers that payloads may name.

union payload {
    uint8_t bytes[LOCKSTEP_WAVE_BYTES];
    struct open_wave open;
    struct close_wave close;
    struct commit_wave commit;
};

static const struct {
    size_t size;
    void (*merge)(void *into, const void *from);
    const char *(*check)(const void *context, const struct wave_origin *origin, const void *payload,
                         const void *own);
} kinds[WAVE_KINDS] = {
    [WAVE_CLOSE] = {sizeof(struct close_wave), order_close_merge, order_close_check},
    [WAVE_COMMIT] = {sizeof(struct commit_wave), order_commit_merge, order_commit_check},
    [WAVE_OPEN] = {sizeof(struct open_wave), order_open_merge, order_open_check},
};

// Uses every number of the payload as an index, as the session does. Sets unused entries to zero.
static void use_close(struct close_wave *wave)
{
    const uint32_t count =
        wave->extra_total < LOCKSTEP_MAX_EXTRA_CALLS ? wave->extra_total : LOCKSTEP_MAX_EXTRA_CALLS;
    for (uint32_t i = 0; i < count; i++)
        parameters[wave->extras[i].module][wave->extras[i].call][0]++;
    memset(wave->extras + count, 0, (LOCKSTEP_MAX_EXTRA_CALLS - count) * sizeof(wave->extras[0]));
}

// Values are as a session makes them: it has one NaN only.
static void use_metrics(struct metric_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        FUZZ_CHECK(strlen(list->parts[i].name) < LOCKSTEP_METRIC_NAME_BYTES);
        list->parts[i].value = metric_list_value(list->parts[i].value);
    }
    memset(list->parts + list->count, 0,
           (LOCKSTEP_MAX_METRICS - list->count) * sizeof(list->parts[0]));
}

static void use_commit(struct commit_wave *wave, const struct wave_origin *origin)
{
    for (uint32_t i = 0; i < wave->unused_named; i++) {
        parameters[wave->unused[i].module][wave->unused[i].call][wave->unused[i].parameter]++;
        FUZZ_CHECK(wave->unused[i].rank < origin->world);
    }
    for (uint32_t i = 0; i < wave->aborted_named; i++) {
        parameters[wave->aborted[i].module][0][0]++;
        FUZZ_CHECK(wave->aborted[i].rank < origin->world);
    }
    FUZZ_CHECK(wave->unused_errors + wave->unused_warnings <= wave->unused_total);
    FUZZ_CHECK(wave->aborted_errors <= wave->aborted_total);
    memset(wave->unused + wave->unused_named, 0,
           (ORDER_UNUSED_NAMED - wave->unused_named) * sizeof(wave->unused[0]));
    memset(wave->aborted + wave->aborted_named, 0,
           (ORDER_ABORTED_NAMED - wave->aborted_named) * sizeof(wave->aborted[0]));
    memset(wave->counters + wave->counter_count, 0,
           (LOCKSTEP_MAX_COUNTERS - wave->counter_count) * sizeof(wave->counters[0]));
    use_metrics(&wave->metrics);
}

static void use(enum wave_kind kind, union payload *payload, const struct wave_origin *origin)
{
    if (kind == WAVE_OPEN)
        FUZZ_CHECK(strlen(payload->open.phase) < LOCKSTEP_NAME_BYTES);
    else if (kind == WAVE_CLOSE)
        use_close(&payload->close);
    else
        use_commit(&payload->commit, origin);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static union payload one;
    static union payload other;
    static union payload first;
    static const union payload own = {.close = {.plan_number = UINT64_MAX}};
    if (size < 2)
        return 0;
    const enum wave_kind kind = (enum wave_kind)(bytes[0] % WAVE_KINDS);
    const uint32_t ranks = 1u << bytes[1] % 4;
    const uint32_t world = 2 * ranks + (bytes[1] >> 4) % (2 * ranks);
    const struct wave_origin low = {world, 2 * ranks, 0, ranks};
    const struct wave_origin high = {world, 2 * ranks, ranks, ranks};
    const struct wave_origin both = {world, 2 * ranks, 0, 2 * ranks};
    const size_t most = kinds[kind].size;
    const size_t left = size - 2 < most ? size - 2 : most;
    memset(&one, 0, sizeof(one));
    memset(&other, 0, sizeof(other));
    memcpy(&one, bytes + 2, left);
    memcpy(&other, bytes + 2 + left, size - 2 - left < most ? size - 2 - left : most);
    if (kinds[kind].check(&bounds, &low, &one, &own))
        return 0;
    use(kind, &one, &low);
    if (kinds[kind].check(&bounds, &high, &other, &own))
        return 0;
    use(kind, &other, &high);
    memcpy(&first, &one, sizeof(first));
    kinds[kind].merge(&one, &other);
    kinds[kind].merge(&other, &first);
    FUZZ_CHECK(!kinds[kind].check(&bounds, &both, &one, &own));
    use(kind, &one, &both);
    use(kind, &other, &both);
    FUZZ_CHECK(memcmp(&one, &other, most) == 0);
    return 0;
}
