#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A host reaches the other workers, and not the coordinator any more. Rank 0 is alone on that host. The
# jobs train on until a new phase needs the coordinator. Then rank 0 gives up after
# LOCKSTEP_AWAY_TIMEOUT_MS, and the coordinator cannot hear that. It hears it from the rank that has
# heard the goodbye: job "err" ends, and the survivors of job "cont" go on.
NETWORK_BRIDGE=1
. "$(dirname "$0")/own_network.sh"
. "$(dirname "$0")/run_lib.sh"
. "$(dirname "$0")/hosts_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
build_steps
make_hosts 3 # Host 2 has the coordinator.
coordinate 2 10.77.0.3:0 --log-level info
export LOCKSTEP_AWAY_TIMEOUT_MS=2000 TURN=$work/turn
names=() pids=()
for job in err cont; do
    for rank in 0 1 2; do
        LOCKSTEP_COORDINATOR=10.77.0.3:$port LOCKSTEP_JOB=$job LOCKSTEP_WORLD_SIZE=3 \
            LOCKSTEP_RANK_HINT=$rank at $((rank > 0)) "$work/trainer" 1003 "$work/stop" \
            "$work/step.$job.$rank" $([ $job = err ] || echo continue) 2>"$work/err.$job.$rank" &
        names+=("$job.$rank") pids+=($!)
    done
done

# ends STATUS INDEX...: these ranks end with that status.
ends() {
    local wanted=$1 i status tries
    shift
    for i in "$@"; do
        for ((tries = 0; tries < 400 * slow; tries++)); do
            kill -0 "${pids[i]}" 2>/dev/null || break
            sleep 0.1
        done
        ! kill -KILL "${pids[i]}" 2>/dev/null || fail "${names[i]} does not end"
        status=0
        wait "${pids[i]}" || status=$?
        equal "the status of ${names[i]}" $status "$wanted"
        sed "s/^/${names[i]} says: /" "$work/err.${names[i]}"
    done
}

moves start "${names[@]}"
ip link set port0 type bridge_slave isolated on
ip link set port2 type bridge_slave isolated on
moves "without a way to the coordinator" "${names[@]}"
touch "$TURN"
ends 3 0 3
has "$work/err.err.0" "the coordinator is needed to go on, and has not come back within 2.0 s"
ends 3 1 2
for rank in 1 2; do
    has "$work/err.err.$rank" "rank 0 (host host0) closed its session while rank"
    has "$work/err.err.$rank" "the coordinator is needed to go on, and has not come back"
done
moves "without rank 0" cont.1 cont.2
has "$work/log" "rank 0 on host host0 was lost: it gave up: step"
touch "$work/stop"
ends 0 4 5
kill "$coordinator"
[ "$failures" = 0 ] || sed 's/^/log: /' "$work/log"
finish
