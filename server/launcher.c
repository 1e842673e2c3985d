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
#define ASKS "asks"

// Fills *word from a line. Returns false if the line is none of the launcher's.
static bool launcher_parse(const char *line, struct launcher_word *word)
{
    memset(word, 0, sizeof(*word));
    if (strncmp(line, STOPPING, strlen(STOPPING)) == 0) {
        word->kind = LAUNCHER_STOPPING;
        text_copy(word->text, sizeof(word->text), line + strlen(STOPPING));
        return true;
    }
    if (strcmp(line, ASKS) == 0) {
        word->kind = LAUNCHER_ASKS;
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

// The first of many absent workers is enough for the core; each of the other words counts.
static void launcher_keep(struct launcher *launcher, const struct launcher_word *word)
{
    const uint32_t most =
        word->kind == LAUNCHER_ABSENT ? LAUNCHER_WORDS - LAUNCHER_OTHERS : LAUNCHER_WORDS;
    mutex_lock(&launcher->mutex);
    if (launcher->count < most)
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
    memset(&launcher->unsent, 0, sizeof(launcher->unsent));
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

// Returns false if the packet does not fit now. To a launcher that has ended nothing is said.
static bool launcher_send(const struct launcher *launcher, const char *line)
{
    return send(launcher->fd, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
           (errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM);
}

static bool launcher_send_number(const struct launcher *launcher, const char *what, uint32_t number)
{
    char line[32];
    snprintf(line, sizeof(line), "%s %" PRIu32, what, number);
    return launcher_send(launcher, line);
}

// Sends `line` if *waits, which it clears. Returns false if the packet does not fit now.
static bool launcher_send_waiting(const struct launcher *launcher, bool *waits, const char *line)
{
    if (*waits && !launcher_send(launcher, line))
        return false;
    *waits = false;
    return true;
}

bool launcher_flush(struct launcher *launcher)
{
    struct launcher_unsent *unsent = &launcher->unsent;
    if (unsent->cause && !launcher_send_number(launcher, "cause", unsent->cause_rank))
        return false;
    unsent->cause = false;
    for (uint32_t rank = 0; unsent->joined_count > 0 && rank < LOCKSTEP_MAX_WORLD; rank++) {
        if (!unsent->joined[rank])
            continue;
        if (!launcher_send_number(launcher, "joined", rank))
            return false;
        unsent->joined[rank] = false;
        unsent->joined_count--;
    }
    return launcher_send_waiting(launcher, &unsent->joined_unknown, "joined -") &&
           launcher_send_waiting(launcher, &unsent->refused, "refused -") &&
           launcher_send_waiting(launcher, &unsent->answer, "ok");
}

void launcher_answer(struct launcher *launcher)
{
    launcher->unsent.answer = true;
    (void)launcher_flush(launcher);
}

void launcher_say_hello(struct launcher *launcher, const struct up_hello *hello, bool refused)
{
    struct launcher_unsent *unsent = &launcher->unsent;
    if (refused) {
        unsent->refused = true;
    } else if (!hello->has_rank_hint || hello->rank_hint >= LOCKSTEP_MAX_WORLD) {
        unsent->joined_unknown = true;
    } else {
        unsent->joined_count += !unsent->joined[hello->rank_hint];
        unsent->joined[hello->rank_hint] = true;
    }
    (void)launcher_flush(launcher);
}

void launcher_say_cause(struct launcher *launcher, uint32_t rank)
{
    launcher->unsent.cause = true;
    launcher->unsent.cause_rank = rank;
    (void)launcher_flush(launcher);
}
