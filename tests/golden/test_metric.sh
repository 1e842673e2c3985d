#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples/metric.c: all ranks read the same bits, and a coordinator shows metrics and counters of the
# job while it trains: lockstep status and the whole run.
set -eu
work=$(mktemp -d)
coordinator=
trap '[ -z "$coordinator" ] || kill "$coordinator" 2>/dev/null; rm -rf "$work"' EXIT
bin=$LOCKSTEP_TEST_BIN
metric=$BUILD/examples/metric

fail() {
    cat "$work"/*.out
    echo "$*"
    exit 1
}

env -u LOCKSTEP_COORDINATOR -u LOCKSTEP_WORLD_SIZE "$metric" >"$work/alone.out" 2>&1 ||
    fail "metric failed alone"
grep -q "rank 0 of 1: 100 steps, loss 0x1.47ae147ae147bp-7" "$work/alone.out" || fail "alone is wrong"

"$bin/lockstep-coordinator" --listen 127.0.0.1:0 --http 127.0.0.1:0 --json >"$work/ready.out" 2>&1 &
coordinator=$!
tries=0
until grep -q '"http_port"' "$work/ready.out"; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || fail "the coordinator is not ready"
    sleep 0.1
done
port() { sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" "$work/ready.out" | head -n 1; }
http=127.0.0.1:$(port http_port)
export LOCKSTEP_COORDINATOR=127.0.0.1:$(port grpc_port) LOCKSTEP_WORLD_SIZE=3
pids=
for rank in 0 1 2; do
    "$metric" 15 >"$work/rank$rank.out" 2>&1 &
    pids="$pids $!"
done
for pid in $pids; do
    wait "$pid" || fail "a rank failed"
done
# 200 steps of 15 ms: more than two heartbeats.
[ "$(cat "$work"/rank?.out | sed 's/^rank [0-2]//' | sort -u | wc -l)" -eq 1 ] ||
    fail "the ranks read different bits"
grep -q "of 3: 200 steps, loss 0x" "$work/rank0.out" || fail "another number of steps"
"$bin/lockstep" status --http "$http" >"$work/status.out" 2>&1 || fail "status failed"
grep -Eq "^    loss 0\.[0-9]+, loss_most 0\.[0-9]+, samples [0-9]+$" "$work/status.out" ||
    fail "status does not show the numbers"
"$bin/lockstep" status --http "$http" --json >"$work/json.out" 2>&1 || fail "status --json failed"
grep -q '"counters"' "$work/json.out" || fail "the API does not show counters"
curl -sS -m 20 "http://$http/api/v1/jobs/default/history" >"$work/history.out" 2>&1 ||
    fail "there is no history"
for name in loss loss_most samples; do
    grep -q "\"$name\"" "$work/history.out" || fail "the history has no $name"
done
# From the first step to the last one, which all ranks ended with lockstep_close.
python3 - "$work/history.out" "$work/json.out" <<'END' || fail "the history lacks a part of the run"
import json, sys
history, status = (json.load(open(name)) for name in sys.argv[1:])
rows = [dict(zip(history["columns"], row)) for row in history["rows"]]
steps = sum(row["steps"] for row in rows)
assert 199.9 < steps < 200.1, steps
job = status["jobs"][0]
totals = {number["name"]: number["total"] for number in job["counters"]}
assert abs(rows[-1]["samples"] - totals["samples"]) < 1, (rows[-1], totals)
END
