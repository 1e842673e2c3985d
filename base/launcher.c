// SPDX-License-Identifier: Apache-2.0
//
// The table of launchers, and the choice between its rows.

#include "base/launcher.h"

#include "base/parse.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

struct launcher_row {
    const char *launcher;
    // A variable that only this launcher sets. NULL: its rank and size variables identify it.
    const char *proof;
    const char *rank;
    const char *sizes[2]; // The first of these that is set gives the size.
    const char *jobs[2]; // The job's name is the values of these, joined by a full stop.
    bool by_hand;
};

// Ordered from the innermost launcher to the outermost.
static const struct launcher_row rows[] = {
    {.launcher = "torchrun",
     .proof = "TORCHELASTIC_RUN_ID",
     .rank = "RANK",
     .sizes = {"WORLD_SIZE"},
     .jobs = {"TORCHELASTIC_RUN_ID"}},
    {.launcher = "OpenMPI",
     .rank = "OMPI_COMM_WORLD_RANK",
     .sizes = {"OMPI_COMM_WORLD_SIZE"},
     .jobs = {"OMPI_MCA_ess_base_jobid"}},
    {.launcher = "PMI", .rank = "PMI_RANK", .sizes = {"PMI_SIZE"}, .jobs = {"PMI_JOBID"}},
    {.launcher = "PMIx", .rank = "PMIX_RANK", .sizes = {"PMI_SIZE"}, .jobs = {"PMIX_NAMESPACE"}},
    {.launcher = "Slurm",
     .rank = "SLURM_PROCID",
     .sizes = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     .jobs = {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {.launcher = "the environment", .rank = "RANK", .sizes = {"WORLD_SIZE"}, .by_hand = true},
    {.launcher = "Kubernetes", .rank = "JOB_COMPLETION_INDEX"},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

// An empty variable counts as not set.
static const char *value_of(launcher_lookup *lookup, const char *name)
{
    const char *value = !name ? NULL : lookup(name);
    return !value || value[0] == '\0' ? NULL : value;
}

// Returns false if the variable is not set, or is not a number (another program may use its name).
static bool number_of(launcher_lookup *lookup, const char *name, uint32_t *number)
{
    const char *value = value_of(lookup, name);
    uint64_t parsed;
    if (!value || !parse_u64(value, &parsed) || parsed > UINT32_MAX)
        return false;
    *number = (uint32_t)parsed;
    return true;
}

// torchrun gives a run without a name the name "none".
static void name_job(launcher_lookup *lookup, const struct launcher_row *row,
                     struct launcher_place *place)
{
    struct text job;
    text_init(&job, place->job, sizeof(place->job));
    for (size_t i = 0; i < 2; i++) {
        const char *part = value_of(lookup, row->jobs[i]);
        if (part && strcmp(part, "none") != 0)
            text_append(&job, "%s%s", job.size > 0 ? "." : "", part);
    }
}

// Returns true if the row is complete: it has a rank and a size. Kubernetes sets no size, so its
// row needs none. Variables that were set by hand may omit the rank, which the coordinator then
// gives out.
static bool read_row(launcher_lookup *lookup, const struct launcher_row *row,
                     struct launcher_place *place)
{
    memset(place, 0, sizeof(*place));
    if (row->proof && !value_of(lookup, row->proof))
        return false;
    if (number_of(lookup, row->rank, &place->rank))
        place->rank_variable = row->rank;
    else if (!row->by_hand)
        return false;
    place->launcher = row->launcher;
    for (size_t i = 0; i < 2 && !place->size_variable; i++) {
        if (number_of(lookup, row->sizes[i], &place->size) && place->size > 0)
            place->size_variable = row->sizes[i];
    }
    if (row->sizes[0] && !place->size_variable)
        return false;
    if (row->by_hand && !place->rank_variable && place->size == 1)
        return false;
    name_job(lookup, row, place);
    return true;
}

// Appends a text such as "SLURM_PROCID=1, SLURM_NTASKS=4".
static void list_variables(const struct launcher_place *place, struct text *text)
{
    if (place->rank_variable)
        text_append(text, "%s=%" PRIu32, place->rank_variable, place->rank);
    if (place->size_variable)
        text_append(text, "%s%s=%" PRIu32, place->rank_variable ? ", " : "", place->size_variable,
                    place->size);
}

void launcher_describe(const struct launcher_place *place, char *text, size_t bytes)
{
    struct text said;
    text_init(&said, text, bytes);
    if (!place->launcher) {
        text_append(&said, "no launcher says which process of a job this is");
        return;
    }
    text_append(&said, "%s says that this is ", place->launcher);
    if (!place->rank_variable)
        text_append(&said, "one of %" PRIu32 " processes", place->size);
    else if (!place->size_variable)
        text_append(&said, "rank %" PRIu32, place->rank);
    else
        text_append(&said, "rank %" PRIu32 " of %" PRIu32, place->rank, place->size);
    text_append(&said, " (");
    list_variables(place, &said);
    text_append(&said, ")");
}

// Returns true if the variables that were set by hand do not contradict the other row.
static bool agrees(const struct launcher_place *by_hand, const struct launcher_place *other)
{
    return (!by_hand->rank_variable || by_hand->rank == other->rank) &&
           (other->size == 0 || by_hand->size == other->size);
}

static int refuse_both(const struct launcher_place *by_hand, const struct launcher_place *other,
                       char *error, size_t error_bytes)
{
    char first[LAUNCHER_TEXT_BYTES];
    char second[LAUNCHER_TEXT_BYTES];
    struct text text;
    launcher_describe(by_hand, first, sizeof(first));
    launcher_describe(other, second, sizeof(second));
    text_init(&text, error, error_bytes);
    text_append(&text,
                "%s, and %s: unset the variables that are wrong, or set both LOCKSTEP_RANK_HINT "
                "and LOCKSTEP_WORLD_SIZE, which come first",
                second, first);
    return -1;
}

static int check_rank(const struct launcher_place *place, char *error, size_t error_bytes)
{
    struct text text;
    if (place->size == 0 || place->rank < place->size)
        return 0;
    text_init(&text, error, error_bytes);
    text_append(&text, "%s=%" PRIu32 " is not below %s=%" PRIu32 ": ranks count from 0",
                place->rank_variable, place->rank, place->size_variable, place->size);
    return -1;
}

int launcher_find(launcher_lookup *lookup, struct launcher_place *place, char *error,
                  size_t error_bytes)
{
    struct launcher_place found;
    bool by_hand = false;
    memset(place, 0, sizeof(*place));
    for (size_t i = 0; i < ROWS; i++) {
        if (!read_row(lookup, &rows[i], &found))
            continue;
        if (!place->launcher) {
            *place = found;
            by_hand = rows[i].by_hand;
        } else if (rows[i].by_hand && !agrees(&found, place)) {
            return refuse_both(&found, place, error, error_bytes);
        } else if (by_hand && !agrees(place, &found)) {
            return refuse_both(place, &found, error, error_bytes);
        }
    }
    return check_rank(place, error, error_bytes);
}
