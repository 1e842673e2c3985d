#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `lockstep run --survive`: workers that fail do not end the others. The first part has shells as
# workers, the second one trainers of which one is killed.
. "$(dirname "$0")/run_lib.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)

# run WANTED ARGUMENTS...: output goes to $work/out and $work/err.
run() {
    local wanted=$1 code=0
    shift
    "$lockstep" run "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
    [ "$code" = "$wanted" ] || { fail "run $*: status $code, wanted $wanted"; cat "$work/out" "$work/err"; }
}

# lacks FILE TEXT
lacks() {
    ! grep -qF -- "$2" "$1" || { fail "'$2' in:"; sed 's/^/    /' "$1"; }
}

# json FILE EXPRESSION: of the object `run` in the last line.
json() {
    tail -n 1 "$1" | python3 -c "import json, sys; run = json.load(sys.stdin); assert $2, run" ||
        fail "JSON: $2"
}

# ---- The launcher's part ---------------------------------------------------------------------------

# True once the launcher has said that a rank has died.
has_died="grep -q 'ranks\? still run' $work/err"

cat >"$work/one_dies" <<SH
if [ "\$LOCKSTEP_RANK_HINT" = 2 ]; then kill -9 \$\$; fi
until $has_died; do sleep 0.02; done
echo "on_failure \$LOCKSTEP_ON_FAILURE"
SH
run 0 -n 4 --survive=3 --grace 0 --json -- sh "$work/one_dies"
has "$work/err" "lockstep run: rank 2 was killed by signal 9 (SIGKILL) after "
has "$work/err" ", before it joined the job; a world of 4 cannot form without it, and 3 ranks still run"
has "$work/err" "3 other ranks ended with status 0; enough for --survive=3"
has "$work/out" "[3] on_failure continue"
json "$work/out" 'run["exit_code"] == 0 and run["failed_rank"] == 2 and run["failed_signal"] == 9'
json "$work/out" 'run["survive"] == 3 and run["survivors"] == 3'
json "$work/out" '[rank["exit_code"] for rank in run["ranks"]] == [0, 0, None, 0]'

# Below the minimum the others are killed, and the first failure counts.
run 7 -n 4 --survive=3 --grace 100ms -- sh -c "
    case \$LOCKSTEP_RANK_HINT in
    0) exit 7 ;;
    1) until $has_died; do sleep 0.02; done; kill -9 \$\$ ;;
    esac
    exec sleep 60"
has "$work/err" "rank 0 ended with status 7 after "
has "$work/err" ", and 3 ranks still run"
has "$work/err" ", and 2 ranks still run, too few for --survive=3: the end follows in 0.1 s"
has "$work/err" "2 were stopped; not enough for --survive=3"

# All die.
run 137 -n 2 --survive -- sh -c 'kill -9 $$'
has "$work/err" "not enough for --survive=1"

# Ctrl-C after a death: the survivors' end counts, and nobody is in a hurry.
for status in 0 130; do
    : >"$work/err"
    handle='trap "exit 0" INT'
    [ $status = 0 ] || handle=:
    "${hearing[@]}" "$lockstep" run -n 3 --survive=2 -- sh -c "
        $handle
        [ \$LOCKSTEP_RANK_HINT = 1 ] && kill -9 \$\$
        : >$work/trapped.$status.\$LOCKSTEP_RANK_HINT
        while :; do sleep 0.02; done" >"$work/out" 2>"$work/err" &
    launcher=$!
    comes "$work/err" "2 ranks still run"
    wait_for "$work/trapped.$status.0"
    wait_for "$work/trapped.$status.2"
    kill -INT $launcher
    wait $launcher
    equal "status after Ctrl-C" $? $status
    has "$work/err" "the job was stopped by SIGINT after "
    lacks "$work/err" "for --survive"
done

run 2 -n 2 --survive=3 -- true
has "$work/err" "--survive=3: there are only 2 workers"
run 2 -n 2 --survive=0 -- true
has "$work/err" "--survive=0: not a number of workers from 1 to "
LOCKSTEP_ON_FAILURE=error run 0 -n 1 --survive -- sh -c '[ $LOCKSTEP_ON_FAILURE = error ]'

# Several hosts: a rank, and then its whole host, without ssh.
printf '#!/bin/sh\nshift\nexec "$@"\n' >"$work/shell"
chmod +x "$work/shell"
hosts=(--rsh "$work/shell" --hosts localhost:2,localhost:2)
unset SSH_CONNECTION SSH_CLIENT SSH_TTY
# The launcher of several hosts does not know of sessions.
has_died="grep -q 'ranks\? go' $work/err"
cat >"$work/host_dies" <<SH
if [ "\$LOCKSTEP_RANK_HINT" = 3 ]; then exit 5; fi
until $has_died; do sleep 0.02; done
if [ "\$LOCKSTEP_RANK_HINT" = 2 ]; then kill -9 \$PPID; fi
until [ \$(grep -c 'go on' $work/err) = 2 ]; do sleep 0.02; done
echo "on_failure \$LOCKSTEP_ON_FAILURE"
SH
run 0 "${hosts[@]}" --survive=2 --grace 0 --json -- sh "$work/host_dies"
has "$work/err" "lockstep run: rank 3 on localhost ended with status 5 after "
has "$work/err" "; 3 ranks go on"
has "$work/err" "lockstep run: rank 2 on localhost was lost with its host after "
has "$work/out" "[1] on_failure continue"
json "$work/out" 'run["exit_code"] == 0 and run["survivors"] == 2'

# ---- Trainers ------------------------------------------------------------------------------------

cat >"$work/trainer.c" <<'C'
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(9);
    }
}

static void die(const char *where, const char *now)
{
    const char *rank = getenv("LOCKSTEP_RANK_HINT");
    if (strcmp(where, now) == 0 && strcmp(rank, "1") == 0)
        raise(SIGKILL);
}

int main(int argc, char **argv)
{
    float value = 1;
    float gradient = 1;
    const struct lockstep_parameter parameter = {
        .name = "w", .dtype = LOCKSTEP_FLOAT32, .data = &value, .gradient = &gradient};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_session *session;
    lockstep_module *module;
    uint32_t size;
    const char *where = argv[argc - 1];
    die(where, "open");
    check(lockstep_open(NULL, &session));
    config.name = "model";
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_module_register(session, &config, &module));
    die(where, "start");
    check(lockstep_start(session));
    for (int step = 0; step < 6; step++) {
        lockstep_call *call;
        gradient = 1;
        check(lockstep_step_begin(session, NULL, NULL));
        check(lockstep_call_begin(module, &call));
        if (step == 3)
            die(where, "step");
        check(lockstep_grad_ready(module, call, 0, NULL, NULL));
        check(lockstep_call_end(call));
        check(lockstep_step_end(session, NULL));
        if (gradient != 1)
            return 8;
    }
    check(lockstep_world(session, NULL, &size));
    printf("a world of %u\n", (unsigned)size);
    check(lockstep_close(session));
    return 0;
}
C
build_trainer c11

run 0 -n 3 --survive=2 -- "$work/trainer" step
equal "survivors that know of each other" "$(grep -c 'a world of 2' "$work/out")" 2
has "$work/err" "rank 1 was killed by signal 9 (SIGKILL) after "
has "$work/err" "; 2 ranks go on"
has "$work/err" "2 other ranks ended with status 0; enough for --survive=2"

run 0 -n 3 --survive=2 -- "$work/trainer" start
equal "survivors of a death in lockstep_start" "$(grep -c 'a world of 2' "$work/out")" 2

run 0 "${hosts[@]}" --survive=3 -- "$work/trainer" step
equal "survivors on two hosts" "$(grep -c 'a world of 3' "$work/out")" 3

# Trainers that are told not to go on, and a death that nobody survives.
LOCKSTEP_ON_FAILURE=error run 137 -n 3 --survive -- "$work/trainer" step
has "$work/err" "2 other ranks ended with status 9; not enough for --survive=1"
run 137 -n 3 --survive -- "$work/trainer" open
has "$work/err" ", before it joined the job; a world of 3 cannot form without it, and 2 ranks still run"
lacks "$work/err" "go on"
has "$work/err" "2 other ranks ended with status 9; not enough for --survive=1"

nothing_left "surviving"
finish
