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
    {.launcher = "horovodrun", .rank = "HOROVOD_RANK", .sizes = {"HOROVOD_SIZE"}},
    {.launcher = "OpenMPI",
     .rank = "OMPI_COMM_WORLD_RANK",
     .sizes = {"OMPI_COMM_WORLD_SIZE"},
     .jobs = {"OMPI_MCA_ess_base_jobid"}},
    {.launcher = "PMI", .rank = "PMI_RANK", .sizes = {"PMI_SIZE"}, .jobs = {"PMI_JOBID"}},
    {.launcher = "PMIx", .rank = "PMIX_RANK", .sizes = {"PMI_SIZE"}, .jobs = {"PMIX_NAMESPACE"}},
    // FLUX_JOB_ID has a character that no job's name has.
    {.launcher = "Flux", .rank = "FLUX_TASK_RANK", .sizes = {"FLUX_JOB_SIZE"}},
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

// Returns 1 if the variable is set, 0 if it is not, and -1 if its value is no number from `least`
// on.
static int number_of(launcher_lookup *lookup, const char *name, uint32_t least, uint32_t *number)
{
    const char *value = value_of(lookup, name);
    uint64_t parsed;
    if (!value)
        return 0;
    if (!parse_u64(value, &parsed) || parsed < least || parsed > UINT32_MAX)
        return -1;
    *number = (uint32_t)parsed;
    return 1;
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

enum row_state {
    ROW_ABSENT, // This launcher did not start the process, or does not say a place.
    ROW_COMPLETE, // There is a rank and a size.
    ROW_LACKS_SIZE, // There is a rank above 0, so that there are several processes.
    ROW_WRONG, // The rank or the size is not a number.
};

// Reads the rank and the size. Returns ROW_COMPLETE also for Kubernetes, which sets no size. *wrong
// is the variable that makes the row wrong.
static enum row_state read_place(launcher_lookup *lookup, const struct launcher_row *row,
                                 struct launcher_place *place, const char **wrong)
{
    const int rank = number_of(lookup, row->rank, 0, &place->rank);
    const char *name = row->sizes[0];
    int size = number_of(lookup, name, 1, &place->size);
    if (size == 0 && row->sizes[1])
        size = number_of(lookup, name = row->sizes[1], 1, &place->size);
    place->rank_variable = rank > 0 ? row->rank : NULL;
    place->size_variable = size > 0 ? name : NULL;
    *wrong = rank < 0 ? row->rank : name;
    if (row->by_hand && (size == 0 || (rank == 0 && (size < 0 || place->size == 1))))
        return ROW_ABSENT; // Other programs use these names, too. The coordinator can give a rank.
    if (!row->by_hand && rank == 0)
        return ROW_ABSENT;
    if (rank < 0 || size < 0)
        return ROW_WRONG;
    if (row->sizes[0] && size == 0) // A batch script of Slurm has the rank 0 and no size.
        return place->rank == 0 ? ROW_ABSENT : ROW_LACKS_SIZE;
    return ROW_COMPLETE;
}

static enum row_state read_row(launcher_lookup *lookup, const struct launcher_row *row,
                               struct launcher_place *place, const char **wrong)
{
    memset(place, 0, sizeof(*place));
    if (row->proof && !value_of(lookup, row->proof))
        return ROW_ABSENT;
    const enum row_state state = read_place(lookup, row, place, wrong);
    place->launcher = row->launcher;
    place->lacks_size = state == ROW_LACKS_SIZE;
    if (state == ROW_COMPLETE)
        name_job(lookup, row, place);
    return state;
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

static int refuse_value(const char *name, const char *value, char *error, size_t error_bytes)
{
    struct text text;
    text_init(&text, error, error_bytes);
    text_append(&text,
                "%s='%s' is not a number of processes or of one of them: correct it, or set both "
                "LOCKSTEP_RANK_HINT and LOCKSTEP_WORLD_SIZE, which come first",
                name, value);
    return -1;
}

int launcher_find(launcher_lookup *lookup, struct launcher_place *place, char *error,
                  size_t error_bytes)
{
    struct launcher_place found;
    struct launcher_place lacking = {0};
    const char *wrong;
    bool by_hand = false;
    memset(place, 0, sizeof(*place));
    for (size_t i = 0; i < ROWS; i++) {
        const enum row_state state = read_row(lookup, &rows[i], &found, &wrong);
        if (state == ROW_WRONG && !place->launcher)
            return refuse_value(wrong, value_of(lookup, wrong), error, error_bytes);
        if (state == ROW_LACKS_SIZE && !lacking.launcher)
            lacking = found;
        if (state != ROW_COMPLETE)
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
    if (!place->launcher)
        *place = lacking;
    return check_rank(place, error, error_bytes);
}
