// SPDX-License-Identifier: Apache-2.0
//
// The place (rank and world size) that a trainer would have if it were started here, by the worker
// library's own function. A trainer's own code may set other values. Main thread.

#include "cli/doctor/place.h"

#include "cli/doctor/doctor.h"

#include "base/setting.h"
#include "base/text.h"
#include "base/variables.h"
#include "protos/world_place.h"

#include <lockstep/lockstep.h>
#include <unistd.h>

// Appends what LOCKSTEP_* variables give.
static void append_own(struct text *text)
{
    static const char *const names[] = {"LOCKSTEP_RANK_HINT", "LOCKSTEP_WORLD_SIZE",
                                        "LOCKSTEP_WORLD_MIN", "LOCKSTEP_WORLD_MAX"};
    const bool exact = setting_get("LOCKSTEP_WORLD_SIZE") != NULL;
    for (size_t i = 0; i < (exact ? 2 : 4); i++) {
        const char *value = setting_get(names[i]);
        if (value)
            text_append(text, "%s%s=%s", text->size > 0 ? ", " : "", names[i], value);
    }
}

static void judge_found(struct doctor_finding *finding, const struct world_job *job,
                        const struct world_place *place, const struct launcher_place *launcher)
{
    char bytes[LOCKSTEP_TEXT_BYTES];
    char said[LAUNCHER_TEXT_BYTES];
    const char *where =
        job->solo ? "no coordinator is named" : "LOCKSTEP_COORDINATOR names the coordinator";
    struct text own;
    text_init(&own, bytes, sizeof(bytes));
    append_own(&own);
    (void)text_copy(finding->word, sizeof(finding->word), place->placed_by);
    if (launcher->launcher && place->placed_by == launcher->launcher) {
        launcher_describe(launcher, said, sizeof(said));
        doctor_judge(finding, DOCTOR_OK, "%s%s%s, and %s", said, own.size > 0 ? ", " : "", bytes,
                     where);
    } else if (own.size > 0) {
        doctor_judge(finding, DOCTOR_OK, "%s: LOCKSTEP_* variables decide, and %s", bytes, where);
    } else {
        (void)text_copy(finding->word, sizeof(finding->word), "none");
        doctor_judge(finding, DOCTOR_OK,
                     "no launcher says which process of a job this is: a trainer that is started "
                     "here trains alone, unless its code says otherwise");
    }
}

void doctor_place(struct doctor_report *report)
{
    static const struct world_wish wish = WORLD_WISH_NONE;
    struct doctor_finding *finding = doctor_add(report, "place");
    struct world_job job;
    struct world_place place;
    struct launcher_place launcher = {0};
    char error[LOCKSTEP_TEXT_BYTES / 2] = "";
    int fault = variables_check(environ, error, sizeof(error));
    if (fault == 0)
        fault = world_place_job(&wish, &job, error, sizeof(error));
    if (fault == 0)
        fault = world_place_find(&wish, &job, &place, &launcher, error, sizeof(error));
    if (fault == WORLD_LACKS) {
        (void)text_copy(finding->word, sizeof(finding->word),
                        launcher.launcher ? launcher.launcher : "lockstep");
        doctor_judge(finding, DOCTOR_WARNING, "%s; unless the trainer's code says more", error);
    } else if (fault < 0) {
        doctor_judge(finding, DOCTOR_MISSING, "%s", error);
    } else if (lockstep_config_check(NULL) < 0) {
        doctor_judge(finding, DOCTOR_MISSING, "%s", lockstep_error_text());
    } else {
        judge_found(finding, &job, &place, &launcher);
    }
}
