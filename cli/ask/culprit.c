// SPDX-License-Identifier: Apache-2.0
//
// Stalls and their culprits as text; culprit.h has the contract.

#include "cli/ask/culprit.h"

#include "cli/ask/json_read.h"
#include "protos/limits.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#define LABEL_COLUMNS 12
#define WORD_BYTES 32 // For a kind, a flag, or a function.
#define LINE_BYTES 256

// ---- Words -------------------------------------------------------------------------------------

const char *culprit_duration(uint64_t ms, char *text)
{
    const uint64_t seconds = ms / 1000;
    if (seconds < 100)
        snprintf(text, CULPRIT_DURATION_BYTES, "%" PRIu64 ".%" PRIu64 " s", seconds,
                 ms % 1000 / 100);
    else if (seconds < 3600)
        snprintf(text, CULPRIT_DURATION_BYTES, "%" PRIu64 " min %" PRIu64 " s", seconds / 60,
                 seconds % 60);
    else
        snprintf(text, CULPRIT_DURATION_BYTES, "%" PRIu64 " h %" PRIu64 " min", seconds / 3600,
                 seconds % 3600 / 60);
    return text;
}

// Returns the meaning of a kind, or NULL if this tool does not know the kind.
static const char *kind_meaning(const char *kind)
{
    static const struct {
        const char *kind;
        const char *meaning;
    } meanings[] = {
        {"outside", "in the trainer's own code"},
        {"in_call", "inside a call whose gradients are missing"},
        {"frozen", "nothing is heard of its process"},
        {"stopped", "its process is stopped"},
        {"lost", "its connection has ended"},
        {"link", "bytes do not get through"},
        {"unknown", "no rank is in the way of the others"},
        {"device", "work of its device does not end"},
    };
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        if (strcmp(kind, meanings[i].kind) == 0)
            return meanings[i].meaning;
    }
    return NULL;
}

// Prints a function's name, such as "lockstep_call_end". A name that stands for several functions
// is printed without the prefix.
static void print_function(FILE *out, const char *api)
{
    const bool family = strcmp(api, "collective") == 0 || strcmp(api, "state") == 0;
    fprintf(out, "%s%s", family ? "" : "lockstep_", api);
}

// Prints a text such as " of 'critic' (call 2)" if the object has a module.
static void print_call(FILE *out, const char *from)
{
    char module[LOCKSTEP_NAME_BYTES];
    uint64_t call = 0;
    if (!json_read_string(json_read_member(from, "module"), module, sizeof(module)) || !module[0])
        return;
    fprintf(out, " of '%s'", module);
    if (json_read_u64(json_read_member(from, "call"), &call))
        fprintf(out, " (call %" PRIu64 ")", call);
}

// Prints the texts of an array. Returns how many there were.
static uint64_t print_words(FILE *out, const char *words)
{
    char word[LOCKSTEP_NAME_BYTES];
    uint64_t count = 0;
    for (const char *item = json_read_first(words); item; item = json_read_next(item)) {
        if (json_read_string(item, word, sizeof(word)))
            fprintf(out, "%s%s", count++ > 0 ? ", " : "", word);
    }
    return count;
}

// ---- A culprit ---------------------------------------------------------------------------------

static void print_label(FILE *out, const char *label)
{
    fprintf(out, "        %-*s", LABEL_COLUMNS, label);
}

// Prints a line such as "rank 3 (gpu-node-2, pid 912): outside, in the trainer's own code, for 41.2
// s; the bound is 10.0 s (floor)".
static void print_who(FILE *out, const struct palette *palette, const char *culprit)
{
    char host[LOCKSTEP_HOST_BYTES];
    char kind[WORD_BYTES];
    char why[LINE_BYTES];
    char time[CULPRIT_DURATION_BYTES];
    uint64_t number = 0;
    if (!json_read_u64(json_read_member(culprit, "rank"), &number))
        return;
    fprintf(out, "    %srank %" PRIu64 "%s (", palette->alarm, number, palette->off);
    if (json_read_string(json_read_member(culprit, "host"), host, sizeof(host)))
        fprintf(out, "%s, ", host);
    json_read_u64(json_read_member(culprit, "pid"), &number);
    json_read_string(json_read_member(culprit, "kind"), kind, sizeof(kind));
    fprintf(out, "pid %" PRIu64 "): %s", number, kind);
    if (kind_meaning(kind))
        fprintf(out, ", %s,", kind_meaning(kind));
    if (json_read_u64(json_read_member(culprit, "age_ms"), &number))
        fprintf(out, " for %s", culprit_duration(number, time));
    if (json_read_u64(json_read_member(culprit, "bound_ms"), &number) && number > 0)
        fprintf(out, "; the bound is %s", culprit_duration(number, time));
    if (json_read_string(json_read_member(culprit, "why"), why, sizeof(why)) && why[0])
        fprintf(out, " (%s)", why);
    fprintf(out, "\n");
}

static void print_api(FILE *out, const char *culprit)
{
    char api[WORD_BYTES];
    char kind[WORD_BYTES] = "";
    char time[CULPRIT_DURATION_BYTES];
    uint64_t age_ms = 0;
    bool inside = false;
    if (!json_read_string(json_read_member(culprit, "api"), api, sizeof(api)) || !api[0] ||
        strcmp(api, "none") == 0)
        return;
    json_read_bool(json_read_member(culprit, "inside"), &inside);
    print_label(out, inside ? "inside" : "last call");
    print_function(out, api);
    print_call(out, culprit);
    // The culprit's last report may be older than what the other ranks show, so the time would be
    // wrong.
    json_read_string(json_read_member(culprit, "kind"), kind, sizeof(kind));
    if (strcmp(kind, "frozen") == 0 || strcmp(kind, "stopped") == 0)
        fprintf(out, ", when it was last heard of");
    else if (json_read_u64(json_read_member(culprit, "api_age_ms"), &age_ms))
        fprintf(out, inside ? ", for %s" : ", which returned %s ago",
                culprit_duration(age_ms, time));
    fprintf(out, "\n");
}

static void print_gradients(FILE *out, const char *culprit)
{
    uint64_t ready = 0;
    uint64_t gradients = 0;
    uint64_t total = 0;
    json_read_u64(json_read_member(culprit, "missing_total"), &total);
    if (json_read_u64(json_read_member(culprit, "gradients"), &gradients) && gradients > 0) {
        json_read_u64(json_read_member(culprit, "ready"), &ready);
        print_label(out, "gradients");
        fprintf(out, "%" PRIu64 " of %" PRIu64 " were reported\n", ready, gradients);
    }
    if (total == 0)
        return;
    print_label(out, "missing");
    const uint64_t named = print_words(out, json_read_member(culprit, "missing"));
    if (total > named)
        fprintf(out, "%s%" PRIu64 "%s", named > 0 ? " and " : "", total - named,
                named > 0 ? " more" : "");
    fprintf(out, "\n");
}

// Prints a member that is a text on its own line.
static void print_text(FILE *out, const char *label, const char *value)
{
    char text[LOCKSTEP_TEXT_BYTES];
    if (!json_read_string(value, text, sizeof(text)) || !text[0])
        return;
    print_label(out, label);
    fprintf(out, "%s\n", text);
}

static void print_culprit(FILE *out, const struct palette *palette, const char *culprit)
{
    const char *flags = json_read_member(culprit, "flags");
    print_who(out, palette, culprit);
    print_api(out, culprit);
    print_text(out, "top frame", json_read_member(culprit, "top"));
    print_text(out, "mark", json_read_member(culprit, "mark"));
    print_text(out, "awaited", json_read_member(culprit, "awaited"));
    print_text(out, "on stream", json_read_member(culprit, "stream"));
    print_gradients(out, culprit);
    if (json_read_first(flags)) {
        print_label(out, "labels");
        (void)print_words(out, flags);
        fprintf(out, "\n");
    }
    print_text(out, "sleeps in", json_read_member(culprit, "sleeps"));
}

// ---- A stall -----------------------------------------------------------------------------------

// Prints a group of ranks that wait for one rank: the lowest rank of the group, and their number.
static void print_edge(FILE *out, const char *edge)
{
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t members = 1;
    if (!json_read_u64(json_read_member(edge, "from"), &from) ||
        !json_read_u64(json_read_member(edge, "to"), &to))
        return;
    json_read_u64(json_read_member(edge, "members"), &members);
    fprintf(out, "    rank %" PRIu64, from);
    if (members > 1)
        fprintf(out, " and %" PRIu64 " more wait for rank %" PRIu64 "\n", members - 1, to);
    else
        fprintf(out, " waits for rank %" PRIu64 "\n", to);
}

// Prints a title such as "mnist: stall 3, step 812, phase 'critic'".
static void print_title(FILE *out, const char *stall)
{
    char name[LOCKSTEP_NAME_BYTES];
    uint64_t number = 0;
    json_read_string(json_read_member(stall, "job"), name, sizeof(name));
    json_read_u64(json_read_member(stall, "number"), &number);
    fprintf(out, "%s: stall %" PRIu64, name, number);
    if (json_read_u64(json_read_member(stall, "step"), &number))
        fprintf(out, ", step %" PRIu64, number);
    if (json_read_string(json_read_member(stall, "phase"), name, sizeof(name)) && name[0])
        fprintf(out, ", phase '%s'", name);
}

static void print_sentence(FILE *out, const char *stall)
{
    char sentence[LOCKSTEP_TEXT_BYTES];
    if (json_read_string(json_read_member(stall, "sentence"), sentence, sizeof(sentence)) &&
        sentence[0])
        fprintf(out, "    %s\n", sentence);
}

void culprit_print_stall(FILE *out, const struct palette *palette, const char *stall)
{
    char time[CULPRIT_DURATION_BYTES];
    uint64_t number = 0;
    uint64_t named = 0;
    fprintf(out, "%s", palette->alarm);
    print_title(out, stall);
    fprintf(out, "%s", palette->off);
    if (json_read_u64(json_read_member(stall, "age_ms"), &number))
        fprintf(out, ", for %s", culprit_duration(number, time));
    if (json_read_u64(json_read_member(stall, "ranks_waiting"), &number))
        fprintf(out, ", %" PRIu64 " rank%s", number, number == 1 ? " waits" : "s wait");
    fprintf(out, "\n");
    print_sentence(out, stall);
    for (const char *item = json_read_first(json_read_member(stall, "culprits")); item;
         item = json_read_next(item), named++)
        print_culprit(out, palette, item);
    if (json_read_u64(json_read_member(stall, "culprits_total"), &number) && number > named)
        fprintf(out, "    and %" PRIu64 " more rank%s\n", number - named,
                number - named == 1 ? "" : "s");
    for (const char *item = json_read_first(json_read_member(stall, "edges")); item;
         item = json_read_next(item))
        print_edge(out, item);
}

void culprit_print_past(FILE *out, const char *stall)
{
    char time[CULPRIT_DURATION_BYTES];
    uint64_t lasted_ms = 0;
    print_title(out, stall);
    if (json_read_u64(json_read_member(stall, "lasted_ms"), &lasted_ms))
        fprintf(out, ", lasted %s", culprit_duration(lasted_ms, time));
    fprintf(out, "\n");
    print_sentence(out, stall);
}
