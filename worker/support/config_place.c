// SPDX-License-Identifier: Apache-2.0
//
// Determines the world that a session asks for, and the session's place in that world. Runs on the
// thread that opens the session.
//
// LOCKSTEP_WORLD_SIZE (or _MIN and _MAX) and LOCKSTEP_RANK_HINT have priority, then the same fields
// of struct lockstep_config. If these give both the size and the rank, nothing else is read.
// Otherwise the launcher's variables (base/launcher.h) complete them:
//
// - If the user gives no size, the launcher's size is the world's size.
// - If the user's size equals the launcher's size, the launcher's rank is the rank hint, and the
//   launcher's run id names the job.
// - If the user's size is larger, the launcher has started only a part of the world, so its ranks
//   are ignored.
// - If the user's size is smaller, one of the two sizes is wrong. That is an error, with one
//   exception: a size of 1 without a coordinator says that this process trains alone.
//
// A missing setting never makes a process train alone: a launcher that started several processes
// needs a coordinator, and a coordinator needs a size.

#include "worker/support/config_place.h"

#include "worker/support/config.h"

#include "base/launcher.h"
#include "base/parse.h"
#include "protos/job_name.h"
#include "protos/limits.h"
#include "worker/support/error.h"

#include <stdlib.h>
#include <string.h>

static int place_own_world(const struct lockstep_config *given, struct config *config)
{
    uint32_t exact = given->world_size;
    int status = config_number("LOCKSTEP_WORLD_SIZE", UINT32_MAX, &exact);
    if (status == 0 && exact == 0 && config_environment("LOCKSTEP_WORLD_SIZE"))
        status = error_set(LOCKSTEP_E_CONFIG, "LOCKSTEP_WORLD_SIZE is 0: set the number of "
                                              "workers; 1 without a coordinator trains alone");
    config->world.min = exact != 0 ? exact : given->world_min;
    config->world.max = exact != 0 ? exact : given->world_max;
    config->world.window_ms = given->world_window_ms;
    if (status == 0 && !config_environment("LOCKSTEP_WORLD_SIZE")) {
        status = config_number("LOCKSTEP_WORLD_MIN", UINT32_MAX, &config->world.min);
        if (status == 0)
            status = config_number("LOCKSTEP_WORLD_MAX", UINT32_MAX, &config->world.max);
    }
    if (status == 0)
        status = config_number("LOCKSTEP_WORLD_WINDOW_MS", UINT32_MAX, &config->world.window_ms);
    if (config->world.max == 0)
        config->world.max = config->world.min;
    if (config->world.min == 0 && config->world.max != 0)
        config->world.min = 1;
    return status;
}

static int place_own_rank(const struct lockstep_config *given, struct config *config)
{
    config->world.has_rank_hint = given->rank_hint >= 0 || config_environment("LOCKSTEP_RANK_HINT");
    config->world.rank_hint = given->rank_hint >= 0 ? (uint32_t)given->rank_hint : 0;
    return config_number("LOCKSTEP_RANK_HINT", UINT32_MAX, &config->world.rank_hint);
}

static int place_check_rank(const struct config *config, const char *name)
{
    if (!config->world.has_rank_hint || config->world.rank_hint < config->world.max)
        return 0;
    return error_set(LOCKSTEP_E_CONFIG, "%s=%u does not fit a world of %u (ranks count from 0)",
                     name, config->world.rank_hint, config->world.max);
}

// The launcher's rank is the rank hint, and the launcher's run id is the job name, unless the user
// has set them.
static int place_take_rank(const struct lockstep_config *given, struct config *config,
                           const struct launcher_place *place)
{
    if (place->rank_variable && !config->world.has_rank_hint) {
        config->world.has_rank_hint = true;
        config->world.rank_hint = place->rank;
    }
    if (place->job[0] == '\0' || given->job || config_environment("LOCKSTEP_JOB"))
        return 0;
    return config_string(config->job, sizeof(config->job), place->job,
                         "the launcher's name of the run is the job's name (LOCKSTEP_JOB sets "
                         "another), and");
}

// Neither the user nor the launcher gives the size of the world.
static int place_without_size(struct config *config, const struct launcher_place *place)
{
    char said[LAUNCHER_TEXT_BYTES];
    launcher_describe(place, said, sizeof(said));
    if (!config->solo)
        return error_set(LOCKSTEP_E_CONFIG,
                         "the coordinator %s is named, but not how many workers the world has: "
                         "set LOCKSTEP_WORLD_SIZE, the same on every worker (%s)",
                         config->coordinator, said);
    if (place->launcher)
        return error_set(LOCKSTEP_E_CONFIG,
                         "%s, but not of how many: set LOCKSTEP_WORLD_SIZE and "
                         "LOCKSTEP_COORDINATOR=host:port; LOCKSTEP_WORLD_SIZE=1 trains alone",
                         said);
    config->world.min = config->world.max = 1;
    return 0;
}

// The world has more than one process, and the user has named no coordinator.
static int place_without_coordinator(const struct config *config,
                                     const struct launcher_place *place)
{
    char said[LAUNCHER_TEXT_BYTES];
    launcher_describe(place, said, sizeof(said));
    if (place->size > 1)
        return error_set(LOCKSTEP_E_CONFIG,
                         "%s, and no coordinator is named: set LOCKSTEP_COORDINATOR=host:port for "
                         "all of them, or LOCKSTEP_WORLD_SIZE=1 to train alone",
                         said);
    return error_set(LOCKSTEP_E_CONFIG,
                     "a world of %u needs a coordinator: set LOCKSTEP_COORDINATOR=host:port, or "
                     "start the trainer with `lockstep run -n %u -- ...`",
                     config->world.min, config->world.min);
}

static int place_complete(const struct lockstep_config *given, struct config *config,
                          const struct launcher_place *place)
{
    char said[LAUNCHER_TEXT_BYTES];
    const uint32_t own = config->world.max;
    config->world.placed_by = place->launcher ? place->launcher : config->world.placed_by;
    if (place->size == 0) {
        const int status = place_take_rank(given, config, place);
        return status < 0 || own != 0 ? status : place_without_size(config, place);
    }
    if (own == 0) {
        config->world.min = config->world.max = place->size;
        return place_take_rank(given, config, place);
    }
    if (own == place->size)
        return place_take_rank(given, config, place);
    config->world.placed_by = CONFIG_PLACED_BY_US;
    if (own > place->size || (own == 1 && config->solo))
        return 0;
    launcher_describe(place, said, sizeof(said));
    return error_set(LOCKSTEP_E_CONFIG,
                     "%s, but LOCKSTEP_WORLD_SIZE (config.world_size) says %u: make them equal, or "
                     "set LOCKSTEP_RANK_HINT too, and the launcher does not count",
                     said, own);
}

static int place_check_world(const struct config *config, const struct launcher_place *place)
{
    if (config->world.min > config->world.max)
        return error_set(LOCKSTEP_E_CONFIG, "world_min %u is above world_max %u", config->world.min,
                         config->world.max);
    if (config->world.max > LOCKSTEP_MAX_WORLD)
        return error_set(LOCKSTEP_E_CONFIG, "a world of %u is above the limit of %d",
                         config->world.max, LOCKSTEP_MAX_WORLD);
    return config->solo && config->world.min > 1 ? place_without_coordinator(config, place) : 0;
}

static const char *place_rank_name(const struct lockstep_config *given,
                                   const struct launcher_place *place)
{
    if (config_environment("LOCKSTEP_RANK_HINT"))
        return "LOCKSTEP_RANK_HINT";
    return given->rank_hint >= 0 ? "config.rank_hint" : place->rank_variable;
}

// The coordinator checks the name, too. Here the check counts for a world of one as well.
static int place_check_job(const struct config *config)
{
    if (job_name_valid(config->job))
        return 0;
    return error_set(LOCKSTEP_E_CONFIG, "'%s' is no job name: use 1 to %d " JOB_NAME_RULE,
                     config->job, LOCKSTEP_JOB_NAME_BYTES - 1);
}

int config_place(const struct lockstep_config *given, struct config *config)
{
    struct launcher_place place = {0};
    char error[LOCKSTEP_TEXT_BYTES];
    int status = place_own_world(given, config);
    if (status == 0)
        status = place_own_rank(given, config);
    config->world.placed_by = CONFIG_PLACED_BY_US;
    if (status == 0 && (config->world.max == 0 || !config->world.has_rank_hint)) {
        if (launcher_find(getenv, &place, error, sizeof(error)) < 0)
            return error_set(LOCKSTEP_E_CONFIG, "%s", error);
        status = place_complete(given, config, &place);
    }
    if (status == 0)
        status = place_check_world(config, &place);
    if (status == 0)
        status = place_check_job(config);
    return status == 0 ? place_check_rank(config, place_rank_name(given, &place)) : status;
}

int config_place_coordinator(const char *list)
{
    char address[LOCKSTEP_ADDRESS_BYTES];
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint32_t count = 0;
    uint16_t port;
    for (const char *rest = list; rest; count++) {
        const bool taken = parse_next_address(&rest, address, sizeof(address));
        if (!taken || (strncmp(address, "unix:/", 6) != 0 &&
                       (!parse_address(address, host, sizeof(host), &port) || port == 0)))
            return error_set(
                LOCKSTEP_E_CONFIG,
                "the coordinator's address '%s' is not of the form host:port or unix:/path, or a "
                "list of these that are separated by commas",
                taken ? address : list);
    }
    return count <= LOCKSTEP_COORDINATORS
               ? 0
               : error_set(LOCKSTEP_E_CONFIG,
                           "the coordinator has %u addresses in '%s', and at most %d can be named; "
                           "a name that leads to several addresses counts as one",
                           count, list, LOCKSTEP_COORDINATORS);
}
