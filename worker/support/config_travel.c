// SPDX-License-Identifier: Apache-2.0
//
// See config_travel.h. Runs on the thread that opens the session.

#include "worker/support/config_travel.h"

#include "base/parse.h"
#include "base/text.h"
#include "protos/tuning.h"
#include "worker/support/config.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <string.h>

#define TRAVEL_SUMS 2
static const char *const travel_sums[TRAVEL_SUMS] = {"fast", "ranks"};

// Reads LOCKSTEP_TRANSPORT, with which a launcher chooses between memory and sockets.
static int travel_transport(struct config *config)
{
    const char *transport = config_environment("LOCKSTEP_TRANSPORT");
    if (!transport || config->transport == LOCKSTEP_TRANSPORT_LOOPBACK)
        return 0;
    if (strcmp(transport, "auto") == 0)
        config->transport = LOCKSTEP_TRANSPORT_AUTO;
    else if (strcmp(transport, "tcp") == 0)
        config->transport = LOCKSTEP_TRANSPORT_TCP;
    else
        return error_set(LOCKSTEP_E_CONFIG, "LOCKSTEP_TRANSPORT='%s' is not auto or tcp",
                         transport);
    return 0;
}

static int travel_algorithm(struct config *config)
{
    const char *algorithm = config_environment("LOCKSTEP_ALGORITHM");
    config->algorithm = ALGORITHM_BY_SIZE;
    for (uint32_t i = 0; algorithm && i <= ALGORITHM_BY_SIZE; i++) {
        if (strcmp(algorithm, tuning_name(i)) != 0)
            continue;
        config->algorithm = i;
        return 0;
    }
    return !algorithm ? 0
                      : error_set(LOCKSTEP_E_CONFIG,
                                  "LOCKSTEP_ALGORITHM='%s' is not auto, ring, doubling, "
                                  "halving, shared, two_level or direct",
                                  algorithm);
}

// Reads LOCKSTEP_LINK: "LATENCY_NS,BYTES_PER_S".
static int travel_link(struct config *config)
{
    const char *link = config_environment("LOCKSTEP_LINK");
    const char *comma = !link ? NULL : strchr(link, ',');
    char latency[32];
    if (!link)
        return 0;
    text_copy(latency, sizeof(latency), link);
    latency[strcspn(latency, ",")] = '\0';
    if (!comma || !parse_u64(latency, &config->latency_ns) || config->latency_ns == 0 ||
        !parse_u64(comma + 1, &config->bytes_per_s) || config->bytes_per_s == 0)
        return error_set(LOCKSTEP_E_CONFIG,
                         "LOCKSTEP_LINK='%s' is not two numbers, both 1 or more: the latency in "
                         "nanoseconds and, behind a comma, the bytes per second",
                         link);
    return 0;
}

// Reads LOCKSTEP_SLOTS, the way in which slots are filled, for measurements and tests.
static int travel_slots(struct config *config)
{
    const char *slots = config_environment("LOCKSTEP_SLOTS");
    if (!slots || strcmp(slots, "auto") == 0)
        config->slot_fill = FILL_MEASURED;
    else if (strcmp(slots, "cached") == 0)
        config->slot_fill = FILL_CACHED;
    else if (strcmp(slots, "past") == 0)
        config->slot_fill = FILL_PAST;
    else
        return error_set(LOCKSTEP_E_CONFIG, "LOCKSTEP_SLOTS='%s' is not auto, cached or past",
                         slots);
    return 0;
}

// The order of ranks is the order in which ALGORITHM_DIRECT adds, whatever the owner of an element.
static int travel_sum(const struct lockstep_config *given, struct config *config)
{
    uint32_t sum = (uint32_t)given->sum;
    const int status = config_word("LOCKSTEP_SUM", travel_sums, TRAVEL_SUMS, &sum);
    if (status < 0)
        return status;
    if (sum >= TRAVEL_SUMS)
        return error_set(LOCKSTEP_E_CONFIG, "config.sum %" PRIu32 " is not a lockstep_sum", sum);
    if (sum != LOCKSTEP_SUM_RANKS)
        return 0;
    if (config->algorithm != ALGORITHM_BY_SIZE && config->algorithm != ALGORITHM_DIRECT)
        return error_set(LOCKSTEP_E_CONFIG,
                         "LOCKSTEP_ALGORITHM=%s does not add in the order of ranks, which "
                         "LOCKSTEP_SUM=ranks (config.sum) asks for: leave one of them out",
                         tuning_name(config->algorithm));
    config->algorithm = ALGORITHM_DIRECT;
    config->sums_ranks = true;
    return 0;
}

// Owners of elements merge the blocks of a tree of leaves, as ALGORITHM_DIRECT has owners.
static int travel_virtual_ranks(const struct lockstep_config *given, struct config *config)
{
    config->virtual_ranks = given->virtual_ranks;
    const int status =
        config_number("LOCKSTEP_VIRTUAL_RANKS", LOCKSTEP_MAX_LEAVES, &config->virtual_ranks);
    if (status < 0)
        return status;
    if (config->virtual_ranks > LOCKSTEP_MAX_LEAVES)
        return error_set(LOCKSTEP_E_CONFIG, "config.virtual_ranks is %" PRIu32 ", at most %d",
                         config->virtual_ranks, LOCKSTEP_MAX_LEAVES);
    if (config->virtual_ranks == 0 || config->algorithm == ALGORITHM_BY_SIZE ||
        config->algorithm == ALGORITHM_DIRECT)
        return 0;
    return error_set(LOCKSTEP_E_CONFIG,
                     "LOCKSTEP_ALGORITHM=%s does not add over a tree, which "
                     "LOCKSTEP_VIRTUAL_RANKS (config.virtual_ranks) asks for: leave one of them "
                     "out",
                     tuning_name(config->algorithm));
}

int config_travel(const struct lockstep_config *given, struct config *config)
{
    int status = travel_transport(config);
    if (status == 0)
        status = travel_algorithm(config);
    if (status == 0)
        status = travel_sum(given, config);
    if (status == 0)
        status = travel_virtual_ranks(given, config);
    if (status == 0)
        status = travel_link(config);
    if (status == 0)
        status = travel_slots(config);
    return status;
}
