# SPDX-License-Identifier: Apache-2.0
# Shared by the tests of `lockstep run`; sourced. Every process that a test starts carries MARK in
# its environment, so that a process that is left behind can be found whatever its parent is by
# then.

set -uo pipefail
lockstep=${LOCKSTEP_TEST_BIN:-build/bin}/lockstep
# A shell starts its background jobs deaf to SIGINT and SIGQUIT.
hearing=(env --default-signal=INT,QUIT)
slow=${LOCKSTEP_TEST_SLOW:-1}
# As test_bound_ms: there others may have the processors for a while.
[ "${CI:-}" != true ] || [ "$slow" -ge 5 ] || slow=5
export LOCKSTEP_TEST_MARK=mark-$$-$RANDOM$RANDOM
work=$(mktemp -d)
failures=0
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# equal WHAT GOT WANTED
equal() {
    [ "$2" = "$3" ] || fail "$1: got '$2', wanted '$3'"
}

# has FILE TEXT
has() {
    grep -qF -- "$2" "$1" || { fail "no '$2' in:"; sed 's/^/    /' "$1"; }
}

# comes FILE TEXT: until it is there; who writes the file may say it late.
comes() {
    local i
    for ((i = 0; i < 1000 * slow; i++)); do
        ! grep -qsF -- "$2" "$1" || return 0
        sleep 0.02
    done
    has "$1" "$2"
}

# within MS FROM WHAT: FROM is now_ms at the start.
within() {
    local took=$(($(now_ms) - $2))
    [ "$took" -le $(($1 * slow)) ] || fail "$3 took $took ms, bound $(($1 * slow)) ms"
}

now_ms() {
    local now=${EPOCHREALTIME/[.,]/}
    echo $((now / 1000))
}

# The processes that carry the mark, but for this script and what it is running.
marked() {
    local file pid
    for file in $(grep -slz "^LOCKSTEP_TEST_MARK=$LOCKSTEP_TEST_MARK$" /proc/[0-9]*/environ); do
        pid=${file#/proc/}
        pid=${pid%/environ}
        [ "$pid" = $$ ] || [ "$(ps -o ppid= -p "$pid" | tr -d ' ')" = $$ ] ||
            [ "$pid" = "$BASHPID" ] || ps -o pid=,ppid=,stat=,args= -p "$pid"
    done
}

# rank_pid RANK: the process of a rank that `lockstep run` or `bench` has started.
rank_pid() {
    local file
    for file in $(grep -slz "^LOCKSTEP_TEST_MARK=$LOCKSTEP_TEST_MARK$" /proc/[0-9]*/environ); do
        grep -qsz "^LOCKSTEP_RANK_HINT=$1$" "$file" && basename "$(dirname "$file")"
    done
}

# nothing_left WHAT: within two seconds no marked process remains.
nothing_left() {
    local i
    for ((i = 0; i < 40 * slow; i++)); do
        [ -n "$(marked)" ] || return 0
        sleep 0.05
    done
    fail "$1 left behind:"
    marked
}

# wait_for FILE: until a worker has made it.
wait_for() {
    local i
    for ((i = 0; i < 1000 * slow; i++)); do
        [ -e "$1" ] && return 0
        sleep 0.02
    done
    fail "$1 never appeared"
}

# build_trainer STANDARD: $work/trainer.c, with the library and the sanitizer of this run.
build_trainer() {
    local sanitize=()
    [ -z "${LOCKSTEP_TEST_SANITIZER:-}" ] || sanitize=(-fsanitize="$LOCKSTEP_TEST_SANITIZER")
    "${CC:-cc}" -std="$1" -O1 "${sanitize[@]}" -I"$root/include" "$work/trainer.c" \
        -o "$work/trainer" -L"$LOCKSTEP_TEST_LIB" -llockstep -Wl,-rpath,"$LOCKSTEP_TEST_LIB" ||
        { fail "no trainer"; finish; }
}

finish() {
    [ "$failures" -eq 0 ] && exit 0
    echo "$failures checks failed"
    exit 1
}
