#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How `lockstep run` ends: with which status, how soon, and what it says about it.
. "$(dirname "$0")/run_lib.sh"

# run WANTED ARGUMENTS...: output goes to $work/out and $work/err.
run() {
    local wanted=$1 code=0
    shift
    "$lockstep" run "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
    [ "$code" = "$wanted" ] || { fail "run $*: status $code, wanted $wanted"; cat "$work/err"; }
}

rank='[ "$LOCKSTEP_RANK_HINT" = 2 ]'
# Rank 2 leaves its number, and the others wait until nobody has it any more. A rank that ends then,
# too, has the time to do so.
leaves="echo \$\$ >$work/new; mv $work/new $work/gone"
outlives="until [ -e $work/gone ]; do sleep 0.02; done; while kill -0 \$(cat $work/gone) 2>/dev/null; do sleep 0.02; done"
patient=(--grace $((10 * slow))s)

run 0 -n 4 -- true
equal "lines of a good run of no trainer" "$(wc -l <"$work/err")" 2
has "$work/err" "dashboard http://127.0.0.1:"

# -np is an option only in front of the trainer.
for options in -n2 "-np 2" "-n 2 --no-prefix"; do
    run 0 $options echo -np 4
    equal "lines of a trainer with -np behind $options" "$(grep -c -- '-np 4$' "$work/out")" 2
done
run 2 -np
has "$work/err" "lockstep run: option '-np' needs a value"

run 7 -n 4 "${patient[@]}" -- sh -c "if $rank; then $leaves; exit 7; fi; $outlives; exit 1"
has "$work/err" "lockstep run: rank 2 ended with status 7 after "
has "$work/err" "3 other ranks ended with status 1"

start=$(now_ms)
run 137 -n 4 -- sh -c "if $rank; then kill -9 \$\$; fi; exec sleep 60"
within 2000 "$start" "the end after a SIGKILL"
has "$work/err" "rank 2 was killed by signal 9 (SIGKILL) after "
has "$work/err" "3 other ranks were stopped"

start=$(now_ms)
run 134 -n 2 --grace 0 -- sh -c 'if [ "$LOCKSTEP_RANK_HINT" = 1 ]; then ulimit -c 0; kill -ABRT $$; fi; exec sleep 60'
within 1000 "$start" "the end without grace"
has "$work/err" "rank 1 was killed by signal 6 (SIGABRT)"

# Ranks that exit because another one was killed are not the cause.
rm "$work/gone"
run 137 -n 3 "${patient[@]}" -- sh -c "if $rank; then $leaves; kill -9 \$\$; fi; $outlives; exit 1"
has "$work/err" "rank 2 was killed"

# A stopped rank takes no signal but SIGKILL.
start=$(now_ms)
run 3 -n 2 -- sh -c 'if [ "$LOCKSTEP_RANK_HINT" = 1 ]; then kill -STOP $$; fi; exit 3'
within 2000 "$start" "the end with a stopped rank"

# No directory that is closed to the user who runs this.
PATH=/usr/bin:/bin run 127 -n 2 -- no-such-trainer
has "$work/err" "the trainer 'no-such-trainer' was not found in PATH"
run 127 -n 2 -- ./no-such-trainer
has "$work/err" "the trainer './no-such-trainer' was not found"
run 126 -n 2 -- /etc/passwd
has "$work/err" "the trainer '/etc/passwd' is not executable"
run 126 -n 2 -- /tmp
has "$work/err" "is a directory"
printf '#!/no/such/interpreter\n' >"$work/bad"
chmod +x "$work/bad"
run 127 -n 2 -- "$work/bad"
has "$work/err" "could not be started: No such file or directory"

for bad in "-n 0" "-n -1" "-n 1025" "-n x" "-n 2 --timeout 5" "-n 2 --http nowhere" \
    "-n 2 --coordinator :1" "-n 2 --job a/b true" "-n 2 --frobnicate" "-n" "" "-n 2 --job $(printf 'x%.0s' {1..64})"; do
    # shellcheck disable=SC2086
    run 2 $bad
    has "$work/err" "Try 'lockstep run --help'."
done
for bad in "-qn2|unknown option '-q'" "--json=1|option '--json' takes no value" "--jsn|unknown option '--jsn'" \
    "--timeout 0|--timeout 0: workers have" "--coordinator 0.0.0.0:1|not an address that workers reach" \
    "-x LOCKSTEP_JOB=a|--env LOCKSTEP_JOB=a: lockstep run itself sets this variable" \
    "-x LOCKSTEP_WORLD_SIZE=9|lockstep run itself sets this variable"; do
    # shellcheck disable=SC2086
    run 2 -n 2 ${bad%|*} true
    has "$work/err" "${bad#*|}"
done
run 0 -n 1 --nnodes 1 --coordinator localhost:1 --bind 127.0.0.1:29499 true
has "$work/err" "listens at port 29499 (--bind), and workers of other hosts connect to port 1 (--coordinator)"
for bad in unix:/tmp/socket host 127.0.0.1:1,host; do
    run 2 -n 2 --coordinator "$bad" true
    has "$work/err" "--coordinator $bad: not HOST:PORT or [IPV6]:PORT, or a list of these"
    equal "lines about --coordinator $bad" "$(wc -l <"$work/err")" 2
done
run 2 -n 2 --http 127.0.0.1:0 --coordinator 127.0.0.1:1 true
LOCKSTEP_INSECURE_PLAINTEXT=0 run 2 -n 2 --http 0.0.0.0:0 true
has "$work/err" "set LOCKSTEP_INSECURE_PLAINTEXT=1"
equal "lines about a page in plaintext" "$(wc -l <"$work/err")" 1
LOCKSTEP_COORDINATOR_LOG_LEVEL=info run 0 -n 1 true
has "$work/err" "level=info"

# The environment of a worker.
run 0 -n 2 --job place --timeout 30s -- sh -c 'echo "$LOCKSTEP_COORDINATOR $LOCKSTEP_JOB \
$LOCKSTEP_WORLD_SIZE $LOCKSTEP_RANK_HINT $LOCKSTEP_OPEN_TIMEOUT_MS $LOCKSTEP_DASHBOARD"'
grep -qE '^\[1\] unix:/[^ ]+/socket place 2 1 30000 http://127.0.0.1:[0-9]+/\?token=[0-9a-f]{64}$' "$work/out" ||
    { fail "environment:"; cat "$work/out"; }
run 0 -n 2 --http off -- sh -c 'test -z "$LOCKSTEP_DASHBOARD"'
run 0 -n 2 --coordinator 127.0.0.1:9 -- sh -c 'test "$LOCKSTEP_COORDINATOR" = 127.0.0.1:9'

# The dashboard's data are there while the job runs.
run 0 -n 1 -- sh -c "'$lockstep' status && '$lockstep' status --json"
has "$work/out" "no jobs"
has "$work/out" '"jobs":[]'

# JSON: one object, the last line.
run 137 -n 3 --json "${patient[@]}" -- sh -c "echo hello; if $rank; then kill -9 \$\$; fi; exit 0"
tail -n 1 "$work/out" | python3 -c '
import json, sys
run = json.load(sys.stdin)
assert run["world_size"] == 3 and run["exit_code"] == 137, run
assert run["failed_rank"] == run["cause_rank"] == 2 and run["failed_signal"] == 9, run
assert [rank["exit_code"] for rank in run["ranks"]] == [0, 0, None], run
assert run["ranks"][2]["signal"] == 9 and run["job"].startswith("run-"), run
assert all(rank["pid"] > 0 and rank["seconds"] >= 0 for rank in run["ranks"]), run
' || { fail "JSON:"; cat "$work/out"; }

# Without a coordinator to start.
cp "$lockstep" "$work/lockstep"
code=0
LD_LIBRARY_PATH=${LOCKSTEP_TEST_LIB:-build/lib} PATH=/usr/bin:/bin "$work/lockstep" run -n 2 true 2>"$work/err" || code=$?
equal "status without lockstep-coordinator" "$code" 1
has "$work/err" "lockstep-coordinator was found neither beside this program nor in PATH"

nothing_left "ending"
finish
