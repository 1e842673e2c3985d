#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# examples/phases.c, the hang of HorizonRobotics/alf (issue 1096) played again: one of two ranks does
# not come back from an indexing operation between two updates, at a rank, update and place drawn by
# a seed. The coordinator has to name the rank and the function in one line, each time.
#
# LOCKSTEP_TEST_PHASES_ROUNDS hangs (2; under a sanitizer 1), drawn from LOCKSTEP_TEST_PHASES_SEED, which is printed. The
# output of `lockstep stalls` for each hang is appended to the file LOCKSTEP_TEST_STALL_KEEP.
[ "${LOCKSTEP_TEST_SANITIZER:-}" != thread ] || { echo "ThreadSanitizer keeps signals back, so no function is named"; exit 77; }
. "$(dirname "$0")/run_lib.sh"
here=$(dirname "$0")
bin=${LOCKSTEP_TEST_BIN:-build/bin}
phases=${BUILD:-build}/examples/phases
rounds=${LOCKSTEP_TEST_PHASES_ROUNDS:-$([ -n "${LOCKSTEP_TEST_SANITIZER:-}" ] && echo 1 || echo 2)}
seed=${LOCKSTEP_TEST_PHASES_SEED:-$((RANDOM * 32768 + RANDOM))}
floor_ms=$((500 * slow))
late_ms=$((4000 * slow)) # From the bound to the verdict.
echo "LOCKSTEP_TEST_PHASES_ROUNDS=$rounds LOCKSTEP_TEST_PHASES_SEED=$seed"

"$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http 127.0.0.1:0 --port-file "$work/ports" \
    --stall-floor-ms "$floor_ms" --parent-death=$$ 2>"$work/daemon" &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; rm -rf "$work"' EXIT
wait_for "$work/ports"
read -r ports <"$work/ports"
grpc=${ports#grpc=} grpc=${grpc%% *}
export LOCKSTEP_DASHBOARD=http://127.0.0.1:${ports##*http=}/

# train JOB ARGUMENTS...: two ranks, in the background; their output to $work/JOB.
train() {
    local job=$1
    shift
    "${hearing[@]}" "$lockstep" run -n 2 --coordinator "127.0.0.1:$grpc" --job "$job" -- \
        "$phases" "$@" >"$work/$job" 2>&1 &
    run=$!
}

# The line of the rank that hangs: `line`.
await_hang() {
    local i
    for ((i = 0; i < 1000 * slow; i++)); do
        line=$(grep -hs ' hangs in update ' "$work/$1") && return 0
        sleep 0.01
    done
    fail "$1 does not hang"
    return 1
}

# until_stalls STATUS JOB WANTED: until `lockstep stalls` ends with it, and stall_check.py is content.
until_stalls() {
    local i code
    for ((i = 0; i < 100 * slow; i++)); do
        code=0
        "$lockstep" stalls --job "$2" --json >"$work/json" 2>"$work/err" || code=$?
        [ "$code" = "$1" ] && "$here/stall_check.py" "$work/json" "$3" >"$work/check" 2>&1 && return 0
        sleep 0.1
    done
    fail "$2: lockstep stalls ended with $code, wanted $1 and $3"
    cat "$work/check" "$work/json" "$work/err" "$work/$2"
    return 1
}

hang() {
    local job=hang-$1 draw=$((seed + $1)) line rank
    train "$job" --hang "$draw" --collect-ms 250 # A job has to be older than two heartbeats.
    await_hang "$job" || return
    rank=${line#*rank }
    rank=${rank%% *}
    if until_stalls 3 "$job" "$rank:outside:take_rows:late=$late_ms"; then
        "$lockstep" stalls --job "$job" >"$work/text"
        equal "$job: status of the text" $? 3
        has "$work/text" "take_rows"
        lint_metrics "$job"
        [ -z "${LOCKSTEP_TEST_STALL_KEEP:-}" ] ||
            { printf '# %s\n' "$line" && cat "$work/text"; } >>"$LOCKSTEP_TEST_STALL_KEEP"
    fi
    kill "$run"
    wait "$run"
    equal "$job" $? 143
}

# Prometheus takes what is said of a job that stands still, too.
lint_metrics() {
    command -v promtool >/dev/null || { echo "promtool is not here: the metrics are not checked by it"; return; }
    curl -s -m 20 "${LOCKSTEP_DASHBOARD}metrics" >"$work/metrics"
    has "$work/metrics" "lockstep_coordinator_job_stalled{job=\"$1\"} 1"
    promtool check metrics <"$work/metrics" || fail "promtool finds fault with the metrics"
}

train healthy
wait "$run"
equal "two ranks that do not hang" $? 0
has "$work/healthy" "rank 1 of 2: loss 0.0"
until_stalls 0 healthy never || fail "an alarm in a healthy job"

for ((round = 0; round < rounds; round++)); do
    hang "$round"
done
finish
