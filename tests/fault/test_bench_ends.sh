#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# If anything ends `lockstep bench` early, its last line says which rank it was, and no process of
# it remains.
. "$(dirname "$0")/run_lib.sh"

# start ARGUMENTS...: in the background, until its ranks are there to measure; sets launcher. With so
# many iterations of so many bytes it does not end by itself.
start() {
    : >"$work/out" # The next one empties it late: what the last one said would be taken for its own.
    "${hearing[@]}" "$lockstep" bench --iterations 1000000 "$@" >"$work/out" 2>"$work/err" \
        </dev/null &
    launcher=$!
    local i
    for ((i = 0; i < 1000 * slow; i++)); do
        grep -q "^limits measured" "$work/out" && return 0
        # A launcher that ended by itself will not begin; ends tells its status.
        kill -0 "$launcher" 2>/dev/null || break
        sleep 0.02
    done
    fail "bench never began, after $i looks: $(tail -n 20 "$work/out" "$work/err")"
}

# ends WANTED WHAT
ends() {
    local code=0
    wait "$launcher" 2>/dev/null || code=$?
    equal "status after $2" "$code" "$1"
    nothing_left "$2"
}

start --ranks 3 --sizes 1M
began=$(now_ms)
kill -9 "$(rank_pid 2)"
ends 137 "a killed rank"
within 3000 "$began" "the end after a killed rank"
has "$work/err" "lockstep bench: rank 2 was killed by signal 9 (SIGKILL) after "

for signal in INT TERM; do
    start --mode step --sizes 1M
    began=$(now_ms)
    kill -"$signal" "$launcher"
    case $signal in INT) code=130 ;; TERM) code=143 ;; esac
    ends "$code" "SIG$signal"
    within 2000 "$began" "SIG$signal"
done

start --sizes 1M
kill -9 "$launcher"
ends 137 "SIGKILL to the launcher"
finish
