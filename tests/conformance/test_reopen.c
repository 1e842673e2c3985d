// SPDX-License-Identifier: Apache-2.0
//
// Several sessions of the same job, one after the other. A rank that opens a new session before
// other ranks have closed their old ones waits for them. If they never close, its error says so.

#include "base/clock.h"
#include "tests/support/cluster.h"

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define LINE_BYTES 2048

static void open_and_close(struct rank *rank, useconds_t later_us)
{
    const struct lockstep_config config = rank_config(rank);
    lockstep_session *session;
    RANK_OK(rank, lockstep_open(&config, &session));
    RANK_OK(rank, lockstep_barrier(session, "together", FOREVER));
    (void)usleep(later_us);
    RANK_OK(rank, lockstep_close(session));
}

// Each rank closes its session later than the rank before it.
static void again_body(struct rank *rank)
{
    for (int round = 0; round < 3; round++)
        open_and_close(rank, rank->rank * 150000);
}

static void opened_again_before_the_others_have_closed(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = again_body, .without_session = true};
    ranks_run_test(&test);
}

// Keeps what rank 0 is told while it waits.
static void keep_line(void *context, lockstep_log_level level, const char *line)
{
    (void)level;
    if (strstr(line, "coordinator_unreached"))
        snprintf(context, LINE_BYTES, "%s", line);
}

static void never_body(struct rank *rank)
{
    char line[LINE_BYTES] = "";
    struct lockstep_config config = rank_config(rank);
    lockstep_session *session;
    lockstep_session *again;
    RANK_OK(rank, lockstep_open(&config, &session));
    RANK_OK(rank, lockstep_barrier(session, "together", FOREVER));
    if (rank->rank == 0) {
        const uint64_t began_ms = clock_now_ms();
        RANK_OK(rank, lockstep_close(session));
        config.open_timeout_ms = 1500;
        config.log = keep_line;
        config.log_context = line;
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_open(&config, &again));
        RANK_SAYS(rank, "has not ended: 1 of its ");
        RANK_TRUE(rank, clock_now_ms() - began_ms >= 1500);
        RANK_TRUE(rank, strstr(line, "will have this worker later: job '") != NULL);
    }
    rank_meet(rank);
    if (rank->rank != 0)
        RANK_OK(rank, lockstep_close(session));
}

static void the_others_never_close(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = never_body, .without_session = true};
    ranks_run_test(&test);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"opened_again_before_the_others_have_closed", opened_again_before_the_others_have_closed,
         NULL},
        {"the_others_never_close", the_others_never_close, NULL},
    };
    return stamp_run_whole("reopen", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
