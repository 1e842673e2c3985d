#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Standstills between hosts with networks of their own: four ranks, one on host 0, one on host 1, two
# on host 2, in one ring. The test checks what `lockstep stalls` says of a link that is cut between
# two of them, of a process that is stopped alone on its host, and of one that is stopped beside a
# mate. Each time the job goes on, with every element right. Hosts are namespaces that end with this
# script. The coordinator is outside of them, and all reach it also while a link is cut.
#
# With LOCKSTEP_TEST_LONG_CUT=1 the link is then cut for good, and every rank has to be told so. The
# output is appended to the file LOCKSTEP_TEST_STALL_KEEP, for docs/stalls.md.
NETWORK_BRIDGE=1
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
here=$(dirname "$0")
root=$(cd "$here/../.." && pwd)
hosts=3
host_of=(0 1 2 2) # By rank.
elements=300007 # More than a socket takes while nobody reads.
floor_ms=$((500 * slow))
frozen_ms=$((3000 * slow)) # From SIGSTOP to the verdict.
lifted_ms=$((4000 * slow)) # From what mends it to its end.

build_steps
make_hosts $hosts
ip address add 10.77.0.254/24 dev br0

# cut on|off: nothing gets from host 1 to host 2 or back; from both to all others it does.
cut() {
    ip link set port1 type bridge_slave isolated "$1"
    ip link set port2 type bridge_slave isolated "$1"
}

# ---- the job -------------------------------------------------------------------------------------

coordinate "" 10.77.0.254:0 --http 127.0.0.1:0 --log-level info --stall-floor-ms "$floor_ms"
export LOCKSTEP_DASHBOARD=http://127.0.0.1:$http/
ranks=()
for rank in "${!host_of[@]}"; do
    LOCKSTEP_COORDINATOR=10.77.0.254:$port LOCKSTEP_JOB=hosts LOCKSTEP_WORLD_SIZE=${#host_of[@]} \
        LOCKSTEP_RANK_HINT=$rank LOCKSTEP_ALGORITHM=ring \
        at "${host_of[rank]}" "$work/trainer" $elements "$work/stop" "$work/step.$rank" 2>"$work/err.$rank" &
    ranks+=($!)
done

# right WANTED... [or WANTED...]...: stall_check.py is content with one of these.
right() {
    local word wanted=()
    for word in "$@" or; do
        if [ "$word" != or ]; then
            wanted+=("$word")
            continue
        fi
        "$here/stall_check.py" "$work/json" "${wanted[@]}" && return
        wanted=()
    done
    return 1
}

# expect MS WANTED...: within that time what is said is right.
expect() {
    local end=$(($(now_ms) + $1)) right=
    shift
    while [ -z "$right" ] && [ "$(now_ms)" -lt "$end" ]; do
        "$lockstep" stalls --json >"$work/json" 2>"$work/err"
        right "$@" >"$work/check" 2>&1 && right=1 || sleep 0.1
    done
    [ -n "$right" ] || { fail "not in time: $*" && cat "$work/check" "$work/err"; }
    [ -z "${LOCKSTEP_TEST_STALL_KEEP:-}" ] || [ $# -eq 0 ] ||
        { echo "# $*" && "$lockstep" stalls; } >>"$LOCKSTEP_TEST_STALL_KEEP"
}

# steps N: the job has so many.
steps() {
    local i said
    for ((i = 0; i < 500 * slow; i++)); do
        said=$("$lockstep" status --json 2>/dev/null | grep -o '"step_min":[0-9]*' | head -n 1)
        [ "${said#*:}" -ge "$1" ] 2>/dev/null && return
        sleep 0.02
    done
    fail "the job does not get to step $1: ${said:-nothing is said}"
    cat "$work"/err.*
}

steps 60 # No verdict is made in the first two heartbeats of a generation.

since=$(now_ms)
cut on
# The culprit may be any rank that has data in flight then, to any rank on the other side.
expect $((15000 * slow)) "1:link:host=host1:says= (host2, pid " or "2:link:host=host2:says= (host1, pid " or \
    "3:link:host=host2:says= (host1, pid "
cut off
expect $((lifted_ms + $(now_ms) - since)) # TCP tries again when it has waited for twice as long.

kill -STOP "${ranks[1]}"
expect $frozen_ms "1:frozen:host=host1:pid=${ranks[1]}"
kill -CONT "${ranks[1]}"
expect $lifted_ms

kill -STOP "${ranks[3]}"
expect $frozen_ms "3:stopped:host=host2:pid=${ranks[3]}"
kill -CONT "${ranks[3]}"
expect $lifted_ms

if [ -n "${LOCKSTEP_TEST_LONG_CUT:-}" ]; then
    cut on
    for rank in "${!ranks[@]}"; do
        code=0
        wait "${ranks[rank]}" || code=$?
        equal "status of rank $rank" "$code" 3
        has "$work/err.$rank" 'the link between rank '
        has "$work/err.$rank" 'is cut: '
        has "$work/err.$rank" 'rank 1 (host host1)'
        cat "$work/err.$rank"
    done
    finish
fi

touch "$work/stop"
for rank in "${!ranks[@]}"; do
    code=0
    wait "${ranks[rank]}" || code=$?
    equal "status of rank $rank" "$code" 0
    [ "$code" = 0 ] || cat "$work/err.$rank"
done
finish
