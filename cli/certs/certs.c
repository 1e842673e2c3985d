// SPDX-License-Identifier: Apache-2.0
//
// `lockstep certs`: certificates for a coordinator and its workers. `init` makes an authority,
// `issue` makes a certificate that the authority signs, and `show` prints the contents of
// certificates. Main thread.

#include "cli/certs/certs.h"

#include "cli/certs/make.h"
#include "cli/certs/show.h"
#include "cli/common/cli.h"

#include "base/json.h"
#include "base/parse.h"
#include "base/text.h"
#include "base/tls_files.h"
#include "protos/job_name.h"
#include "protos/limits.h"

#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define NAME "certs"
#define JSON_BYTES (64 * 1024)

struct certs_options {
    const char *directory; // NULL: not given.
    const char *out;
    struct certs_request request;
    bool json;
};

static const char help_text[] =
    "usage: lockstep certs init --dir DIR [--name NAME ...] [--job JOB] [--days N] [--json]\n"
    "       lockstep certs issue --dir DIR --role ROLE [--job JOB] [--name NAME ...] --out DIR\n"
    "                            [--days N] [--json]\n"
    "       lockstep certs show PATH [--json]\n"
    "\n"
    "Makes what --tls-dir of the coordinator and LOCKSTEP_TLS_DIR of workers want: directories "
    "with\n"
    "tls.crt, tls.key and ca.crt.\n"
    "\n"
    "  init   An authority, DIR/ca.crt and DIR/ca.key, which is for nobody's eyes. With --name\n"
    "         also DIR/coordinator for these names, and DIR/worker for workers of --job\n"
    "  issue  A certificate and its key below --out, signed by the authority in --dir\n"
    "  show   What a file's certificates say, or those of a directory\n"
    "\n"
    "      --dir DIR    Where the authority is\n"
    "      --role ROLE  coordinator, worker, or observer (may ask for health, and no more)\n"
    "      --job JOB    A worker's only job (default: any job)\n"
    "      --name NAME  By which workers reach the coordinator: a DNS name or an address; repeat "
    "it\n"
    "      --days N     How long it holds (365; init: 3650 for the authority itself)\n"
    "      --out DIR    Where tls.crt, tls.key and ca.crt go\n"
    "      --json       One line of JSON instead of words\n"
    "  -h, --help       Show this\n"
    "\n"
    "Files are made with mode 0600, and nothing is overwritten.\n"
    "Exit status: 0, or 1 when something cannot be made or read, or shown has ended.\n";

static const struct option long_options[] = {
    {"dir", required_argument, NULL, 'd'},
    {"role", required_argument, NULL, 'r'},
    {"job", required_argument, NULL, 'n'},
    {"name", required_argument, NULL, 'm'},
    {"days", required_argument, NULL, 'y'},
    {"out", required_argument, NULL, 'o'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

// ---- options ------------------------------------------------------------------------------------

static int set_role(struct certs_request *request, const char *value)
{
    request->role = certs_role_of(value);
    if (request->role != CERTS_NO_ROLE)
        return 0;
    return cli_misuse(NAME, "--role '%s': a role is coordinator, worker or observer", value);
}

static int set_job(struct certs_request *request, const char *value)
{
    request->job = value;
    if (job_name_valid(value) && strlen(value) < LOCKSTEP_JOB_NAME_BYTES)
        return 0;
    return cli_misuse(NAME, "--job '%s': a job's name has up to %d characters: " JOB_NAME_RULE,
                      value, LOCKSTEP_JOB_NAME_BYTES - 1);
}

static int set_name(struct certs_request *request, const char *value)
{
    if (request->name_count == CERTS_NAMES)
        return cli_misuse(NAME, "--name can be given %d times", CERTS_NAMES);
    if (!certs_is_name(value))
        return cli_misuse(NAME, "--name '%s' is neither a DNS name nor an address", value);
    request->names[request->name_count++] = value;
    return 0;
}

static int set_days(struct certs_request *request, const char *value)
{
    uint64_t days = 0;
    if (!parse_u64(value, &days) || days == 0 || days > CERTS_MAX_DAYS)
        return cli_misuse(NAME, "--days '%s': a number from 1 to %d is needed", value,
                          CERTS_MAX_DAYS);
    request->days = (unsigned)days;
    return 0;
}

static int set_option(void *given, int key, char *value)
{
    struct certs_options *options = given;
    switch (key) {
    case 'd':
        options->directory = value;
        return 0;
    case 'r':
        return set_role(&options->request, value);
    case 'n':
        return set_job(&options->request, value);
    case 'm':
        return set_name(&options->request, value);
    case 'y':
        return set_days(&options->request, value);
    case 'o':
        options->out = value;
        return 0;
    default:
        options->json = true;
        return 0;
    }
}

// ---- printing what was made ---------------------------------------------------------------------

static void say_made(const struct certs_options *options, const struct certs_request *request,
                     const char *out)
{
    char uri[CERTS_WORD_BYTES];
    certs_uri(request, uri, sizeof(uri));
    if (!options->json)
        printf("%s: %s %s's certificate, %s, for %s%u day%s%s\n", out,
               request->role == CERTS_OBSERVER ? "an" : "a", certs_role_name(request->role), uri,
               request->days == 0 ? "less than " : "", request->days == 0 ? 1 : request->days,
               request->days <= 1 ? "" : "s", request->cut ? ", when its authority ends" : "");
}

static void print_json(const struct certs_options *options, const struct certs_request *made,
                       const char *const *directories, size_t count)
{
    struct json json;
    json_init(&json, JSON_BYTES);
    json_object_begin(&json, NULL);
    json_string(&json, "authority", options->directory);
    json_array_begin(&json, "made");
    for (size_t i = 0; i < count; i++) {
        char uri[CERTS_WORD_BYTES];
        certs_uri(&made[i], uri, sizeof(uri));
        json_object_begin(&json, NULL);
        json_string(&json, "directory", directories[i]);
        json_string(&json, "role", certs_role_name(made[i].role));
        json_string(&json, "uri", uri);
        json_u64(&json, "days", made[i].days);
        json_object_end(&json);
    }
    json_array_end(&json);
    json_object_end(&json);
    const char *text = json_text(&json, NULL);
    printf("%s\n", text ? text : "{}");
    json_fini(&json);
}

static int failed(const char *error)
{
    cli_say(NAME, "%s", error);
    return CLI_FAILED;
}

// ---- init ---------------------------------------------------------------------------------------

static int init(struct certs_options *options)
{
    char error[2 * PATH_MAX];
    char paths[2][PATH_MAX];
    const char *out[] = {paths[0], paths[1]};
    struct certs_request made[2] = {options->request, options->request};
    const unsigned days = options->request.days;
    const size_t count = options->request.name_count > 0 ? 2 : 0;
    if (options->request.role != CERTS_NO_ROLE || options->out)
        return cli_misuse(NAME, "--role and --out belong to issue");
    if (options->request.job && count == 0)
        return cli_misuse(NAME, "--job is of the worker that init makes with --name");
    snprintf(paths[0], sizeof(paths[0]), "%s/coordinator", options->directory);
    snprintf(paths[1], sizeof(paths[1]), "%s/worker", options->directory);
    made[0].role = CERTS_COORDINATOR;
    made[0].job = NULL;
    made[1].role = CERTS_WORKER;
    made[1].name_count = 0;
    for (size_t i = 0; i < count; i++) {
        if (certs_check(&made[i], out[i], error, sizeof(error)) < 0)
            return failed(error); // Before the authority is made.
    }
    if (certs_make_authority(options->directory, days > 0 ? days : CERTS_AUTHORITY_DAYS, error,
                             sizeof(error)) < 0)
        return failed(error);
    if (!options->json)
        printf("%s: an authority; whoever has its %s can join jobs\n", options->directory,
               CERTS_KEY_FILE);
    for (size_t i = 0; i < count; i++) {
        made[i].days = days > 0 ? days : CERTS_DAYS;
        if (certs_issue(options->directory, &made[i], out[i], error, sizeof(error)) < 0)
            return failed(error);
        say_made(options, &made[i], out[i]);
    }
    if (options->json)
        print_json(options, made, out, count);
    return CLI_OK;
}

// ---- issue --------------------------------------------------------------------------------------

static int issue(struct certs_options *options)
{
    char error[2 * PATH_MAX];
    struct certs_request *request = &options->request;
    if (request->role == CERTS_NO_ROLE)
        return cli_misuse(NAME, "issue needs --role");
    if (!options->out)
        return cli_misuse(NAME, "issue needs --out, where the files go");
    if (request->job && request->role != CERTS_WORKER)
        return cli_misuse(NAME, "--job belongs to a worker");
    if (request->role == CERTS_COORDINATOR && request->name_count == 0)
        return cli_misuse(NAME, "a coordinator needs --name: workers check the name or address by "
                                "which they reach it");
    if (request->days == 0)
        request->days = CERTS_DAYS;
    if (certs_issue(options->directory, request, options->out, error, sizeof(error)) < 0)
        return failed(error);
    say_made(options, request, options->out);
    if (options->json)
        print_json(options, request, &options->out, 1);
    return CLI_OK;
}

// ---- show ---------------------------------------------------------------------------------------

struct showing {
    struct json json;
    bool as_json;
    bool ended;
    const char *path;
};

static void show_one(void *context, const struct certs_shown *shown)
{
    struct showing *showing = context;
    struct json *json = &showing->json;
    showing->ended |= !shown->holds;
    if (!showing->as_json) {
        printf("%s\n  subject  %s\n  issuer   %s\n  names    %s\n  holds    %s to %s%s\n"
               "  sha256   %s\n",
               showing->path, shown->subject, shown->issuer,
               shown->names[0] ? shown->names : (shown->authority ? "- (an authority)" : "-"),
               shown->begins, shown->ends, shown->holds ? "" : ", and so not now", shown->sha256);
        return;
    }
    json_object_begin(json, NULL);
    json_string(json, "file", showing->path);
    json_string(json, "subject", shown->subject);
    json_string(json, "issuer", shown->issuer);
    json_string(json, "names", shown->names);
    json_string(json, "begins", shown->begins);
    json_string(json, "ends", shown->ends);
    json_i64(json, "days_left", shown->days_left);
    json_bool(json, "holds", shown->holds);
    json_bool(json, "authority", shown->authority);
    json_string(json, "sha256", shown->sha256);
    json_object_end(json);
}

static int show_files(struct showing *showing, const char *path)
{
    static const char *const names[] = {TLS_CERTIFICATE_FILE, TLS_AUTHORITY_FILE};
    char error[2 * PATH_MAX];
    struct stat status;
    if (stat(path, &status) < 0 || !S_ISDIR(status.st_mode)) {
        showing->path = path;
        return certs_show_file(path, show_one, showing, error, sizeof(error)) < 0 ? failed(error)
                                                                                  : CLI_OK;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof(file), "%s/%s", path, names[i]);
        showing->path = file;
        if (stat(file, &status) < 0 && i == 0)
            continue; // The authority's own directory has no tls.crt.
        if (certs_show_file(file, show_one, showing, error, sizeof(error)) < 0)
            return failed(error);
    }
    return CLI_OK;
}

static int show(const struct certs_options *options, const char *path)
{
    struct showing showing = {.as_json = options->json};
    json_init(&showing.json, JSON_BYTES);
    json_object_begin(&showing.json, NULL);
    json_array_begin(&showing.json, "certificates");
    const int status = show_files(&showing, path);
    json_array_end(&showing.json);
    json_object_end(&showing.json);
    const char *text = json_text(&showing.json, NULL);
    if (options->json && status == CLI_OK)
        printf("%s\n", text ? text : "{}");
    json_fini(&showing.json);
    return status == CLI_OK && showing.ended ? CLI_FAILED : status;
}

int certs_main(int argc, char **argv)
{
    static const struct cli_syntax syntax = {NAME, ":h", long_options, help_text, set_option};
    struct certs_options options = {0};
    const int status = cli_read_options(&syntax, &options, argc, argv);
    if (status != 0)
        return status < 0 ? CLI_OK : status;
    const char *verb = optind < argc ? argv[optind++] : "";
    const char *path = optind < argc ? argv[optind++] : NULL;
    if (optind < argc)
        return cli_misuse(NAME, "unexpected argument '%s'", argv[optind]);
    if (strcmp(verb, "show") == 0)
        return path ? show(&options, path) : cli_misuse(NAME, "show what? A file, or a directory");
    if (path)
        return cli_misuse(NAME, "unexpected argument '%s'", path);
    if (strcmp(verb, "init") != 0 && strcmp(verb, "issue") != 0)
        return cli_misuse(NAME, "%s%s%s: init, issue or show is needed", verb[0] ? "'" : "", verb,
                          verb[0] ? "'" : "nothing to do");
    if (!options.directory)
        return cli_misuse(NAME, "%s needs --dir, where the authority is", verb);
    return strcmp(verb, "init") == 0 ? init(&options) : issue(&options);
}
