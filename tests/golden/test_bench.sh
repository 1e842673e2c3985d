#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lockstep bench` in each mode: the JSON has the members of docs/cli.md, its figures are positive
# and agree with one another and with the raw samples; tables fit 100 columns. How fast the library
# is decides nothing here.
set -uo pipefail
lockstep=${LOCKSTEP_TEST_BIN:-build/bin}/lockstep
here=$(dirname "$0")
work=$(mktemp -d)
failures=0
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    failures=1
}

# bench NAME ARGUMENTS...: JSON to $work/NAME.json, samples to $work/NAME.csv, both checked.
bench() {
    local name=$1
    shift
    if ! "$lockstep" bench --json --raw "$work/$name.csv" --warmup 2 "$@" \
        >"$work/$name.json" 2>"$work/err"; then
        fail "bench $*"
        cat "$work/err"
    elif ! "$here/bench_check.py" "$here/../../docs/cli.md" "$work/$name.json" "$work/$name.csv"; then
        fail "figures of bench $*"
        cat "$work/$name.json"
    fi
}

# table WANTED ARGUMENTS...: a table with so many rows of figures.
table() {
    local wanted=$1 rows
    shift
    "$lockstep" bench --warmup 1 "$@" >"$work/table" 2>&1 || fail "bench $*"
    rows=$(grep -cE '^ +[0-9]+ ([KM]i)?B +[0-9]+ ' "$work/table")
    [ "$rows" = "$wanted" ] || fail "bench $*: $rows rows, wanted $wanted"
    ! grep -E '^.{101}' "$work/table" || fail "bench $*: wider than 100 columns"
    [ "$failures" = 0 ] || cat "$work/table"
}

bench blocking --sizes 4,3K --dtypes float32,uint8 --iterations 20
bench async --mode async --in-flight 3 --sizes 64K --iterations 5 --transport tcp --cold
bench step --mode step --backward-ms 1 --sizes 4,1M --iterations 3 --buckets 64K,256K,64K
LOCKSTEP_SLOTS=past bench slots --sizes 64K --iterations 20 --memory private
grep -Eq '"slots":\{"cached_runs":0,"past_runs":[1-9]' "$work/slots.json" || fail "slots past the caches"
LOCKSTEP_SLOTS=cached bench slots --sizes 64K --iterations 20 --memory private
grep -Eq '"slots":\{"cached_runs":[1-9][0-9]*,"past_runs":0' "$work/slots.json" ||
    fail "slots through the caches"
# The option wins over the variable, and the report says which transport was used.
LOCKSTEP_TRANSPORT=auto bench tcp --sizes 64K --iterations 20 --transport tcp
grep -q '"transport":"tcp"' "$work/tcp.json" && grep -q '"slots":{"cached_runs":0,"past_runs":0}' "$work/tcp.json" ||
    fail "--transport tcp with LOCKSTEP_TRANSPORT=auto: $(cat "$work/tcp.json")"
LOCKSTEP_TRANSPORT=tcp bench variable --sizes 64K --iterations 20
grep -q '"transport":"tcp"' "$work/variable.json" || fail "LOCKSTEP_TRANSPORT=tcp: $(cat "$work/variable.json")"
table 1 --ranks 3 --sizes 1M --seconds 0.02
table 1 --mode step --backward-ms 0.1 --sizes 64K --iterations 2

# refused ARGUMENTS...: misuse, with a sentence in $work/err, and nothing is started.
refused() {
    local code=0
    "$lockstep" bench "$@" >"$work/out" 2>"$work/err" || code=$?
    [ "$code" = 2 ] || fail "bench $*: status $code, wanted 2"
    grep -q "^Try 'lockstep bench --help'.$" "$work/err" || fail "bench $*: $(cat "$work/err")"
}

for bad in "--ranks 1" "--ranks 1025" "--ranks x" "--sizes" "--sizes ," "--sizes 0" "--sizes 4X" \
    "--sizes 65G" "--sizes 1,2,3, " "--dtypes int8" "--dtypes int32,int32" "--mode fast" \
    "--transport loopback" "--memory shared" "--seconds 0" "--seconds nan" "--iterations 0" \
    "--seconds 1 --iterations 1" "--warmup 0" "--in-flight 2" "--backward-ms 1" "--buckets 1M,1M,1M" \
    "--mode step --buckets 1M" "--mode step --buckets 1,2,3,4" "--mode step --dtypes int32" \
    "--frobnicate" "surplus" "--dtypes float32,float64 --mode step --sizes 1,2,3,4,5,6,7,8,9"; do
    # shellcheck disable=SC2086
    refused $bad
done
grep -q "sizes times dtypes is 18; with --mode step at most 16" "$work/err" || fail "$(cat "$work/err")"

code=0
"$lockstep" bench --raw "$work/no/such" 2>"$work/err" || code=$?
[ "$code" = 1 ] || fail "--raw into nowhere: status $code, wanted 1"
grep -q "^lockstep bench: --raw .*: No such file or directory$" "$work/err" || fail "$(cat "$work/err")"
exit "$failures"
