// SPDX-License-Identifier: Apache-2.0
//
// Reads facts from texts of /proc. A text may be cut, empty or missing. Any thread.

#include "worker/watch/proc.h"

#include "worker/stacks/proc_task.h"
#include "worker/support/proc_text.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_PROC_THREADS 64 // Most threads of a process that are looked at.

// Returns field `number` of /proc/PID/stat, counted from 1; at least 3, the first field after the
// process name. The name may contain anything, also brackets and blanks, so the function looks for
// the last bracket.
static const char *watch_proc_field(const char *stat, unsigned number)
{
    const char *at = strrchr(stat, ')');
    for (unsigned field = 2; at && field < number; field++) {
        at = strchr(at, ' ');
        at = !at ? NULL : at + 1;
    }
    return at;
}

// Returns the state of a thread of a process whose main thread has ended; 'Z' if no thread goes on.
static char watch_proc_thread_state(const char *proc, const char *pid)
{
    char directory[PATH_MAX];
    char stat[2 * PATH_MAX];
    char text[PROC_TEXT_BYTES];
    uint32_t tids[WATCH_PROC_THREADS];
    snprintf(directory, sizeof(directory), "%s/%s/task", proc, pid);
    const uint32_t count = proc_task_list(directory, tids, WATCH_PROC_THREADS);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(stat, sizeof(stat), "%s/%" PRIu32 "/stat", directory, tids[i]);
        proc_text(AT_FDCWD, stat, text);
        const char *state = watch_proc_field(text, 3);
        if (state && isalpha((unsigned char)*state) && *state != 'Z' && *state != 'X')
            return *state;
    }
    return 'Z';
}

bool watch_proc_process(const char *proc, const char *pid, struct watch_process *process)
{
    char path[PATH_MAX];
    char text[PROC_TEXT_BYTES];
    const char *state;
    const char *started;
    snprintf(path, sizeof(path), "%s/%s/stat", proc, pid);
    proc_text(AT_FDCWD, path, text);
    state = watch_proc_field(text, 3);
    started = watch_proc_field(text, 22);
    if (!state || !isalpha((unsigned char)*state) || !started || !isdigit((unsigned char)*started))
        return false;
    process->state = *state != 'Z' ? *state : watch_proc_thread_state(proc, pid);
    process->started = strtoull(started, NULL, 10);
    return true;
}

// Returns the number after a word at the beginning of a line; 0 if there is none.
static uint64_t watch_proc_number(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (const char *line = text; line && *line != '\0';) {
        if (strncmp(line, word, length) == 0)
            return strtoull(line + length, NULL, 10);
        line = strchr(line, '\n');
        line = !line ? NULL : line + 1;
    }
    return 0;
}

uint32_t watch_proc_tracer(const char *proc, const char *pid)
{
    char path[PATH_MAX];
    char text[PROC_TEXT_BYTES];
    snprintf(path, sizeof(path), "%s/%s/status", proc, pid);
    proc_text(AT_FDCWD, path, text);
    return (uint32_t)watch_proc_number(text, "TracerPid:");
}

// Finds the cpu.stat of the group in a line of /proc/self/cgroup, "0::/a/b" or
// "4:cpu,cpuacct:/a/b". Inside a container the path may be a path of the host that does not exist
// in the container.
static bool watch_proc_group(char *line, const char *cgroup, char path[PATH_MAX])
{
    char *controllers = strchr(line, ':');
    char *group = !controllers ? NULL : strchr(controllers + 1, ':');
    if (!group)
        return false;
    *group++ = '\0';
    controllers++;
    if (controllers[0] == '\0')
        snprintf(path, PATH_MAX, "%s%s/cpu.stat", cgroup, group);
    else if (strstr(controllers, "cpu,") == controllers || strcmp(controllers, "cpu") == 0 ||
             strstr(controllers, ",cpu,"))
        snprintf(path, PATH_MAX, "%s/cpu%s/cpu.stat", cgroup, group);
    else
        return false;
    return true;
}

uint64_t watch_proc_throttled(const char *proc, const char *cgroup)
{
    char path[PATH_MAX];
    char groups[PROC_TEXT_BYTES];
    char text[PROC_TEXT_BYTES];
    char *rest = groups;
    uint64_t throttled = 0;
    snprintf(path, sizeof(path), "%s/self/cgroup", proc);
    proc_text(AT_FDCWD, path, groups);
    for (char *line = strsep(&rest, "\n"); line && throttled == 0; line = strsep(&rest, "\n")) {
        if (!watch_proc_group(line, cgroup, path))
            continue;
        proc_text(AT_FDCWD, path, text);
        throttled = watch_proc_number(text, "nr_throttled ");
    }
    if (throttled > 0)
        return throttled;
    snprintf(path, sizeof(path), "%s/cpu.stat", cgroup);
    proc_text(AT_FDCWD, path, text);
    return watch_proc_number(text, "nr_throttled ");
}
