#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two levels between hosts with a network of their own: as many ranks on each as on the others, more
# on some, and ranks that go round the hosts; then the death of a host's leader and of another rank,
# which the others report by name. Hosts are namespaces that end with this script.
NETWORK_BRIDGE=1
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
hosts=3

# ---- a trainer that checks every element ---------------------------------------------------------

cat >"$work/trainer.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ELEMENTS 700001 // Several pieces, however many rings there are.

static float data[ELEMENTS];

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(3);
    }
}

int main(int argc, char **argv)
{
    lockstep_session *session;
    uint32_t rank, size;
    const long rounds = argc > 2 ? atol(argv[1]) : 1;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &size));
    for (long round = 0; round < rounds; round++) {
        const uint64_t count = round % 3 == 0 ? ELEMENTS : 1 + (uint64_t)round * 997 % 5000;
        for (uint64_t i = 0; i < count; i++)
            data[i] = (float)(rank + i % 7);
        check(lockstep_allreduce(session, "sum", data, count, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                                 LOCKSTEP_WAIT_FOREVER));
        for (uint64_t i = 0; i < count; i++)
            if (data[i] != (float)(size * (size - 1) / 2 + size * (i % 7))) {
                fprintf(stderr, "rank %u: element %lu of round %ld\n", rank, (unsigned long)i, round);
                exit(4);
            }
        if (round == 5)
            fclose(fopen(argv[2], "w"));
    }
    check(lockstep_close(session));
    return 0;
}
END
build_trainer c11
make_hosts $hosts

# ---- jobs ----------------------------------------------------------------------------------------

# start ROUNDS HOST...: a coordinator, and a rank on each host that is named.
start() {
    local rounds=$1 rank=0 host
    shift
    rm -f "$work"/warm.* "$work"/err.*
    ranks=()
    coordinate 0 10.77.0.1:0 --http off --log-level info
    for host in "$@"; do
        LOCKSTEP_COORDINATOR=10.77.0.1:$port LOCKSTEP_JOB=hosts LOCKSTEP_WORLD_SIZE=$# \
            LOCKSTEP_RANK_HINT=$rank LOCKSTEP_ALGORITHM=two_level \
            at "$host" "$work/trainer" "$rounds" "$work/warm.$rank" 2>"$work/err.$rank" &
        ranks+=($!)
        rank=$((rank + 1))
    done
}

# ended RANK STATUS
ended() {
    local code=0
    wait "${ranks[$1]}" || code=$?
    equal "status of rank $1" "$code" "$2"
    [ "$code" = "$2" ] || cat "$work/err.$1"
}

# stop HOST...: these were several hosts, whose ranks shared memory.
stop() {
    kill -KILL "$coordinator"
    wait "$coordinator" 2>/dev/null
    has "$work/log" "world=$# hosts=$(printf '%s\n' "$@" | sort -u | wc -l)"
    has "$work/log" "shares=1 wish=two_level"
}

# sums HOST...
sums() {
    local rank
    start 30 "$@"
    for ((rank = 0; rank < $#; rank++)); do ended $rank 0; done
    stop "$@"
}

# dies RANK HOST...: that one is killed while all reduce.
dies() {
    local victim=$1 rank begin
    shift
    start 100000000 "$@"
    for ((rank = 0; rank < $#; rank++)); do wait_for "$work/warm.$rank"; done
    begin=$(now_ms)
    kill -KILL "${ranks[victim]}"
    for ((rank = 0; rank < $#; rank++)); do
        [ $rank = "$victim" ] && continue
        ended $rank 3
        has "$work/err.$rank" "rank $victim"
    done
    within 3000 "$begin" "the end of all after the death of rank $victim"
    wait "${ranks[victim]}" 2>/dev/null
    stop "$@"
}

sums 0 0 1 1
sums 0 1 0 1
sums 0 0 1
sums 0 0 0 1
sums 0 0 1 1 2
dies 2 0 0 1 1 # The leader of the second host.
dies 1 0 0 1 1 # Not a leader.
finish
