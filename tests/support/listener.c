// SPDX-License-Identifier: Apache-2.0
//
// A log sink for each rank; see listener.h. The library calls it on its own threads.

#include "tests/support/listener.h"

#include <stdio.h>
#include <string.h>

struct listeners {
    void (*further)(struct rank *rank, struct lockstep_config *config);
    struct listener of[CLUSTER_MAX_WORLD]; // By rank.
};

struct listener *listener_of(const struct rank *rank)
{
    struct listeners *listeners = rank->context;
    return &listeners->of[rank->rank];
}

static void listener_log(void *context, lockstep_log_level level, const char *line)
{
    struct listener *listener = context;
    if (!strstr(line, listener->event) || level != LOCKSTEP_LOG_WARN)
        return;
    mutex_lock(&listener->mutex);
    listener->lines++;
    snprintf(listener->last, sizeof(listener->last), "%s", line);
    mutex_unlock(&listener->mutex);
}

static void listener_configure(struct rank *rank, struct lockstep_config *config)
{
    const struct listeners *listeners = rank->context;
    if (listeners->further)
        listeners->further(rank, config);
    config->log = listener_log;
    config->log_context = listener_of(rank);
}

void listener_run(const struct setting *setting, const char *event,
                  void (*further)(struct rank *rank, struct lockstep_config *config),
                  void (*body)(struct rank *rank))
{
    struct listeners listeners = {.further = further};
    const struct cluster_test test = {
        .setting = setting, .configure = listener_configure, .body = body, .context = &listeners};
    for (int i = 0; i < CLUSTER_MAX_WORLD; i++) {
        listeners.of[i].event = event;
        mutex_init(&listeners.of[i].mutex);
    }
    ranks_run_test(&test);
    for (int i = 0; i < CLUSTER_MAX_WORLD; i++)
        mutex_fini(&listeners.of[i].mutex);
}
