#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tool's output for answers of a coordinator: `status`, `stalls`, `stacks`. The answers are the
# files of cli/api, in the form of docs/http.md; what is printed is compared with the files of cli/.
# UPDATE=1 rewrites these.
set -uo pipefail
lockstep=$(realpath "${LOCKSTEP_TEST_BIN:-build/bin}")/lockstep
here=$(dirname "$0")
golden=$here/cli
work=$(mktemp -d)
failures=0
"$here/cli_server.py" "$golden/api" "$work/port" &
server=$!
trap 'kill "$server"; rm -rf "$work"' EXIT
until [ -s "$work/port" ]; do
    kill -0 "$server" || exit 1
    sleep 0.02
done
read -r port <"$work/port"
export LOCKSTEP_DASHBOARD=http://127.0.0.1:$port/

fail() {
    echo "FAILED: $*"
    failures=1
}

# check NAME STATUS ARGUMENTS...
check() {
    local name=$1 wanted=$2 code=0 got
    shift 2
    got=$("$lockstep" "$@" 2>&1) || code=$?
    got=${got//127.0.0.1:$port/HTTP}
    [ -z "${UPDATE:-}" ] || printf '%s\n' "$got" >"$golden/$name.txt"
    [ "$code" = "$wanted" ] || fail "$*: status $code, wanted $wanted"
    diff -u "$golden/$name.txt" - <<<"$got" || failures=1
}

check status 0 status
check status_job 0 status --job mnist
check status_no_job 1 status --job nobody
check status_dots 2 status --job ..
check certs_dots 2 certs issue --job . worker
check stalls 3 stalls
check stalls_over 0 stalls --job calm
check stacks 0 stacks 3
check stacks_fresh 1 stacks 3 --job mnist --fresh
check stacks_young 0 stacks 3 --job young --fresh
check stacks_young 0 stacks 3 --job young
check stacks_no_token 1 stacks 3 --job secret
echo correct-horse >"$work/token"
check stacks 0 stacks 3 --job secret --token "$work/token"
check stacks_token_file 2 stacks 3 --token /dev/null
check stacks_nobody 2 stacks
check stacks_rank 2 stacks 3x
check stalls_watch_never 2 stalls --watch=0

check health_live 0 health --live
check health_page 1 health
check health_page_json 1 health --json
check status_page 1 status --job page --json
check stalls_page 1 stalls --job page --json
check stacks_page 1 stacks 3 --job page --json

# JSON is what the coordinator said, in one line.
for question in stalls "status --job mnist" "stacks 3"; do
    # shellcheck disable=SC2086
    "$lockstep" $question --json >"$work/json"
    [ "$(wc -l <"$work/json")" = 1 ] || fail "$question --json is not one line"
    python3 -m json.tool <"$work/json" >/dev/null || fail "$question --json is no JSON"
done

# Output that cannot be written is a failure, and a sentence says why, once.
if [ -c /dev/full ]; then
    for question in "stalls --json" "stalls --watch=0.1" "status --job mnist" "stacks 3 --json" "stalls --job large --json" \
        "doctor --json" "doctor" --help "run --help" --version; do
        # shellcheck disable=SC2086
        "$lockstep" $question >/dev/full 2>"$work/err"
        [ $? = 1 ] || fail "$question on a full disk did not end with 1"
        [ "$(grep -c "cannot write to standard output" "$work/err")" = 1 ] ||
            fail "$question on a full disk: $(cat "$work/err")"
    done
fi

# Not a terminal: pictures follow each other, and SIGINT is no failure.
env --default-signal=INT "$lockstep" stalls --watch=0.1 --json >"$work/lines" &
watcher=$!
until [ "$(wc -l <"$work/lines")" -ge 2 ]; do
    kill -0 "$watcher" || exit 1
    sleep 0.02
done
kill -INT "$watcher"
wait "$watcher" || fail "SIGINT: status $?"
[ "$(sort -u "$work/lines" | wc -l)" = 1 ] || fail "lines of --watch --json differ"

# With --json a failed question is a sentence on stderr, and stdout has objects only.
env --default-signal=INT "$lockstep" stalls --job changing --watch=0.1 --json >"$work/lines" 2>"$work/err" &
watcher=$!
until [ "$(wc -l <"$work/lines")" -ge 3 ]; do
    kill -0 "$watcher" || exit 1
    sleep 0.02
done
kill -INT "$watcher"
wait "$watcher" || fail "SIGINT: status $?"
grep -v '^{.*}$' "$work/lines" && fail "--watch --json writes lines that are no objects"
grep -q "the coordinator is busy" "$work/err" || fail "a failed question, on stderr: $(cat "$work/err")"

# Colours and a picture that stays in its place, on a terminal only; also after a failed question.
python3 "$here/cli_terminal.py" "$lockstep" stalls --job moving --watch=0.1 || fail "a terminal"

# Nobody there: a watcher that has never seen anything does not wait for it.
check status_refused 1 status --watch --http 127.0.0.1:1
# Nobody named an address, and none answers at the usual one.
LOCKSTEP_DASHBOARD=nowhere "$lockstep" status 2>"$work/err" && fail "LOCKSTEP_DASHBOARD=nowhere"
grep -q "LOCKSTEP_DASHBOARD=nowhere: not HOST:PORT" "$work/err" ||
    fail "a wrong LOCKSTEP_DASHBOARD"
unset LOCKSTEP_DASHBOARD
export XDG_RUNTIME_DIR=$work # No job of another test is here.
[ -n "$(ls -A "/tmp/lockstep-$(id -u)" 2>/dev/null)" ] || (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null || check status_nowhere 1 status
exit "$failures"
