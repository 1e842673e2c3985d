// SPDX-License-Identifier: Apache-2.0
//
// The place (rank and world size) that a trainer would have if it were started here. The
// environment is read in the same way as by the worker library (worker/support/config_place.c). A
// trainer's own code may set other values. Main thread.

#include "cli/doctor/place.h"

#include "cli/doctor/doctor.h"

#include "base/launcher.h"
#include "base/text.h"
#include "base/variables.h"

#include <stdlib.h>
#include <unistd.h>

// An empty variable counts as not set.
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return !value || value[0] == '\0' ? NULL : value;
}

static const char *where_from(const char *coordinator)
{
    return coordinator ? "LOCKSTEP_COORDINATOR names the coordinator" : "no coordinator is named";
}

// The finding if size and rank are both given. Then launchers are ignored.
static void judge_own(struct doctor_finding *finding, const char *rank, const char *size)
{
    (void)text_copy(finding->word, sizeof(finding->word), "lockstep");
    doctor_judge(finding, DOCTOR_OK,
                 "LOCKSTEP_RANK_HINT=%s and LOCKSTEP_WORLD_SIZE=%s decide, and %s", rank, size,
                 where_from(variable("LOCKSTEP_COORDINATOR")));
}

static void judge_alone(struct doctor_finding *finding, const char *size)
{
    const char *coordinator = variable("LOCKSTEP_COORDINATOR");
    (void)text_copy(finding->word, sizeof(finding->word), size ? "lockstep" : "none");
    if (size)
        doctor_judge(finding, DOCTOR_OK, "LOCKSTEP_WORLD_SIZE=%s decides, and %s", size,
                     where_from(coordinator));
    else if (coordinator)
        doctor_judge(finding, DOCTOR_WARNING,
                     "LOCKSTEP_COORDINATOR names a coordinator, and nothing says how many workers "
                     "the world has: set LOCKSTEP_WORLD_SIZE, unless the trainer's code does");
    else
        doctor_judge(finding, DOCTOR_OK,
                     "no launcher says which process of a job this is: a trainer that is started "
                     "here trains alone, unless its code says otherwise");
}

static void judge_launched(struct doctor_finding *finding, const struct launcher_place *place,
                           const char *size)
{
    const char *coordinator = variable("LOCKSTEP_COORDINATOR");
    char said[LAUNCHER_TEXT_BYTES];
    launcher_describe(place, said, sizeof(said));
    (void)text_copy(finding->word, sizeof(finding->word), place->launcher);
    if (place->size == 0 && !size)
        doctor_judge(finding, DOCTOR_WARNING,
                     "%s, but not of how many: set LOCKSTEP_WORLD_SIZE, unless the trainer's code "
                     "does",
                     said);
    else if (place->size > 1 && !size && !coordinator)
        doctor_judge(finding, DOCTOR_WARNING,
                     "%s, and no coordinator is named: set LOCKSTEP_COORDINATOR=host:port, unless "
                     "the trainer's code does",
                     said);
    else
        doctor_judge(finding, DOCTOR_OK, "%s%s%s, and %s", said,
                     size ? ", LOCKSTEP_WORLD_SIZE=" : "", size ? size : "",
                     where_from(coordinator));
}

void doctor_place(struct doctor_report *report)
{
    struct doctor_finding *finding = doctor_add(report, "place");
    const char *rank = variable("LOCKSTEP_RANK_HINT");
    const char *size = variable("LOCKSTEP_WORLD_SIZE");
    struct launcher_place place = {0};
    char error[LOCKSTEP_TEXT_BYTES / 2] = "";
    if (variables_check(environ, error, sizeof(error)) < 0 ||
        ((!rank || !size) && launcher_find(getenv, &place, error, sizeof(error)) < 0))
        doctor_judge(finding, DOCTOR_MISSING, "%s", error);
    else if (rank && size)
        judge_own(finding, rank, size);
    else if (!place.launcher)
        judge_alone(finding, size);
    else
        judge_launched(finding, &place, size);
}
