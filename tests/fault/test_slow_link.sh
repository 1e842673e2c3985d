#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank closes its session while messages of its complete sends are still on their way. The close
# goes on while a peer takes bytes: over a slow link the receiver gets all of them, also if another
# receiver is stopped. It ends two seconds after the last peer has taken bytes.
#
# And a rank is far ahead of its receiver, whose word that it has taken messages comes over the slow
# link, behind many bytes: that is no mismatch.
NETWORK_BRIDGE=1
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)

# Rank 0 sends to all others, and closes. Its arguments are its file for the time of the close, and
# the rank that stops itself before it receives, or "ahead".
cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MESSAGES 150 // The receiver says several times that it has taken some.
#define FEW 60 // To the rank that is stopped: the kernel has room for all of them.
#define BYTES 2048
#define BULK 700000
#define AHEAD 690
#define BEGUN 250

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(3);
    }
}

static struct lockstep_collective message_of(const char *name, uint32_t peer, bool sends,
                                             unsigned char *bytes, uint64_t count)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.kind = sends ? LOCKSTEP_SEND : LOCKSTEP_RECEIVE;
    what.name = name;
    what.dtype = LOCKSTEP_UINT8;
    what.count = count;
    what.peer = peer;
    what.input = sends ? bytes : NULL;
    what.output = sends ? NULL : bytes;
    return what;
}

static void exchange(lockstep_session *session, uint32_t peer, int message, bool sends)
{
    static unsigned char bytes[BYTES];
    const struct lockstep_collective what = message_of("message", peer, sends, bytes, BYTES);
    memset(bytes, sends ? message : 255, BYTES);
    check(lockstep_collective_run(session, &what, LOCKSTEP_WAIT_FOREVER));
    if (bytes[0] != message || bytes[BYTES - 1] != message)
        exit(4);
}

// Rank 0 has many bytes of rank 1 on their way to it, and sends more messages than it may be ahead,
// of which rank 1 has begun enough.
static void send_ahead(lockstep_session *session, uint32_t rank)
{
    static unsigned char bulk[BULK], bytes[AHEAD];
    lockstep_work *bulky, *works[BEGUN];
    struct lockstep_collective what = message_of("bulk", !rank, rank == 1, bulk, BULK);
    check(lockstep_collective_begin(session, &what, &bulky));
    for (int i = 0; i < AHEAD; i++) {
        what = message_of("ahead", !rank, rank == 0, &bytes[i], 1);
        if (rank == 0)
            check(lockstep_collective_run(session, &what, LOCKSTEP_WAIT_FOREVER));
        else if (i < BEGUN)
            check(lockstep_collective_begin(session, &what, &works[i]));
        if (i == (rank == 0 ? AHEAD : BEGUN) - 1)
            check(lockstep_barrier(session, "ahead", LOCKSTEP_WAIT_FOREVER));
        if (rank == 1 && i >= BEGUN)
            check(lockstep_collective_run(session, &what, LOCKSTEP_WAIT_FOREVER));
    }
    for (int i = 0; rank == 1 && i < BEGUN; i++)
        check(lockstep_work_wait(works[i], LOCKSTEP_WAIT_FOREVER));
    check(lockstep_work_wait(bulky, LOCKSTEP_WAIT_FOREVER));
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    lockstep_session *session;
    uint32_t rank, size;
    if (argc != 3)
        return 2;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &size));
    check(lockstep_barrier(session, "together", LOCKSTEP_WAIT_FOREVER));
    const bool ahead = strcmp(argv[2], "ahead") == 0;
    const uint32_t stopped = ahead ? size : (uint32_t)atoi(argv[2]);
    if (rank == stopped)
        raise(SIGSTOP);
    if (ahead)
        send_ahead(session, rank);
    for (int i = 0; i < MESSAGES && !ahead; i++)
        for (uint32_t peer = rank == 0 ? 1 : 0; peer < (rank == 0 ? size : 1); peer++)
            if (peer != stopped || i < FEW)
                exchange(session, peer, i, rank == 0);
    const double began = now();
    check(lockstep_close(session));
    FILE *told = rank == 0 ? fopen(argv[1], "w") : NULL;
    if (told)
        fprintf(told, "%.0f\n", now() - began);
    return 0;
}
END
build_trainer gnu11
make_hosts 3
if ! tc qdisc add dev port1 root tbf rate 800kbit burst 32kb limit 64kb; then
    echo "this kernel cannot slow a link down (tbf)"
    exit 77
fi
coordinate 0 10.77.0.1:0 --http off

# job STOPPED HOST...: a job with a rank on each host; $took is the time of rank 0's close. Kills the
# rank that is stopped, and expects that the others end well.
job() {
    local stopped=$1 rank=0 host pids=() status
    shift
    for host in "$@"; do
        LOCKSTEP_COORDINATOR=10.77.0.1:$port LOCKSTEP_JOB=stop$stopped LOCKSTEP_WORLD_SIZE=$# \
            LOCKSTEP_RANK_HINT=$rank at "$host" "$work/trainer" "$work/took" "$stopped" \
            2>"$work/err.$rank" &
        pids+=($!)
        rank=$((rank + 1))
    done
    for ((rank = 0; rank < $#; rank++)); do
        [ $rank != "$stopped" ] || kill -KILL "${pids[rank]}" 2>/dev/null
        status=0
        wait "${pids[rank]}" || status=$?
        [ $rank = "$stopped" ] || equal "the status of rank $rank" $status 0
        sed "s/^/rank $rank says: /" "$work/err.$rank"
    done
    took=$(cat "$work/took")
}

job 2 0 1 2
[ "$took" -ge 2500 ] || fail "a close over a slow link took $took ms"
job 1 0 1
[ "$took" -le $((8000 * slow)) ] || fail "a close with a stopped peer took $took ms"
job ahead 1 0
kill "$coordinator"
finish
