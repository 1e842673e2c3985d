// SPDX-License-Identifier: Apache-2.0
//
// The place of a process in its world; world_place.h has the rules.

#include "protos/world_place.h"

#include "base/parse.h"
#include "base/setting.h"
#include "protos/job_name.h"

#include <stdlib.h>
#include <string.h>

// What one call reads and determines. All borrowed.
struct finder {
    const struct world_wish *wish;
    struct world_job *job;
    struct world_place *place;
    struct launcher_place *launcher;
    char *error;
    size_t error_bytes;
};

#define COORDINATOR "the coordinator's address (LOCKSTEP_COORDINATOR, config.coordinator)"
#define JOB "the job's name (LOCKSTEP_JOB, config.job)"
#define LAUNCHERS_JOB \
    "the launcher's name of the run, which is the job's (LOCKSTEP_JOB sets another),"
#define SAY(finder, ...) setting_error((finder)->error, (finder)->error_bytes, __VA_ARGS__)

static int take_number(const struct finder *finder, const char *name, uint32_t *to)
{
    return setting_number(name, UINT32_MAX, to, finder->error, finder->error_bytes);
}

static int take_text(const struct finder *finder, char *to, size_t bytes, const char *from,
                     const char *what)
{
    return setting_copy(to, bytes, from, what, finder->error, finder->error_bytes);
}

// ---- What has set the size ---------------------------------------------------------------------

// Returns the name of what gives the largest world: of a variable, or of a field of the trainer's
// structure.
static const char *setter_of_max(const struct finder *finder)
{
    const struct world_wish *wish = finder->wish;
    if (setting_get("LOCKSTEP_WORLD_SIZE"))
        return "LOCKSTEP_WORLD_SIZE";
    if (setting_get("LOCKSTEP_WORLD_MAX"))
        return "LOCKSTEP_WORLD_MAX";
    if (wish->size != 0)
        return "config.world_size";
    if (wish->max != 0)
        return "config.world_max";
    if (setting_get("LOCKSTEP_WORLD_MIN"))
        return "LOCKSTEP_WORLD_MIN";
    return wish->min != 0 ? "config.world_min" : finder->launcher->size_variable;
}

static const char *setter_of_min(const struct finder *finder)
{
    if (setting_get("LOCKSTEP_WORLD_MIN"))
        return "LOCKSTEP_WORLD_MIN";
    return finder->wish->size != 0 ? "config.world_size" : "config.world_min";
}

// ---- The job -----------------------------------------------------------------------------------

// A path with such a character is another path for gRPC, or several.
static int check_path(const struct finder *finder, const char *address)
{
    const char flaw = parse_path_flaw(address);
    if (flaw == '\0')
        return 0;
    return SAY(finder,
               COORDINATOR " '%s' has the character '%c', which gRPC does not take in "
                           "the path of a socket: choose a path without it",
               address, flaw);
}

static int check_coordinator(const struct finder *finder, const char *list)
{
    char address[LOCKSTEP_ADDRESS_BYTES];
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint32_t count = 0;
    uint16_t port;
    int status = 0;
    for (const char *rest = list; rest && status == 0; count++) {
        const bool taken = parse_next_address(&rest, address, sizeof(address));
        if (taken && strncmp(address, "unix:/", 6) == 0)
            status = check_path(finder, address);
        else if (!taken || !parse_address(address, host, sizeof(host), &port) || port == 0)
            status = SAY(finder,
                         COORDINATOR " '%s'%s is not of the form host:port or unix:/path, or a "
                                     "list of these that are separated by commas",
                         taken ? address : list, taken && strchr(list, ',') ? " of its list" : "");
    }
    if (status == 0 && count > LOCKSTEP_COORDINATORS)
        status = SAY(finder,
                     COORDINATOR " '%s' is a list of %u, and at most %d can be named; a name that "
                                 "leads to several addresses counts as one",
                     list, count, LOCKSTEP_COORDINATORS);
    return status;
}

int world_place_job(const struct world_wish *wish, struct world_job *job, char *error,
                    size_t error_bytes)
{
    const struct finder finder = {
        .wish = wish, .job = job, .error = error, .error_bytes = error_bytes};
    const char *coordinator = setting_get("LOCKSTEP_COORDINATOR");
    const char *name = setting_get("LOCKSTEP_JOB");
    memset(job, 0, sizeof(*job));
    if (!coordinator)
        coordinator = wish->coordinator;
    job->solo = !coordinator;
    int status =
        take_text(&finder, job->coordinator, sizeof(job->coordinator), coordinator, COORDINATOR);
    if (status == 0)
        status = check_coordinator(&finder, coordinator);
    if (status < 0)
        return status;
    if (!name)
        name = !wish->job ? WORLD_DEFAULT_JOB : wish->job;
    if (name[0] == '\0')
        return SAY(&finder, JOB " '' is empty");
    return take_text(&finder, job->name, sizeof(job->name), name, JOB);
}

// ---- What the user says ------------------------------------------------------------------------

// Without this error the first worker would train alone, and the others would be refused.
static int without_min(const struct finder *finder)
{
    SAY(finder,
        "%s=%u is set, and not how many workers have to be there at least: set LOCKSTEP_WORLD_MIN "
        "(config.world_min), or LOCKSTEP_WORLD_SIZE alone",
        setter_of_max(finder), finder->place->max);
    return WORLD_LACKS;
}

static int take_own_size(const struct finder *finder)
{
    const struct world_wish *wish = finder->wish;
    struct world_place *place = finder->place;
    uint32_t exact = wish->size;
    int status = take_number(finder, "LOCKSTEP_WORLD_SIZE", &exact);
    if (status == 0 && exact == 0 && setting_get("LOCKSTEP_WORLD_SIZE"))
        status = SAY(finder, "LOCKSTEP_WORLD_SIZE is 0: set the number of workers; 1 without a "
                             "coordinator trains alone");
    place->min = exact != 0 ? exact : wish->min;
    place->max = exact != 0 ? exact : wish->max;
    place->window_ms = wish->window_ms;
    if (status == 0 && !setting_get("LOCKSTEP_WORLD_SIZE")) {
        status = take_number(finder, "LOCKSTEP_WORLD_MIN", &place->min);
        if (status == 0)
            status = take_number(finder, "LOCKSTEP_WORLD_MAX", &place->max);
    }
    if (status == 0)
        status = take_number(finder, "LOCKSTEP_WORLD_WINDOW_MS", &place->window_ms);
    if (place->max == 0)
        place->max = place->min;
    if (place->min == 0 && place->max == 1)
        place->min = 1;
    return status == 0 && place->min == 0 && place->max != 0 ? without_min(finder) : status;
}

static int take_own_rank(const struct finder *finder)
{
    const int64_t wanted = finder->wish->rank_hint;
    finder->place->has_rank_hint = wanted >= 0 || setting_get("LOCKSTEP_RANK_HINT");
    finder->place->rank_hint = wanted >= 0 ? (uint32_t)wanted : 0;
    return take_number(finder, "LOCKSTEP_RANK_HINT", &finder->place->rank_hint);
}

// ---- What the launcher says --------------------------------------------------------------------

// The launcher's rank is the rank hint, and the launcher's run id is the job name, unless the user
// has set them.
static int take_rank(const struct finder *finder)
{
    const struct launcher_place *launcher = finder->launcher;
    if (launcher->rank_variable && !finder->place->has_rank_hint) {
        finder->place->has_rank_hint = true;
        finder->place->rank_hint = launcher->rank;
    }
    finder->job->by_launcher =
        launcher->job[0] != '\0' && !finder->wish->job && !setting_get("LOCKSTEP_JOB");
    if (!finder->job->by_launcher)
        return 0;
    return take_text(finder, finder->job->name, sizeof(finder->job->name), launcher->job,
                     LAUNCHERS_JOB);
}

// Neither the user nor the launcher gives the size of the world.
static int without_size(const struct finder *finder)
{
    char said[LAUNCHER_TEXT_BYTES];
    launcher_describe(finder->launcher, said, sizeof(said));
    if (!finder->job->solo) {
        SAY(finder,
            "the coordinator %s is named, but not how many workers the world has: set "
            "LOCKSTEP_WORLD_SIZE, the same on every worker (%s)",
            finder->job->coordinator, said);
        return WORLD_LACKS;
    }
    if (finder->launcher->launcher) {
        SAY(finder,
            "%s, but not of how many: set LOCKSTEP_WORLD_SIZE and "
            "LOCKSTEP_COORDINATOR=host:port; LOCKSTEP_WORLD_SIZE=1 trains alone",
            said);
        return WORLD_LACKS;
    }
    finder->place->min = finder->place->max = 1;
    return 0;
}

// The world has more than one process, and the user has named no coordinator.
static int without_coordinator(const struct finder *finder)
{
    char said[LAUNCHER_TEXT_BYTES];
    launcher_describe(finder->launcher, said, sizeof(said));
    if (finder->launcher->size > 1)
        SAY(finder,
            "%s, and no coordinator is named: set LOCKSTEP_COORDINATOR=host:port for all of them, "
            "or LOCKSTEP_WORLD_SIZE=1 to train alone",
            said);
    else
        SAY(finder,
            "a world of %u needs a coordinator (%s=%u): set LOCKSTEP_COORDINATOR=host:port, or "
            "start the trainer with `lockstep run -n %u -- ...`",
            finder->place->max, setter_of_max(finder), finder->place->max, finder->place->max);
    return WORLD_LACKS;
}

static int complete(const struct finder *finder)
{
    char said[LAUNCHER_TEXT_BYTES];
    const struct launcher_place *launcher = finder->launcher;
    struct world_place *place = finder->place;
    const uint32_t own = place->max;
    if (launcher->lacks_size && own != 0)
        return 0; // Its rank may be one of another part of the world.
    place->placed_by = launcher->launcher ? launcher->launcher : place->placed_by;
    if (launcher->size == 0) {
        const int status = take_rank(finder);
        return status < 0 || own != 0 ? status : without_size(finder);
    }
    if (own == 0) {
        place->min = place->max = launcher->size;
        return take_rank(finder);
    }
    if (own == launcher->size)
        return take_rank(finder);
    place->placed_by = WORLD_PLACED_BY_US;
    if (own > launcher->size || (own == 1 && finder->job->solo))
        return 0;
    launcher_describe(launcher, said, sizeof(said));
    return SAY(finder,
               "%s, but %s=%u: make them equal, or set LOCKSTEP_RANK_HINT too, and the launcher "
               "does not count",
               said, setter_of_max(finder), own);
}

// ---- Checks ------------------------------------------------------------------------------------

static int check_world(const struct finder *finder)
{
    const struct world_place *place = finder->place;
    if (place->min > place->max)
        return SAY(finder, "%s=%u is above %s=%u", setter_of_min(finder), place->min,
                   setter_of_max(finder), place->max);
    if (place->max > LOCKSTEP_MAX_WORLD)
        return SAY(finder, "%s=%u is above the limit of %d workers", setter_of_max(finder),
                   place->max, LOCKSTEP_MAX_WORLD);
    return 0;
}

// The coordinator checks the name, too. Here the check counts for a world of one as well.
static int check_name(const struct finder *finder)
{
    if (job_name_valid(finder->job->name))
        return 0;
    return SAY(finder, "%s '%s' is no job name: use 1 to %d " JOB_NAME_RULE,
               finder->job->by_launcher ? LAUNCHERS_JOB : JOB, finder->job->name,
               LOCKSTEP_JOB_NAME_BYTES - 1);
}

static int check_rank(const struct finder *finder)
{
    const struct world_place *place = finder->place;
    const char *name = finder->launcher->rank_variable;
    if (setting_get("LOCKSTEP_RANK_HINT"))
        name = "LOCKSTEP_RANK_HINT";
    else if (finder->wish->rank_hint >= 0)
        name = "config.rank_hint";
    if (!place->has_rank_hint || place->rank_hint < place->max)
        return 0;
    return SAY(finder, "%s=%u does not fit a world of %u (ranks count from 0)", name,
               place->rank_hint, place->max);
}

int world_place_find(const struct world_wish *wish, struct world_job *job,
                     struct world_place *place, struct launcher_place *launcher, char *error,
                     size_t error_bytes)
{
    const struct finder finder = {.wish = wish,
                                  .job = job,
                                  .place = place,
                                  .launcher = launcher,
                                  .error = error,
                                  .error_bytes = error_bytes};
    memset(launcher, 0, sizeof(*launcher));
    int status = take_own_size(&finder);
    if (status == 0)
        status = take_own_rank(&finder);
    place->placed_by = WORLD_PLACED_BY_US;
    if (status == 0 && (place->max == 0 || !place->has_rank_hint))
        status = launcher_find(getenv, launcher, error, error_bytes) < 0 ? WORLD_WRONG
                                                                         : complete(&finder);
    if (status == 0)
        status = check_world(&finder);
    if (status == 0 && job->solo && place->max > 1)
        status = without_coordinator(&finder);
    if (status == 0)
        status = check_name(&finder);
    return status == 0 ? check_rank(&finder) : status;
}
