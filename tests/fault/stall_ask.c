// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/stall_ask.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Time between two questions. Without a pause the asking would take a core from the trainers.
#define ASK_US 100000

static const char *programs(void)
{
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    return folder ? folder : "build/bin";
}

// True if stall_check.py accepts what `lockstep stalls` says now. wanted: arguments of the script.
static bool stalls_are(const struct coordinator_process *coordinator, const char *wanted,
                       const char *errors)
{
    char command[1024];
    snprintf(command, sizeof(command),
             "{ '%s/lockstep' stalls --http 127.0.0.1:%u --json; } >'%s.json' 2>'%s'; "
             "tests/fault/stall_check.py '%s.json' %s >>'%s' 2>&1",
             programs(), coordinator->http_port, errors, errors, errors, wanted, errors);
    return system(command) == 0;
}

static void keep_stalls(const struct coordinator_process *coordinator, const char *wanted)
{
    const char *file = getenv("LOCKSTEP_TEST_STALL_KEEP");
    char command[1024];
    if (!file || file[0] == '\0' || wanted[0] == '\0')
        return;
    FILE *to = fopen(file, "ae");
    if (!to)
        return;
    fprintf(to, "# %s\n", wanted);
    (void)fclose(to);
    snprintf(command, sizeof(command), "'%s/lockstep' stalls --http 127.0.0.1:%u >>'%s'",
             programs(), coordinator->http_port, file);
    (void)!system(command);
}

static void print_file(const char *name)
{
    char line[4096];
    FILE *file = fopen(name, "re");
    while (file && fgets(line, sizeof(line), file))
        printf("%s", line);
    if (file)
        (void)fclose(file);
}

void stall_expect(const struct coordinator_process *coordinator, const char *wanted, uint64_t ms)
{
    const uint64_t end_ms = clock_now_ms() + ms;
    char errors[] = "/tmp/stall_ask.XXXXXX";
    char json[sizeof(errors) + 5];
    const int fd = mkstemp(errors);
    assert_true(fd >= 0);
    close(fd);
    snprintf(json, sizeof(json), "%s.json", errors);
    bool right = stalls_are(coordinator, wanted, errors);
    while (!right && clock_now_ms() < end_ms) {
        pause_us(ASK_US);
        right = stalls_are(coordinator, wanted, errors);
    }
    if (right)
        keep_stalls(coordinator, wanted);
    else
        print_file(errors);
    unlink(errors);
    unlink(json);
    if (!right)
        fail_msg("not within %llu ms: %s", (unsigned long long)ms, wanted);
}

unsigned stall_total(const struct coordinator_process *coordinator)
{
    char command[512];
    unsigned kinds = 0;
    unsigned total = 0;
    snprintf(command, sizeof(command),
             "curl -s -m 20 http://127.0.0.1:%u/metrics | awk "
             "'/^lockstep_coordinator_stalls_total/ { kinds++; total += $2 } "
             "END { print kinds + 0, total + 0 }'",
             coordinator->http_port);
    FILE *answer = popen(command, "re");
    assert_non_null(answer);
    const int read = fscanf(answer, "%u %u", &kinds, &total);
    assert_int_equal(pclose(answer), 0);
    assert_int_equal(read, 2);
    assert_true(kinds > 0);
    return total;
}
