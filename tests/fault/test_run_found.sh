#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Commands find the jobs of `lockstep run` on this machine by themselves: one, several, one by name,
# none, and one whose launcher was killed. Other users cannot read where the jobs are.
. "$(dirname "$0")/run_lib.sh"
unset LOCKSTEP_DASHBOARD
# Jobs of other tests are in /tmp/lockstep-UID: where that is allowed, this test has one of its own.
shared=/tmp/lockstep-$(id -u)
mkdir -p -m 700 "$shared"
if [ -z "${LOCKSTEP_TEST_SHARED:-}" ] && unshare -m true 2>/dev/null; then
    mkdir -m 700 "$work/shared"
    export LOCKSTEP_TEST_SHARED=$work/shared
    unshare -m sh -c 'mount --bind "$1" "$2" && exec bash "$3"' - "$work/shared" "$shared" "$0"
    exit $?
fi
export XDG_RUNTIME_DIR=$work/runtime
mkdir -m 700 "$XDG_RUNTIME_DIR"
registry=$XDG_RUNTIME_DIR/lockstep

# start NAME: a job that lasts until stop; $launcher is its process.
start() {
    "$lockstep" run -n 1 --job "$1" --grace 0 -- sleep 1000 >"$work/$1.log" 2>&1 &
    launcher=$!
    comes "$work/$1.log" "job $1"
}
# run NAME: the same, until its coordinator is found.
run() {
    start "$1"
    for ((i = 0; i < 500; i++)); do
        ! "$lockstep" status --job "$1" >"$work/asked" 2>&1 || return 0
        ! grep -q "no such job" "$work/asked" || return 0 # sleep opens no session, so the job has no name there.
        sleep 0.02
    done
    fail "no answer about job $1: $(cat "$work/asked")"
}
stop() {
    kill "$1"
    wait "$1" 2>/dev/null
}
# ask STATUS TEXT ARGUMENTS...
ask() {
    local wanted=$1 text=$2 code=0
    shift 2
    "$lockstep" "$@" >"$work/answer" 2>&1 || code=$?
    equal "status of $*" "$code" "$wanted"
    has "$work/answer" "$text"
}

ask 1 "no job of lockstep run is on this machine" status
run first
first=$launcher
ask 0 "" status
ask 0 "" stalls
ask 1 "there is no such job" status --job first
equal "mode of the directory" "$(stat -c %a "$registry")" 700
equal "mode of the file" "$(stat -c %a "$registry"/*)" 600
run second
second=$launcher
ask 2 "2 jobs run on this machine: " status
has "$work/answer" "first"
has "$work/answer" "name one with --job"
ask 1 "there is no such job" status --job second
ask 0 ok health --job second
ask 1 "lockstep run has no job 'third' on this machine, but these: " status --job third

# A launcher that is killed leaves a file that no process locks.
kill -KILL "$first"
wait "$first" 2>/dev/null
for ((i = 0; i < 500; i++)); do
    "$lockstep" status >/dev/null 2>&1 && break
    sleep 0.02
done
ask 0 "" status
stop "$second"
ask 1 "no job of lockstep run" status
equal "files that are left" "$(ls -A "$registry")" ""

# A directory into which others can write is not believed.
chmod 777 "$registry"
run third
third=$launcher
ask 1 "there is no such job" status --job third
equal "jobs in it" "$(ls -A "$registry")" ""
# A shell without the variable, or with another one, finds that job, too.
(unset XDG_RUNTIME_DIR && ask 1 "there is no such job" status --job third && [ "$failures" = 0 ]) || fail "no variable"
# Two launchers with one process id each, as in containers that share /tmp.
if [ -n "${LOCKSTEP_TEST_SHARED:-}" ]; then
    for job in inner other; do
        unshare -pf --kill-child --mount-proc "$lockstep" run -n 1 --job $job --grace 0 -- sleep 1000 >"$work/$job.log" 2>&1 &
        pids+=($!)
        comes "$work/$job.log" "job $job"
    done
    ask 0 ok health --job other
    ask 0 ok health --job inner
    kill -KILL "${pids[@]}"
    wait "${pids[@]}" 2>/dev/null
    chmod 777 "$shared"
    start fourth
    comes "$work/fourth.log" "only --http finds this job, not --job: Operation not permitted"
    "$lockstep" status --job fourth >"$work/answer" 2>&1
    has "$work/answer" "no job of lockstep run"
    stop "$launcher"
fi
stop "$third"
nothing_left "jobs that were found"
finish
