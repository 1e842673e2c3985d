#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Silence is not death. Two jobs train on hosts with networks of their own: "err", of two ranks, with
# the default that a lost rank ends the job, and "cont", of three, whose ranks go on after a loss. The
# coordinator is on a host of its own. Its network is cut for eight seconds: both jobs train on
# meanwhile, and nobody is lost.
#
# With LOCKSTEP_TEST_LONG_CUT=1 (make recovery) the coordinator is also stopped for 45 seconds, and a
# worker of each job for 30 seconds. Then rank 2 of "cont" is stopped and its host is cut off until
# the others have gone on without it. When it wakes, it harms nobody and is told so. Without it, that
# rank is killed with the coordinator, and the others prove its death to the next one.
NETWORK_BRIDGE=1
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
build_steps
make_hosts 4 # Host 3 has the coordinator.

# ---- the jobs ------------------------------------------------------------------------------------

coordinate 3 10.77.0.4:0 --log-level info
names=() pids=()
# begin JOB SIZE RANK [continue]
begin() {
    LOCKSTEP_COORDINATOR=10.77.0.4:$port LOCKSTEP_JOB=$1 LOCKSTEP_WORLD_SIZE=$2 LOCKSTEP_RANK_HINT=$3 \
        at "$3" "$work/trainer" 100003 "$work/stop" "$work/step.$1.$3" ${4+"$4"} 2>"$work/err.$1.$3" &
    names+=("$1.$3") pids+=($!)
}
for rank in 0 1; do begin err 2 $rank; done
for rank in 0 1 2; do begin cont 3 $rank continue; done

# nobody WHAT: no rank was lost, and no rank has failed.
nobody() {
    local i
    ! grep -E "id=(generation_halted|recovery_began|recovered)|generation_halted|recovery_began" \
        "$work/log" || fail "$1: a rank was lost"
    for i in "${!pids[@]}"; do
        kill -0 "${pids[i]}" 2>/dev/null || { fail "$1: ${names[i]} has ended"; cat "$work/err.${names[i]}"; }
    done
}

pause() {
    sleep "$1"
}

all=(err.0 err.1 cont.0 cont.1 cont.2)
moves start "${all[@]}"

ip link set port3 down
before=$(now_ms)
moves "without the control network" "${all[@]}"
while [ $(($(now_ms) - before)) -lt 8000 ]; do pause 0.1; done
moves "without the control network, at the end" "${all[@]}"
ip link set port3 up
moves "with the control network again" "${all[@]}"
nobody "8 s without the control network"

if [ -n "${LOCKSTEP_TEST_LONG_CUT:-}" ]; then
    kill -STOP "$coordinator"
    pause 45
    moves "with a stopped coordinator" "${all[@]}"
    kill -CONT "$coordinator"
    moves "with the coordinator again" "${all[@]}"
    pause 3
    nobody "45 s without the coordinator"
    echo "ok: a coordinator that was stopped for 45 s"

    kill -STOP "${pids[1]}" "${pids[3]}"
    pause 30
    kill -CONT "${pids[1]}" "${pids[3]}"
    moves "after a worker was stopped" "${all[@]}"
    pause 3
    nobody "30 s with stopped workers"
    grep -q "id=stall\|stall_began\|stall" "$work/log" || fail "no stall was diagnosed"
    echo "ok: a worker of each job that was stopped for 30 s"

    kill -STOP "${pids[4]}"
    ip link set port2 down
    comes "$work/log" "recovered"
    moves "without rank 2" cont.0 cont.1
    ip link set port2 up
    kill -CONT "${pids[4]}"
    wait "${pids[4]}"
    equal "the status of the excluded rank" $? 3
    has "$work/err.cont.2" "the other ranks went on without this one"
    sed 's/^/it says: /' "$work/err.cont.2"
    moves "after rank 2 has woken" err.0 err.1 cont.0 cont.1
    unset "pids[4]"
    echo "ok: a rank that was excluded and wakes"
else
    kill -KILL "$coordinator" "${pids[4]}"
    wait "$coordinator" "${pids[4]}" 2>/dev/null
    unset "pids[4]"
    coordinate 3 "10.77.0.4:$port" --log-level info
    before=$(now_ms)
    moves "after rank 2 has died with the coordinator" cont.0 cont.1
    took=$(($(now_ms) - before))
    [ $took -lt $((5000 * slow)) ] || fail "the others go on $took ms after the return of the coordinator"
    moves "after the return of the coordinator" err.0 err.1
    echo "ok: a rank and the coordinator die at once, the others go on $took ms after its return"
fi

: >"$work/stop"
for i in "${!pids[@]}"; do
    wait "${pids[i]}"
    status=$?
    [ $status = 0 ] || { fail "${names[i]} ends with $status"; cat "$work/err.${names[i]}"; }
done
kill "$coordinator"
[ "$failures" = 0 ] || sed 's/^/log: /' "$work/log"
[ "$failures" = 0 ]
