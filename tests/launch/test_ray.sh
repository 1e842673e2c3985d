#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/ray/train.py on a cluster of Ray: two hosts with two CPUs each, one placement group, four C
# trainers. Ranks, equal bits, a trainer that fails, restarts, and a cluster that is too small. Ray comes
# from PyPI into the build directory (300 MB), unless RAY_PYTHON names an interpreter that has it.
. "$(dirname "$0")/venv.sh"
python_with RAY_PYTHON ray ray==2.60.0
. "$(dirname "$0")/hosts.sh"
export RAY_USAGE_STATS_ENABLED=0 RAY_COLOR_PREFIX=0 RAY_ADDRESS=10.77.0.1:6379

# node HOST OPTIONS...: a node of the cluster. Host 1 does not see the temporary files of host 0.
mkdir "$work/ray"
node() {
    local host=$1 own=(unshare --mount sh -c 'mount -t tmpfs ray "$0" && exec "$@"' "$work/ray")
    shift
    [ "$host" = 1 ] || own=()
    at "$host" "${own[@]}" "$python" -m ray.scripts.scripts start --block --num-cpus 2 \
        --object-store-memory 80000000 --node-ip-address "10.77.0.$((host + 1))" "$@" \
        >"$work/node$host" 2>&1 &
    daemons+=($!)
}
node 0 --head --port 6379 --include-dashboard false --temp-dir "$work/ray"
node 1 --address 10.77.0.1:6379

# train NAME OPTIONS...: $work/NAME is what the script prints on host 0, $status how it ends.
train() {
    local name=$1
    shift
    status=0
    on 0 timeout -k 10 240 "$python" "$root/deploy/ray/train.py" --job digits "$@" >"$work/$name" 2>&1 || status=$?
}

# The driver does not see SIGTERM while it waits inside of Ray, hence -k.
on 0 timeout -k 10 100 "$python" - >"$work/cluster" 2>&1 <<'END' || { cat "$work"/{cluster,node?}; fail "no cluster of Ray"; finish; }
import time
import ray
while True:
    try:
        ray.init(logging_level="error")
        if ray.cluster_resources().get("CPU") == 4:
            break
        ray.shutdown()
    except ConnectionError:
        pass
    time.sleep(0.2)
END

train well -n 4 -- "$work/trainer" well -
[ "$status" = 0 ] || fail "a job that ends well: status $status"
all_ranks well
grep -q "ip=10.77.0.2" "$work/well" || fail "no worker was on host 1"
done_with well

train failing -n 4 -- "$work/trainer" fail -
[ "$status" = 3 ] || fail "a trainer that fails: status $status"
grep -qx "rank 3 ended with status 7" "$work/failing" || fail "the status of rank 3 is not named"
[ "$(grep -c "rank 3 on host host. was lost" "$work/failing")" = 3 ] || fail "not all name the lost rank"
done_with failing

train again -n 4 --max-restarts 3 -- "$work/trainer" first "$work/started"
[ "$status" = 0 ] || fail "a job that is started again: status $status"
grep -qx "restart 1 of 3" "$work/again" || fail "there was no restart"
all_ranks again
new_generation again
done_with again

train large -n 5 --timeout 3 -- "$work/trainer" well -
[ "$status" = 1 ] || fail "a cluster that is too small: status $status"
grep -qx "the cluster had no place for 5 workers in 3 s: it has 4 CPUs, of which 4 are free" "$work/large" ||
    fail "the script does not say that the cluster is too small"
done_with large

train missing -n 2 -- "$work/none"
[ "$status" = 127 ] && grep -q "$work/none: No such file or directory" "$work/missing" ||
    fail "a trainer that is not there: status $status"
done_with missing

# Trainers end with their actor and with the script, however these end.
sleepers() {
    on 0 timeout -k 10 120 env --default-signal=INT "$python" "$root/deploy/ray/train.py" -n 4 --grace 1 -- sleep 98765 >"$work/$1" 2>&1 &
    script=$!
    comes 4
}
# comes COUNT: until there are so many.
comes() {
    for ((i = 0; i < 3000; i++)); do
        [ "$(pgrep -cxf "sleep 98765")" != "$1" ] || return 0
        sleep 0.02
    done
    fail "$(pgrep -cxf "sleep 98765") trainers, not $1"
}
# ended NAME STATUS
ended() {
    status=0
    wait $script 2>/dev/null || status=$?
    [ "$status" = "$2" ] || fail "$1: status $status"
    comes 0
    done_with "$1"
}
sleepers lost
kill -KILL "$(ps -o ppid= -p "$(pgrep -oxf "sleep 98765")" | tr -d ' ')"
comes 3
ended lost 255
sleepers killed
kill -KILL "$(pgrep -f "^$python .*train.py .* sleep 98765")"
ended killed 137
sleepers interrupted
kill -INT "$(pgrep -f "^$python .*train.py .* sleep 98765")"
ended interrupted 130
! grep -q Traceback "$work/interrupted" || fail "Ctrl-C: $(cat "$work/interrupted")"

unset LOCKSTEP_COORDINATOR
train alone -n 2 -- "$work/trainer" well -
[ "$status" = 2 ] && grep -q "set LOCKSTEP_COORDINATOR=host:port" "$work/alone" || fail "no coordinator: status $status"
done_with alone
finish
