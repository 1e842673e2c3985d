# SPDX-License-Identifier: Apache-2.0
# Shared by the tests of launchers; sourced. A coordinator of the test's own, and what the workers of
# build/examples/hello have to print: their rank, the size of the world, and the mean.

set -uo pipefail
bin=${LOCKSTEP_TEST_BIN:-build/bin}
hello=${BUILD:-$PWD/build}/examples/hello
work=$(mktemp -d)
failures=0
daemons=()

cleanup() {
    [ ${#daemons[@]} = 0 ] || kill "${daemons[@]}" 2>/dev/null
    # A daemon of others may not end by that.
    for _ in $(seq 100); do
        [ -n "$(jobs -pr)" ] || break
        sleep 0.1
    done
    jobs -pr | xargs -r kill -KILL 2>/dev/null
    # Not what these have left: as process 1 of its namespace this shell is its parent.
    for process in $(jobs -p); do
        wait "$process"
    done
    rm -rf "$work"
}
trap cleanup EXIT

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

needs() {
    local program
    for program; do
        command -v "$program" >/dev/null && continue
        echo "skipped: there is no $program (tools/install-deps tools/deps-launch.txt)"
        exit 77
    done
}

# Nothing of the launcher under which this runs may count.
for name in $(compgen -e | grep -E '^(LOCKSTEP_|SLURM_|PMI|OMPI_|TORCHELASTIC|RANK$|WORLD_SIZE$|JOB_COMPLETION)' |
    grep -v '^LOCKSTEP_TEST_'); do
    unset "$name"
done

# wait_for FILE: until there is something in it.
wait_for() {
    local i
    for ((i = 0; i < 1000; i++)); do
        [ -s "$1" ] && break
        sleep 0.02
    done
}

# coordinate: starts the coordinator; $LOCKSTEP_COORDINATOR is its address.
coordinate() {
    "$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http off --log-level error --port-file "$work/port" \
        --parent-death=$$ &
    daemons+=($!)
    wait_for "$work/port"
    LOCKSTEP_COORDINATOR=127.0.0.1:$(sed -n 's/^grpc=\([0-9]*\).*/\1/p' "$work/port")
    export LOCKSTEP_COORDINATOR LOCKSTEP_OPEN_TIMEOUT_MS=30000
}

# world NAME SIZE COMMAND...: each rank of the size says so once.
world() {
    local name=$1 size=$2 rank code=0
    shift 2
    timeout 120 "$@" >"$work/out" 2>&1 || code=$?
    [ "$code" = 0 ] || fail "$name: status $code: $(cat "$work/out")"
    for ((rank = 0; rank < size; rank++)); do
        [ "$(grep -c "rank $rank of $size: w = " "$work/out")" = 1 ] ||
            fail "$name, rank $rank of $size: $(cat "$work/out")"
    done
    echo "$name: $size workers"
}

# ends NAME COMMAND...: a trainer that fails ends the launcher with a failure, and nothing hangs.
ends() {
    local name=$1 code=0
    shift
    timeout 120 "$@" >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] && [ "$code" != 124 ] || fail "$name: status $code: $(cat "$work/out")"
    grep -q "was lost\|closed its session" "$work/out" || fail "$name: no word of the lost rank: $(cat "$work/out")"
}

finish() {
    [ "$failures" = 0 ] || { echo "$failures checks failed"; exit 1; }
    exit 0
}
