// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes the launcher's socket; launcher.h has the words.

#include "server/launcher.h"

#include "base/text.h"
#include "protos/up.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STOPPING "stopping "
#define ABSENT "absent "

// Fills *word from a line. Returns false if the line is none of the launcher's.
static bool launcher_parse(const char *line, struct launcher_word *word)
{
    memset(word, 0, sizeof(*word));
    if (strncmp(line, STOPPING, strlen(STOPPING)) == 0) {
        word->kind = LAUNCHER_STOPPING;
        text_copy(word->text, sizeof(word->text), line + strlen(STOPPING));
        return true;
    }
    if (strncmp(line, ABSENT, strlen(ABSENT)) != 0)
        return false;
    const char *job = line + strlen(ABSENT);
    const size_t size = strcspn(job, " ");
    if (size == 0 || size >= sizeof(word->job) || job[size] == '\0')
        return false;
    word->kind = LAUNCHER_ABSENT;
    memcpy(word->job, job, size);
    text_copy(word->text, sizeof(word->text), job + size + 1);
    return true;
}

static void launcher_keep(struct launcher *launcher, const struct launcher_word *word)
{
    mutex_lock(&launcher->mutex);
    if (launcher->count < LAUNCHER_WORDS)
        launcher->words[launcher->count++] = *word;
    mutex_unlock(&launcher->mutex);
    launcher->wake(launcher->context);
}

static void launcher_read(void *argument)
{
    struct launcher *launcher = argument;
    struct launcher_word word;
    char line[LOCKSTEP_JOB_NAME_BYTES + LOCKSTEP_TEXT_BYTES + 16];
    for (;;) {
        const ssize_t size = recv(launcher->fd, line, sizeof(line) - 1, 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            return; // The launcher has ended, or launcher_stop was called.
        line[size] = '\0';
        if (launcher_parse(line, &word))
            launcher_keep(launcher, &word);
    }
}

int launcher_start(struct launcher *launcher, int fd, void (*wake)(void *context), void *context)
{
    launcher->fd = fd;
    launcher->wake = wake;
    launcher->context = context;
    launcher->count = 0;
    mutex_init(&launcher->mutex);
    return thread_start(&launcher->thread, "launcher", launcher_read, launcher);
}

void launcher_stop(struct launcher *launcher)
{
    shutdown(launcher->fd, SHUT_RD);
    thread_join(&launcher->thread);
    mutex_fini(&launcher->mutex);
}

bool launcher_take(struct launcher *launcher, struct launcher_word *word)
{
    mutex_lock(&launcher->mutex);
    const bool has = launcher->count > 0;
    if (has) {
        *word = launcher->words[0];
        launcher->count--;
        memmove(&launcher->words[0], &launcher->words[1],
                launcher->count * sizeof(launcher->words[0]));
    }
    mutex_unlock(&launcher->mutex);
    return has;
}

// The launcher reads all the time. A packet that does not fit is dropped, so that a stopped
// launcher does not stop the streams.
static void launcher_send(struct launcher *launcher, const char *line)
{
    (void)send(launcher->fd, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void launcher_answer(struct launcher *launcher)
{
    launcher_send(launcher, "ok");
}

void launcher_say_hello(struct launcher *launcher, const struct up_hello *hello, bool refused)
{
    char line[32];
    const char *what = refused ? "refused" : "joined";
    if (hello->has_rank_hint)
        snprintf(line, sizeof(line), "%s %" PRIu32, what, hello->rank_hint);
    else
        snprintf(line, sizeof(line), "%s -", what);
    launcher_send(launcher, line);
}

void launcher_say_cause(struct launcher *launcher, uint32_t rank)
{
    char line[32];
    snprintf(line, sizeof(line), "cause %" PRIu32, rank);
    launcher_send(launcher, line);
}
