#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/zero1.c and examples/groups.c, alone and in worlds of several sizes.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    cat "$work/out"
    echo "$*"
    exit 1
}

run() { # run N PROGRAM
    "$LOCKSTEP_TEST_BIN/lockstep" run -n "$1" -- "$BUILD/examples/$2" >"$work/out" 2>&1 ||
        fail "$2 failed with $1 ranks"
}

says() {
    grep -q "$1" "$work/out" || fail "nobody says '$1'"
}

for example in zero1 groups; do
    env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE "$BUILD/examples/$example" \
        >"$work/out" 2>&1 || fail "$example failed alone"
done

for ranks in 1 2 5; do
    run "$ranks" zero1
    [ "$(grep -c ', as in plain training' "$work/out")" -eq "$ranks" ] || fail "zero1 is wrong"
done
says 'rank 0 of 5: 1003 parameters, the optimizer.s state of 201, as'
says 'rank 4 of 5: 1003 parameters, the optimizer.s state of 200, as'

run 1 groups
says 'rank 0 of 1: a row of 1 sums to 1.0, a column of 1 averages to 1.0; its shard to 0.0'
run 4 groups
says 'rank 0 of 4: a row of 2 sums to 3.0, a column of 2 averages to 5.0; its shard to 10.0'
says 'rank 3 of 4: a row of 2 sums to 7.0, a column of 2 averages to 5.0; its shard to 20.0'
run 5 groups
says 'rank 4 of 5: a row of 1 sums to 5.0, a column of 3 averages to 5.0; its shard to 20.0'
says 'rank 1 of 5: a row of 2 sums to 3.0, a column of 2 averages to 5.0; its shard to 20.0'
