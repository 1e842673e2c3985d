// SPDX-License-Identifier: Apache-2.0
//
// `lockstep stacks RANK`: what the threads of a rank are doing, by the last answer of its process
// or, with --fresh, by a new answer. Main thread.

#include "cli/ask/stacks.h"

#include "cli/ask/ask.h"
#include "cli/ask/culprit.h"
#include "cli/ask/json_read.h"
#include "cli/common/cli.h"

#include "base/parse.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 32
#define NOT_FOUND 404

struct stacks_options {
    struct ask ask;
    uint64_t rank;
    bool fresh;
    bool json;
};

static const char help_text[] =
    "usage: lockstep stacks RANK [--http ADDRESS] [--job NAME] [--fresh] [--json]\n"
    "\n"
    "Shows the stacks of a rank's threads that use Lockstep, the trainer's first, and a line\n"
    "for each other thread of its process.\n"
    "\n"
    "      --http ADDRESS     HOST:PORT or https://HOST:PORT of the dashboard (default:\n"
    "                         LOCKSTEP_DASHBOARD, else the page of a job that\n"
    "                         lockstep run has started here, else " ASK_DEFAULT ")\n"
    "      --job NAME         Of this job (default: the latest)\n"
    "      --fresh            Ask the rank now; without it, what it answered last\n" ASK_HELP
    "      --json             Print what the coordinator says as it is, in one line\n"
    "  -h, --help             Show this\n"
    "\n"
    "Exit status: 0, or 1 when there are no stacks.\n";

static const struct option long_options[] = {
    {"http", required_argument, NULL, 'a'},
    {"job", required_argument, NULL, 'n'},
    {"fresh", no_argument, NULL, 'f'},
    {"token", required_argument, NULL, ASK_KEY_TOKEN}, // The old name of --token-file.
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    ASK_OPTIONS,
    {NULL, 0, NULL, 0},
};

static int set_option(void *given, int key, char *value)
{
    struct stacks_options *options = given;
    switch (key) {
    case 'a':
        return ask_set_address(&options->ask, value);
    case 'n':
        return ask_set_job(&options->ask, value);
    case 'f':
        options->fresh = true;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    default:
        return ask_set_option(&options->ask, key, value);
    }
}

static const struct cli_syntax syntax = {.name = "stacks",
                                         .letters = ":h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// Returns 0, an exit status, or -1 if the help was printed.
static int read_options(struct stacks_options *options, int argc, char **argv)
{
    *options = (struct stacks_options){.ask = {.command = syntax.name}};
    const int read = cli_read_options(&syntax, options, argc, argv);
    if (read != 0)
        return read;
    if (optind == argc)
        return cli_misuse(syntax.name, "of which rank?");
    if (!parse_u64(argv[optind], &options->rank) || options->rank >= LOCKSTEP_MAX_WORLD)
        return cli_misuse(syntax.name, "'%s' is not a rank", argv[optind]);
    if (optind + 1 < argc)
        return cli_misuse(syntax.name, "unexpected argument '%s'", argv[optind + 1]);
    return ask_find(&options->ask);
}

// ---- Text --------------------------------------------------------------------------------------

// Returns why a thread has no frames. Returns NULL if it has frames or the reason is unknown.
static const char *how_meaning(const char *how)
{
    static const struct {
        const char *how;
        const char *meaning;
    } meanings[] = {
        {"blocked", "it blocks the signal that asks for them"},
        {"silent", "it did not answer the signal that asks for them"},
        {"disk", "it waits for a disk and cannot be asked"},
        {"taken", "the trainer uses the signals that could ask for them"},
        {"no_room", "it runs, and its stack may have no room for the signal that asks for them"},
        {"left_alone", "it sleeps where a signal would disturb it"},
        {"not_asked", "it runs, and only threads that use Lockstep are interrupted"},
    };
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (strcmp(how, meanings[i].how) == 0)
            return meanings[i].meaning;
    }
    return NULL;
}

static bool is_true(const char *object, const char *name)
{
    bool value = false;
    return json_read_bool(json_read_member(object, name), &value) && value;
}

static void print_python(const char *frames)
{
    char file[LOCKSTEP_OBJECT_BYTES];
    char function[LOCKSTEP_SYMBOL_BYTES];
    for (const char *frame = json_read_first(frames); frame; frame = json_read_next(frame)) {
        uint64_t line = 0;
        json_read_string(json_read_member(frame, "file"), file, sizeof(file));
        json_read_string(json_read_member(frame, "function"), function, sizeof(function));
        json_read_u64(json_read_member(frame, "line"), &line);
        printf("    %s  %s:%" PRIu64 "\n", function, file, line);
    }
}

static void print_native(const char *frames)
{
    char object[LOCKSTEP_OBJECT_BYTES];
    char symbol[LOCKSTEP_SYMBOL_BYTES];
    char offset[WORD_BYTES];
    for (const char *frame = json_read_first(frames); frame; frame = json_read_next(frame)) {
        json_read_string(json_read_member(frame, "module"), object, sizeof(object));
        json_read_string(json_read_member(frame, "offset"), offset, sizeof(offset));
        if (!json_read_string(json_read_member(frame, "symbol"), symbol, sizeof(symbol)) ||
            !symbol[0])
            snprintf(symbol, sizeof(symbol), "?");
        printf("    %s  %s+%s%s\n", symbol, object, offset,
               is_true(frame, "guessed") ? "  (guessed)" : "");
    }
}

// Prints a text such as "; it waits for a lock that thread 934 (loader) holds".
static void print_awaits(const char *thread)
{
    char awaits[WORD_BYTES] = "";
    char name[LOCKSTEP_THREAD_BYTES] = "";
    uint64_t owner = 0, tid = 0;
    json_read_u64(json_read_member(thread, "tid"), &tid);
    json_read_string(json_read_member(thread, "awaits"), awaits, sizeof(awaits));
    json_read_string(json_read_member(thread, "owner_name"), name, sizeof(name));
    json_read_u64(json_read_member(thread, "owner"), &owner);
    if (strcmp(awaits, "lock") == 0 && owner == tid)
        printf("; it waits for a lock that it holds itself");
    else if (strcmp(awaits, "lock") == 0)
        printf("; it waits for a lock that thread %" PRIu64 " (%s) holds", owner, name);
    else if (strcmp(awaits, "end") == 0)
        printf("; it waits for the end of thread %" PRIu64 " (%s)", owner, name);
}

// Prints a line such as "thread 912 (python3), the trainer's: S in futex_wait_queue; it waits for
// ...".
static void print_head(const struct palette *palette, const char *thread)
{
    char text[LOCKSTEP_OBJECT_BYTES];
    uint64_t tid = 0;
    json_read_u64(json_read_member(thread, "tid"), &tid);
    json_read_string(json_read_member(thread, "name"), text, sizeof(text));
    printf("%sthread %" PRIu64 "%s (%s)%s", palette->label, tid, palette->off, text,
           is_true(thread, "trainer") ? ", the trainer's" : "");
    if (json_read_string(json_read_member(thread, "state"), text, sizeof(text)) && text[0])
        printf(": %s", text);
    if (json_read_string(json_read_member(thread, "wchan"), text, sizeof(text)) && text[0] &&
        strcmp(text, "0") != 0)
        printf(" in %s", text);
    print_awaits(thread);
}

static void print_thread(const struct palette *palette, const char *thread)
{
    char how[WORD_BYTES] = "";
    const char *python = json_read_member(thread, "python");
    const char *native = json_read_member(thread, "native");
    print_head(palette, thread);
    printf("\n");
    print_python(python);
    print_native(native);
    json_read_string(json_read_member(thread, "how"), how, sizeof(how));
    if (strcmp(how, "cut") == 0)
        printf("    ... and what has called it is not known\n");
    else if (!json_read_first(python) && !json_read_first(native))
        printf("    no frames%s%s\n", how_meaning(how) ? ": " : "",
               how_meaning(how) ? how_meaning(how) : "");
}

// Returns true if another thread of the answer waits for this one. Then its frames are worth
// printing.
static bool is_awaited(const char *threads, const char *thread)
{
    uint64_t tid = 0, owner = 0;
    json_read_u64(json_read_member(thread, "tid"), &tid);
    for (const char *one = json_read_first(threads); one; one = json_read_next(one))
        if (json_read_u64(json_read_member(one, "owner"), &owner) && owner == tid && tid != 0)
            return true;
    return false;
}

// Prints the innermost frame outside the C library. Every waiting thread has its innermost frame in
// the C library.
static void print_place(const char *frames)
{
    char object[LOCKSTEP_OBJECT_BYTES];
    char symbol[LOCKSTEP_SYMBOL_BYTES];
    for (const char *frame = json_read_first(frames); frame; frame = json_read_next(frame)) {
        if (json_read_string(json_read_member(frame, "module"), object, sizeof(object)) &&
            strncmp(object, "libc.", 5) != 0 &&
            json_read_string(json_read_member(frame, "symbol"), symbol, sizeof(symbol)) &&
            symbol[0]) {
            printf("; it is in %s (%s)", symbol, object);
            return;
        }
    }
}

// Prints one line for a thread that does not use Lockstep.
static void print_other(const struct palette *palette, const char *thread)
{
    print_head(palette, thread);
    print_place(json_read_member(thread, "native"));
    printf("\n");
}

// The order of the output: the trainer's thread, the other threads that use Lockstep, and the rest.
enum thread_group {
    GROUP_TRAINER,
    GROUP_CALLERS,
    GROUP_OTHERS,
    GROUPS,
};

static enum thread_group group_of(const char *thread)
{
    if (is_true(thread, "trainer"))
        return GROUP_TRAINER;
    return is_true(thread, "other") ? GROUP_OTHERS : GROUP_CALLERS;
}

static void print_age(const char *body, bool wants_fresh)
{
    char time[CULPRIT_DURATION_BYTES];
    uint64_t age_ms;
    bool fresh = true; // An older coordinator does not send this member.
    if (!json_read_u64(json_read_member(body, "age_ms"), &age_ms))
        return;
    printf(", %s ago", culprit_duration(age_ms, time));
    if (wants_fresh && json_read_bool(json_read_member(body, "fresh"), &fresh) && !fresh)
        printf("; not asked again: a rank is asked at most once in %d s",
               LOCKSTEP_INSPECT_PAUSE_MS / 1000);
}

static void print_stacks(const char *body, bool wants_fresh)
{
    const struct palette *palette = colour_palette();
    const char *threads = json_read_member(body, "threads");
    char text[LOCKSTEP_NAME_BYTES];
    uint64_t number = 0;
    json_read_u64(json_read_member(body, "rank"), &number);
    json_read_string(json_read_member(body, "job"), text, sizeof(text));
    printf("rank %" PRIu64 " of %s", number, text);
    json_read_string(json_read_member(body, "host"), text, sizeof(text));
    json_read_u64(json_read_member(body, "pid"), &number);
    printf(" (%s, pid %" PRIu64 ")", text, number);
    if (json_read_string(json_read_member(body, "phase"), text, sizeof(text)) && text[0])
        printf(", phase '%s'", text);
    print_age(body, wants_fresh);
    printf("\n");
    uint32_t own = 0; // Threads of the library, which interest only developers, who have --json.
    for (enum thread_group group = GROUP_TRAINER; group < GROUPS; group++) {
        for (const char *thread = json_read_first(threads); thread;
             thread = json_read_next(thread)) {
            if (group_of(thread) != group)
                continue;
            if (group == GROUP_OTHERS && is_true(thread, "own"))
                own++;
            else if (group == GROUP_OTHERS && !is_awaited(threads, thread))
                print_other(palette, thread);
            else
                print_thread(palette, thread);
        }
    }
    if (own > 0)
        printf("and %" PRIu32 " thread%s of Lockstep itself\n", own, own == 1 ? "" : "s");
}

static bool get_stacks(struct stacks_options *options, char **body)
{
    struct ask *ask = &options->ask;
    char path[ASK_PATH_BYTES];
    snprintf(path, sizeof(path), "/api/v1%s%s/ranks/%" PRIu64 "/stack%s",
             ask->job[0] ? "/jobs/" : "", ask->job, options->rank,
             options->fresh ? "?fresh=1" : "");
    if (!ask_get(ask, path, body) || json_read_member(*body, "threads"))
        return *body != NULL;
    snprintf(ask->error, sizeof(ask->error), "%s has no list of threads: is it a coordinator?",
             ask->peer.address);
    free(*body);
    *body = NULL;
    return false;
}

int stacks_main(int argc, char **argv)
{
    struct stacks_options options;
    char *body;
    const int result = read_options(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    bool got = get_stacks(&options, &body);
    // A rank that was never asked has no last answer, so ask it now. Stall texts suggest this
    // command for such ranks, too.
    if (!got && !options.fresh && options.ask.refused == NOT_FOUND) {
        options.fresh = true;
        got = get_stacks(&options, &body);
    }
    if (!got) {
        cli_say(syntax.name, "%s", options.ask.error);
        return CLI_FAILED;
    }
    if (options.json)
        printf("%s\n", body);
    else
        print_stacks(body, options.fresh);
    free(body);
    return CLI_OK;
}
